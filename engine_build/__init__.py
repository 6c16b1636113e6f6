"""What is done to a checkpoint before an engine serves it.

Rule: tools that run once, from the command line (`python -m engine_build`); the server imports none
of them. Of `orpheus_ws` they use the constants in `tokens`, the manifest, what the engines themselves
ask of a checkpoint, and the errors; `quantize` also lets the reference engine speak.
"""
