"""The private repository: git reads what is written into it, and it stays small."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from grading.objects import GIT_ENVIRONMENT, Blob, BlobWriter, ObjectStore


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(str(tmp_path / "store"))


def git(store: ObjectStore, *arguments: str) -> bytes:
    env = {**GIT_ENVIRONMENT, "GIT_DIR": store.path}
    return subprocess.run(["git", *arguments], env=env, capture_output=True, check=True).stdout


def blob(store: ObjectStore, *pieces: bytes) -> str:
    writer = BlobWriter(store, sum(map(len, pieces)))
    for piece in pieces:
        writer.write(piece)
    return writer.finish()


@pytest.mark.parametrize("pieces", [(), (b"",), (b"one",), (b"on", b"e"), (b"x" * 70_000, b"y" * 70_000)])
def test_a_blob_is_what_git_would_have_made_of_it(store: ObjectStore, pieces: tuple[bytes, ...]) -> None:
    oid = blob(store, *pieces)
    assert git(store, "cat-file", "blob", oid) == b"".join(pieces)
    assert git(store, "fsck", "--no-dangling") == b""


def test_trees_are_sorted_as_git_sorts_them(store: ObjectStore) -> None:
    entry = Blob(b"f", blob(store, b"x"), 1)
    names = [b"a", b"a.b", b"b/c", b"b.c", b"b0", b"b-", b"\xff", b"b c/d"]
    tree = store.tree(dict.fromkeys(names, entry))
    listed = git(store, "ls-tree", "-r", "-z", "--name-only", tree).split(b"\0")[:-1]
    assert sorted(listed) == sorted(names)
    assert git(store, "fsck", "--no-dangling") == b""


def test_a_blob_that_is_given_up_leaves_nothing(store: ObjectStore) -> None:
    writer = BlobWriter(store, 10)
    writer.write(b"half")
    writer.discard()
    assert not list(Path(store.path).rglob("partial*"))


def test_the_same_object_is_stored_once(store: ObjectStore) -> None:
    assert blob(store, b"one") == blob(store, b"o", b"ne") == store.add(b"blob", b"one")


def test_what_is_needed_no_longer_goes_once_it_takes_room(store: ObjectStore) -> None:
    kept = blob(store, b"kept")
    small = blob(store, b"small")
    store.keep({kept})
    assert store.holds(small)
    large = blob(store, *[b"x" * (1 << 20)] * 40)
    store.keep({kept})
    assert not store.holds(large)
    assert not store.holds(small)
    assert git(store, "cat-file", "blob", kept) == b"kept"
