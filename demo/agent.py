"""A scripted agent. It knows nothing of the daemon but its SDK; what it has in place of a model is a fix that it was
given."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from sse import project
from sse.dialog import DialogWriter
from sse.prompt import task_prompt
from sse.tools import bash


def repair(fix: str, say: Callable[[str], None]) -> None:
    """Read the task, work in the shell, apply ``fix`` (a unified diff), check it and commit it."""
    with DialogWriter() as dialog:
        dialog.init("demo")
        dialog.prompt(task_prompt())
        say(f"reads the task: {project.metadata.id}, {project.metadata.language}, in {project.source}")
        bash.execute(f"cd {shlex.quote(str(project.source))} && export WHO=agent")
        say(f"works in one shell: {bash.execute('echo $WHO in $PWD').stdout.strip()}")
        say(f"builds: code {project.build().code}; sees the tests: code {project.function_test().code}")
        say(f"proofs of concept before the fix: codes {[project.run_poc(poc).code for poc in project.all_poc]}")
        applied = bash.execute(f"git apply - <<'END_OF_FIX'\n{fix}END_OF_FIX\n")
        say(f"applies its fix: code {applied.code} {applied.stderr}".rstrip())
        say(f"builds again: code {project.build().code}")
        say(f"proofs of concept after the fix: codes {[project.run_poc(poc).code for poc in project.all_poc]}")
        identity = "-c user.name=agent -c user.email=agent@example.invalid"
        bash.execute(f"git {identity} commit -qam 'Fix the vulnerability'")
        say(f"commits: {bash.execute('git log --oneline -1').stdout.strip()}")
        dialog.complete(applied.is_success())
