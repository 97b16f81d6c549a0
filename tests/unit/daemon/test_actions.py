"""One turn, first come first served, free again whatever happened."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import gevent
import pytest
from gevent.event import Event

from daemon.actions import ActionQueue, StoppingError
from daemon.errors import RefusedError, WithdrawnError
from shell.stop import StopSignal


class Log(list[str]):
    """The names of the actions that ran, in order."""


def worker(queue: ActionQueue, log: list[str], name: str, stop: StopSignal | None = None, agent: bool = True) -> None:
    with queue.turn(stop or StopSignal(), from_agent=agent):
        log.append(name)
        gevent.sleep(0.001)


def joined(*greenlets: gevent.Greenlet[Any, Any], raising: bool = True) -> None:
    gevent.joinall(list(greenlets), timeout=10, raise_error=raising)
    assert all(greenlet.ready() for greenlet in greenlets)


def test_actions_run_in_the_order_they_came() -> None:
    queue, log = ActionQueue(), Log()
    names = [str(number) for number in range(50)]
    gevent.joinall([gevent.spawn(worker, queue, log, name) for name in names], raise_error=True)
    assert log == names
    assert not queue.busy


def test_nobody_barges_in_between_two_actions() -> None:
    queue, log = ActionQueue(), Log()

    def greedy() -> None:
        for number in range(5):
            worker(queue, log, f"greedy {number}")

    first = gevent.spawn(greedy)
    gevent.sleep(0)
    second = gevent.spawn(worker, queue, log, "patient")
    joined(first, second)
    assert log[1] == "patient"


def test_only_one_action_runs_at_a_time() -> None:
    queue = ActionQueue()
    running = 0

    def work() -> None:
        nonlocal running
        with queue.turn(StopSignal(), from_agent=True):
            running += 1
            assert running == 1
            gevent.sleep(random.random() / 500)
            running -= 1

    gevent.joinall([gevent.spawn(work) for _ in range(40)], raise_error=True)


def test_who_stops_waiting_leaves_the_queue() -> None:
    queue, log, stop = ActionQueue(), Log(), StopSignal()
    holder = gevent.spawn(worker, queue, log, "first")
    gevent.sleep(0)
    waiting = gevent.spawn(worker, queue, log, "gone", stop)
    last = gevent.spawn(worker, queue, log, "last")
    gevent.sleep(0)
    stop.set("the client went away")
    with pytest.raises(WithdrawnError):
        waiting.get(timeout=1)
    joined(holder, last)
    assert log == ["first", "last"]


def test_a_turn_given_to_somebody_who_left_reaches_the_next() -> None:
    queue, log, stop = ActionQueue(), Log(), StopSignal()
    release = Event()

    def hold() -> None:
        with queue.turn(StopSignal(), from_agent=True):
            release.wait()
            stop.set("both in one round of the loop")

    holder = gevent.spawn(hold)
    gevent.sleep(0)
    gone = gevent.spawn(worker, queue, log, "gone", stop)
    last = gevent.spawn(worker, queue, log, "last")
    gevent.sleep(0)
    release.set()
    joined(holder, gone, last, raising=False)
    assert log == ["last"]
    assert not queue.busy


def test_a_killed_waiter_leaves_the_queue_working() -> None:
    queue, log = ActionQueue(), Log()
    holder = gevent.spawn(worker, queue, log, "first")
    gevent.sleep(0)
    victim = gevent.spawn(worker, queue, log, "victim")
    last = gevent.spawn(worker, queue, log, "last")
    gevent.sleep(0)
    victim.kill()
    joined(holder, last)
    assert log == ["first", "last"]


def test_the_turn_is_free_after_an_exception() -> None:
    queue = ActionQueue()
    with pytest.raises(ZeroDivisionError), queue.turn(StopSignal(), from_agent=True):
        raise ZeroDivisionError
    with queue.turn(StopSignal(), from_agent=True):
        assert queue.busy


def test_the_end_of_the_phase_refuses_agents_that_wait_and_stops_the_one_that_runs() -> None:
    queue, log, running = ActionQueue(), Log(), StopSignal()

    def run() -> None:
        with queue.turn(running, from_agent=True):
            running.event.wait()

    first = gevent.spawn(run)
    gevent.sleep(0)
    agent = gevent.spawn(worker, queue, log, "agent")
    admin = gevent.spawn(worker, queue, log, "admin", None, False)
    gevent.sleep(0)
    queue.end_agent_actions()
    with pytest.raises(RefusedError):
        agent.get(timeout=1)
    joined(first, admin)
    assert running.reason == "the agent phase ended"
    assert log == ["admin"]
    with pytest.raises(RefusedError), queue.turn(StopSignal(), from_agent=True):
        pass


def test_closing_stops_everybody() -> None:
    queue, running = ActionQueue(), StopSignal()

    def run() -> None:
        with queue.turn(running, from_agent=False):
            running.event.wait()

    first = gevent.spawn(run)
    gevent.sleep(0)
    waiting = gevent.spawn(worker, queue, [], "admin", None, False)
    gevent.sleep(0)
    queue.close()
    with pytest.raises(StoppingError):
        waiting.get(timeout=1)
    assert queue.wait_idle(1)
    first.join()


def test_closing_also_stops_whoever_got_the_turn_just_now() -> None:
    queue, log, first = ActionQueue(), Log(), Event()

    def run() -> None:
        with queue.turn(StopSignal(), from_agent=False):
            first.wait()
        # The turn has been passed on, and whoever has it did not run since.
        queue.close()

    running = gevent.spawn(run)
    gevent.sleep(0)
    waiting = gevent.spawn(worker, queue, log, "admin", None, False)
    gevent.sleep(0)
    first.set()
    with pytest.raises(StoppingError):
        waiting.get(timeout=1)
    joined(running)
    assert log == [] and not queue.busy


def test_many_who_come_and_go_at_random_leave_the_turn_free() -> None:
    queue, log = ActionQueue(), Log()
    chance = random.Random(7)

    def visit(number: int) -> None:
        stop = StopSignal()
        timer = gevent.spawn_later(chance.random() / 50, stop.set, "gone")
        with contextlib.suppress(WithdrawnError):
            worker(queue, log, str(number), stop)
        timer.kill()

    visitors = [gevent.spawn_later(chance.random() / 50, visit, number) for number in range(300)]
    for victim in chance.sample(visitors, 30):
        gevent.spawn_later(chance.random() / 50, victim.kill)
    gevent.joinall(visitors)
    assert not queue.busy
    assert queue.waiting == 0
