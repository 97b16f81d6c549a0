"""The daemon's two tools: ``bencher`` for the checks, ``bash`` for commands."""

from sse.tools import bash, bencher

__all__ = ["bash", "bencher"]
