"""Who may do what: every listener kind, phase and level."""

from __future__ import annotations

import itertools

import pytest

from daemon.access import HIGHEST_LEVEL, Access, Kind, Rule, check_origin
from daemon.errors import RefusedError
from tests.unit.daemon.fakes import FakePhase

AGENT_KINDS = [Kind.AGENT, Kind.HTTP]
# The specification's table: level to the actions that run.
TABLE = {
    0: {"build", "function_test", "run_poc", "intent_test"},
    1: {"build", "function_test", "run_poc"},
    2: {"build", "function_test"},
    3: {"build"},
    4: set(),
}


@pytest.mark.parametrize(("level", "action", "kind"), list(itertools.product(TABLE, HIGHEST_LEVEL, Kind)))
def test_the_difficulty_gate_is_the_table(level: int, action: str, kind: Kind) -> None:
    access = Access(level, FakePhase())
    if kind is Kind.ADMIN or action in TABLE[level]:
        access.check_action(action, kind)
    else:
        with pytest.raises(RefusedError, match=f"{action} is not available at difficulty level {level}"):
            access.check_action(action, kind)


@pytest.mark.parametrize("kind", AGENT_KINDS)
@pytest.mark.parametrize("ended", [False, True])
def test_admin_routes_are_refused_to_agents_at_all_times(kind: Kind, ended: bool) -> None:
    with pytest.raises(RefusedError, match="admin socket"):
        Access(0, FakePhase(ended)).check_route(Rule.ADMIN, kind)


@pytest.mark.parametrize("kind", AGENT_KINDS)
def test_tools_are_served_to_agents_until_the_phase_ends(kind: Kind) -> None:
    phase = FakePhase()
    access = Access(0, phase)
    access.check_route(Rule.TOOL, kind)
    phase.end()
    with pytest.raises(RefusedError, match="phase"):
        access.check_route(Rule.TOOL, kind)


@pytest.mark.parametrize(("rule", "ended"), list(itertools.product(Rule, [False, True])))
def test_the_admin_socket_is_never_gated(rule: Rule, ended: bool) -> None:
    Access(4, FakePhase(ended)).check_route(rule, Kind.ADMIN)


@pytest.mark.parametrize("kind", Kind)
def test_a_route_without_a_rule_serves_nobody(kind: Kind) -> None:
    with pytest.raises(RefusedError):
        Access(0, FakePhase()).check_route(None, kind)


@pytest.mark.parametrize("kind", AGENT_KINDS)
def test_grading_is_refused_to_agents_and_odd_values_are_left_to_the_schema(kind: Kind) -> None:
    access = Access(0, FakePhase())
    with pytest.raises(RefusedError, match="grading"):
        access.check_grading({"grading": True}, kind)
    others: list[object] = [{"grading": False}, {"grading": "yes"}, {"grading": 1}, {}, [], None, "x"]
    for argument in others:
        access.check_grading(argument, kind)
    access.check_grading({"grading": True}, Kind.ADMIN)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, "anything"),
        ("http://localhost:4263", "localhost:4263"),
        ("http://LOCALHOST", "localhost:80"),
        ("http://127.0.0.1:4263", "127.0.0.1:4263"),
        ("http://[::1]:4263", "[::1]:4263"),
        ("https://box", "box:443"),
        ("http://task.internal:4263", "task.internal:4263"),
    ],
)
def test_a_page_of_the_daemons_own_may_call_tools(origin: str | None, host: str) -> None:
    check_origin(origin, host, Kind.HTTP)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("null", "localhost:4263"),
        ("", "localhost:4263"),
        ("http://evil.example", "localhost:4263"),
        ("http://localhost:80", "localhost:4263"),
        ("http://localhost:4263", None),
        ("file://localhost:4263", "localhost:4263"),
        ("http://localhost:4263/", "localhost:4263"),
        ("http://localhost:4263@evil", "localhost:4263"),
        ("http://rebound.example:4263", "rebound.example:4263"),
    ],
)
def test_a_page_from_elsewhere_may_not(origin: str, host: str | None) -> None:
    with pytest.raises(RefusedError):
        check_origin(origin, host, Kind.HTTP)
