"""Every operation on every listener, before and after the phase, at every level: real sockets, real services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from daemon.access import HIGHEST_LEVEL
from shell.accounts import find_account
from tests.support.live import live_daemon, scratch
from tests.support.toy_task import lay_out
from tests.support.users import agent_name
from tests.unit.daemon.test_openapi import DOCUMENT, OPERATIONS, PATHS

pytestmark = pytest.mark.users

TOOL = "/tool/{name}"


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch() as path:
        yield path


def check_described(path: str, method: str, answer: httpx.Response) -> None:
    """The answer is one the description has, to the field."""
    responses = PATHS[path][method]["responses"]
    assert str(answer.status_code) in responses, (path, answer.status_code, answer.text)
    assert answer.headers["Content-Type"] == "application/json"
    schema = responses[str(answer.status_code)]["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), schema | {"components": DOCUMENT["components"]})


def check_operations(client: httpx.Client, *, admin: bool) -> None:
    for path, method, operation in OPERATIONS:
        if path == TOOL or (admin and method == "post"):
            continue
        answer = client.request(method, path)
        check_described(path, method, answer)
        assert answer.status_code == (200 if admin or operation["x-access"] == "any" else 403), (path, answer.text)


def check_tools(client: httpx.Client, runs: list[str] | None) -> None:
    """Every action; those in ``runs`` run, the others are refused, and bash too when ``runs`` is None."""
    for action in HIGHEST_LEVEL:
        argument: dict[str, Any] = {"poc": "pocs/one.txt"} if action == "run_poc" else {}
        answer = client.post(f"/tool/bencher?action={action}", json=argument)
        check_described(TOOL, "post", answer)
        assert answer.status_code == (200 if runs is not None and action in runs else 403), (action, answer.text)
    answer = client.post("/tool/bash?action=execute", json={"command": "echo hello"})
    check_described(TOOL, "post", answer)
    assert answer.status_code == (403 if runs is None else 200)


@pytest.mark.parametrize("level", range(5))
def test_the_live_daemon_answers_as_described(root: Path, level: int) -> None:
    runs = PATHS[TOOL]["post"]["x-difficulty"][level]["runs"]
    with live_daemon(root, SSE_DIFFICULTY=str(level)) as daemon:
        for client in (daemon.agent, daemon.http):
            check_operations(client, admin=False)
            check_tools(client, runs)
            assert client.post("/tool/bencher?action=build", json={"grading": True}).status_code == 403
        check_operations(daemon.admin, admin=True)
        check_tools(daemon.admin, list(HIGHEST_LEVEL))
        for path in ("/admin/agent_exited", "/prepare_grading"):
            check_described(path, "post", daemon.admin.post(path))
        for client in (daemon.agent, daemon.http):
            check_operations(client, admin=False)
            check_tools(client, None)
        check_operations(daemon.admin, admin=True)
        check_described(TOOL, "post", daemon.bencher("build", admin=True, grading=True))
        assert "internal error" not in daemon.log()


def test_the_task_is_shown_without_anything_of_the_graders(root: Path) -> None:
    with live_daemon(root, canary="CANARY") as daemon:
        body = daemon.agent.get("/project").json()
        assert body["source"] == str(daemon.task.source)
        assert body["poc"] == [str(daemon.task.bench / "pocs" / name) for name in ("one.txt", "two.txt")]
        assert body["build_script"].startswith("#!/bin/sh")
        for path in ("/project", "/capabilities", "/version", "/result", "/diff", "/files", "/final_diff"):
            assert "CANARY" not in daemon.agent.get(path).text
        assert "CANARY" in daemon.admin.get("/reference/patch").text
        assert "CANARY" not in daemon.log()


def test_reports_of_any_bytes_are_shown_as_they_are(root: Path) -> None:
    task = lay_out(root, find_account(agent_name()))
    reports = {
        "empty": b"",
        "plain": b"no newline",
        "dos": b"a\r\nb\r\n",
        "latin": b"\xff\xc3( \xe9\n",
        "odd": b"\0\x1b[",
    }
    for name, data in reports.items():
        (task.bench / "reports" / name).write_bytes(data)
    config = task.bench / "config.yaml"
    listed = "".join(f"    - reports/{name}\n" for name in reports)
    config.write_text(config.read_text().replace("    - reports/report.txt\n", listed))
    (task.bench / "scripts" / "build.sh").write_bytes(b"#!/bin/sh\r\n# \xe9\n")
    with live_daemon(root, task=task) as daemon:
        body = daemon.http.get("/project").json()
        shown = body["task_description"]["crash_report"]
        assert shown == [data.decode("utf-8", "replace") for data in reports.values()]
        assert body["build_script"] == "#!/bin/sh\r\n# \ufffd\n"
