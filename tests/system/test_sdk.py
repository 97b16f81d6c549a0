"""The SDK against a live daemon, installed as an agent's author installs it, on old and new Pythons."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shell.accounts import find_account
from sse.daemon import Daemon
from sse.error import SDKError
from sse.grading import grade
from sse.metadata import parse_metadata
from sse.reference import get_reference_patch
from sse.tools import bencher
from tests.support.live import LiveDaemon, live_daemon, scratch
from tests.support.pythons import SDK_MINIMUM, build_wheel, found_pythons, install
from tests.support.toy_task import BROKEN_LINE, FIXED_LINE, REFERENCE_DIFF
from tests.support.users import agent_name

pytestmark = pytest.mark.users

AGENT = Path(__file__).with_name("sdk_agent.py")
FIX = f"git apply - <<'END'\n{REFERENCE_DIFF}END"


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveDaemon]:
    with scratch() as root, live_daemon(root) as running:
        monkeypatch.setenv("SSE_DAEMON_SOCKET", running.env["SSE_DAEMON_SOCKET"])
        monkeypatch.delenv("SSE_ADMIN_SOCKET", raising=False)
        yield running


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def use_admin(daemon: LiveDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSE_DAEMON_SOCKET", daemon.env["SSE_ADMIN_SOCKET"])


def run_agent(python: str, daemon: LiveDaemon, fix: str, directory: str = "/") -> list[object]:
    env = {name: daemon.env[name] for name in ("PATH", "SSE_DAEMON_SOCKET", "SSE_ARCHIVE")}
    done = subprocess.run(
        [python, str(AGENT), fix], cwd=directory, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    # The other Pythons may lie in root's home, so root plays the agent here; the dialog must be the agent's own.
    account = find_account(agent_name())
    os.chown(Path(daemon.env["SSE_ARCHIVE"]) / "dialog.jsonl", account.uid, account.gid)
    answer: list[object] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_an_agent_of_thirty_lines_repairs_a_task_and_is_graded_passed(
    which: str,
    daemon: LiveDaemon,
    wheel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pythons = found_pythons()
    wanted = SDK_MINIMUM if which == "oldest" else max(pythons)
    if wanted not in pythons:
        pytest.skip(f"no Python {wanted[0]}.{wanted[1]} on this machine")
    python = install(pythons[wanted], wheel, tmp_path)
    *reported, refusal, task_id = run_agent(str(python), daemon, FIX)
    assert reported == [f"yes in {daemon.task.source}\n", [1, 1], 0, True, True, [0, 0]]
    assert str(refusal).startswith("invalid argument: poc: ") and task_id == "toy-1"
    listed = subprocess.run(
        [str(python), "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    )
    installed = {line.split("==")[0].lower() for line in listed.stdout.splitlines()}
    assert installed <= {
        "anyio", "certifi", "exceptiongroup", "h11", "httpcore", "httpx", "idna", "pip", "setuptools", "sniffio",
        "ssebench-daemon", "typing-extensions", "typing_extensions", "wheel",
    }  # fmt: skip
    entries = daemon.agent.get("/agent/dialog").json()["entries"]
    kinds = ["init", "prompt", "tool_start", "tool_result", "complete"]
    assert [(entry["seq"], entry["type"]) for entry in entries] == list(enumerate(kinds, start=1))
    daemon.admin.post("/admin/agent_exited")
    use_admin(daemon, monkeypatch)
    result = grade()
    assert result.status() == "passed", result
    assert (result.pov_passed, result.pov_total, result.error_msg, result.error_log) == (2, 2, None, None)


def test_the_first_failure_is_kept_and_every_check_runs(daemon: LiveDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    use_admin(daemon, monkeypatch)
    result = grade()
    assert result.status() == "failed" and not result.is_fully_successful()
    assert (result.build_success, result.func_test_success, result.intent_test_success) == (True, True, False)
    assert (result.pov_passed, result.pov_total) == (0, 2)
    assert result.error_msg == f"PoC failed: {daemon.task.bench}/pocs/one.txt"
    assert result.error_log == "VULNERABLE: an attack"


def test_a_failed_build_ends_the_grade(daemon: LiveDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.bash("rm app.sh")
    use_admin(daemon, monkeypatch)
    result = grade()
    assert result.status() == "failed" and result.build_success is False
    assert (result.pov_total, result.func_test_success, result.intent_test_success) == (None, None, None)
    assert result.error_msg == "Build failed" and "app.sh" in (result.error_log or "")


def test_hidden_tests_that_do_not_apply_are_a_failed_check(daemon: LiveDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.bash("echo true > tests/hidden.sh")
    use_admin(daemon, monkeypatch)
    result = grade()
    assert result.intent_test_success is False and result.func_test_success is True
    ran = bencher.intent_test(grading=True)
    assert ran.code == 1 and ran.stderr.startswith("git apply failed")


def test_refusals_are_errors_with_the_daemons_words(daemon: LiveDaemon) -> None:
    client = Daemon()
    for call in (client.prepare_grading, get_reference_patch, lambda: client.post("/admin/agent_exited")):
        with pytest.raises(SDKError) as caught:
            call()
        assert caught.value.status == 403 and caught.value.message
    with pytest.raises(SDKError, match="unknown tool: nothing"):
        client.tool("nothing", "execute", {})


def test_the_reference_patch_comes_over_the_admin_socket(daemon: LiveDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSE_ADMIN_SOCKET", daemon.env["SSE_ADMIN_SOCKET"])
    patch = get_reference_patch()
    assert f"-{BROKEN_LINE}" in patch and f"+{FIXED_LINE}" in patch
    monkeypatch.setenv("SSE_ADMIN_SOCKET", "")  # set to nothing is not set: the SDK's own socket, which refuses
    with pytest.raises(SDKError) as caught:
        get_reference_patch()
    assert caught.value.status == 403


def test_http_works_like_the_socket(daemon: LiveDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSE_DAEMON_SOCKET")
    monkeypatch.setenv("SSE_AGENT_DOCKER", f"127.0.0.1:{daemon.http_port}")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert parse_metadata(Daemon().project()).id == "toy-1"


def test_names_are_asked_for_on_first_use_only(daemon: LiveDaemon) -> None:
    program = (
        "import os, sse, sse.project, sse.prompt, sse.grading, sse.reference, sse.tools, sse.dialog\n"
        "os.environ['SSE_DAEMON_SOCKET'] = os.environ.pop('LATER')\n"
        "print(sse.project.capabilities.poc_count, sse.project.source, len(sse.project.all_poc))\n"
        "from sse.project import metadata\n"
        "print(metadata is sse.project.metadata, sse.tools.bash.execute('exit 7').code)\n"
    )
    env = {"LATER": daemon.env["SSE_DAEMON_SOCKET"], "PATH": os.environ["PATH"]}
    repository = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=repository, env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == [f"2 {daemon.task.source} 2", "True 7"]
