"""What a tool's action gives back."""

from __future__ import annotations

from dataclasses import dataclass

from sse.error import SDKError


@dataclass(frozen=True)
class ScriptResult:
    """A command or script that ran: its exit code and what it printed. -1 stands for a run without a build."""

    code: int
    stdout: str
    stderr: str

    def is_success(self) -> bool:
        """Whether it ended with code 0."""
        return self.code == 0

    def output(self) -> str:
        """Both streams as one text, standard output first."""
        return "\n".join(part.rstrip("\n") for part in (self.stdout, self.stderr) if part.strip())


def script_result(body: dict[str, object]) -> ScriptResult:
    """The result in a tool's answer; SDKError when the answer has not that shape."""
    code, stdout, stderr = body.get("code"), body.get("stdout"), body.get("stderr")
    if not isinstance(code, int) or not isinstance(stdout, str) or not isinstance(stderr, str):
        raise SDKError(f"expected code, stdout and stderr in the daemon's answer, found {sorted(body)}")
    return ScriptResult(code, stdout, stderr)
