"""A daemon under attack: real sockets, real users, a canary in every hidden file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.attack.target import Target, attacked_daemon
from tests.support.users import TestUsers

LEVELS = (0, 2, 4)


@pytest.fixture(scope="module", params=LEVELS, ids=[f"level{level}" for level in LEVELS])
def target(request: pytest.FixtureRequest, test_users: TestUsers) -> Iterator[Target]:
    """One daemon per level for the attacks of a module that leave it usable."""
    with _attacked(test_users, request.param) as target:
        yield target


@pytest.fixture(scope="module")
def usual_target(test_users: TestUsers) -> Iterator[Target]:
    """The same at the usual level only, where the level makes no difference."""
    with _attacked(test_users, 2) as target:
        yield target


@contextmanager
def _attacked(users: TestUsers, level: int) -> Iterator[Target]:
    """A daemon that after all attacks has leaked nothing into a file, and gives the grade it gave before."""
    with attacked_daemon(users, level) as target:
        yield target
        target.assert_nothing_leaked()
        target.reset_tree()
        target.assert_grade_unchanged()


@pytest.fixture
def fresh_target(test_users: TestUsers) -> Iterator[Target]:
    """A daemon for one attack, at the usual level."""
    with attacked_daemon(test_users, 2) as target:
        yield target
        target.assert_nothing_leaked()


@pytest.fixture(autouse=True)
def leak_check() -> None:
    """Not here: the daemon outlives an attack, and may end and start helpers in it. It is looked at at its end."""


@pytest.fixture(autouse=True)
def nothing_hidden_came_out(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every attack: no canary in an answer, nothing hidden changed, the daemon answers in time."""
    names = {"target", "usual_target", "fresh_target"} & set(request.fixturenames)
    targets = [request.getfixturevalue(name) for name in names]
    yield
    for target in targets:
        target.assert_intact()
