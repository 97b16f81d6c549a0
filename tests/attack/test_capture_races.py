"""Promise: whoever writes while the tree is captured, the answer is a diff or a clear error; the grade is honest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attack.target import VULNERABLE_GRADE, Target

pytestmark = pytest.mark.users

# Programs of the agent's, run in the tree while it is read.
WRITERS = {
    "rewrites": """
        open("README", "w").write("x" * 100_000); open("README", "w").write("y")""",
    "makes and removes": """
        open("new", "w").close(); os.unlink("new")""",
    "file and directory": """
        open("t", "w").close(); os.unlink("t"); os.mkdir("t"); os.rmdir("t")""",
    "file and link": """
        os.unlink("app.sh"); os.symlink("/etc/shadow", "app.sh")
        os.unlink("app.sh"); open("app.sh", "w").write("exit 0\\n")""",
    "file and fifo": """
        os.mkfifo("p"); os.unlink("p"); open("p", "w").close(); os.unlink("p")""",
    "ignore file": """
        os.rename(".gitignore", "g"); os.mkfifo(".gitignore"); os.unlink(".gitignore"); os.rename("g", ".gitignore")""",
    "parents": """
        os.rename("tests", "t"); os.symlink("/etc", "tests"); os.unlink("tests"); os.rename("t", "tests")""",
    "repository": """
        os.rename(".git", "g"); os.mkdir(".git"); os.rmdir(".git"); os.rename("g", ".git")""",
    "grows": """
        f = open("README", "a"); f.write("x" * 4096); f.close()
        if os.stat("README").st_size > 1 << 24: os.truncate("README", 0)""",
    "closes": """
        os.chmod("tests", 0); os.chmod("tests", 0o755); os.chmod("README", 0)""",
    "deepens": """
        if os.getcwd().count("/d/") < 500: os.mkdir("d"); os.chdir("d")""",
}


def program(steps: str) -> str:
    """A program that repeats the steps for ever."""
    return f"import os\nwhile True:\n    if True:{steps}\n"


SIGNALS = {"STOP": 19, "KILL": 9}


@pytest.fixture(autouse=True)
def tree_is_put_back(usual_target: Target) -> Iterator[None]:
    yield
    usual_target.bash("cd /; pkill -9 -f writer.py; true")
    usual_target.reset_tree()


@pytest.mark.parametrize("kind", WRITERS)
def test_a_writer_gets_a_diff_or_an_error_and_no_secret(usual_target: Target, kind: str) -> None:
    target = usual_target
    (target.root / "writer.py").write_text(program(WRITERS[kind]))
    target.bash(f"cd {target.source}; (timeout 20 python3 {target.root}/writer.py >/dev/null 2>&1 &); cd /")
    for _ in range(5):
        for path in ("/diff", "/files"):
            text = target.get(path)
            assert text.startswith(("200", "500")), text
            assert "root:" not in text
        text = target.note(target.daemon.bencher("build"))
        assert text.startswith(("200", "500")), text


@pytest.mark.parametrize("signal", SIGNALS)
def test_helpers_that_the_agent_signals_are_an_error_or_a_diff(usual_target: Target, signal: str) -> None:
    target = usual_target
    (target.root / "writer.py").write_text(
        "import os\nown = os.getpid()\nwhile 1:\n for p in filter(str.isdigit, os.listdir('/proc')):\n"
        "  try:\n   if int(p) != own and b'-I' in open(f'/proc/{p}/cmdline', 'rb').read(): "
        f"os.kill(int(p), {SIGNALS[signal]})\n  except OSError: pass\n"
    )
    target.bash(f"(timeout 4 python3 {target.root}/writer.py >/dev/null 2>&1 &); cd /")
    text = target.get("/diff")
    assert text.startswith(("200", "500")), text
    target.bash("sleep 4")
    # One that waits for work while it is stopped is noticed when it is asked, and replaced.
    target.get("/diff")
    assert target.get("/diff").startswith("200")


def test_a_writer_at_the_end_of_the_phase_changes_nothing_afterwards(fresh_target: Target) -> None:
    target = fresh_target
    (target.root / "writer.py").write_text(program(WRITERS["rewrites"]))
    target.bash(f"cd {target.source}; (setsid python3 {target.root}/writer.py >/dev/null 2>&1 &); cd /")
    assert target.grade() == VULNERABLE_GRADE
    first = target.daemon.admin.get("/final_diff").json()
    assert target.grade() == VULNERABLE_GRADE
    assert target.daemon.admin.get("/final_diff").json() == first
