"""After each test: no process of the two users, no descriptor and no greenlet is left that was not there before."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator

import gevent
import pytest

from shell.accounts import find_account
from shell.processes import processes_of
from tests.support.users import agent_name, runner_name, why_unavailable

_SETTLE_SECONDS = 3.0


def open_descriptors(pid: int | str = "self") -> dict[str, str]:
    """The open descriptors of a process: number to what it points at. The hub's own are stable and included."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[name] = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
    return found


def user_processes() -> list[int]:
    """Pids of both test users; empty where there are none."""
    if why_unavailable() is not None:
        return []
    return [pid for name in (agent_name(), runner_name()) for pid in processes_of(find_account(name))]


def live_greenlets() -> int:
    """How many greenlets of this process have not ended."""
    gc.collect()
    return sum(1 for thing in gc.get_objects() if isinstance(thing, gevent.Greenlet) and not thing.ready())


def pytest_collection_finish(session: pytest.Session) -> None:
    """What all modules brought into memory is there to stay: hundreds of thousands of objects not to look through."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def leak_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test with real users that leaves something behind; there is no way to opt out on purpose."""
    if request.node.get_closest_marker("users") is None:
        yield
        return
    # Fixtures of a wider scope may hold a daemon: what is there at the beginning is the base to compare with.
    processes, descriptors, greenlets = set(user_processes()), len(open_descriptors()), live_greenlets()
    yield
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        left = set(user_processes()) - processes
        more = len(open_descriptors()) - descriptors
        alive = live_greenlets() - greenlets
        if not left and more <= 0 and alive <= 0:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: processes {sorted(left)}, {more} descriptors, {alive} greenlets")
        gevent.sleep(0.05)
