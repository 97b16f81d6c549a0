"""The task of this container, for an agent: what it is and the checks that may be run on it.

``metadata``, ``capabilities``, ``source`` and ``all_poc`` are asked of the daemon when they are first named, also by
``from sse.project import metadata``, and kept.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sse.daemon import current
from sse.helper import ScriptResult
from sse.metadata import Capabilities, Metadata, parse_capabilities, parse_metadata
from sse.tools import bencher

metadata: Metadata
capabilities: Capabilities
source: Path
all_poc: list[Path]

__all__ = [
    "all_poc",
    "build",
    "capabilities",
    "function_test",
    "init_capabilities",
    "init_metadata",
    "intent_test",
    "metadata",
    "run_poc",
    "source",
]


def init_metadata() -> Metadata:
    """Ask the daemon for the metadata anew."""
    return parse_metadata(current().project())


def init_capabilities() -> Capabilities:
    """Ask the daemon for the capabilities anew."""
    return parse_capabilities(current().capabilities())


def build() -> ScriptResult:
    """Build a copy of the source tree; ``run_poc`` then uses it."""
    return bencher.build()


def run_poc(poc: str | os.PathLike[str]) -> ScriptResult:
    """Run one of ``all_poc`` against the last build; code 0 means that the vulnerability no longer shows."""
    return bencher.run_poc(poc)


def function_test() -> ScriptResult:
    """Run the project's tests on a copy of the source tree."""
    return bencher.function_test()


def intent_test() -> ScriptResult:
    """Run the project's tests with the hidden ones on a copy of the source tree."""
    return bencher.intent_test()


def __getattr__(name: str) -> Any:
    if name == "metadata":
        value: Any = init_metadata()
    elif name == "capabilities":
        value = init_capabilities()
    elif name == "source":
        value = _known("metadata").source
    elif name == "all_poc":
        value = list(_known("metadata").poc)
    else:
        raise AttributeError(f"module 'sse.project' has no attribute {name!r}")
    globals()[name] = value
    return value


def _known(name: str) -> Any:
    return globals()[name] if name in globals() else __getattr__(name)
