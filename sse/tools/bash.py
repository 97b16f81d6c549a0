"""The daemon's shell: one bash in the source tree that keeps its state between commands."""

from __future__ import annotations

from sse.daemon import current
from sse.helper import ScriptResult, script_result


def execute(command: str, timeout: float | None = None) -> ScriptResult:
    """Run ``command`` in the persistent shell and wait for its end.

    The directory, variables, functions and jobs stay for the next command. After ``timeout`` seconds (at most the
    daemon's own limit, which holds without it) the code is 124, with the output so far. SDKError after the agent phase.
    """
    argument: dict[str, object] = {"command": command}
    if timeout is not None:
        argument["timeout"] = timeout
    return script_result(current().tool("bash", "execute", argument))
