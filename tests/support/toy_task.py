"""A task that is laid out in milliseconds and needs no compiler: shell scripts, one bug, one hidden test."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from shell.accounts import Account, is_isolated

APP = """\
#!/bin/sh
# prints a greeting for the name in file $1
read -r name < "$1"
case $name in
*attack*) echo "VULNERABLE: $name"; exit 1 ;;
esac
echo "hello $name"
"""
FIXED_LINE = '*attack*) echo "refused"; exit 0 ;;'
BROKEN_LINE = '*attack*) echo "VULNERABLE: $name"; exit 1 ;;'
FIXED_APP = APP.replace(BROKEN_LINE, FIXED_LINE)

TREE = {
    "app.sh": APP,
    "README": "A toy project.\n",
    ".gitignore": "out/\n*.log\n",
    "tests/greet.sh": 'echo world > out/in\n[ "$(sh out/app out/in)" = "hello world" ]\n',
    "docs/guide.txt": "Run sh app.sh FILE.\n",
}

BUILD = "#!/bin/sh\nset -eu\nmkdir -p out\ncp app.sh out/app\necho built\n"
RUN = '#!/bin/sh\nexec sh out/app "$1"\n'
TEST = """\
#!/bin/sh
set -eu
"$(dirname "$0")/build.sh"
for t in tests/*.sh; do sh -e "$t" || { echo "FAILED: $t"; exit 1; }; done
echo "tests passed"
"""
HIDDEN_TEST = 'echo "an attack" > out/in\n[ "$(sh out/app out/in)" = "refused" ]\n'

HIDDEN_DIFF = (
    "diff --git a/tests/hidden.sh b/tests/hidden.sh\nnew file mode 100644\n--- /dev/null\n+++ b/tests/hidden.sh\n"
    "@@ -0,0 +1,2 @@\n" + "".join(f"+{line}\n" for line in HIDDEN_TEST.splitlines())
)
REFERENCE_DIFF = (
    "diff --git a/app.sh b/app.sh\n--- a/app.sh\n+++ b/app.sh\n@@ -4,3 +4,3 @@\n"
    f" case $name in\n-{BROKEN_LINE}\n+{FIXED_LINE}\n esac\n"
)

CONFIG = """\
id: toy-1
project: toy
repository: https://example.invalid/toy
language: shell
source: {source}
task_description:
  issue: |
    A name that holds the word attack is not refused.
  crash_report:
    - reports/report.txt
  bug_description: Names are not checked.
scripts:
  build: scripts/build.sh
  run: scripts/run.sh
  test: scripts/test.sh
files:
  patch: diffs/patch.diff
  poc:
    - pocs/one.txt
    - pocs/two.txt
  future_test: diffs/test.diff
sanitizer: none
type: missing check
trigger_commit: first
patch_commit: second
reference:
  - https://example.invalid/advisory
originality: crafted
"""


@dataclass
class ToyTask:
    """Where the parts of a laid-out toy task are, all below ``root``."""

    root: Path
    canaries: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        """The tree that the agent edits."""
        return self.root / "src" / "toy"

    @property
    def bench(self) -> Path:
        """The task's files."""
        return self.root / "ssebench"

    @property
    def clone(self) -> Path:
        """The clean clone that is graded."""
        return self.root / "ssebench-repo"


def lay_out(root: Path, agent: Account | None, *, canary: str = "", tree: dict[str, str] | None = None) -> ToyTask:
    """Write the task below ``root`` (an existing directory); the tree belongs to ``agent`` where that is possible.

    With ``canary`` every hidden file carries that text and its own name, so that a leak can be searched for.
    """
    task = ToyTask(root)
    _write_tree(task.source, TREE if tree is None else tree)
    _commit(task.source)
    subprocess.run(["cp", "-a", str(task.source), str(task.clone)], check=True)
    hidden = {
        "config.yaml": CONFIG.format(source=task.source),
        "scripts/run.sh": RUN,
        "diffs/patch.diff": REFERENCE_DIFF,
        "diffs/test.diff": HIDDEN_DIFF,
        "pocs/one.txt": "an attack\n",
        "pocs/two.txt": "attack again\n",
    }
    for name, text in hidden.items():
        if canary:
            task.canaries[name] = f"{canary}-{name.replace('/', '-')}"
            text = _with_canary(name, text, task.canaries[name])
        _write(task.bench / name, text)
    _write(task.bench / "scripts/build.sh", BUILD)
    _write(task.bench / "scripts/test.sh", TEST)
    _write(task.bench / "reports/report.txt", "VULNERABLE: an attack\n")
    for script in ("build", "run", "test"):
        (task.bench / "scripts" / f"{script}.sh").chmod(0o755)
    if agent is not None and is_isolated():
        _give(task.source, agent)
        task.bench.chmod(0o700)
        task.clone.chmod(0o700)
    return task


def _with_canary(name: str, text: str, canary: str) -> str:
    if name.endswith(".diff"):
        # Text before the first header is ignored by git apply.
        return f"{canary}\n{text}"
    if name.startswith("pocs/"):
        return f"{text.rstrip()} {canary}\n"
    return text + f"# {canary}\n"


def _write_tree(root: Path, tree: dict[str, str]) -> None:
    for name, text in tree.items():
        _write(root / name, text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def _commit(tree: Path) -> None:
    """One commit and nothing else: the daemon refuses a repository with more."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z",
    }
    identity = ["-c", "user.name=toy", "-c", "user.email=toy@example.invalid"]
    quiet = ["-c", "core.logAllRefUpdates=false", "-c", "gc.auto=0"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A", "-f", "."], ["commit", "-q", "-m", "initial"]):
        subprocess.run(["git", *identity, *quiet, *command], cwd=tree, env=env, check=True)


def _give(tree: Path, account: Account) -> None:
    for folder, folders, files in os.walk(tree):
        os.lchown(folder, account.uid, account.gid)
        for name in folders + files:
            os.lchown(os.path.join(folder, name), account.uid, account.gid)
