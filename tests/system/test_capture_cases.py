"""The named cases: whatever happens to the tree and its repository, capture and apply give the agent's tree."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as path:
        yield path


def test_there_are_at_least_a_hundred_cases_with_names_of_their_own() -> None:
    names = [case.name for case in CASES]
    assert len(names) >= 100
    assert len(set(names)) == len(names)


@pytest.mark.users
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_capture_and_apply_give_the_agents_tree(case: Case, folder: Path) -> None:
    world = World(folder, agent_account())
    if case.above:
        subprocess.run(["bash", "-ec", case.above], cwd=folder, env=GIT_ENV, check=True)
    world.lay_out(BASE_TREE, setup=case.setup, clone=case.clone, clone_git=case.clone_git)
    with world.capturing() as (capture, submission):
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
