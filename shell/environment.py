"""The environment that the agent's shell starts with."""

from __future__ import annotations

from collections.abc import Mapping

from shell.accounts import Account

# Nobody sits at the terminal: no pager, no editor, no question may wait for a person.
_UNATTENDED = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "EDITOR": "true",
    "DEBIAN_FRONTEND": "noninteractive",
}
# The evaluator's settings come without the prefix; the agent has no business with them either.
_EVALUATOR = frozenset({"TIMEOUT", "AGENT_DURATION"})


def shell_environment(
    account: Account,
    base: Mapping[str, str],
    *,
    daemon_socket: str | None = None,
    archive: str | None = None,
    difficulty: int | None = None,
) -> dict[str, str]:
    """``base`` (the image's environment) as ``account`` gets it; of the SSE_* variables only the three given here.

    ``daemon_socket`` is the agent-facing socket. What is None is not set.
    """
    kept = {name: value for name, value in base.items() if not name.startswith("SSE_") and name not in _EVALUATOR}
    person = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": "/bin/bash"}
    given = {"SSE_DAEMON_SOCKET": daemon_socket, "SSE_ARCHIVE": archive, "SSE_DIFFICULTY": difficulty}
    ours = {name: str(value) for name, value in given.items() if value is not None}
    return kept | person | _UNATTENDED | ours
