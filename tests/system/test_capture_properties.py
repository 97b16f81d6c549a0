"""Generated trees, edits and git manipulations: the round trip holds for all of them.

SSE_TEST_EXAMPLES sets how many; a bounded number by default.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.support.roundtrip import (
    Tree,
    World,
    agent_account,
    as_agent,
    differences,
    fingerprint,
    memory_folder,
    put,
    snapshot,
)

_EXAMPLES = int(os.environ.get("SSE_TEST_EXAMPLES", "25"))

# Few names, so that they meet: a file where a directory was, an ignored name, a name in two cases.
_NAMES = st.sampled_from(
    [
        b"a",
        b"b",
        b"A",
        b"c.o",
        b"out",
        b"x y",
        b"d ",
        b"\xff",
        b'q"',
        b"n\nl",
        b"\\",
        b"-r",
        b":!m",
        b".git-x",
        b"b a",
        b"e.log",
    ]
)
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map(b"/".join)
_RULES = st.lists(
    st.sampled_from(
        [b"*.o", b"out/", b"/a", b"!b", b"*", b"!*/", b"x*", b"**/b", b"a/b", b"e.log", b"\\ ", b"d ", b"[", b"!c.o"]
    ),
    max_size=4,
).map(lambda lines: b"\n".join([*lines, b""]))
_TEXTS = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"one", b"two\r", b"  three ", b"", b"\ttab", b"--- a/x", b"-- "]), max_size=8).map(
        b"\n".join
    ),
    st.sampled_from([b"", b"\n", b"\r\n", b"no newline", b"x" * 5000, b"a\0b" * 50]),
)
_ENTRIES = st.one_of(
    st.tuples(st.sampled_from(["file", "exec"]), _TEXTS),
    st.tuples(st.just("link"), st.sampled_from([b"a", b"b/a", b"/etc/passwd", b"..", b"nowhere", b"\xff \n"])),
)
_TREES = st.tuples(
    st.dictionaries(_PATHS, _ENTRIES, max_size=8),
    st.dictionaries(st.sampled_from([b".gitignore", b"a/.gitignore", b"out/.gitignore"]), _RULES, max_size=2),
    st.dictionaries(
        st.sampled_from([b".gitattributes", b"a/.gitattributes"]), st.just(b"* text=auto\n*.o binary\n"), max_size=1
    ),
)


@dataclass(frozen=True)
class Edit:
    """One step of the agent's: ``what`` happens at ``path`` (or at whatever the tree has at that position)."""

    what: str
    path: bytes
    entry: tuple[str, bytes]
    position: int


_EDITS = st.lists(
    st.builds(
        Edit,
        st.sampled_from(["write", "append", "delete", "move", "mode", "fifo", "nest", "close", "rules"]),
        _PATHS,
        _ENTRIES,
        st.integers(0, 20),
    ),
    max_size=8,
)
_GIT = st.lists(
    st.sampled_from(
        [
            "git add -A", "git commit -qam x", "git checkout -q --orphan o", "rm -rf .git",
            "git stash -u", "git reset -q --hard",
            "git config core.autocrlf true", "git config core.fileMode false", "git config core.symlinks false",
            "echo '*' > .git/info/exclude", "echo '* text eol=crlf' > .git/info/attributes", ": > .git/index",
            "git update-index --assume-unchanged a b", "git gc -q --prune=now", "git config diff.noprefix true",
            "mv .git moved", "git checkout -q --detach",
        ]
    ),
    max_size=3,
)  # fmt: skip


@pytest.mark.users
@settings(
    max_examples=_EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(tree=_TREES, first=_EDITS, git=_GIT, second=_EDITS)
def test_any_tree_with_any_edits_makes_the_round_trip(
    tree: tuple[Tree, dict[bytes, bytes], dict[bytes, bytes]], first: list[Edit], git: list[str], second: list[Edit]
) -> None:
    with memory_folder() as folder:
        world = World(folder, agent_account())
        world.lay_out(_without_conflicts(tree))
        with world.capturing() as (capture, submission):
            _apply_edits(world, first)
            # A capture in between: what it remembers must not hide what happens next.
            capture.diff()
            for command in git:
                as_agent(command, world.source, check=False)
            _apply_edits(world, second)
            before = fingerprint(world.source)

            patch = capture.diff()
            paths = {file.path for file in capture.files()}
            submission.prepare()

            assert fingerprint(world.source) == before
            found, wanted = snapshot(world.clone), world.expected()
            note(patch.decode(errors="backslashreplace"))
            assert differences(found, wanted) == []
            assert submission.final_diff() == patch
            assert paths == {os.fsdecode(path) for path in _changed(world.clone_at_start, wanted)}


def _without_conflicts(tree: tuple[Tree, dict[bytes, bytes], dict[bytes, bytes]]) -> Tree:
    """The generated parts as one tree: no path is both a file and a directory."""
    files, rules, attributes = tree
    whole: Tree = {}
    for path, entry in [*files.items(), *((p, ("file", d)) for p, d in [*rules.items(), *attributes.items()])]:
        if not any(other.startswith(path + b"/") or path.startswith(other + b"/") for other in whole):
            whole[path] = entry
    return whole


def _changed(before: Tree, after: Tree) -> set[bytes]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def _apply_edits(world: World, edits: list[Edit]) -> None:
    for edit in edits:
        _apply_edit(world, edit)
    # The steps above are root's: what they made belongs to the agent, as if he had done it.
    for folder, folders, files in os.walk(world.source):
        for name in [*folders, *files]:
            os.lchown(os.path.join(folder, name), world.agent.uid, world.agent.gid)


def _apply_edit(world: World, edit: Edit) -> None:
    existing = sorted(snapshot(world.source))
    target = existing[edit.position % len(existing)] if existing else edit.path
    whole = os.path.join(os.fsencode(world.source), target)
    if edit.what == "write":
        _make_room(world.source, edit.path)
        put(world.source, edit.path, *edit.entry)
    elif edit.what == "rules":
        _make_room(world.source, b".gitignore")
        put(world.source, b".gitignore", "file", [b"*.o\n", b"*\n", b"", b"out/\n!a\n"][edit.position % 4])
    elif edit.what == "nest":
        _make_room(world.source, edit.path + b"/.git/config")
        put(world.source, edit.path + b"/.git/config", "file", b"nonsense")
    elif edit.what == "fifo":
        _make_room(world.source, edit.path)
        os.makedirs(os.path.dirname(os.path.join(os.fsencode(world.source), edit.path)), exist_ok=True)
        os.mkfifo(os.path.join(os.fsencode(world.source), edit.path))
    elif not existing or not os.path.lexists(whole):
        return
    elif edit.what == "append" and stat.S_ISREG(os.lstat(whole).st_mode):
        with open(whole, "ab") as file:
            file.write(edit.entry[1])
    elif edit.what == "delete":
        os.unlink(whole)
    elif edit.what == "move":
        _make_room(world.source, edit.path)
        if os.path.lexists(whole):
            new = os.path.join(os.fsencode(world.source), edit.path)
            os.makedirs(os.path.dirname(new), exist_ok=True)
            os.rename(whole, new)
    elif edit.what == "mode" and not os.path.islink(whole):
        os.chmod(whole, random.Random(edit.position).choice([0o755, 0o644, 0o600, 0o711]))
    elif edit.what == "close" and not os.path.islink(whole):
        os.chmod(os.path.dirname(whole) if edit.position % 2 and b"/" in target else whole, 0)


def _make_room(root: Path, path: bytes) -> None:
    """Whatever is at ``path``, or is no directory on the way to it, goes."""
    parts = path.split(b"/")
    for end in range(1, len(parts) + 1):
        whole = os.path.join(os.fsencode(root), *parts[:end])
        if not os.path.lexists(whole):
            return
        if end == len(parts) and stat.S_ISDIR(os.lstat(whole).st_mode):
            shutil.rmtree(whole)
        elif end == len(parts) or not stat.S_ISDIR(os.lstat(whole).st_mode):
            os.unlink(whole)
            return
