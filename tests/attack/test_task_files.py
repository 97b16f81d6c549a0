"""Promise: nobody but root reads the task's hidden files; only the runner, and only in place, the two scripts."""

from __future__ import annotations

import pytest

from tests.attack.target import Target

pytestmark = pytest.mark.users

HIDDEN = [
    "config.yaml", "scripts/run.sh", "diffs/patch.diff", "diffs/test.diff", "pocs/one.txt", "pocs/two.txt",
    "harness/secret.txt",
]  # fmt: skip
# Each way ends with the words of the file, if it works at all.
WAYS = {
    "cat": "cat {}",
    "redirection": "while read -r line; do echo $line; done < {}",
    "link": "ln -sf {} l; cat l; rm -f l",
    "hard link": "ln {} h; cat h; rm -f h",
    "copy": "cp {} c; cat c; dd if={} status=none; tar cf - {} | strings",
    "git": "git diff --no-index /dev/null {}; git hash-object -w {}; git apply --stat {}",
    "sourced": ". {}; bash {}; bash -x {}",
    "through /proc": "for p in /proc/[0-9]*; do cat $p/root{} $p/cwd/{}; done 2>&1 | head -c 100000",
    "chmod": "chmod 777 {} $(dirname {}); chown $(id -u) {}; cat {}",
    "privileged programs": "sudo -n cat {}; mount --bind {} README; chroot / cat {}; setpriv --reuid 0 cat {}",
    "namespaces": "unshare -Ur cat {}; unshare -Urm sh -c 'mount -t overlay x -o lowerdir=/ /mnt; cat {}'",
}


@pytest.mark.parametrize("way", WAYS)
def test_the_agent_reads_no_hidden_file(target: Target, way: str) -> None:
    for name in HIDDEN:
        target.agent(WAYS[way].replace("{}", str(target.bench / name)))


@pytest.mark.parametrize("way", WAYS)
def test_a_build_reads_no_hidden_file(target: Target, way: str) -> None:
    lines = [WAYS[way].replace("{}", str(target.bench / name)) for name in HIDDEN]
    target.runner("\n".join(f"({line}) 2>&1" for line in lines))


def test_no_directory_of_the_task_can_be_listed(target: Target) -> None:
    look = f"cd {target.bench} && ls -R; ls -R {target.bench}; find {target.bench}; echo {target.bench}/*/*.txt"
    for text in (target.agent(look), target.runner(look)):
        assert "one.txt" not in text and "patch.diff" not in text


@pytest.mark.parametrize("place", ["ssebench-repo", "var/results", "var/results.state", "admin", "runner"])
def test_roots_directories_are_closed(target: Target, place: str) -> None:
    path = target.root / place
    text = target.agent(f"ls -la {path}/; cat {path}/*; cat {path}/*/*; touch {path}/x && echo WRITTEN")
    assert "WRITTEN" not in text and "total" not in text.replace("total 0", "")
    text = target.runner(f"ls -la {path}/; touch {path}/x && echo WRITTEN")
    assert "WRITTEN" not in text


def test_a_build_finds_no_other_workspace_or_stage(target: Target) -> None:
    text = target.runner(
        f"exec 2>&1; ls {target.root}/runner; ls ../..; cat ../../*/scripts/run.sh ../../*/pocs/*;"
        f"find .. ../.. {target.root} -path '*/pocs/*' -o -path '*/scripts/*'"
    )
    assert text.count("Permission denied") >= 2 and "pocs/one" not in text and "scripts/build" not in text


def test_the_scripts_that_may_be_executed_cannot_be_changed(target: Target) -> None:
    for script in ("build.sh", "test.sh"):
        path = target.bench / "scripts" / script
        attempt = f"echo x >> {path}; rm -f {path}; mv {path} /tmp/; sed -i s/x/y/ {path}; truncate -s 0 {path}"
        target.agent(attempt)
        target.runner(attempt)
    assert "built" in target.runner("true")


def test_the_agent_does_not_reach_the_runners_side_while_a_build_runs(target: Target) -> None:
    look = (
        f"for i in $(seq 200); do cat {target.root}/runner/*/*/scripts/run.sh {target.root}/runner/*/*/*/app.sh;"
        " sleep 0.01; done > seen 2>/dev/null; cat seen; rm -f seen"
    )
    (target.source / "look.sh").write_text(look)
    target.agent("(bash look.sh &) ; true")
    target.runner("sleep 1")
    target.agent("sleep 1; cat seen; rm -f look.sh seen")
