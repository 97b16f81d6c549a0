"""What several tests of this folder start from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cases import BASE_TREE
from tests.support.roundtrip import World, agent_account, memory_folder


@pytest.fixture
def world() -> Iterator[World]:
    """A small tree of the agent's with its repository, and all that captures it and applies its patch."""
    with memory_folder() as folder:
        made = World(folder, agent_account())
        made.lay_out(BASE_TREE)
        yield made
