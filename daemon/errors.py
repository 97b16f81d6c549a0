"""Errors with an HTTP status of their own. Every other SSEBenchError is a 500, see daemon.app."""

from __future__ import annotations

from shell.errors import SSEBenchError


class StartError(SSEBenchError):
    """The daemon cannot start. ``problems`` are lines for the operator, each naming subject, value and remedy."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class RequestError(SSEBenchError):
    """A request that is answered with ``status`` and this message."""

    status = 500


class BadRequestError(RequestError):
    """What was sent is not a well-formed request."""

    status = 400


class RefusedError(RequestError):
    """The request is understood and not allowed on this listener, in this phase, or at this level."""

    status = 403


class RequestTimeoutError(RequestError):
    """The client did not finish its request in time."""

    status = 408


class TooLargeError(RequestError):
    """The body is larger than any action needs."""

    status = 413


class TargetTooLongError(RequestError):
    """The request line is longer than any path of the API."""

    status = 414


class HeadTooLargeError(RequestError):
    """The header fields are larger than any client of the API sends."""

    status = 431


class VersionError(RequestError):
    """Neither HTTP/1.0 nor HTTP/1.1."""

    status = 505


class WithdrawnError(SSEBenchError):
    """The client went away, or the daemon stops: nobody waits for the answer any more."""
