"""What is sent to bash and what is understood of its answers."""

from __future__ import annotations

import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shell.session_protocol import (
    Command,
    Paths,
    Report,
    Said,
    Way,
    belongs_in_file,
    command_lines,
    death_notices,
    direct_lines,
    fork_failed,
    leaves_open,
    may_shadow,
    needs_no_jobs,
    quoted,
    reports,
    without_reports,
)

_NONCE = b"0123456789ab"
_PATHS = Paths("/x/out", "/x/err", "/x/command")


def _command(text: bytes, *, shadowed: frozenset[int] = frozenset(), monitored: bool = True) -> Command:
    prompts = (b"", b"", b"")
    more = {"text_in_file": False, "high": True, "guarded": True}
    return Command(_NONCE, text, 0, _PATHS, shadowed, prompts, monitored=monitored, **more)


def test_bash_reads_every_byte_of_a_quoted_text_back() -> None:
    text = bytes(range(1, 256)) + b"'\"\\$`!\n"
    done = subprocess.run(["/bin/bash", "-c", b"printf %s " + quoted(text)], stdout=subprocess.PIPE, check=True)
    assert done.stdout == text


def test_bash_reads_a_text_quoted_twice_back() -> None:
    text = bytes(range(1, 256))
    script = b"eval " + quoted(b"printf %s " + quoted(text))
    assert subprocess.run(["/bin/bash", "-c", script], stdout=subprocess.PIPE, check=True).stdout == text


@given(st.binary(max_size=200).map(lambda data: data.replace(b"\0", b"")))
def test_a_command_is_two_lines_whatever_its_text(text: bytes) -> None:
    directly = [direct_lines(_command(text), way).replace(b"\n\n", b"\n") for way in (Way.PROMPT, Way.BARE_PROMPT)]
    for lines in (command_lines(_command(text)), command_lines(_command(text, monitored=False)), *directly):
        assert lines.count(b"\n") == 2
        assert lines.endswith(b"\n")
        assert b"!" not in lines  # history expansion


def test_a_report_is_found_among_other_messages() -> None:
    data = b"noise\nbash: /dev/null/%s.e.7.'a'/''/$'b\\'c': Not a directory\nmore\n" % _NONCE
    found, rest = reports(_NONCE, data)
    assert found == [Report(Said.ENDED, 7, (b"'a'", b"''", b"$'b\\'c'"))]
    assert rest == b"noise\nmore\n"


def test_a_report_tells_the_options_of_the_shell() -> None:
    data = b"bash: /dev/null/%s.e.0.///himBHs: Not a directory\n" % _NONCE
    assert reports(_NONCE, data)[0] == [Report(Said.ENDED, 0, (b"", b"", b""), b"himBHs")]


def test_a_report_under_another_nonce_means_nothing() -> None:
    data = b"bash: /dev/null/%s.r.0.//: Not a directory\n" % _NONCE.replace(b"0", b"f")
    assert reports(_NONCE, data) == ([], b"")


def test_half_a_report_waits_for_its_other_half() -> None:
    data = b"bash: /dev/null/%s.r.0.//: Not a dir" % _NONCE
    assert reports(_NONCE, data) == ([], data)


@pytest.mark.parametrize("word", [b"x y", b"'a'b", b"$(id)", b"'a\nb'", b'"a"'])
def test_a_prompt_value_that_is_no_single_quoted_word_is_no_report(word: bytes) -> None:
    # It would be put back into a line of ours.
    found, _ = reports(_NONCE, b"bash: /dev/null/%s.e.7.%s//: Not a directory\n" % (_NONCE, word))
    assert found == []


@pytest.mark.parametrize(
    ("text", "in_file"),
    [
        (b"kill %1", True),
        (b"fg", True),
        (b"jobs -l", True),
        (b"wait -n", True),
        (b"sleep 1 & jobs", True),
        (b"true && fg", True),
        (b"if jobs; then :; fi", True),
        (b"! bg", True),
        (b"x=$(jobs -p)", True),
        (b"x=`jobs`", True),
        (b"{ jobs; }", True),
        (b"for i in 1; do bg; done", True),
        (b"case a in a) fg;; esac", True),
        (b"\\jobs", True),
        (b"builtin jobs; \\command fg", True),
        (b"LANG=C jobs >x", True),
        (b">x jobs", True),
        (b"trap 'jobs' EXIT", True),
        (b"alias j='jobs -l'", True),
        (b"%1", True),
        (b"sleep 1 & %+", True),
        (b"kill -9 %sleep", True),
        (b'kill "%1"', True),
        (b"wait %%", True),
        (b"trap 'kill %1' EXIT", True),
        (b"x=%1; kill $x", True),
        (b"printf '%-5s|\\n' a", False),
        (b'printf "%02d" 7; printf %5d 7', False),
        (b"printf '%-3s|%02d\\n' a 7", False),
        (b"echo bg; echo the jobs are done", False),
        (b"git log --format=%h | head; stat -c %10s x", False),
        (b"fg=1; ./jobs; cat jobs.txt", False),
        (b"grep -r jobs .; cd jobs", False),
        (b"# jobs", False),
        (b"pkill %d; echo wait - no", False),
        (b"wait $!", False),
        (b"date +%d; printf '%s' x", False),
        (b"'" * 20_000, True),
        (b"echo 'a'", False),
    ],
)
def test_text_about_jobs_and_text_of_many_quotes_goes_through_the_file(text: bytes, in_file: bool) -> None:
    assert belongs_in_file(text) is in_file


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        (b"echo $(date", True),
        (b'echo $(echo ")"', True),
        (b'echo "$(date', True),
        (b"diff <(ls a) <(ls b", True),
        (b"echo $(date)", False),
        (b"echo '('; echo \"(\"; echo \\(", False),
        (b"echo a)", False),
        (b"true # (see above", False),
        (b"# don't (\necho $(date)", False),
        (b"echo ${#x} $# $(date # )", True),
        (b"cat <<'E'\n$( it's (\nE\necho a", False),
        (b"cat <<\\E - <<-F\n(\nE\n(\n\tF\necho $(date", True),
        (b"cat <<\\E - <<-F\n(\nE\n(\n\tF\necho $(date)", False),
        (b"cat <<E\nsee (\nE", False),
        (b"cat <<E\n$(date\nE", True),
        (b"cat <<E\nnever ended $(", True),
        (b"x=$(cat <<E\nabc\nE", True),
        (b"true", False),
    ],
)
def test_a_substitution_that_is_left_open_is_noticed(text: bytes, is_open: bool) -> None:
    assert leaves_open(text) is is_open


@pytest.mark.parametrize(
    ("text", "no_jobs"),
    [
        (b"timeout 1 make 2>&1 | tail -5", True),
        (b"cd x && timeout 1 make |& grep -c . || echo none", True),
        (b"(timeout 1 sh -c 'sleep 5 & wait $!'; echo $?) | cat", True),
        (b"set -euo pipefail; timeout 1 find . -name x | grep -c . | cat", True),
        (b"ls | cat", False),
        (b"timeout 1 make || echo failed", False),
        (b"timeout 1 echo 'a | b'", False),
        (b"timeout 1 make | cat & sleep 1", False),
        (b"sleep 5 & timeout 1 make | cat", False),
        (b"timeout 1 make | cat; jobs", False),
        (b"timeout 1 make | cat; kill %1", False),
        (b"timeout 1 make | cat; wait", False),
        (b"set -m; timeout 1 make | cat", False),
        (b"case $- in *m*) timeout 1 make | cat;; esac", False),
        (b". ./functions; timeout 1 make | cat", False),
    ],
)
def test_a_timeout_in_a_pipeline_that_is_not_about_jobs_is_noticed(text: bytes, no_jobs: bool) -> None:
    assert needs_no_jobs(text) is no_jobs


def test_a_function_named_eval_is_gone_around() -> None:
    assert b"\\\\eval -- " in command_lines(_command(b"true"))
    assert b"\\\\builtin eval -- " in command_lines(_command(b"true", shadowed=frozenset({0})))
    assert b"\\\\command eval -- " in command_lines(_command(b"true", shadowed=frozenset({0, 2})))
    assert b"POSIXLY_CORRECT=1 " in command_lines(_command(b"true", shadowed=frozenset({0, 2, 3})))


def test_names_are_only_checked_after_text_that_could_change_them() -> None:
    assert may_shadow(b"eval() { :; }")
    assert may_shadow(b". ./functions")
    assert not may_shadow(b"ls -l")


def test_only_lines_that_tell_of_a_death_are_passed_on() -> None:
    messages = b"[1]+  Done   sleep 1\nSegmentation fault\nAborted (core dumped)\nKilled by me\nInterrupt\n"
    assert death_notices(messages) == b"Segmentation fault\nAborted (core dumped)\n"


def test_a_fork_that_was_given_up_is_told_from_one_that_is_tried_again() -> None:
    assert fork_failed(b"x\nbash: fork: Resource temporarily unavailable\n")
    assert not fork_failed(b"bash: fork: retry: Resource temporarily unavailable\n")


def test_our_reports_are_taken_out_of_a_dead_shells_stderr() -> None:
    line = b"bash: /dev/null/%s.e.0.//: Not a directory\n" % _NONCE
    assert without_reports(_NONCE, b"a\n" + line + b"b\n") == b"a\nb\n"


@pytest.mark.parametrize(
    "text",
    [
        b";>" * 32_000,
        b";a=" * 21_000,
        b"a=" * 32_000,
        b"x=" + b"a" * 65_000,
        b"; " + b" " * 65_000,
        b"curl 'https://example.org/?" + b"a=1&" * 15_000 + b"'",
        b";x=1" * 16_000,
        b"timeout a|b; " + b"set " * 16_000,
        b"timeout a|b; " + b"set -" + b"a" * 65_000,
        b"timeout a|b\n" + b" " * 65_000,
        b"kill " * 13_000,
        b"command " * 8_000,
        b"<<A\nA\n" * 10_000,
        b"$((" * 20_000,
    ],
    ids=lambda text: text[:20].decode(),
)
def test_no_text_is_looked_at_for_long(text: bytes) -> None:
    started = time.process_time()
    belongs_in_file(text)
    leaves_open(text)
    needs_no_jobs(text)
    may_shadow(text)
    # The daemon serves nobody meanwhile. Quadratic looks took ten seconds.
    assert time.process_time() - started < 1
