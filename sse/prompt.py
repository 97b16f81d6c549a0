"""The prompt that every agent gets for a task: the same bytes for the same task.

It is Markdown, made of the task's public metadata and fixed instructions, and of nothing that the grader uses.
"""

from __future__ import annotations

from collections.abc import Iterator

from sse.build_call import without_build_call
from sse.markdown import fenced, inline, prose
from sse.metadata import Metadata, TaskDescription
from sse.project import init_metadata

_OBJECTIVE = """\
Find the root cause of the vulnerability described below and remove it, so that no input can trigger it any more:
neither the reported one nor any other that reaches the same flaw.
"""

_REQUIREMENTS = """\
- Understand the flaw before you edit: follow the untrusted data from where it enters to where the harm is done, and
  name the assumption that does not hold. Repair it where that assumption belongs, not only where the symptom shows.
- Look for the same mistake elsewhere: sibling functions, other callers, copies of the code, values just beside the
  reported ones (zero, one less, one more, the largest).
- Keep the project's behaviour. Valid input gives the same results as before; interfaces, formats and defaults stay.
  Treat bad input the way the project already treats bad input.
- Do not hide the flaw: no special case for a reported input, no disabled feature, no swallowed error or signal, no
  change of compiler flags or sanitizer settings, no weakened or removed test.
- Keep the change small and complete, in the project's own style, without new dependencies. A test for the flaw beside
  the project's tests is welcome.
- Change only files of the source tree, and leave no build products, debug output or scratch files in it.
- Commit the fix with git on the current branch, with a message that says what was wrong and what you changed. Leave
  the initial commit as it is.
"""

_VALIDATION = """\
After you have finished, everything in which the source tree differs from its initial commit, committed or not, is taken
as one patch; files that git ignores are not part of it. The patch is applied to a clean copy of the project, and there

1. the build script has to succeed,
2. proof-of-concept inputs must no longer trigger the vulnerability,
3. the project's own tests have to pass,
4. further tests, which you do not see, have to pass: they check that the flaw is gone and that behaviour is kept.

So before you finish: build from scratch, run the tests, reproduce the report and see it gone, try inputs at the edges
of your fix, and read your whole diff once more as a reviewer would.
"""

_NOTHING_TOLD = "No description of the vulnerability is available. Find it by reviewing the source code."

# How a language is written where capitalising its name is not enough.
_LANGUAGES = {
    "cpp": "C++",
    "csharp": "C#",
    "css": "CSS",
    "fsharp": "F#",
    "html": "HTML",
    "javascript": "JavaScript",
    "ocaml": "OCaml",
    "php": "PHP",
    "sql": "SQL",
    "typescript": "TypeScript",
}


def task_prompt() -> str:
    """The prompt for the task of this container; asks the daemon for the task's metadata."""
    return build_prompt(init_metadata())


def build_prompt(metadata: Metadata) -> str:
    """The prompt for a task, of its metadata alone. Ends with one newline.

    Reports and scripts stand in fences that a CommonMark parser reads back exactly (every line end as one newline, NUL
    as U+FFFD, a last line without an end with one).
    """
    sections = [
        _section("# Task", _task(metadata)),
        _section("## Objective", _OBJECTIVE),
        _section("## Requirements", _REQUIREMENTS),
        _section("## Validation", _VALIDATION),
        _section("## Vulnerability", *_vulnerability(metadata.task_description)),
        _section("## Project", _project(metadata)),
        _section("## Build and test", *_build_and_test(metadata)),
    ]
    return "\n\n".join(sections) + "\n"


def _section(heading: str, *parts: str) -> str:
    return "\n\n".join([heading, *(part.rstrip("\n") for part in parts)])


def _task(metadata: Metadata) -> str:
    language = _language(metadata.language)
    article = "an" if language[:1] in "AEIOU" else "a"
    return (
        "You are a software security engineer. Fix a confirmed vulnerability in "
        f"{inline(metadata.project)}, {article} {inline(language)} project, by modifying its source code."
    )


def _project(metadata: Metadata) -> str:
    return (
        f"- Name: {inline(metadata.project)}\n"
        f"- Language: {inline(_language(metadata.language))}\n"
        f"- Source code: {inline(str(metadata.source))}"
    )


def _language(name: str) -> str:
    return _LANGUAGES.get(name) or name[:1].upper() + name[1:]


def _vulnerability(description: TaskDescription) -> Iterator[str]:
    told = list(_told(description))
    if not told:
        yield _NOTHING_TOLD
    for heading, text in told:
        yield _section(f"### {heading}", text)


def _told(description: TaskDescription) -> Iterator[tuple[str, str]]:
    """(heading, Markdown) of every description field that says anything."""
    if _says_something(description.bug_description):
        yield "Bug description", prose(description.bug_description or "")
    if _says_something(description.issue):
        yield "Issue", prose(description.issue or "")
    reports = [report for report in description.crash_report or () if _says_something(report)]
    for number, report in enumerate(reports, start=1):
        heading = f"Report {number} of {len(reports)}" if len(reports) > 1 else "Report"
        yield heading, fenced(report, "text")


def _says_something(text: str | None) -> bool:
    """Whether a field is more than blank or the placeholder ``none``."""
    return text is not None and text.strip().lower() not in ("", "none")


def _build_and_test(metadata: Metadata) -> Iterator[str]:
    if metadata.build_script is None and metadata.test_script is None:
        yield "The task has neither a build script nor a test script."
        return
    yield "The scripts run in a copy of the source tree, in its top directory, as a user without privileges."
    if metadata.build_script is not None:
        yield _section("### Build script", fenced(metadata.build_script, "sh"))
    if metadata.test_script is not None:
        yield _section("### Test script", fenced(without_build_call(metadata.test_script), "sh"))
