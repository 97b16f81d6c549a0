"""The version of SSEBench, in one place: the daemon serves it, the SDK compares it."""

__version__ = "0.1.0"
