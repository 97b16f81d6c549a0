"""The task's directory: closed, but for what the check that runs needs."""

from __future__ import annotations

import os
import stat

import pytest

from tests.support.checks import Checks, make_checks, running_checks
from tests.support.live import scratch
from tests.support.toy_task import lay_out
from tests.support.users import TestUsers

pytestmark = pytest.mark.users

HARNESS = {"harness/main.txt": "first state\n", "harness/sub/tool.sh": "#!/bin/sh\necho tool\n"}
RUN_WITH_HARNESS = (
    '#!/bin/sh\nhere=$(cd "$(dirname "$0")" && pwd)\n'
    'cat "$here/../harness/main.txt"\nsh "$here/../harness/sub/tool.sh"\n'
    'echo changed > "$here/../harness/main.txt"; echo new > "$here/../harness/new"\ncat "$1"\n'
)


def modes(checks: Checks) -> dict[str, str]:
    found = {}
    for path in sorted(checks.toy.bench.rglob("*")):
        status = path.lstat()
        owner = {0: "root", checks.users.runner.uid: "runner"}.get(status.st_uid, "?")
        group = {0: "root", checks.users.runner.gid: "runner"}.get(status.st_gid, "?")
        name = str(path.relative_to(checks.toy.bench))
        found[name] = f"{owner}:{group} {stat.S_IMODE(status.st_mode):04o}"
    return found


def test_everything_is_closed_but_the_build_and_test_scripts(test_users: TestUsers) -> None:
    with running_checks(test_users) as checks:
        assert modes(checks) == {
            "config.yaml": "root:root 0600",
            "diffs": "root:root 0700",
            "diffs/patch.diff": "root:root 0600",
            "diffs/test.diff": "root:root 0600",
            "pocs": "root:root 0700",
            "pocs/one.txt": "root:root 0600",
            "pocs/two.txt": "root:root 0600",
            "reports": "root:root 0700",
            "reports/report.txt": "root:root 0600",
            "scripts": "root:runner 0710",
            "scripts/build.sh": "root:runner 0750",
            "scripts/run.sh": "root:root 0700",
            "scripts/test.sh": "root:runner 0750",
        }


def test_agent_reads_none_and_runner_only_the_two_scripts(test_users: TestUsers) -> None:
    with running_checks(test_users) as checks:
        bench = checks.toy.bench
        for path in bench.rglob("*"):
            assert checks.as_agent(f"cat {path}").code != 0
            readable = path.name in ("build.sh", "test.sh")
            assert (checks.as_runner(f"cat {path}").code == 0) is readable, path
        for folder in (bench, bench / "scripts", bench / "pocs"):
            assert checks.as_runner(f"ls {folder}").code != 0
        assert checks.as_runner(f"echo >> {bench}/scripts/build.sh").code != 0


def test_wrong_owners_and_modes_are_put_right(test_users: TestUsers) -> None:
    with scratch() as root:
        toy = lay_out(root, test_users.agent)
        for path in [toy.bench, *toy.bench.rglob("*")]:
            os.chown(path, test_users.agent.uid, test_users.agent.gid)
            path.chmod(0o777)
        checks = make_checks(root, toy, test_users)
        try:
            assert checks.as_agent(f"cat {toy.bench}/config.yaml").code != 0
            assert modes(checks)["pocs/one.txt"] == "root:root 0700"
        finally:
            checks.bencher.close()


def test_a_harness_of_the_run_script_is_open_during_run_poc_only(test_users: TestUsers) -> None:
    build = "#!/bin/sh\nmkdir -p out; cp app.sh out/app\ncat {bench}/harness/main.txt && echo OPEN\nexit 0\n"
    with running_checks(test_users, scripts=HARNESS | {"scripts/run.sh": RUN_WITH_HARNESS}) as checks:
        script = checks.toy.bench / "scripts/build.sh"
        # The agent's code knows the path; the script of the task does not name it.
        script.write_text("#!/bin/sh\nexec sh ./agents-build.sh\n")
        agents = build.replace("{bench}", str(checks.toy.bench))
        checks.as_agent(f"cat > agents-build.sh <<'EOF'\n{agents}EOF")
        built = checks.build()
        assert built.code == 0 and b"OPEN" not in built.stdout
        answer = checks.run_poc()
        assert answer.stdout.decode().splitlines() == ["first state", "tool", "an attack"], answer
        assert checks.as_runner(f"cat {checks.toy.bench}/harness/main.txt").code != 0


def test_a_harness_is_back_in_its_first_state_in_a_new_session(test_users: TestUsers) -> None:
    with running_checks(test_users, scripts=HARNESS | {"scripts/run.sh": RUN_WITH_HARNESS}) as checks:
        checks.build()
        checks.run_poc()
        harness = checks.toy.bench / "harness"
        assert (harness / "main.txt").read_text() == "changed\n" and (harness / "new").exists()
        checks.bencher.new_session()
        assert {str(path.relative_to(harness)) for path in harness.rglob("*")} == {"main.txt", "sub", "sub/tool.sh"}
        assert (harness / "main.txt").read_text() == "first state\n"


def test_the_first_state_survives_a_crash(test_users: TestUsers) -> None:
    with running_checks(test_users, scripts=HARNESS | {"scripts/run.sh": RUN_WITH_HARNESS}) as checks:
        checks.build()
        checks.run_poc()
        # As after SIGKILL: nothing is closed, another daemon starts on what is there.
        again = make_checks(checks.root, checks.toy, test_users)
        assert (checks.toy.bench / "harness/main.txt").read_text() == "first state\n"
        again.bencher.close()


def test_a_directory_with_hidden_files_is_never_support(test_users: TestUsers) -> None:
    scripts = {"scripts/build.sh": "#!/bin/sh\nls /ssebench/pocs /ssebench/diffs ../pocs\nmkdir -p out\n"}
    with running_checks(test_users, scripts=scripts) as checks:
        checks.build()
        assert modes(checks)["pocs"] == "root:root 0700" and modes(checks)["diffs"] == "root:root 0700"


def test_a_file_that_the_build_script_sources_is_readable_in_place(test_users: TestUsers) -> None:
    scripts = {
        "scripts/build.sh": '#!/bin/sh\nset -e\n. "$(dirname "$0")/common.sh"\nprepare\n',
        "scripts/common.sh": "prepare() { mkdir -p out; cp app.sh out/app; echo common; }\n",
        "scripts/unnamed.sh": "secret\n",
    }
    with running_checks(test_users, scripts=scripts) as checks:
        assert checks.build().stdout == b"common\n"
        assert checks.function_test().code == 0
        assert checks.as_runner(f"cat {checks.toy.bench}/scripts/unnamed.sh").code != 0
        assert checks.as_runner(f"echo >> {checks.toy.bench}/scripts/common.sh").code != 0


def test_a_script_without_an_interpreter_line_runs_in_the_shell(test_users: TestUsers) -> None:
    with running_checks(test_users, scripts={"scripts/build.sh": "mkdir -p out; echo plain\n"}) as checks:
        assert checks.build().stdout == b"plain\n"


def test_the_whole_directory_of_the_poc_is_beside_it_and_hidden_neighbours_are_not(test_users: TestUsers) -> None:
    run = '#!/bin/sh\nls -R "$(dirname "$1")"; cat "$(dirname "$1")/extra/data"; ls -d "$(dirname "$0")"/../*\n'
    scripts = {"scripts/run.sh": run, "pocs/extra/data": "beside\n"}
    with running_checks(test_users, scripts=scripts) as checks:
        checks.build()
        out = checks.run_poc("pocs/two.txt").stdout.decode()
        assert "one.txt" in out and "two.txt" in out and "beside" in out
        assert "diffs" not in out and "config" not in out


def test_a_poc_in_the_tasks_own_directory_is_staged_alone(test_users: TestUsers) -> None:
    run = '#!/bin/sh\ncat "$1"; ls -R "$(dirname "$1")"\n'
    with scratch() as root:
        toy = lay_out(root, test_users.agent)
        (toy.bench / "single.txt").write_text("poc at the top\n")
        (toy.bench / "scripts/run.sh").write_text(run)
        config = toy.bench / "config.yaml"
        config.write_text(config.read_text().replace("    - pocs/two.txt", "    - single.txt"))
        checks = make_checks(root, toy, test_users)
        try:
            checks.build()
            out = checks.run_poc("single.txt").stdout.decode()
            assert "poc at the top" in out and "patch.diff" not in out and "one.txt" not in out
        finally:
            checks.bencher.close()
