"""A round trip through capture and apply: an agent's tree, whatever happened to it, against the graded clone.

What should come out is computed here in another way than the daemon does it: git itself lists what is ignored, in a
fresh repository made of copies.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from grading.capture import Capture
from grading.state import open_state
from grading.submission import Submission
from shell.accounts import Account, current_account, find_account, is_isolated
from tests.support.live import scratch_parent
from tests.support.users import agent_name, why_unavailable

Tree = dict[bytes, tuple[str, bytes]]
GIT_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "toy",
    "GIT_AUTHOR_EMAIL": "toy@example.invalid",
    "GIT_COMMITTER_NAME": "toy",
    "GIT_COMMITTER_EMAIL": "toy@example.invalid",
}

_MEMORY_BYTES = 2 << 30


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A directory open to all users, in memory where that has room: hundreds of trees are synced to it."""
    # A container often has 64 MiB there, which is what a run's reserve alone takes.
    roomy = os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free >= _MEMORY_BYTES
    parent = "/dev/shm" if roomy else scratch_parent()
    path = Path(tempfile.mkdtemp(prefix="ssebench-test-", dir=parent))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def agent_account() -> Account:
    """The test's agent, or the calling user where accounts cannot be switched."""
    return find_account(agent_name()) if why_unavailable() is None else current_account()


def as_agent(command: str, cwd: Path, *, check: bool = True, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run a bash command with the agent's rights."""
    argv = ["bash", "-c", command]
    if is_isolated():
        argv = ["setpriv", f"--reuid={agent_name()}", f"--regid={agent_name()}", "--init-groups", *argv]
    done = subprocess.run(argv, cwd=cwd, env={**GIT_ENV, **env}, capture_output=True, timeout=120)
    if check and done.returncode != 0:
        raise AssertionError(f"{command}: {done.stderr.decode(errors='replace')}")
    return done


def snapshot(root: Path, *, with_git: bool = False) -> Tree:
    """Every file, link and special file below ``root``: kind and bytes. Components ``.git`` are left out."""
    found: Tree = {}
    top = os.fsencode(root)
    pending = [b""]
    while pending:
        folder = pending.pop()
        for name in os.listdir(os.path.join(top, folder)):
            path = os.path.join(folder, name)
            if name == b".git" and not with_git:
                continue
            whole = os.path.join(top, path)
            mode = os.lstat(whole).st_mode
            if stat.S_ISDIR(mode):
                pending.append(path)
            elif stat.S_ISLNK(mode):
                found[path] = ("link", os.readlink(whole))
            elif stat.S_ISREG(mode):
                found[path] = ("exec" if mode & stat.S_IXUSR else "file", Path(os.fsdecode(whole)).read_bytes())
            else:
                found[path] = ("special", b"")
    return found


def fingerprint(root: Path) -> dict[bytes, tuple[int, ...]]:
    """What a change of anything below ``root`` would change: modes, owners, sizes, times of all entries, also .git."""
    found: dict[bytes, tuple[int, ...]] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in [*folders, *files, b"."]:
            path = os.path.join(folder, name)
            s = os.lstat(path)
            found[path] = (s.st_ino, s.st_mode, s.st_uid, s.st_gid, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
    return found


def ignored_names(tree: Tree, names: set[bytes], scratch: Path) -> set[bytes]:
    """Which of ``names`` the ``.gitignore`` files in ``tree`` ignore, by git's own listing of untracked files."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    rules = {p: d for p, (kind, d) in tree.items() if os.path.basename(p) == b".gitignore" and kind in ("file", "exec")}
    for path in [*rules, *tree, *sorted(names - tree.keys())]:
        whole = os.path.join(os.fsencode(scratch), path)
        try:
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            with open(whole, "xb") as file:
                file.write(rules.get(path, b"x"))
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue
    git = ["git", "-C", str(scratch)]
    subprocess.run([*git, "init", "-q"], env=GIT_ENV, check=True)
    listed = subprocess.run(
        [*git, "ls-files", "-z", "--others", "--ignored", "--exclude-standard"],
        env=GIT_ENV,
        check=True,
        capture_output=True,
    ).stdout
    return set(listed.split(b"\0")) - {b""}


def folders_of(path: bytes) -> Iterator[bytes]:
    """Every directory above a path."""
    while path := os.path.dirname(path):
        yield path


def expected_result(clone: Tree, agent: Tree, tracked: set[bytes], scratch: Path) -> Tree:
    """What the graded clone has to be afterwards."""
    agent = {path: entry for path, entry in agent.items() if entry[0] != "special"}
    ignored = ignored_names(agent, set(clone) | set(agent), scratch) - tracked
    visible = {path: entry for path, entry in agent.items() if path not in ignored}
    above = {folder for path in visible for folder in folders_of(path)}
    kept = {
        path: entry
        for path, entry in clone.items()
        if path in ignored and path not in above and not any(folder in visible for folder in folders_of(path))
    }
    return {**kept, **visible}


@dataclass
class World:
    """A source tree of the agent's, the clean clone, and the daemon's parts that capture and apply."""

    root: Path
    agent: Account
    tracked: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.source = self.root / "src" / "project"
        self.clone = self.root / "clone"
        self.results = self.root / "results"
        self.clone_at_start: Tree = {}

    def lay_out(
        self, files: Mapping[bytes, tuple[str, bytes]], *, setup: str = "", clone: str = "", clone_git: bool = False
    ) -> None:
        """Write the source tree, run ``setup`` (bash) in it, commit what is not ignored, and copy it as the clone.

        ``clone`` is bash that is run in the clone then; the clone keeps its repository only with ``clone_git``.
        """
        self.source.mkdir(parents=True)
        for path, (kind, data) in files.items():
            put(self.source, path, kind, data)
        if setup:
            subprocess.run(["bash", "-ec", setup], cwd=self.source, env=GIT_ENV, check=True)
        self.commit(clone=clone, clone_git=clone_git)

    def commit(self, *, clone: str = "", clone_git: bool = False) -> None:
        """Commit the source tree as it is, copy it as the clone, and give it to the agent."""
        git = ["git", "-c", "core.logAllRefUpdates=false", "-c", "gc.auto=0", "-c", "core.autocrlf=false"]
        for command in (
            ["init", "-q", "-b", "main"],
            ["add", "-A"],
            ["commit", "-q", "--allow-empty", "-m", "initial"],
        ):
            subprocess.run([*git, *command], cwd=self.source, env=GIT_ENV, check=True, capture_output=True)
        self._finish(clone, clone_git)

    def _finish(self, clone: str, clone_git: bool) -> None:
        listed = subprocess.run(
            ["git", "ls-tree", "-r", "-z", "--name-only", "HEAD"],
            cwd=self.source,
            env=GIT_ENV,
            check=True,
            capture_output=True,
        )
        self.tracked = set(listed.stdout.split(b"\0")) - {b""}
        subprocess.run(["cp", "-a", str(self.source), str(self.clone)], check=True)
        if not clone_git:
            shutil.rmtree(self.clone / ".git")
        if clone:
            subprocess.run(["bash", "-ec", clone], cwd=self.clone, env=GIT_ENV, check=True)
        if is_isolated():
            subprocess.run(["chown", "-hR", f"{self.agent.uid}:{self.agent.gid}", str(self.source)], check=True)
            self.clone.chmod(0o700)
        self.clone_at_start = snapshot(self.clone)

    @contextmanager
    def capturing(self, *, fresh: bool = False) -> Iterator[tuple[Capture, Submission]]:
        """A started capture and its submission."""
        state = open_state(str(self.root / "state"), task_id="toy", source=str(self.source), fresh=fresh)
        capture = Capture(str(self.source), str(self.clone), state, self.agent)
        try:
            capture.start()
            yield capture, Submission(capture, state, str(self.clone), str(self.results), str(self.source), self.agent)
        finally:
            capture.close()

    def expected(self) -> Tree:
        """What the clone has to be after a submission of the tree as it is now."""
        return expected_result(self.clone_at_start, snapshot(self.source), self.tracked, self.root / "oracle")


def put(root: Path, path: bytes, kind: str, data: bytes) -> None:
    """Make one entry: a file, an executable file or a link."""
    whole = os.path.join(os.fsencode(root), path)
    os.makedirs(os.path.dirname(whole), exist_ok=True)
    if kind == "link":
        os.symlink(data, whole)
        return
    with open(whole, "wb") as file:
        file.write(data)
    os.chmod(whole, 0o755 if kind == "exec" else 0o644)


def differences(found: Tree, wanted: Tree) -> list[str]:
    """Each path whose entry is not the wanted one, for the message of a failed test."""
    lines = []
    for path in sorted(found.keys() | wanted.keys()):
        if found.get(path) != wanted.get(path):
            lines.append(f"{path!r}: found {_short(found.get(path))}, wanted {_short(wanted.get(path))}")
    return lines


def _short(entry: tuple[str, bytes] | None) -> str:
    return "nothing" if entry is None else f"{entry[0]} {entry[1][:60]!r} ({len(entry[1])} bytes)"
