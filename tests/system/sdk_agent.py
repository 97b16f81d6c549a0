"""An agent that uses nothing but the SDK: reads the task, works in the shell, checks, repairs, commits."""

import json
import sys

from sse import project
from sse.dialog import DialogWriter
from sse.error import SDKError
from sse.prompt import task_prompt
from sse.tools import bash

FIX = sys.argv[1]  # a shell command that repairs the source tree

with DialogWriter() as dialog:
    dialog.init("thirty-lines", model=None)
    dialog.prompt(task_prompt())
    bash.execute(f"cd {project.source} && export SEEN=yes")
    state = bash.execute("echo $SEEN in $PWD")
    before = [project.run_poc(poc).code for poc in project.all_poc] if project.build().is_success() else []
    dialog.tool_start("bash", {"command": FIX})
    fixed = bash.execute(FIX, timeout=60)
    dialog.tool_result("bash", fixed.stdout, is_error=not fixed.is_success())
    built, tested = project.build().is_success(), project.function_test().is_success()
    after = [project.run_poc(poc).code for poc in project.all_poc]
    bash.execute("git -c user.name=a -c user.email=a@example.org commit -qam 'Refuse attacks'")
    try:
        project.run_poc("../../etc/passwd")
        refused = None
    except SDKError as error:
        refused = error.message
    dialog.complete(success=all(code == 0 for code in after))
print(json.dumps([state.stdout, before, fixed.code, built, tested, after, refused, project.metadata.id]))
