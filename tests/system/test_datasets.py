"""Every demo task, laid out and served: failed as it is, passed with its reference patch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.stage import missing_packages
from sse.grading import PatchResult, grade
from tasks.config import load_task
from tests.support.live import REPOSITORY, live_daemon, scratch
from tests.support.toy_task import ToyTask
from tests.support.users import agent_name

pytestmark = pytest.mark.users

DEMO = REPOSITORY / "datasets" / "demo"
TASKS = sorted(path.name for path in DEMO.iterdir() if path.is_dir())
OURS = "recdump-CWE-121"
_LAY_OUT_SECONDS = 300


@dataclass
class LaidOut(ToyTask):
    """A demo task below ``root``."""

    project: str = ""

    @property
    def source(self) -> Path:
        return self.root / "src" / self.project


def give_up(reason: str) -> None:
    """A task that cannot be laid out: skipped where a machine lacks something, a failure where it must not."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def prepare(task_id: str, root: Path, **more: str) -> subprocess.CompletedProcess[str]:
    # The caller's environment, for it says how this machine reaches the package registries.
    environment = {**os.environ, "ROOT": str(root), "SSE_AGENT_USER": agent_name()}
    return subprocess.run(
        [str(DEMO / task_id / "prepare.sh")],
        env={**environment, **more},
        capture_output=True,
        text=True,
        timeout=_LAY_OUT_SECONDS,
        check=False,
    )


@pytest.fixture(scope="module", params=TASKS)
def laid_out(request: pytest.FixtureRequest) -> Iterator[LaidOut]:
    task_id: str = request.param
    missing = missing_packages(task_id)
    if missing:
        give_up(f"{task_id} needs the packages {', '.join(missing)}")
    with scratch() as root:
        done = prepare(task_id, root)
        if done.returncode != 0:
            give_up(f"{task_id} cannot be laid out: {done.stderr[-400:]}")
        yield LaidOut(root, project=task_id.partition("-")[0])


def git(tree: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-c", "safe.directory=*", "-C", str(tree), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_tree_is_one_commit_and_nothing_else(laid_out: LaidOut) -> None:
    for tree in (laid_out.source, laid_out.clone):
        assert git(tree, "rev-list", "--all", "--count").strip() == "1"
        assert git(tree, "status", "--porcelain", "--ignored") == ""
        assert not (tree / ".git" / "logs").exists()
        assert list((tree / ".git" / "objects" / "info").iterdir()) == []
        reachable = git(tree, "rev-list", "--objects", "--all").splitlines()
        stored = git(tree, "cat-file", "--batch-all-objects", "--batch-check").splitlines()
        assert len(reachable) == len(stored)
    assert git(laid_out.source, "ls-tree", "-r", "HEAD") == git(laid_out.clone, "ls-tree", "-r", "HEAD")


def test_what_the_grader_uses_is_roots_and_the_tree_the_agents(laid_out: LaidOut) -> None:
    assert laid_out.source.owner() == agent_name()
    assert {path.owner() for path in laid_out.source.rglob("*")} == {agent_name()}
    for path in (laid_out.bench, laid_out.clone):
        assert path.owner() == "root" and path.stat().st_mode & 0o077 == 0
    task = load_task(str(laid_out.bench))
    assert task.source == str(laid_out.source)
    for script in (laid_out.bench / "scripts").iterdir():
        assert " /ssebench" not in script.read_text() and " /opt/" not in script.read_text()


def graded(laid_out: LaidOut, run: str, monkeypatch: pytest.MonkeyPatch, fix: str = "") -> PatchResult:
    """Serve the task in a run of its own, with ``fix`` applied by the agent, and grade it."""
    root = laid_out.root / run
    root.mkdir()
    root.chmod(0o755)
    with live_daemon(root, task=laid_out) as daemon:
        if fix:
            assert daemon.bash(f"git apply - <<'END_OF_FIX'\n{fix}END_OF_FIX")["code"] == 0
        daemon.admin.post("/admin/agent_exited")
        monkeypatch.setenv("SSE_DAEMON_SOCKET", daemon.env["SSE_ADMIN_SOCKET"])
        return grade()


def test_untouched_it_is_failed_and_repaired_it_is_passed(laid_out: LaidOut, monkeypatch: pytest.MonkeyPatch) -> None:
    untouched = graded(laid_out, "untouched", monkeypatch)
    assert untouched.status() == "failed", untouched
    assert (untouched.build_success, untouched.func_test_success) == (True, True), untouched
    assert untouched.pov_passed == 0 and (untouched.pov_total or 0) >= 2, untouched
    assert untouched.intent_test_success is False, untouched
    task_id = load_task(str(laid_out.bench)).id
    fix = (DEMO / task_id / "sse" / "diffs" / "patch.diff").read_text("utf-8")
    repaired = graded(laid_out, "repaired", monkeypatch, fix)
    assert repaired.status() == "passed", repaired
    assert repaired.pov_passed == repaired.pov_total and repaired.error_msg is None


def test_what_is_missing_is_said_at_once(tmp_path: Path) -> None:
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    for program in ("bash", "dirname", "basename", "mktemp", "mkdir", "rm", "id", "tr", "cut", "cat"):
        (bin_directory / program).symlink_to(shutil.which(program) or "/bin/false")
    done = prepare("minimist-CVE-2021-44906", tmp_path / "root", PATH=str(bin_directory))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "missing: git node npm" in line and "apt-get install git nodejs npm" in line
    assert not (tmp_path / "root" / "src").exists()
