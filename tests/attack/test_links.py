"""Promise: root follows nothing that the agent planted, in the tree, in the archive, or in place of either."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attack.target import Target

pytestmark = pytest.mark.users


@pytest.fixture(autouse=True)
def tree_is_put_back(target: Target) -> Iterator[None]:
    yield
    target.bash("cd /")
    target.reset_tree()


def look_everywhere(target: Target) -> None:
    """Everything that reads the tree for an answer."""
    target.get("/diff")
    target.get("/files")
    target.get("/agent/dialog")
    target.runner(
        "cat README app.sh data/* planted* planted/*  2>/dev/null; git diff; tar cf - . | strings | head -c 99999"
    )


def test_links_to_every_hidden_file_are_copied_as_links(target: Target) -> None:
    for number, path in enumerate(target.hidden):
        target.as_agent(f"ln -s {path} planted{number}")
    look_everywhere(target)


def test_a_tracked_file_that_became_a_link_shows_its_target_only(target: Target) -> None:
    target.as_agent(f"ln -sf {target.bench}/diffs/patch.diff README; ln -sf {target.bench}/config.yaml app.sh")
    look_everywhere(target)
    assert "config.yaml" in target.get("/diff")


def test_links_to_hidden_directories_are_not_entered(target: Target) -> None:
    target.as_agent(f"ln -s {target.bench} planted; rm -r data; ln -s {target.bench}/diffs data; ln -s / root")
    look_everywhere(target)


def test_links_to_roots_own_files_are_not_read(target: Target) -> None:
    target.as_agent("ln -sf /etc/shadow README; ln -s /proc/1/environ planted; ln -sf /root data/input.txt")
    assert "root:" not in target.get("/diff") + target.runner("cat README planted")


def test_hard_links_to_hidden_files_cannot_be_made(target: Target) -> None:
    for path in target.hidden:
        assert target.as_agent(f"ln {path} planted").code != 0


@pytest.mark.parametrize("goal", ["bench", "clone", "root"])
def test_a_source_directory_swapped_for_a_link_is_refused(target: Target, goal: str) -> None:
    goals = {"bench": target.bench, "clone": target.daemon.task.clone, "root": "/root"}
    source, parent = target.source, target.source.parent
    # In a task whose agent owns the directory above its tree.
    parent.chmod(0o777)
    target.bash("cd /")
    swapped = target.as_agent(f"mv {source} {parent}/away && ln -s {goals[goal]} {source}", "/")
    assert swapped.code == 0
    try:
        for text in (target.get("/diff"), target.get("/files"), target.note(target.daemon.bencher("build"))):
            assert text.startswith(("500", "403")), text
    finally:
        target.as_agent(f"rm {source}; mv {parent}/away {source}", "/")
        parent.chmod(0o755)


def test_a_directory_swapped_back_and_forth_while_it_is_read_shows_nothing(target: Target) -> None:
    swap = (
        f"import os\nwhile True:\n    os.rename('data', 'd'); os.symlink('{target.bench}/diffs', 'data')\n"
        "    os.unlink('data'); os.rename('d', 'data')\n"
    )
    target.as_agent(f"mkdir -p data; for i in $(seq 50); do echo $i > data/f$i; done; cat > swap.py <<'EOF'\n{swap}EOF")
    target.bash("(python3 swap.py >/dev/null 2>&1 &); true")
    for _ in range(5):
        target.get("/diff")
        target.get("/files")
        target.runner("cat data/*; ls data")
    target.bash("pkill -f swap.py; true")


@pytest.mark.parametrize("kind", ["link", "directory link", "fifo", "directory", "device", "socket"])
def test_a_dialog_that_is_no_file_is_never_opened(target: Target, kind: str) -> None:
    archive = target.root / "archive"
    make = {
        "link": f"ln -s {target.bench}/config.yaml dialog.jsonl",
        "directory link": f"ln -s {target.bench}/diffs dialog.jsonl",
        "fifo": "mkfifo dialog.jsonl",
        "directory": "mkdir dialog.jsonl",
        "device": "ln -s /dev/zero dialog.jsonl",
        "socket": "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('dialog.jsonl')\"",
    }[kind]
    assert target.as_agent(f"cd {archive} && {make}").code == 0
    try:
        assert target.get("/agent/dialog").startswith("500")
    finally:
        target.as_agent(f"rm -rf {archive}/dialog.jsonl")


def test_an_archive_that_became_a_link_is_not_followed(target: Target) -> None:
    archive = target.root / "archive"
    target.root.chmod(0o777)
    target.as_agent(f"mv {archive} {archive}.away; ln -s {target.bench} {archive}")
    try:
        target.get("/agent/dialog")
    finally:
        target.as_agent(f"rm {archive}; mv {archive}.away {archive}")
        target.root.chmod(0o755)
