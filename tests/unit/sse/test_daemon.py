"""The client against a server that answers anything: every failure is an SDKError that says what happened."""

from __future__ import annotations

import gc
import http.server
import json
import re
import socketserver
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sse import daemon as module
from sse.daemon import Daemon, current
from sse.error import SDKError
from sse.metadata import parse_capabilities, parse_metadata
from sse.tools import bash, bencher
from sse.version import __version__


class Answers(http.server.BaseHTTPRequestHandler):
    """Plays back ``queue`` for everything but GET /version; keeps what was asked."""

    protocol_version = "HTTP/1.1"
    version: ClassVar[Any] = {"version": __version__}
    queue: ClassVar[list[tuple[int, bytes]]] = []
    asked: ClassVar[list[tuple[str, str, bytes]]] = []

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append((self.command, self.path, body))
        status, answer = (200, json.dumps(self.version).encode()) if self.path == "/version" else self.queue.pop(0)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET  # noqa: N815 - the name http.server calls

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: object) -> None:
        pass


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Answers]]:
    path = tmp_path / "sse.sock"
    monkeypatch.setenv("SSE_DAEMON_SOCKET", str(path))
    monkeypatch.setattr(Answers, "queue", [])
    monkeypatch.setattr(Answers, "asked", [])
    module._known.cache_clear()
    listening = UnixServer(str(path), Answers)
    thread = threading.Thread(target=listening.serve_forever, args=(0.02,))
    thread.start()
    yield Answers
    listening.shutdown()
    thread.join()
    listening.server_close()


def answer(server: type[Answers], body: object, status: int = 200) -> None:
    server.queue.append((status, body if isinstance(body, bytes) else json.dumps(body).encode()))


RESULT = {"code": 3, "stdout": "out\n", "stderr": "err\n"}


def test_tools_send_what_the_specification_says(server: type[Answers]) -> None:
    for _ in range(6):
        answer(server, RESULT)
    ran = bash.execute("ls", timeout=2.5)
    assert (ran.code, ran.is_success(), ran.output()) == (3, False, "out\nerr")
    bash.execute("ls")
    bencher.build()
    bencher.function_test(grading=True)
    bencher.intent_test(grading=False)
    bencher.run_poc(Path("/ssebench/pocs/one"), grading=True)
    sent = [(path, json.loads(body)) for method, path, body in server.asked if method == "POST"]
    assert sent == [
        ("/tool/bash?action=execute", {"command": "ls", "timeout": 2.5}),
        ("/tool/bash?action=execute", {"command": "ls"}),
        ("/tool/bencher?action=build", {"grading": False}),
        ("/tool/bencher?action=function_test", {"grading": True}),
        ("/tool/bencher?action=intent_test", {"grading": False}),
        ("/tool/bencher?action=run_poc", {"poc": "/ssebench/pocs/one"}),
    ]


def test_the_version_is_asked_once_and_a_difference_warns_once(
    server: type[Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "version", {"version": "9.9"})
    for _ in range(3):
        answer(server, RESULT)
    with pytest.warns(UserWarning, match=rf"SSEBench 9\.9, this SDK {re.escape(__version__)}"):
        bash.execute("one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bash.execute("two")
        bencher.build()
    assert [path for _, path, _ in server.asked].count("/version") == 1


@pytest.mark.parametrize(
    "status, body, message",
    [
        (403, {"error": "withheld at level 4"}, "withheld at level 4"),
        (500, {"error": "git apply failed: x"}, "git apply failed: x"),
        (500, {"error": 7}, "POST /tool/bencher answered 500"),
        (502, b"<html>", "without a JSON object"),
        (200, b"", "without a JSON object"),
        (200, [1], "without a JSON object"),
        (200, b'{"a": ' * 100_000, "without a JSON object"),
        (200, {"code": "0", "stdout": "", "stderr": ""}, "expected code, stdout and stderr"),
        (200, {"code": 0, "stdout": ""}, "expected code, stdout and stderr"),
    ],
)
def test_every_bad_answer_is_an_error(server: type[Answers], status: int, body: object, message: str) -> None:
    answer(server, body, status)
    with pytest.raises(SDKError) as caught:
        bencher.build()
    assert message in caught.value.message and str(caught.value) == caught.value.message


def test_hidden_tests_that_do_not_apply_are_a_result(server: type[Answers]) -> None:
    answer(server, {"error": "git apply failed: conflict"}, 500)
    ran = bencher.intent_test()
    assert (ran.code, ran.stderr) == (1, "git apply failed: conflict")
    answer(server, {"error": "the task has no test script"}, 500)
    with pytest.raises(SDKError):
        bencher.intent_test()


# httpcore leaves a Unix socket whose connect failed to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_daemon_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSE_DAEMON_SOCKET", str(tmp_path / "nobody.sock"))
    with pytest.raises(SDKError, match=r"no answer from the daemon at .*nobody\.sock to GET /version"):
        current().project()
    gc.collect()
    monkeypatch.delenv("SSE_DAEMON_SOCKET")
    monkeypatch.setenv("SSE_AGENT_DOCKER", "127.0.0.1:9")
    with pytest.raises(SDKError, match=r"no answer from the daemon at 127\.0\.0\.1:9"):
        current().capabilities()
    monkeypatch.setenv("SSE_AGENT_DOCKER", "not a host:port:x")
    with pytest.raises(SDKError):
        current().capabilities()
    monkeypatch.delenv("SSE_AGENT_DOCKER")
    with pytest.raises(SDKError, match="set SSE_DAEMON_SOCKET to its socket or SSE_AGENT_DOCKER"):
        Daemon()


def test_what_is_no_json_is_not_sent(server: type[Answers]) -> None:
    for command in ("\ud800", float("nan")):
        with pytest.raises(SDKError):
            Daemon().tool("bash", "execute", {"command": command})


METADATA = {
    "id": "a", "project": "b", "language": "c", "source": "/src/b", "poc": ["/x/1"], "build_script": None,
    "test_script": "t",
    "task_description": {"issue": None, "crash_report": ["r"], "bug_description": "d"},
}  # fmt: skip


def test_metadata_gets_types() -> None:
    metadata = parse_metadata({**METADATA, "later": 1})
    assert metadata.source == Path("/src/b") and metadata.poc == [Path("/x/1")]
    assert metadata.task_description.crash_report == ["r"] and metadata.build_script is None


@pytest.mark.parametrize(
    "change",
    [{"id": 1}, {"source": None}, {"task_description": []}, {"poc": [1]}, {"test_script": 1}],
)
def test_metadata_of_another_shape_is_refused_by_name(change: dict[str, object]) -> None:
    with pytest.raises(SDKError, match=next(iter(change))):
        parse_metadata({**METADATA, **change})
    with pytest.raises(SDKError, match="can_build"):
        parse_capabilities({"can_build": 1})
