"""The SDK for code in the agent's process: talks HTTP to the daemon, imports nothing of it.

Importing any module contacts nobody; the daemon is asked on first use, and by naming what needs an answer, such as
``sse.project.metadata``. Errors of the daemon are ``sse.error.SDKError``; a check that ran and failed is a result.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from sse.version import __version__

_MODULES = ("daemon", "dialog", "error", "grading", "helper", "metadata", "project", "prompt", "reference", "tools")
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> ModuleType:
    """``sse.project`` and its siblings after a plain ``import sse``, loaded when they are first named."""
    if name in _MODULES:
        return importlib.import_module(f"sse.{name}")
    raise AttributeError(f"module 'sse' has no attribute {name!r}")
