"""The source's own repository: refused when it holds more than one commit, read without its settings afterwards."""

from __future__ import annotations

import pytest

from grading.history import SourceHistoryError, _repository, check_single_commit, read_initial, read_log
from tests.support.roundtrip import World, as_agent

pytestmark = pytest.mark.users


def check(world: World) -> None:
    check_single_commit(str(world.source), world.agent)


def log(world: World, initial: str) -> bytes:
    return read_log(str(world.source), world.agent, initial)


def test_one_commit_is_accepted(world: World) -> None:
    check(world)


def test_one_packed_commit_with_its_own_reflog_is_accepted(world: World) -> None:
    as_agent(
        "rm -rf .git; git init -q; git add -A; git commit -qm initial; git gc -q; git pack-refs --all", world.source
    )
    assert (world.source / ".git" / "logs" / "HEAD").exists()
    check(world)


def test_a_shallow_clone_of_one_commit_is_accepted(world: World) -> None:
    as_agent("git commit -q --allow-empty -m two", world.source)
    as_agent('git -c core.logAllRefUpdates=false clone -q --depth=1 "file://$PWD" out/shallow', world.source)
    check_single_commit(str(world.source / "out" / "shallow"), world.agent)


def test_a_tree_without_a_repository_is_accepted(world: World) -> None:
    as_agent("rm -rf .git", world.source)
    check(world)
    assert read_initial(str(world.source), world.agent).commit == ""


@pytest.mark.parametrize(
    "act",
    [
        "echo x >> README; git commit -qam second",
        "echo x >> README; git commit -qam second; git reset -q --hard HEAD~",
        "echo x >> README; git stash -q",
        "echo secret | git hash-object -w --stdin",
        "git tag -a -m 'the fix' v1",
        "git notes add -m note",
        "git checkout -q --orphan fix; git commit -qm fix; git checkout -q main",
        "git init -q --bare out/o; echo $PWD/out/o/objects > .git/objects/info/alternates",
        "mkdir -p .git/modules/sub; git init -q --bare .git/modules/sub",
        "mkdir -p .git/rr-cache/x; echo fix > .git/rr-cache/x/postimage",
        "git worktree add -q -b w out/w",
        "touch .git/objects/pack/tmp_pack_x || (mkdir -p .git/objects/pack; touch .git/objects/pack/tmp_pack_x)",
        "mv .git out/git; ln -s out/git .git",
        "mv .git out/git; echo 'gitdir: out/git' > .git",
        'mkdir .git/logs; echo "$(printf 1%.0s {1..40}) $(git rev-parse HEAD) a <a> 0 +0000 x" > .git/logs/HEAD',
        "rm .git/refs/heads/main",
    ],
)
def test_anything_more_is_refused(world: World, act: str) -> None:
    as_agent(act, world.source)
    with pytest.raises(SourceHistoryError, match="not a repository of one commit: "):
        check(world)


def test_the_initial_commit_names_what_it_tracks(world: World) -> None:
    initial = read_initial(str(world.source), world.agent)
    assert initial.names == world.tracked


def test_git_works_on_the_agents_objects_within_its_limits(world: World) -> None:
    with _repository(str(world.source), world.agent) as repository:
        shown = repository.git("-c", "alias.limits=!ulimit -v; ulimit -c", "limits")
    assert shown.stdout == b"4194304\n0\n"


def test_what_git_could_not_read_is_said_in_its_words(world: World) -> None:
    initial = read_initial(str(world.source), world.agent).commit
    as_agent("for i in 1 2 3; do echo $i >> README; git commit -qam $i; done", world.source)
    lost = as_agent("git rev-parse HEAD~", world.source).stdout.decode().strip()
    (world.source / ".git" / "objects" / lost[:2] / lost[2:]).unlink()
    assert lost.encode() in log(world, initial)


def test_nothing_on_top_is_an_empty_log(world: World) -> None:
    assert log(world, read_initial(str(world.source), world.agent).commit) == b""


def test_an_amended_commit_is_listed(world: World) -> None:
    initial = read_initial(str(world.source), world.agent).commit
    as_agent("git commit -q --amend -m amended", world.source)
    assert log(world, initial).split(b"\n")[1] == b"amended"


@pytest.mark.parametrize(
    "act",
    [
        "git pack-refs --all",
        "git gc -q --prune=now",
        "git checkout -q --detach",
        "git checkout -q -b feature/x",
        "mv .git elsewhere; echo 'gitdir: elsewhere' > .git",
        "mv .git elsewhere; ln -s elsewhere .git",
        'git config log.showSignature true; git config gpg.program "$PWD/out/evil"',
        "printf '#!/bin/sh\\ntouch out/ran\\n' > out/evil; chmod +x out/evil; git config core.fsmonitor out/evil",
        "git config include.path config",
        "echo '[broken' > .git/config",
        "git replace -f HEAD $(git commit-tree -m forged HEAD^{tree})",
        "git rev-parse HEAD > .git/shallow",
        "printf '%s\\n' /nowhere /proc/self/mem > .git/objects/info/alternates",
        "git commit-graph write --reachable; cd .git/objects/info; rm -f commit-graph; echo junk > commit-graph",
        "git config format.pretty '%H forged'; git config i18n.logOutputEncoding UTF-16",
    ],
)
def test_the_log_is_read_whatever_the_repository_says(world: World, act: str) -> None:
    initial = read_initial(str(world.source), world.agent).commit
    as_agent("echo 1 >> README; git commit -qam 'the change'", world.source)
    commit = as_agent("git rev-parse HEAD", world.source).stdout
    as_agent(act, world.source)
    assert log(world, initial) == commit + b"the change\n"
    assert not (world.source / "out" / "ran").exists()


@pytest.mark.parametrize(
    "act",
    [
        "rm -rf .git",
        "rm -rf .git; mkfifo .git",
        "rm .git/HEAD; mkfifo .git/HEAD",
        ": > .git/HEAD",
        "echo 'ref: refs/../../x' > .git/HEAD",
        "echo 'ref: refs/heads/loop' > .git/HEAD; echo 'ref: refs/heads/loop' > .git/refs/heads/loop",
        "chmod 000 .git",
        "find .git/objects -type f -delete",
        "chmod -R u+w .git; find .git/objects -type f -exec truncate -s 3 {} +",
        "git rev-parse HEAD | tr 0-9a-f 1 > .git/refs/heads/main",
        "rm -rf .git; ln -s .git .git",
    ],
)
def test_a_history_that_cannot_be_read_is_a_note(world: World, act: str) -> None:
    initial = read_initial(str(world.source), world.agent).commit
    as_agent("echo 1 >> README; git commit -qam 'the change'", world.source)
    as_agent(act, world.source)
    assert b"[the history could not be read" in log(world, initial)


def test_a_commit_that_expands_to_gigabytes_is_a_note(world: World) -> None:
    initial = read_initial(str(world.source), world.agent).commit
    # A commit object of 6 GB that takes a few megabytes on the disk.
    as_agent(
        "/usr/bin/python3 -c '"
        "import hashlib, os, zlib\n"
        'tree = os.popen("git rev-parse HEAD^{tree}").read().strip().encode()\n'
        'head = b"tree " + tree + b"\\nauthor a <a> 0 +0000\\ncommitter a <a> 0 +0000\\n\\n"\n'
        "size = 6 << 30\n"
        'oid = "a" * 40\n'
        "pack = zlib.compressobj(1)\n"
        'os.makedirs(".git/objects/aa", exist_ok=True)\n'
        'with open(".git/objects/aa/" + oid[2:], "wb") as f:\n'
        '    f.write(pack.compress(b"commit %d\\0" % size + head))\n'
        "    piece = pack.compress(bytes(1 << 20)) + pack.flush(zlib.Z_FULL_FLUSH)\n"
        "    one = pack.compress(bytes(1 << 20)) + pack.flush(zlib.Z_FULL_FLUSH)\n"
        "    f.write(piece)\n"
        "    for _ in range(6 << 10): f.write(one)\n"
        'open(".git/HEAD", "w").write(oid)\n'
        "'",
        world.source,
    )
    assert b"[the history could not be read" in log(world, initial)
