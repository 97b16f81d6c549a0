"""The named cases: whatever happens to the tree and its repository, capture and apply give the agent's tree."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from grading.capture import Capture
from grading.submission import Submission
from tests.support.cases import BASE_TREE, Case, load_cases
from tests.support.roundtrip import (
    GIT_ENV,
    World,
    agent_account,
    as_agent,
    differences,
    fingerprint,
    memory_folder,
    snapshot,
)

CASES = load_cases()
OF_THE_BASE_TREE = [case for case in CASES if case.begins_with_the_base_tree]
OF_THEIR_OWN_TREE = [case for case in CASES if not case.begins_with_the_base_tree]
Started = tuple[World, Capture, Submission]


def name_of(case: Case) -> str:
    return case.name.replace(" ", "-")


@contextmanager
def started(case: Case | None = None) -> Iterator[Started]:
    """A world as ``case`` wants it to begin, or with the base tree, and a started capture of it."""
    case = case or Case("", "")
    with memory_folder() as folder:
        world = World(folder, agent_account())
        if case.above:
            subprocess.run(["bash", "-ec", case.above], cwd=folder, env=GIT_ENV, check=True)
        world.lay_out(BASE_TREE, setup=case.setup, clone=case.clone, clone_git=case.clone_git)
        with world.capturing() as (capture, submission):
            yield world, capture, submission


@pytest.fixture(scope="module")
def shared() -> Iterator[Started]:
    """One capture for all cases that begin with the base tree, of which it keeps a copy as ``first``."""
    with started() as (world, capture, submission):
        capture.wait_for_pristine()
        capture.close()
        subprocess.run(["cp", "-a", str(world.source), str(world.root / "first")], check=True)
        yield world, capture, submission


@pytest.fixture
def base_tree(shared: Started) -> Iterator[Started]:
    """The shared capture, with the tree put back to what it was at the start; its helpers end with the test."""
    world, capture, _submission = shared
    shutil.rmtree(world.source)
    subprocess.run(["cp", "-a", str(world.root / "first"), str(world.source)], check=True)
    yield shared
    capture.close()


def test_there_are_at_least_a_hundred_cases_with_names_of_their_own() -> None:
    names = [case.name for case in CASES]
    assert len(names) >= 100
    assert len(set(names)) == len(names)


@pytest.mark.users
@pytest.mark.parametrize("case", OF_THE_BASE_TREE, ids=name_of)
def test_capture_and_apply_give_the_agents_tree(case: Case, base_tree: Started) -> None:
    make_the_round_trip(case, base_tree)


@pytest.mark.users
@pytest.mark.parametrize("case", OF_THEIR_OWN_TREE, ids=name_of)
def test_capture_and_apply_give_the_agents_tree_from_any_beginning(case: Case) -> None:
    with started(case) as of_its_own:
        make_the_round_trip(case, of_its_own)


def make_the_round_trip(case: Case, begun: Started) -> None:
    world, capture, submission = begun
    assert capture.diff() == b""
    as_agent(case.act, world.source)
    before = fingerprint(world.source)

    patch = capture.diff()
    files = {file.path: file.status for file in capture.files()}
    submission.prepare()

    assert fingerprint(world.source) == before, "capturing changed something in the agent's tree"
    assert differences(snapshot(world.clone), world.expected()) == []
    assert submission.final_diff() == patch, "the final capture differs from the one before"
    if case.files is not None:
        assert files == case.files
    for path in case.absent:
        assert not os.path.lexists(world.source / path)
