"""Patches the standard library for gevent. Import this module, and call it, before anything else is imported."""

from __future__ import annotations

import os

from gevent import monkey


def patch() -> None:
    """Make blocking calls cooperative; safe to call twice."""
    monkey.patch_all()
    # gevent defers os.close to its hub. ptyprocess closes the write end of a pipe and then reads the other end
    # blocking: with the deferred close that read never ends, and no bash ever starts. Descriptors here are closed
    # only by whoever owns them, so the original is safe.
    os.close = monkey.get_original("os", "close")
