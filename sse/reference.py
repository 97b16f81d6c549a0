"""The answer to the task, for tooling that runs after the agent. Only the admin socket serves it."""

from __future__ import annotations

import os

from sse.daemon import Daemon
from sse.error import SDKError


def get_reference_patch() -> str:
    """The upstream fix as a unified diff; empty when the task has none.

    Asks the socket in SSE_ADMIN_SOCKET, else the one the SDK uses; SDKError when that is not the admin socket.
    """
    diff = Daemon(os.environ.get("SSE_ADMIN_SOCKET") or None).get("/reference/patch").get("diff")
    if not isinstance(diff, str):
        raise SDKError("expected a diff in the daemon's answer to GET /reference/patch")
    return diff
