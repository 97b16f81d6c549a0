"""The rules of the house: who imports whom, who starts processes, and what a fresh interpreter patches first."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

# Top floor first. A folder may import from folders below it, never from one above; the SDK stands by itself.
FLOORS = ["daemon", "grading", "tasks", "shell"]
ALLOWED = {
    "daemon": {"daemon", "grading", "tasks", "shell", "conf", "sse"},
    "grading": {"grading", "tasks", "shell", "sse"},
    "tasks": {"tasks", "shell", "sse"},
    "shell": {"shell"},
    "sse": {"sse"},
    "conf": {"conf"},
}
OURS = {*ALLOWED, "demo", "tests"}
STARTS_PROCESSES = {"subprocess", "pexpect", "ptyprocess", "pty", "multiprocessing"}
STARTING_CALLS = {"fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen", "execv", "execve", "execvp"}


def modules(folder: str) -> list[Path]:
    return sorted((REPOSITORY / folder).rglob("*.py"))


ALL_MODULES = [path for folder in ALLOWED for path in modules(folder)]
ABOVE_SHELL = [path for folder in ALLOWED if folder != "shell" for path in modules(folder)]


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


NAMED_TESTS = re.compile(r"tests/[\w/*.]*[\w*/]")


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("path", ALL_MODULES, ids=name)
def test_a_folder_imports_only_from_floors_below(path: Path) -> None:
    allowed = ALLOWED[path.relative_to(REPOSITORY).parts[0]]
    ours = {module.split(".")[0] for module in imported(ast.parse(path.read_text("utf-8")))} & OURS
    assert ours <= allowed, f"{name(path)} imports {sorted(ours - allowed)}"


# The SDK is for other programs: of it, these floors take the version, the prompt and its input, never the client.
@pytest.mark.parametrize("path", [*modules("daemon"), *modules("tasks")], ids=name)
def test_only_the_evaluator_and_the_prompt_command_use_the_sdk(path: Path) -> None:
    used = {module for module in imported(ast.parse(path.read_text("utf-8"))) if module.split(".")[0] == "sse"}
    assert used <= {"sse.version", "sse.prompt", "sse.metadata"}, f"{name(path)} imports {sorted(used)}"


@pytest.mark.parametrize("path", ABOVE_SHELL, ids=name)
def test_only_shell_starts_processes(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    found = {module.split(".")[0] for module in imported(tree)} & STARTS_PROCESSES
    calls = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "os"
    } & STARTING_CALLS
    assert not found | calls, f"{name(path)} uses {sorted(found | calls)}"


@pytest.mark.parametrize("path", ALL_MODULES, ids=name)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), f"{name(path)} has no docstring"


def test_a_fresh_interpreter_patches_before_anything_else_is_imported() -> None:
    program = (
        "import sys, runpy; sys.argv = ['daemon', '--help']\n"
        "try: runpy.run_module('daemon', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "from gevent import monkey; import os, socket, subprocess\n"
        "assert monkey.is_module_patched('socket') and monkey.is_module_patched('subprocess')\n"
        "assert os.close is monkey.get_original('os', 'close')\n"
        "assert socket.socket.__module__.startswith('gevent')\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True, capture_output=True)


def test_the_sdk_needs_nothing_of_the_daemon() -> None:
    program = (
        "import sys\n"
        "refused = {'flask', 'gevent', 'pexpect', 'marshmallow', 'yaml', 'daemon', 'grading', 'shell', 'tasks'}\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in refused:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import sse.daemon, sse.project, sse.prompt, sse.grading, sse.dialog, sse.reference, sse.tools.bash\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True)


def test_without_its_extra_the_daemon_says_what_is_missing(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import sys; sys.modules['gevent'] = None; import daemon.__main__"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=False)
    assert done.returncode == 2
    assert capfd.readouterr().err.startswith("ssebench-daemon: gevent is missing: install")


@pytest.mark.parametrize("path", ALL_MODULES, ids=name)
def test_a_module_names_tests_that_exist(path: Path) -> None:
    for named in NAMED_TESTS.findall(ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""):
        assert list(REPOSITORY.glob(named.rstrip("/"))), f"{name(path)} names {named}"
