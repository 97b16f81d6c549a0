"""The one place that decides who may do what: listener kind x phase x difficulty.

Runs as: root, before any work on a request is done.
Distrusts: everything a client sends; the kind of the listener comes from the socket alone.
Promises: a route without a rule serves nobody; admin routes answer on the admin socket only; tools answer agents during
  the agent phase only, at the levels of the table, and never with ``grading: true``.
Does not promise: to know who is behind the agent-facing listeners; whoever reaches them counts as the agent.
Checked by: tests/unit/daemon/test_access.py, tests/system/test_http_contract.py.
"""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass
from typing import Protocol

from daemon.errors import RefusedError


class Kind(enum.Enum):
    """The kind of a listener. Only the admin socket is privileged."""

    AGENT = "agent"
    HTTP = "http"
    ADMIN = "admin"


class Rule(enum.Enum):
    """What a route declares about itself."""

    ANY = "any"
    ADMIN = "admin"
    TOOL = "tool"


# The highest difficulty level at which an agent may run the action; bash is not in the table: it is never gated.
HIGHEST_LEVEL = {"build": 3, "function_test": 2, "run_poc": 1, "intent_test": 0}


class Phase(Protocol):
    """What access needs to know about the agent phase."""

    @property
    def ended(self) -> bool:
        """Whether the agent phase is over."""


@dataclass(frozen=True, slots=True)
class Access:
    """The decisions for one run."""

    difficulty: int
    phase: Phase

    def check_route(self, rule: Rule | None, kind: Kind) -> None:
        """RefusedError unless a route with ``rule`` serves requests of ``kind`` now."""
        if kind is Kind.ADMIN and rule is not None:
            return
        if rule is Rule.ANY:
            return
        if rule is Rule.TOOL:
            self.check_phase(kind)
            return
        raise RefusedError("this endpoint is served on the admin socket only")

    def check_phase(self, kind: Kind) -> None:
        """RefusedError when ``kind`` faces the agent and its phase is over. Asked again once an action has its turn."""
        if kind is not Kind.ADMIN and self.phase.ended:
            raise RefusedError("the agent phase has ended: tools are no longer served here")

    def check_action(self, action: str, kind: Kind) -> None:
        """RefusedError when the level withholds the bencher action ``action`` from ``kind``."""
        if kind is not Kind.ADMIN and self.difficulty > HIGHEST_LEVEL[action]:
            raise RefusedError(f"{action} is not available at difficulty level {self.difficulty}")

    def check_grading(self, argument: object, kind: Kind) -> None:
        """RefusedError when an agent asks for the graded copy. Anything but true is left to the schema."""
        if kind is not Kind.ADMIN and isinstance(argument, dict) and argument.get("grading") is True:
            raise RefusedError("grading: true is served on the admin socket only")


def check_origin(origin: str | None, host: str | None, kind: Kind) -> None:
    """RefusedError when a browser sent this from a page that is not the daemon's own.

    Browsers add ``Origin`` to every cross-site POST. Equality with Host alone is not enough on TCP: a page whose own
    name was pointed at this address sends both alike (DNS rebinding), and such a name has a dot.
    """
    if origin is None:
        return
    scheme, _, authority = origin.partition("://")
    if not host or scheme not in ("http", "https") or _authority(authority, scheme) != _authority(host, scheme):
        raise RefusedError("the request's Origin is not its Host")
    if kind is Kind.HTTP and not _is_local_name(_authority(host, scheme)[0]):
        raise RefusedError("the request's Host is a public name; use the daemon's address or a local name")


def _authority(text: str, scheme: str) -> tuple[str, str]:
    name, colon, port = text.lower().rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        name, port = text.lower(), ""
    return name, port or ("443" if scheme == "https" else "80")


def _is_local_name(name: str) -> bool:
    if "." not in name and "[" not in name:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.endswith((".localhost", ".local", ".internal"))
    return True
