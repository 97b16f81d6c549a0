"""The two unprivileged users of the tests, and what happens where they are missing."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from shell.accounts import Account, find_account, is_isolated
from shell.errors import AccountError


@dataclass(frozen=True)
class TestUsers:
    """The agent's and the runner's accounts that a test may use, and whose processes it may end."""

    __test__ = False

    agent: Account
    runner: Account


def agent_name() -> str:
    """The agent user of the tests: SSE_TEST_AGENT_USER, or ``model``."""
    return os.environ.get("SSE_TEST_AGENT_USER", "model")


def runner_name() -> str:
    """The runner user of the tests: SSE_TEST_RUNNER_USER, or ``runner``."""
    return os.environ.get("SSE_TEST_RUNNER_USER", "runner")


def why_unavailable() -> str | None:
    """Why tests with real users cannot run here; None when they can."""
    if not is_isolated():
        return "needs root"
    try:
        find_account(agent_name())
        find_account(runner_name())
    except AccountError as error:
        return str(error)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``users`` on a laptop; in CI a skip would hide a broken promise, so it fails there."""
    if item.get_closest_marker("users") is None:
        return
    reason = why_unavailable()
    if reason is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="session")
def test_users() -> TestUsers:
    """Both accounts; a test that asks for them carries the marker ``users``."""
    return TestUsers(find_account(agent_name()), find_account(runner_name()))
