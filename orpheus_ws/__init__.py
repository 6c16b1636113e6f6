"""Real-time Orpheus speech over WebSockets."""

__version__ = "0.1.0"
