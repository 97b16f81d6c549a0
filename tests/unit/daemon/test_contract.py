"""The order of the checks, every status of the description, and bodies that are almost right: over WebTest."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from webtest import TestApp, TestResponse

from daemon.access import HIGHEST_LEVEL, Kind
from daemon.app import create_app
from daemon.services import Services
from tests.unit.daemon.fakes import client, fake_services
from tests.unit.daemon.test_openapi import DOCUMENT, OPERATIONS, PATHS

BASH = "/tool/bash?action=execute"
BUILD = "/tool/bencher?action=build"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def agent(services: Services) -> TestApp:
    return client(services, Kind.AGENT)


@pytest.fixture
def admin(services: Services) -> TestApp:
    return client(services, Kind.ADMIN)


def post(app: TestApp, path: str, body: Any = b"{}", **headers: str) -> TestResponse:
    """A POST of bytes as they are, or of a value as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return app.post(path, data, headers=JSON | headers, status="*")


def error(answer: TestResponse, status: int) -> str:
    """The message of an error that must have ``status`` and nothing but a message."""
    assert answer.status_int == status, answer
    assert answer.content_type == "application/json"
    assert list(answer.json) == ["error"]
    return str(answer.json["error"])


def check_described(path: str, method: str, answer: TestResponse) -> None:
    """The answer is one the description has, to the field."""
    responses = PATHS[path][method]["responses"]
    assert str(answer.status_int) in responses, answer
    schema = responses[str(answer.status_int)]["content"]["application/json"]["schema"]
    assert answer.content_type == "application/json"
    jsonschema.validate(answer.json, schema | {"components": DOCUMENT["components"]})


def expected_status(rule: str, kind: Kind, ended: bool) -> int:
    if kind is Kind.ADMIN or rule == "any":
        return 200
    return 403 if rule == "admin" or ended else 200


@pytest.mark.parametrize("level", range(5))
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("kind", Kind)
def test_every_operation_answers_as_described_on_every_listener(
    tmp_path: Any, kind: Kind, ended: bool, level: int
) -> None:
    services = fake_services(tmp_path, difficulty=level)
    app = client(services, kind)
    if ended:
        services.end_agent_phase()
    for path, method, operation in sorted(OPERATIONS):
        if path == "/tool/{name}":
            continue
        before = services.phase.ended
        answer = app.get(path, status="*") if method == "get" else app.post(path, status="*")
        check_described(path, method, answer)
        assert answer.status_int == expected_status(operation["x-access"], kind, before), answer


@pytest.mark.parametrize("level", range(5))
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("kind", Kind)
def test_every_action_is_gated_as_described(tmp_path: Any, kind: Kind, ended: bool, level: int) -> None:
    services = fake_services(tmp_path, difficulty=level)
    app = client(services, kind)
    if ended:
        services.end_agent_phase()
    runs = PATHS["/tool/{name}"]["post"]["x-difficulty"][level]["runs"]
    for action in HIGHEST_LEVEL:
        body = {"poc": "/ssebench/pocs/one.txt"} if action == "run_poc" else {}
        answer = post(app, f"/tool/bencher?action={action}", body)
        check_described("/tool/{name}", "post", answer)
        allowed = kind is Kind.ADMIN or (not ended and action in runs)
        assert answer.status_int == (403 if not allowed else 500 if action == "intent_test" else 200), answer
    answer = post(app, BASH, {"command": "true"})
    assert answer.status_int == (200 if kind is Kind.ADMIN or not ended else 403)


def test_the_checks_of_a_tool_call_come_in_the_order_of_the_contract(tmp_path: Any) -> None:
    services = fake_services(tmp_path, difficulty=4)
    app = client(services, Kind.AGENT)
    bad = b'{"grading": true, "x": 1'
    assert "action" in error(app.post("/tool/nope", bad, status="*"), 400)
    assert error(app.post("/tool/nope?action=build", bad, status="*"), 500) == "unknown tool: nope"
    assert error(app.post("/tool/bencher?action=Build", bad, status="*"), 500) == "invalid action: Build"
    assert "level 4" in error(app.post(BUILD, bad, status="*"), 403)
    assert "Content-Type" in error(app.post(BASH, bad, status="*"), 400)
    assert "not JSON" in error(post(app, BASH, bad), 400)
    assert "grading" in error(post(app, BASH, {"grading": True, "x": 1}), 403)
    assert error(post(app, BASH, {"x": 1}), 500).startswith("invalid argument: ")
    services.end_agent_phase()
    assert "phase" in error(app.post("/tool/nope", bad, status="*"), 403)


def test_every_bad_field_is_named(agent: TestApp) -> None:
    message = error(post(agent, BASH, {"timeout": "5", "extra": 1}), 500)
    assert message.startswith("invalid argument: ")
    assert {part.split(": ")[0] for part in message.removeprefix("invalid argument: ").split("; ")} == {
        "command",
        "timeout",
        "extra",
    }


@pytest.mark.parametrize("value", ["yes", "true", "True", 1, 0, 1.0, None, [], {}, "", [True], {"a": True}])
@pytest.mark.parametrize("kind", Kind)
def test_grading_is_a_json_boolean_and_nothing_else(services: Services, kind: Kind, value: Any) -> None:
    app = client(services, kind)
    for action in ("build", "function_test", "intent_test"):
        assert "invalid argument: grading: " in error(
            post(app, f"/tool/bencher?action={action}", {"grading": value}), 500
        )
    assert services.bencher.seen == []  # type: ignore[attr-defined]


def test_grading_true_reaches_the_bencher_on_the_admin_socket_only(services: Services) -> None:
    for kind in (Kind.AGENT, Kind.HTTP):
        error(post(client(services, kind), BUILD, {"grading": True}), 403)
    assert post(client(services, Kind.ADMIN), BUILD, {"grading": True}).status_int == 200
    assert services.bencher.seen == [("build", True)]  # type: ignore[attr-defined]


def test_run_poc_tolerates_grading(services: Services) -> None:
    answer = post(client(services, Kind.ADMIN), "/tool/bencher?action=run_poc", {"poc": "one", "grading": True})
    assert answer.json["code"] == -1
    error(post(client(services, Kind.AGENT), "/tool/bencher?action=run_poc", {"poc": "one", "grading": True}), 403)
    error(post(client(services, Kind.AGENT), "/tool/bencher?action=run_poc", {"poc": "two"}), 500)


@pytest.mark.parametrize("argument", [[], "x", 1, None, True, [{}]])
def test_an_argument_that_is_no_object_is_invalid(agent: TestApp, argument: Any) -> None:
    assert error(post(agent, BASH, argument), 500) == "invalid argument: must be an object"


@pytest.mark.parametrize("command", ["a\0b", 7, None, ["ls"], {"a": 1}, True])
def test_a_command_that_no_shell_can_take_is_invalid(agent: TestApp, command: Any) -> None:
    assert error(post(agent, BASH, {"command": command}), 500).startswith("invalid argument: command: ")


def test_a_lone_surrogate_is_invalid_and_a_pair_is_a_character(agent: TestApp) -> None:
    assert "surrogate" in error(post(agent, BASH, b'{"command":"\\ud83d"}'), 500)
    assert post(agent, BASH, b'{"command":"\\ud83d\\ude00"}').json["stdout"] == "😀"


@pytest.mark.parametrize("timeout", [0, -1, -0.0, "5", True, None, [], {}])
def test_a_timeout_that_is_no_positive_number_is_invalid(agent: TestApp, timeout: Any) -> None:
    assert "timeout: " in error(post(agent, BASH, {"command": "true", "timeout": timeout}), 500)


def test_a_timeout_reaches_the_shell(services: Services, agent: TestApp) -> None:
    post(agent, BASH, {"command": "true", "timeout": 2.5})
    post(agent, BASH, {"command": "true", "timeout": 3})
    post(agent, BASH, {"command": "true", "timeout": 10**400})
    assert services.shell.seen == [("true", 2.5), ("true", 3.0), ("true", 1e9)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"command=ls",
        b'{"command":"a","command":"b"}',
        b'{"command":NaN}',
        b'{"timeout":Infinity,"command":"a"}',
        b'{"timeout":1e999,"command":"a"}',
        b'\xef\xbb\xbf{"command":"a"}',
        b'{"command":"\xff"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"timeout":' + b"9" * 10_000 + b"}",
        '{"command":"a"}'.encode("utf-16"),
        b'{"command":"a"}{}',
        b"\x1f\x8b\x08\x00",
    ],
    ids=range(15),
)
def test_a_body_that_is_not_strict_json_is_a_400(agent: TestApp, body: bytes) -> None:
    assert "JSON" in error(post(agent, BASH, body), 400)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "", "json"])
def test_another_content_type_is_a_400(agent: TestApp, kind: str) -> None:
    assert "Content-Type" in error(
        agent.post(BASH, b'{"command":"a"}', headers={"Content-Type": kind}, status="*"), 400
    )


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/json;x"])
def test_parameters_of_the_content_type_change_nothing(agent: TestApp, kind: str) -> None:
    assert agent.post(BASH, b'{"command":"a"}', headers={"Content-Type": kind}).json["stdout"] == "a"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "identity, gzip"])
def test_encoded_bodies_are_refused(agent: TestApp, coding: str) -> None:
    assert "encoded" in error(post(agent, BASH, {"command": "a"}, **{"Content-Encoding": coding}), 400)


def test_a_body_over_the_limit_is_a_413(agent: TestApp, admin: TestApp) -> None:
    error(post(agent, BASH, b" " * (16 * 1024 * 1024 + 1)), 413)
    error(post(admin, "/admin/agent_exited", b" " * (16 * 1024 * 1024 + 1)), 413)


@pytest.mark.parametrize("path", ["/prepare_grading", "/admin/agent_exited"])
@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"null", b"no json at all", b"\xff"])
def test_operations_without_an_argument_take_any_body(admin: TestApp, path: str, body: bytes) -> None:
    assert admin.post(path, body, headers=JSON).json == {"success": True}


@pytest.mark.parametrize("since", ["", "x", "1.5", " 1", "1 ", "+1", "٣", "1_0", "0x1", "--1", "1e3", "true"])
def test_since_that_is_no_integer_is_a_400(agent: TestApp, since: str) -> None:
    assert "since" in error(agent.get("/agent/dialog", {"since": since}, status="*"), 400)


@pytest.mark.parametrize("since", ["0", "-1", "007", "9" * 500, "-" + "9" * 500])
def test_since_that_is_an_integer_is_taken(agent: TestApp, since: str) -> None:
    assert agent.get("/agent/dialog", {"since": since}).json == {"entries": []}


@pytest.mark.parametrize(
    "path", ["/", "/nope", "/version/", "/Version", "//version", "/tool", "/tool/", "/tool/a/b", "/static/x"]
)
def test_another_path_is_a_404(agent: TestApp, path: str) -> None:
    error(agent.get(path, status="*"), 404)
    error(post(agent, path), 404)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE"])
def test_another_method_is_a_405_that_names_the_right_ones(agent: TestApp, method: str) -> None:
    answer = agent.request("/version", method=method, status="*")
    error(answer, 405)
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS"
    answer = agent.get("/tool/bash?action=x", status="*")
    error(answer, 405)
    assert answer.headers["Allow"] == "OPTIONS, POST"


@pytest.mark.parametrize("path", [path for path, method, _ in OPERATIONS if method == "get"])
def test_head_is_get_without_a_body(admin: TestApp, path: str) -> None:
    get, head = admin.get(path), admin.head(path)
    assert head.status_int == 200
    assert head.body == b""
    assert head.headers.get("Content-Length") == get.headers.get("Content-Length")


def test_options_has_no_body_and_names_the_methods(agent: TestApp) -> None:
    answer = agent.options("/version")
    assert (answer.status_int, answer.body) == (204, b"")
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS"
    error(agent.options("/reference/patch", status="*"), 403)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:81"])
def test_a_page_of_another_origin_may_not_call_tools(services: Services, origin: str) -> None:
    for kind in Kind:
        error(post(client(services, kind), BASH, {"command": "a"}, Origin=origin), 403)
        error(post(client(services, kind), "/admin/agent_exited", Origin=origin), 403)
    assert not services.phase.ended
    assert post(client(services, Kind.HTTP), BASH, {"command": "a"}, Origin="http://localhost:80").status_int == 200


def test_a_request_without_a_known_listener_counts_as_an_agents(services: Services) -> None:
    app = TestApp(create_app(services))
    error(app.post("/admin/agent_exited", status="*"), 403)
    app = TestApp(create_app(services), extra_environ={"ssebench.listener": "admin"})
    error(app.post("/admin/agent_exited", status="*"), 403)


def test_an_unexpected_exception_shows_an_id_and_the_log_has_it_with_the_trace(
    services: Services, agent: TestApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> bytes:
        raise RuntimeError("/secret/path of ours")

    monkeypatch.setattr(services.capture, "diff", fail)
    message = error(agent.get("/diff", status="*"), 500)
    assert message.startswith("internal error ")
    assert "secret" not in message
    record = next(record for record in caplog.records if message.split()[-1] in record.getMessage())
    assert record.exc_info is not None
    assert "secret" in str(record.exc_info[1])


def test_text_that_is_no_utf_8_is_shown_with_replacement_characters(agent: TestApp) -> None:
    assert post(agent, BUILD).json["stdout"] == "built \ufffd\n"
    assert agent.get("/diff").json == {"diff": "diff \ufffd\n"}


def test_answers_that_nobody_reads_are_bounded_and_given_back(services: Services, agent: TestApp) -> None:
    services.unread.take(900_000)
    assert "wait to be read" in error(post(agent, BASH, {"command": "x" * 200_000}), 500)
    services.unread.give_back(900_000)
    for _ in range(20):
        assert post(agent, BASH, {"command": "x" * 2_000_000}).status_int == 200
    assert services.unread.used_bytes == 0


def test_very_many_and_very_long_unknown_fields_are_refused_in_few_words(agent: TestApp) -> None:
    many = error(post(agent, BUILD, {f"field{number}": 1 for number in range(100_000)}), 500)
    assert many.startswith("invalid argument: field0: unknown field; ") and len(many) < 2000
    assert many.endswith("100000 fields are too many")
    long = error(post(agent, BUILD, {"x" * 1_000_000: 1}), 500)
    assert long.startswith("invalid argument: xxx") and long.endswith("...: unknown field") and len(long) < 200


def test_what_agents_do_not_read_never_costs_the_grader_an_answer(services: Services, admin: TestApp) -> None:
    services.unread.take(1_000_000)
    assert post(admin, BASH, {"command": "x" * 200_000}).status_int == 200
