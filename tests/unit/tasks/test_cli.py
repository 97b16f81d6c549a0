"""The command ``ssebench``: what it prints and how it ends."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks import catalog
from tasks.cli import main
from tests.unit.tasks.folders import TASK_ID, apply_step, write_dataset

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = write_dataset(tmp_path)
    assert main(["dataset", "manifest", str(path)]) == 0
    return path


def test_validate_ends_with_the_count(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dataset", "validate", str(dataset)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{dataset}: 1 of 1 tasks are valid"


def test_validate_prints_every_problem_and_fails(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apply_step(dataset, {"remove": f"{TASK_ID}/sse/run.sh"})
    assert main(["dataset", "validate", str(dataset)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{dataset}: 0 of 1 tasks are valid"
    assert any(line.startswith("sample-1/sse/config.yaml: scripts.run: ") for line in lines)


def test_manifest_check_shows_what_is_out_of_date(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = ["dataset", "manifest", "--check", str(dataset)]
    assert main(check) == 0
    before = (dataset / "manifest.json").read_bytes()
    apply_step(dataset, {"replace": f"{TASK_ID}/sse/reports/crash.txt", "old": "boom", "new": "bang"})
    capsys.readouterr()
    assert main(check) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("--- ") and "sse/reports/crash.txt" in printed
    assert (dataset / "manifest.json").read_bytes() == before


def test_the_recorded_commit_stays_until_another_is_named(dataset: Path) -> None:
    assert main(["dataset", "manifest", str(dataset), "--generated-from", "0a1b2c3"]) == 0
    assert main(["dataset", "manifest", str(dataset)]) == 0
    assert json.loads((dataset / "manifest.json").read_text())["generated_from"] == "0a1b2c3"


def test_a_broken_dataset_gets_no_manifest(dataset: Path) -> None:
    (dataset / "manifest.json").unlink()
    apply_step(dataset, {"remove": f"{TASK_ID}/Dockerfile"})
    assert main(["dataset", "manifest", str(dataset)]) == 1
    assert not (dataset / "manifest.json").exists()


def test_schemas_are_written_and_checked(tmp_path: Path) -> None:
    assert main(["dataset", "schema", "-o", str(tmp_path / "s"), "--check"]) == 1
    assert main(["dataset", "schema", "-o", str(tmp_path / "s")]) == 0
    assert main(["dataset", "schema", "-o", str(tmp_path / "s"), "--check"]) == 0


@pytest.mark.parametrize("source", ["--local", "--catalog"])
def test_tasks_are_listed_from_a_folder_and_from_a_catalog(
    dataset: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["tasks", "list", source, str(dataset)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "sample-1", "c", "sample", "build,", "poc,", "function_test,", "intent_test",
    ]  # fmt: skip
    assert main(["tasks", "list", source, str(dataset), "--json"]) == 0
    assert [task["id"] for task in json.loads(capsys.readouterr().out)] == ["sample-1"]


def test_one_task_is_shown(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["task", "show", "sample-1", "--catalog", str(dataset / "manifest.json")]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["source"] == "/src/sample"
    assert main(["task", "show", "sample-2", "--catalog", str(dataset)]) == 2
    assert "sample-1" in capsys.readouterr().err


def test_the_prompt_needs_no_daemon(dataset: Path) -> None:
    command = [sys.executable, "-m", "tasks.cli", "task", "prompt", "--local", str(dataset)]
    done = subprocess.run([*command, "sample-1"], cwd=REPOSITORY, env={"LC_ALL": "C"}, capture_output=True, check=True)
    assert done.stdout.startswith(b"# Task\n") and b"boom" in done.stdout and b"secret of the grader" not in done.stdout
    absent = subprocess.run([*command, "../sample-1"], cwd=REPOSITORY, capture_output=True, check=False)
    assert absent.returncode == 2 and b"Traceback" not in absent.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["dataset", "validate", "/nonexistent"],
        ["dataset", "validate", "/etc/hostname"],
        ["tasks", "list", "--catalog", "/nonexistent.json"],
        ["tasks", "list", "--catalog", "ftp://example.org/"],
        ["tasks", "list", "--catalog", "http://127.0.0.1:9/"],
        ["tasks", "list", "--catalog", "http://[::/"],
        ["task", "prompt", "x", "--local", "/nonexistent"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_read_is_one_line_and_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", [[], ["dataset"], ["task", "show"], ["nothing"], ["dataset", "validate", "a", "b"]]
)
def test_wrong_use_is_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


class Catalog(http.server.BaseHTTPRequestHandler):
    """Serves ``content`` at /c/manifest.json, redirects without end at /loop, is slow at /slow.json."""

    content = b""

    def do_GET(self) -> None:
        if self.path == "/trickle.json":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            for _ in range(30):  # a header line without end, each piece well within the limit of one read
                self.wfile.write(b"X")
                time.sleep(0.1)
            return
        if self.path == "/packed.json":
            self.send_response(200)
            self.send_header("Content-Encoding", "gzip, gzip")
            self.end_headers()
            self.wfile.write(gzip.compress(gzip.compress(b" " * 50_000_000)))
            return
        if self.path.startswith("/loop"):
            self.send_response(302)
            self.send_header("Location", "/loop.json")
            self.end_headers()
            return
        self.send_response(200 if self.path in ("/c/manifest.json", "/slow.json") else 404)
        self.end_headers()
        self.wfile.write(self.content)
        while self.path == "/slow.json":
            self.wfile.write(b" " * 4096)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(dataset: Path) -> Iterator[str]:
    Catalog.content = (dataset / "manifest.json").read_bytes()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Catalog)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("path", ["/c", "/c/", "/c/manifest.json"])
def test_a_catalog_may_be_a_link(served: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "list", "--catalog", served + path]) == 0
    assert "sample-1" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["/missing", "/loop.json"])
def test_a_link_that_leads_nowhere_is_2(served: str, path: str) -> None:
    assert main(["tasks", "list", "--catalog", served + path]) == 2


def test_an_endless_catalog_is_cut(
    served: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalog, "MAX_MANIFEST_BYTES", 100_000)
    assert main(["tasks", "list", "--catalog", f"{served}/slow.json"]) == 2
    assert "larger than 100000 bytes" in capsys.readouterr().err
    monkeypatch.setattr(catalog, "TOTAL_SECONDS", 0.0)
    assert main(["tasks", "list", "--catalog", f"{served}/slow.json"]) == 2
    assert "not complete" in capsys.readouterr().err
    monkeypatch.setattr(catalog, "TOTAL_SECONDS", 0.5)
    assert main(["tasks", "list", "--catalog", f"{served}/trickle.json"]) == 2
    assert "not complete" in capsys.readouterr().err


def test_a_packed_catalog_is_not_unpacked(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "list", "--catalog", f"{served}/packed.json"]) == 1
    assert "packed.json: expected JSON" in capsys.readouterr().err


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    program = [sys.executable, "-c", "import sys; from tasks.command import main; sys.exit(main())", *arguments]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), **options.pop("env", {})}
    return subprocess.run(program, env=env, stderr=subprocess.PIPE, timeout=60, check=False, **options)


def test_the_bundled_dataset_is_found_from_everywhere(tmp_path: Path) -> None:
    listed = command("tasks", "list", cwd=tmp_path, stdout=subprocess.PIPE)
    assert listed.returncode == 0 and b"recdump-CWE-121" in listed.stdout


def test_a_name_that_the_terminal_cannot_show_is_escaped(dataset: Path) -> None:
    renamed = dataset.rename(dataset.parent / os.fsdecode(b"x\xff"))
    for locale in ("ascii", "latin-1", "utf-8"):
        done = command("dataset", "validate", str(renamed), env={"PYTHONIOENCODING": locale}, stdout=subprocess.PIPE)
        assert done.returncode == 1 and b"\\udcff: 1 of 1 tasks are valid" in done.stdout and done.stderr == b""


def test_a_full_output_is_one_line_and_2(dataset: Path) -> None:
    for arguments in (["tasks", "list"], ["task", "prompt", TASK_ID]):
        with open("/dev/full", "wb") as full:
            done = command(*arguments, "--local", str(dataset), stdout=full)
        assert (done.returncode, done.stderr) == (2, b"ssebench: standard output: No space left on device\n")


def test_what_is_no_regular_file_is_never_waited_for(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(dataset.parent / "pipe")
    assert main(["dataset", "manifest", str(dataset), "--check", "-o", str(dataset.parent / "pipe")]) == 1
    assert "pipe (generated)" in capsys.readouterr().out
    assert main(["tasks", "list", "--catalog", str(dataset.parent / "pipe")]) == 2


def test_without_its_extra_the_command_says_what_is_missing(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import sys; sys.modules['yaml'] = None; from tasks.command import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=False)
    assert done.returncode == 2
    assert capfd.readouterr().err == "ssebench: yaml is missing: install ssebench-daemon with its extra [daemon]\n"
