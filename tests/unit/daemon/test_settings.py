"""Settings are declared once, parse strictly and fail closed."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from daemon.errors import StartError
from daemon.settings import Settings, declared, read_settings

ROOT = Path(__file__).resolve().parents[3]


def test_defaults_are_those_of_the_table() -> None:
    settings = read_settings({})
    assert settings.difficulty == 2
    assert settings.daemon_socket is None
    assert settings.http_port == 4263
    assert settings.bash_timeout == 600
    assert settings.output_limit == 16777216
    assert not settings.allow_history


def test_the_fields_are_the_declared_settings_of_the_daemon() -> None:
    wanted = {setting.field for setting in declared() if setting.reader == "daemon"}
    assert {field.name for field in fields(Settings)} == wanted


@pytest.mark.parametrize(
    "text",
    ["", " 2", "2 ", "5", "-1", "+1", "1.0", "0_0", "٠", "２", "0x1", "two", "1e0", "2\n", "true"],  # noqa: RUF001
)
def test_an_invalid_difficulty_stops_the_start(text: str) -> None:
    with pytest.raises(StartError, match="SSE_DIFFICULTY"):
        read_settings({"SSE_DIFFICULTY": text})


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SSE_HTTP_PORT", "65536"),
        ("SSE_HTTP_PORT", "http"),
        ("SSE_HTTP_HOST", ""),
        ("SSE_HTTP_HOST", "a b"),
        ("SSE_DAEMON_SOCKET", "relative.sock"),
        ("SSE_ADMIN_SOCKET", "/" + "x" * 107),
        ("SSE_RESULTS", ""),
        ("SSE_RESULTS", "/"),
        ("SSE_ARCHIVE", "archive"),
        ("SSE_AGENT_USER", ""),
        ("SSE_AGENT_USER", "a:b"),
        ("SSE_BASH_TIMEOUT", "-5"),
        ("SSE_BASH_TIMEOUT", "1_0"),
        ("SSE_BASH_TIMEOUT", "9" * 30),
        ("SSE_OUTPUT_LIMIT", "0"),
        ("SSE_ALLOW_HISTORY", "yes"),
    ],
)
def test_a_value_that_does_not_parse_is_named_with_what_was_expected(variable: str, text: str) -> None:
    with pytest.raises(StartError, match=rf"{variable}=.* is not valid: expected"):
        read_settings({variable: text})


def test_every_problem_is_listed_at_once() -> None:
    with pytest.raises(StartError) as error:
        read_settings({"SSE_DIFFICULTY": "9", "SSE_HTTP_PORT": "x", "SSE_OUTPUT_LIMIT": "0"})
    assert len(error.value.problems) == 3


def test_both_sockets_on_one_path_are_a_contradiction() -> None:
    with pytest.raises(StartError, match="both"):
        read_settings({"SSE_DAEMON_SOCKET": "/run/a.sock", "SSE_ADMIN_SOCKET": "/run//a.sock"})


def test_an_empty_socket_path_is_an_unset_one() -> None:
    assert read_settings({"SSE_ADMIN_SOCKET": ""}).admin_socket is None


def test_the_code_reads_no_variable_that_the_table_lacks() -> None:
    known = {setting.variable for setting in declared()}
    for folder in ("daemon", "grading", "tasks", "shell", "sse", "conf"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".rc", ".yaml") and path.name != "openapi.yaml":
                names = set(re.findall(r"\bSSE_[A-Z][A-Z_]*[A-Z]\b", path.read_text("utf-8")))
                assert names <= known, path
