"""The conformance cases: commands in, code, stdout and stderr out, as data in the YAML files beside this module.

A case has a ``name`` and either ``steps`` or is a single step itself. A step:

- ``run``: the command. ``timeout``: the request's own limit in seconds. ``pause_s``: wait before it.
- ``code``: the exit code or a list of allowed ones; 0 when left out.
- ``stdout``, ``stderr``: exact; empty when left out. ``stdout_like``, ``stderr_like``: a regular expression.
- ``timed_out``, ``restarted``: stderr ends with that line of the daemon's ("maybe": it may).
- ``within_s``: the answer must come within so many seconds.

Long text is ``{start, repeat, times, end}``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shell.session import RESTARTED

_FOLDER = Path(__file__).parent
_KEYS = {
    *("run", "timeout", "pause_s", "code", "stdout", "stderr", "stdout_like", "stderr_like"),
    *("timed_out", "restarted", "within_s"),
}


@dataclass(frozen=True)
class Step:
    """One command and what must come back."""

    run: str
    codes: tuple[int, ...]
    stdout: str | None
    stderr: str | None
    stdout_like: str | None
    stderr_like: str | None
    timeout_s: float | None
    pause_s: float
    within_s: float
    timed_out: bool
    restarted: bool | None

    def complaints(self, answer: dict[str, Any], seconds: float) -> list[str]:
        """How the answer differs from what is expected; empty when it does not."""
        stderr, notes = self._without_notes(answer["stderr"])
        found = [f"code {answer['code']}, not {self.codes}"] if answer["code"] not in self.codes else []
        found += notes
        found += _differs("stdout", answer["stdout"], self.stdout, self.stdout_like)
        found += _differs("stderr", stderr, self.stderr, self.stderr_like)
        if seconds > self.within_s:
            found.append(f"took {seconds:.2f} s, not {self.within_s} s")
        return found

    def _without_notes(self, stderr: str) -> tuple[str, list[str]]:
        """stderr without the daemon's own last lines, and complaints about those."""
        found = []
        line = RESTARTED.decode()
        if self.restarted is not False and stderr.endswith(line):
            stderr = stderr.removesuffix(line)
        elif self.restarted:
            found.append("stderr does not say that the shell was restarted")
        if self.timed_out:
            line = f"ssebench: the command was stopped at its time limit of {self.timeout_s:g} seconds\n"
            if not stderr.endswith(line):
                found.append("stderr does not name the time limit")
            stderr = stderr.removesuffix(line)
        if self.stderr is not None and (self.restarted or self.timed_out) and not self.stderr.endswith("\n"):
            stderr = stderr.removesuffix("\n")
        return stderr, found


@dataclass(frozen=True)
class Case:
    """Commands for one fresh shell."""

    name: str
    file: str
    steps: tuple[Step, ...]


def load_cases() -> list[Case]:
    """Every case of every file."""
    return [_case(entry, path.stem) for path in sorted(_FOLDER.glob("*.yaml")) for entry in _read(path)]


def _read(path: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = yaml.safe_load(path.read_text("utf-8"))
    return entries


def _case(entry: dict[str, Any], file: str) -> Case:
    name = entry.pop("name")
    return Case(name, file, tuple(_step(step, name) for step in entry.get("steps", [entry])))


def _step(entry: dict[str, Any], name: str) -> Step:
    assert set(entry) <= _KEYS, f"{name}: unknown keys {set(entry) - _KEYS}"
    codes = entry.get("code", 0)
    restarted = entry.get("restarted", False)
    exact = {
        stream: None if f"{stream}_like" in entry else _text(entry.get(stream, "")) for stream in ("stdout", "stderr")
    }
    return Step(
        run=_text(entry["run"]),
        codes=tuple(codes) if isinstance(codes, list) else (codes,),
        stdout=exact["stdout"],
        stderr=exact["stderr"],
        stdout_like=entry.get("stdout_like"),
        stderr_like=entry.get("stderr_like"),
        timeout_s=entry.get("timeout"),
        pause_s=entry.get("pause_s", 0.0),
        within_s=entry.get("within_s", 30.0),
        timed_out=entry.get("timed_out", False),
        restarted=None if restarted == "maybe" else restarted,
    )


def _text(value: str | dict[str, Any]) -> str:
    if isinstance(value, str):
        return value
    return str(value.get("start", "") + value["repeat"] * value["times"] + value.get("end", ""))


def _differs(stream: str, found: str, exact: str | None, like: str | None) -> list[str]:
    if exact is not None and found != exact:
        return [f"{stream} {_short(found)}, not {_short(exact)}"]
    if like is not None and not re.search(like, found):
        return [f"{stream} {_short(found)} does not match {like!r}"]
    return []


def _short(text: str) -> str:
    return repr(text) if len(text) < 600 else f"{text[:200]!r}...{text[-200:]!r} ({len(text)} characters)"
