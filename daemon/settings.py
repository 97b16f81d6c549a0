"""conf/daemon.yaml and the environment become Settings; a value that does not parse stops the start.

Promises: fails closed. An invalid value never falls back to a default, a number is ASCII digits and nothing else, and
  every problem of the environment is listed at once.
Checked by: tests/unit/daemon/test_settings.py.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any

import yaml

from daemon.errors import StartError

_NUMBER = re.compile(r"[0-9]{1,12}")
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}", re.IGNORECASE)
_HOST = re.compile(r"[0-9A-Za-z.:_-]{1,253}")
_SOCKET_PATH_BYTES = 107  # sun_path of the kernel, without the final NUL
_MAX_SECONDS = 10**9
_MAX_BYTES = 2**31


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    variable: str
    type: str
    default: Any
    reader: str
    meaning: str

    @property
    def field(self) -> str:
        """The name of its field in Settings."""
        return self.variable.removeprefix("SSE_").lower()


@dataclass(frozen=True, slots=True)
class Settings:
    """What the daemon was told. Times in seconds, 0 meaning no limit; sizes in bytes; paths absolute."""

    daemon_socket: str | None
    admin_socket: str | None
    http_host: str
    http_port: int
    bench_path: str
    repo_path: str
    results: str
    archive: str
    difficulty: int
    agent_user: str
    runner_user: str
    runner_dir: str
    bash_timeout: int
    script_timeout: int
    output_limit: int
    allow_history: bool

    @property
    def state_path(self) -> str:
        """The root-only state directory beside the results."""
        return f"{self.results}.state"


@functools.cache
def declared() -> tuple[Setting, ...]:
    """The rows of conf/daemon.yaml."""
    return tuple(Setting(**row) for row in yaml.safe_load(resources.files("conf").joinpath("daemon.yaml").read_text()))


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The daemon's settings; StartError with one line per problem."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for setting in declared():
        if setting.reader != "daemon":
            continue
        try:
            values[setting.field] = _value(setting, environment.get(setting.variable))
        except ValueError as error:
            found = environment[setting.variable]
            default = "to leave it unset" if setting.default is None or setting.default is False else setting.default
            problems.append(f"{setting.variable}={found!r} is not valid: {error}; the default is {default}")
    if not problems:
        problems = _contradictions(values)
    if problems:
        raise StartError(*problems)
    return Settings(**{field.name: values[field.name] for field in fields(Settings)})


def _value(setting: Setting, text: str | None) -> Any:
    return setting.default if text is None else _PARSERS[setting.type](text)


def _contradictions(values: Mapping[str, Any]) -> list[str]:
    agent, admin = values["daemon_socket"], values["admin_socket"]
    if agent is not None and agent == admin:
        return [f"SSE_DAEMON_SOCKET and SSE_ADMIN_SOCKET are both {agent}: give each a path of its own"]
    return []


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
            raise ValueError(f"expected a number from {low} to {high} in ASCII digits")
        return int(text)

    return parse


def _path(text: str) -> str:
    if not text.startswith("/") or "\0" in text or os.path.normpath(text) == "/":
        raise ValueError("expected an absolute path below /")
    return os.path.normpath(text)


def _socket(text: str) -> str | None:
    if not text:
        return None
    path = _path(text)
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        raise ValueError(f"expected a path of at most {_SOCKET_PATH_BYTES} bytes")
    return path


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"expected {what}")
        return text

    return parse


def _switch(text: str) -> bool:
    if text not in ("", "0", "1"):
        raise ValueError("expected 1, 0 or nothing")
    return text == "1"


_PARSERS: dict[str, Callable[[str], Any]] = {
    "path": _path,
    "socket": _socket,
    "host": _matching(_HOST, "an address or a host name"),
    "port": _number(0, 65535),
    "user": _matching(_USER, "the name of a system user"),
    "level": _number(0, 4),
    "seconds": _number(0, _MAX_SECONDS),
    "bytes": _number(1, _MAX_BYTES),
    "switch": _switch,
}
