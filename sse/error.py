"""The one exception of the SDK."""

from __future__ import annotations


class SDKError(Exception):
    """The daemon refused, failed, or cannot be reached.

    ``message`` is the daemon's own where it sent one. ``status`` is the HTTP status, None when no answer came.
    A script that ran and failed is no error but a ScriptResult.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
