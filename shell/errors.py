"""The one root of every error that means "we failed".

A command, script or check that ran and failed is a result, never one of these.
Messages are read by people: what was found, what was expected, what to do.
"""


class SSEBenchError(Exception):
    """Something of ours did not work. ``str(error)`` is fit for an answer: it names no path of our own code."""


class AccountError(SSEBenchError):
    """A user is missing, privileged, or could not be become."""


class CommandError(SSEBenchError):
    """A program could not be started or its streams not be read; nothing is known about its result."""


class ProcessesLeftError(SSEBenchError):
    """Processes of a user outlived every attempt to end them: ``pids``; with none, there was no way to be sure."""

    def __init__(self, user: str, pids: list[int]) -> None:
        self.pids = pids
        named = " ".join(map(str, pids)) or "none was seen, but no process could be made that signals all of them"
        super().__init__(f"processes of {user} could not be ended: {named}")


class InvalidArgumentError(SSEBenchError):
    """An action's argument is not acceptable; the message goes behind ``invalid argument: ``."""
