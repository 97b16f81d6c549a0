"""The command ``ssebench``: checks datasets, writes their manifest and schemas, lists and shows tasks.

Exit codes: 0 done, 1 something is not valid or out of date, 2 used wrongly or not readable.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import stat
import sys
from collections.abc import Callable, Sequence
from typing import Any

from shell.errors import SSEBenchError
from sse.metadata import parse_metadata
from sse.prompt import build_prompt
from sse.version import __version__
from tasks.catalog import CatalogError, load_catalog
from tasks.folder import BENCH, MANIFEST_FILE, DatasetFolder, read_dataset, read_task_folder
from tasks.json_schema import EXPORTED, exported
from tasks.manifest import build_manifest, check_images_lock, committed_manifest, difference, parse_manifest, serialise
from tasks.metadata import metadata_from
from tasks.problems import InvalidTaskError, Problem

_CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CATALOG_VARIABLE = "SSEBENCH_CATALOG"


class UsageError(SSEBenchError):
    """What was asked for cannot be done with these arguments."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names of files and what a catalog says are shown in every locale.
            stream.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        code = run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except InvalidTaskError as error:
        print(error, file=sys.stderr)
        return 1
    except SSEBenchError as error:
        print(f"ssebench: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        _give_up_output()
        return 1
    except OSError as error:
        if error.filename is None:
            _give_up_output()
        print(f"ssebench: {error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)
        return 2


def _give_up_output() -> None:
    """Standard output takes no more: Python's own flush at the end must not complain again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _bundled(folder: str) -> str:
    """A folder of this project: the one in the current directory, else that of the checkout this code runs from."""
    in_checkout = os.path.join(_CHECKOUT, folder)
    return in_checkout if not os.path.isdir(folder) and os.path.isdir(in_checkout) else folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ssebench", description="Tasks and datasets of SSEBench.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"ssebench {__version__}")
    groups = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_dataset_commands(groups)
    _add_task_commands(groups)
    return parser


def _add_dataset_commands(groups: Any) -> None:
    dataset = groups.add_parser("dataset", help="check and describe a dataset folder")
    commands = dataset.add_subparsers(title="commands", metavar="COMMAND", required=True)

    validate = commands.add_parser("validate", help="list every problem of every task")
    _add_dir(validate)
    validate.set_defaults(run=_validate)

    manifest = commands.add_parser("manifest", help="write the dataset's manifest")
    _add_dir(manifest)
    manifest.add_argument("-o", "--output", metavar="FILE", help=f"where to write it (default DIR/{MANIFEST_FILE})")
    manifest.add_argument("--check", action="store_true", help="write nothing; show a diff and exit 1 when out of date")
    manifest.add_argument("--generated-from", metavar="COMMIT", help="the commit to record (default: the one recorded)")
    manifest.set_defaults(run=_manifest)

    schema = commands.add_parser("schema", help="write the JSON Schemas of the task files")
    schema.add_argument(
        "-o", "--output", metavar="DIR", default=_bundled("datasets/schema"), help="default %(default)s"
    )
    schema.add_argument("--check", action="store_true", help="write nothing; show a diff and exit 1 when out of date")
    schema.set_defaults(run=_schema)


def _add_task_commands(groups: Any) -> None:
    tasks = groups.add_parser("tasks", help="list tasks")
    commands = tasks.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = commands.add_parser("list", help="list the tasks of a catalog or a dataset folder")
    _add_source(listing)
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_list)

    task = groups.add_parser("task", help="look at one task")
    commands = task.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = commands.add_parser("show", help="print a task's entry as JSON")
    show.add_argument("id", metavar="ID")
    _add_source(show)
    show.set_defaults(run=_show)
    prompt = commands.add_parser("prompt", help="print the prompt that an agent gets")
    prompt.add_argument("id", metavar="ID")
    prompt.add_argument(
        "--local", metavar="DIR", default=_bundled("datasets/demo"), help="dataset folder (default %(default)s)"
    )
    prompt.set_defaults(run=_prompt)


def _add_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", nargs="?", default=_bundled("datasets/demo"), help="default %(default)s")


def _add_source(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--local", metavar="DIR", help="a dataset folder")
    source.add_argument(
        "--catalog",
        metavar="PATH|URL",
        default=os.environ.get(CATALOG_VARIABLE) or _bundled("datasets/demo"),
        help=f"a manifest, a folder with one, or a link (default ${CATALOG_VARIABLE}, else the demo tasks)",
    )


def _validate(options: argparse.Namespace) -> int:
    dataset = read_dataset(options.dir)
    problems = _print_problems(dataset)
    valid = sum(not task.problems for task in dataset.tasks)
    print(f"{options.dir}: {valid} of {len(dataset.tasks)} tasks are valid")
    return 1 if problems else 0


def _manifest(options: argparse.Namespace) -> int:
    dataset = read_dataset(options.dir)
    if _print_problems(dataset):
        return 1
    path = options.output or os.path.join(options.dir, MANIFEST_FILE)
    committed = _read_if_there(path) if options.output else committed_manifest(dataset)
    generated_from = options.generated_from or _recorded_commit(committed)
    content = serialise(build_manifest(dataset, generated_from))
    parse_manifest(content, path)  # what is written can be read
    return _write_or_check({path: (committed, content)}, check=options.check)


def _schema(options: argparse.Namespace) -> int:
    paths = {name: os.path.join(options.output, name) for name in EXPORTED}
    if not options.check:
        os.makedirs(options.output, exist_ok=True)
    files = {path: (_read_if_there(path), exported(name)) for name, path in paths.items()}
    return _write_or_check(files, check=options.check)


def _list(options: argparse.Namespace) -> int:
    tasks = _entries(options)
    if options.json:
        print(json.dumps(tasks, indent=2, sort_keys=True))
        return 0
    rows = [("ID", "LANGUAGE", "PROJECT", "CHECKS")]
    rows += [(task["id"], task["language"], task["project"], ", ".join(task["checks"])) for task in tasks]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]))
    return 0


def _show(options: argparse.Namespace) -> int:
    tasks = _entries(options)
    for task in tasks:
        if task["id"] == options.id:
            print(json.dumps(task, indent=2, sort_keys=True))
            return 0
    raise UsageError(f"no task {options.id!r}; there are: {', '.join(task['id'] for task in tasks)}")


def _prompt(options: argparse.Namespace) -> int:
    names = sorted(entry.name for entry in os.scandir(options.local) if entry.is_dir())
    if options.id not in names:
        raise UsageError(f"no task {options.id!r} in {options.local}; there are: {', '.join(names)}")
    folder = read_task_folder(os.path.join(options.local, options.id))
    if folder.task is None or folder.problems:
        raise InvalidTaskError([problem.below(folder.name) for problem in folder.problems])
    prompt = build_prompt(parse_metadata(metadata_from(folder.task, BENCH, folder.read)))
    # Bytes, so that the prompt is the same in every locale.
    sys.stdout.buffer.write(prompt.encode())
    return 0


def _entries(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The manifest entries of the tasks that were asked for, in order of their ids."""
    if options.local is None:
        tasks: list[dict[str, Any]] = load_catalog(options.catalog)["tasks"]
        return sorted(tasks, key=lambda task: str(task["id"]))
    dataset = read_dataset(options.local)
    problems = dataset.all_problems()
    if problems:
        raise InvalidTaskError(problems)
    entries: list[dict[str, Any]] = build_manifest(dataset, None)["tasks"]
    return entries


def _print_problems(dataset: DatasetFolder) -> list[Problem]:
    problems = dataset.all_problems() + check_images_lock(dataset)
    for problem in problems:
        print(problem)
    return problems


def _recorded_commit(manifest: bytes) -> str | None:
    try:
        recorded: str | None = parse_manifest(manifest, MANIFEST_FILE)["generated_from"]
        return recorded
    except InvalidTaskError:
        return None


def _read_if_there(path: str) -> bytes:
    try:
        # What is no regular file, a pipe or /dev/stdout, has no content of its own and may make a reader wait.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return b""
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _write_or_check(files: dict[str, tuple[bytes, bytes]], *, check: bool) -> int:
    """Write the new content of every file, or with ``check`` show how the old one differs from it."""
    stale = {path: (old, new) for path, (old, new) in files.items() if old != new}
    for path, (old, new) in stale.items():
        if check:
            sys.stdout.write(difference(old, new, path))
        else:
            with open(path, "wb") as file:
                file.write(new)
            print(f"wrote {path}")
    return 1 if check and stale else 0


__all__ = ["CatalogError", "UsageError", "main"]

if __name__ == "__main__":
    sys.exit(main())
