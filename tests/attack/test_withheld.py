"""Promise: what a level withholds stays withheld however it is asked for, and grading is the admin socket's alone."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.attack.target import Target
from tests.support.live import uds_client

pytestmark = pytest.mark.users

LIMITS = {"build": 3, "function_test": 2, "run_poc": 1, "intent_test": 0}
JSON = {"Content-Type": "application/json"}


def ask(target: Target, path: str, body: str | bytes = "{}", *, http: bool = False, **more: Any) -> httpx.Response:
    client = target.daemon.http if http else target.daemon.agent
    answer = client.request(more.pop("method", "POST"), path, content=body, headers=JSON | more.pop("headers", {}))
    target.note(answer)
    return answer


@pytest.mark.parametrize("action", LIMITS)
@pytest.mark.parametrize("http", [False, True], ids=["socket", "http"])
def test_a_withheld_action_is_refused(target: Target, action: str, http: bool) -> None:
    if target.level <= LIMITS[action]:
        return
    body = json.dumps({"poc": str(target.bench / "pocs/one.txt")}) if action == "run_poc" else "{}"
    assert ask(target, f"/tool/bencher?action={action}", body, http=http).status_code == 403


SPELLINGS = [
    "action=INTENT_TEST", "action=Intent_Test", "action=intent_test%20", "action=%20intent_test",
    "action=intent%5ftest", "action=intent_test&action=build", "action=build&action=intent_test",
    "action=intent_test%00", "Action=intent_test", "action[]=intent_test", "action=intent_test;action=build",
    "action=%EF%BD%89ntent_test", "action=intent-test", "action=intent_test#build", "a=1&action=intent_test",
    "action=intent_test&difficulty=0&level=0&SSE_DIFFICULTY=0",
]  # fmt: skip


@pytest.mark.parametrize("query", SPELLINGS)
def test_no_spelling_of_a_withheld_action_runs_it(target: Target, query: str) -> None:
    if target.level == 0:
        return
    answer = ask(target, f"/tool/bencher?{query}")
    # Of two actions one is meant, and it may be an allowed one; the hidden tests must not have run.
    assert answer.status_code in (400, 403, 500) or "hidden.sh" not in answer.text


@pytest.mark.parametrize(
    "extra",
    [{"X-SSE-Difficulty": "0"}, {"X-Forwarded-For": "127.0.0.1"}, {"X-Real-IP": "::1"}, {"X-Original-URL": "/admin"},
     {"X-HTTP-Method-Override": "GET"}, {"Forwarded": "for=admin"}, {"X-SSE-Listener": "admin"}, {"Host": "admin"},
     {"Authorization": "Basic cm9vdDo="}, {"Cookie": "admin=1"}],
)  # fmt: skip
def test_no_header_opens_anything(target: Target, extra: dict[str, str]) -> None:
    assert ask(target, "/prepare_grading", headers=extra).status_code in (400, 403)
    assert ask(target, "/tool/bencher?action=build", '{"grading": true}', headers=extra).status_code in (400, 403)


GRADING = [
    '{"grading": true}', '{"grading":true}', '{"grading": true, "x": 1}', '{"grading": false, "grading": true}',
    '{"grading": true, "grading": false}', '{"grading": 1}', '{"grading": "true"}', '{"grading": "yes"}',
    '{"grading": "True"}', '{"grading": 1.0}', '{"grading": [true]}', '{"grading": {"a": true}}', '{"grading": "on"}',
    '{"Grading": true}', '{"GRADING": true}', '{"grading ": true}', '{"gr\\u0061ding": true}', '{"grading": "1"}',
    '[{"grading": true}]', '{"argument": {"grading": true}}', '{"grading\\u0000": true}', '{"grading": truE}',
]  # fmt: skip


@pytest.mark.parametrize("body", GRADING)
@pytest.mark.parametrize("action", ["build", "function_test"])
def test_no_spelling_of_grading_is_accepted_from_an_agent(target: Target, body: str, action: str) -> None:
    answer = ask(target, f"/tool/bencher?action={action}", body)
    assert answer.status_code in (400, 403, 500), answer.text


ADMIN = [
    "/prepare_grading", "/admin/agent_exited", "/reference/patch", "//prepare_grading", "/./prepare_grading",
    "/tool/../prepare_grading", "/%70repare_grading", "/prepare%5fgrading", "/PREPARE_GRADING", "/prepare_grading/",
    "/prepare_grading?x=1", "/prepare_grading;x", "/prepare_grading%00", "/prepare_grading%2f", "/admin%2fagent_exited",
    "/%61dmin/agent_exited", "//admin//agent_exited", "/admin/./agent_exited", "/admin/../reference/patch",
    "/reference//patch", "/reference/%70atch", "/reference/patch/", "/version/../reference/patch", "/tool/admin",
    "/reference/patch?grading=true", "/reference\\patch", "/static/../config.yaml",
]  # fmt: skip


@pytest.mark.parametrize("path", ADMIN)
@pytest.mark.parametrize("http", [False, True], ids=["socket", "http"])
def test_no_path_reaches_an_admin_endpoint(target: Target, path: str, http: bool) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "GETX"):
        answer = ask(target, path, "{}" if method == "POST" else b"", http=http, method=method)
        assert answer.status_code in (301, 308, 400, 403, 404, 405, 500, 501) or method == "OPTIONS", (method, answer)
    assert target.bash("echo open").startswith("200")


def test_the_metadata_holds_nothing_hidden(target: Target) -> None:
    for path in ("/project", "/capabilities", "/result", "/final_diff", "/diff", "/files", "/agent/dialog", "/version"):
        target.get(path)


def test_the_agent_does_not_reach_the_admin_socket(target: Target) -> None:
    socket = target.daemon.env["SSE_ADMIN_SOCKET"]
    connect = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('{socket}'); print('CONNECTED')"
    for text in (target.agent(f'python3 -c "{connect}"'), target.runner(f'python3 -c "{connect}"')):
        assert "CONNECTED" not in text
    text = target.agent(f"ls -l {socket}; rm -f {socket}; mv {socket} x; ln {socket} x; chmod 777 {socket}")
    assert "srw" not in text
    with uds_client(socket) as admin:
        assert admin.get("/version").status_code == 200


def test_the_agents_socket_cannot_be_replaced(target: Target) -> None:
    socket = target.daemon.env["SSE_DAEMON_SOCKET"]
    target.agent(f"rm -f {socket}; mv {socket} {socket}.x; ln -sf {target.root}/archive/mine {socket}")
    with uds_client(socket) as agent:
        assert agent.get("/version").status_code == 200
