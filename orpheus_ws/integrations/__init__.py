"""Our voice as a part of other people's frameworks, over the native protocol.

Rule: one module per framework, on the client alone. The framework is an extra and is imported with the
module; without it the import says which extra to install.
"""
