"""A dataset's manifest: every task with its checks, images, config and the checksums of its files."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from typing import Any

from marshmallow import ValidationError

from tasks.config import Task, flat_errors
from tasks.folder import LOCK_FILE, MANIFEST_FILE, DatasetFolder, TaskFolder
from tasks.metadata import checks
from tasks.paths import PathError, read_regular
from tasks.problems import InvalidTaskError, Problem
from tasks.schemas import ImagesLockSchema, ManifestSchema

SCHEMA_VERSION = 1
MAX_MANIFEST_BYTES = 32 * 1024 * 1024
_CHUNK_BYTES = 1 << 20


def build_manifest(dataset: DatasetFolder, generated_from: str | None) -> dict[str, Any]:
    """The manifest of a dataset without problems."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dataset": dataset.name,
        "version": dataset.version,
        "generated_from": generated_from,
        "tasks": [_entry(dataset, folder) for folder in sorted(dataset.tasks, key=lambda task: task.name)],
    }


def serialise(manifest: dict[str, Any]) -> bytes:
    """The bytes of a manifest: the same for the same content, on every machine."""
    return json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def parse_manifest(data: bytes, name: str) -> dict[str, Any]:
    """The manifest in ``data``; InvalidTaskError lists what is wrong with it, ``name`` says where it came from."""
    return _parse(data, name, ManifestSchema())


def check_images_lock(dataset: DatasetFolder) -> list[Problem]:
    """The problems of the dataset's images lock, which it need not have."""
    if not os.path.lexists(os.path.join(dataset.path, LOCK_FILE)):
        return []
    try:
        lock = _parse(read_regular(dataset.path, LOCK_FILE), LOCK_FILE, ImagesLockSchema())
    except PathError as problem:
        return [Problem(LOCK_FILE, "", str(problem))]
    except InvalidTaskError as error:
        return error.problems
    problems = []
    if lock["version"] != dataset.version:
        message = f"expected the dataset's version {dataset.version}, found {lock['version']}"
        problems.append(Problem(LOCK_FILE, "version", message))
    unknown = sorted(set(lock["images"]) - {task.name for task in dataset.tasks})
    problems += [Problem(LOCK_FILE, f"images.{name}", "the dataset has no such task") for name in unknown]
    return problems


def difference(old: bytes, new: bytes, path: str) -> str:
    """A unified diff from the file at ``path`` to what it should be; empty when they are the same."""
    before, after = (data.decode("utf-8", "replace").splitlines(keepends=True) for data in (old, new))
    return "".join(difflib.unified_diff(before, after, fromfile=path, tofile=f"{path} (generated)"))


def image_of(dataset_name: str, task_id: str) -> str:
    """The name of a task's case image below the registry; image names are lowercase."""
    return f"case/{dataset_name}/{task_id}".lower()


def _entry(dataset: DatasetFolder, folder: TaskFolder) -> dict[str, Any]:
    assert folder.task is not None
    task = folder.task
    return {
        "id": task.id,
        "project": task.project,
        "language": task.language,
        "base": folder.base,
        "image": image_of(dataset.name, task.id),
        "arch": folder.arch or dataset.arch,
        "checks": checks(task),
        "config": full_config(task),
        "files": {file: _sha256(os.path.join(folder.path, file)) for file in folder.files},
    }


def full_config(task: Task) -> dict[str, Any]:
    """The config with every key present, null where the task has none."""
    return {
        "id": task.id,
        "project": task.project,
        "repository": task.repository,
        "language": task.language,
        "source": task.source,
        "task_description": {
            "issue": task.description.issue,
            "crash_report": list(task.description.crash_report),
            "bug_description": task.description.bug_description,
        },
        "scripts": {"build": task.scripts.build, "run": task.scripts.run, "test": task.scripts.test},
        "files": {
            "patch": task.files.patch,
            "poc": list(task.files.poc),
            "future_test": task.files.future_test,
            "security_test": task.files.security_test,
            "intent_test": task.files.intent_test,
        },
        "sanitizer": task.sanitizer,
        "type": task.type,
        "binary": task.binary,
        "trigger_commit": task.trigger_commit,
        "patch_commit": task.patch_commit,
        "reference": list(task.reference),
        "originality": task.originality,
    }


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _parse(data: bytes, name: str, schema: Any) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = schema.load(_strict_json(data))
    except ValidationError as error:
        raise InvalidTaskError([Problem(name, key, text) for key, text in flat_errors(error.messages)]) from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise InvalidTaskError([Problem(name, "", f"expected JSON: {reason}")]) from None
    return loaded


def _strict_json(data: bytes) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("duplicate keys")
        return found

    def no_number(word: str) -> Any:
        raise ValueError(f"{word} is no JSON number")

    return json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=no_number)


def committed_manifest(dataset: DatasetFolder) -> bytes:
    """The bytes of the manifest that lies in the dataset's folder; empty when there is none."""
    try:
        return read_regular(dataset.path, MANIFEST_FILE, limit_bytes=MAX_MANIFEST_BYTES)
    except PathError:
        return b""
