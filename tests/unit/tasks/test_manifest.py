"""A manifest has the same bytes wherever it is made, and what is committed is up to date."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tasks.folder import read_dataset
from tasks.json_schema import EXPORTED, exported
from tasks.manifest import build_manifest, parse_manifest, serialise
from tasks.problems import InvalidTaskError
from tests.unit.tasks.folders import CONFIG, FILES, write_dataset

REPOSITORY = Path(__file__).resolve().parents[3]
DEMO = REPOSITORY / "datasets" / "demo"


def manifest(tmp_path: Path) -> dict[str, Any]:
    return build_manifest(read_dataset(str(write_dataset(tmp_path))), "0a1b2c3")


def schema(name: str) -> Any:
    return json.loads(exported(name))


def test_an_entry_has_everything_of_its_task(tmp_path: Path) -> None:
    (entry,) = manifest(tmp_path)["tasks"]
    assert entry["checks"] == ["build", "poc", "function_test", "intent_test"]
    assert (entry["base"], entry["image"], entry["arch"]) == (
        "debian:bookworm-slim",
        "case/samples/sample-1",
        ["amd64"],
    )
    assert entry["files"] == {name: hashlib.sha256(text.encode()).hexdigest() for name, text in FILES.items()}
    assert entry["config"]["binary"] is None and entry["config"]["files"]["security_test"] is None
    given = yaml.safe_load(CONFIG)
    assert {key: value for key, value in entry["config"].items() if key in given and key != "files"} == {
        key: value for key, value in given.items() if key != "files"
    }


def test_the_same_dataset_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    assert serialise(manifest(first)) == serialise(manifest(second))
    content = serialise(manifest(tmp_path / "c"))
    assert content.endswith(b"}\n") and serialise(parse_manifest(content, "manifest.json")) == content


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "expected JSON"),
        (b"{", "expected JSON"),
        (b"[1]", "expected a mapping"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"version": NaN}', "NaN is no JSON number"),
        (b'{"version": 1, "version": 2}', "duplicate keys"),
        (b"\xff", "expected JSON"),
        (b'{"version": "\\ud800"}', "lone surrogates"),
        (b'{"tasks": [{"id": "../x"}]}', "tasks[0].id"),
    ],
)
def test_what_is_no_manifest_is_refused_by_name(data: bytes, message: str) -> None:
    with pytest.raises(InvalidTaskError) as caught:
        parse_manifest(data, "m.json")
    assert message in str(caught.value)


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    content = manifest(tmp_path)
    (task,) = content["tasks"]
    content["tasks"].append({**task, "id": task["id"].upper()})
    with pytest.raises(InvalidTaskError, match="tasks: expected every id once, found more than one sample-1"):
        parse_manifest(serialise(content), "m.json")


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_schemas_are_schemas(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))


def test_exported_schemas_accept_what_is_valid(tmp_path: Path) -> None:
    jsonschema.validate(yaml.safe_load(CONFIG), schema("config.schema.json"))
    jsonschema.validate(manifest(tmp_path), schema("manifest.schema.json"))
    jsonschema.validate({"version": "demo-v1"}, schema("dataset.schema.json"))
    lock = {"schema_version": 1, "version": "demo-v1", "images": {"a": "sha256:" + "0" * 64}}
    jsonschema.validate(lock, schema("images-lock.schema.json"))


@pytest.mark.parametrize(
    "change",
    [
        {"id": "../x"},
        {"language": "C"},
        {"source": "src"},
        {"source": "/src/.."},
        {"extra": 1},
        {"project": "a\nb"},
        {"originality": "secret"},
        {"files": {"poc": ["/x"]}},
        {"scripts": {"build": "../x"}},
        {"repository": "http://example.org"},
        {"binary": 1},
    ],
    ids=str,
)
def test_exported_schemas_refuse_what_is_not(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(CONFIG), **change}, schema("config.schema.json"))


def test_the_demo_dataset_is_valid_and_its_manifest_up_to_date() -> None:
    dataset = read_dataset(str(DEMO))
    assert dataset.all_problems() == []
    committed = (DEMO / "manifest.json").read_bytes()
    recorded = json.loads(committed)["generated_from"]
    assert serialise(build_manifest(dataset, recorded)) == committed, "run: ssebench dataset manifest"
    assert len(dataset.tasks) == 4


@pytest.mark.parametrize("name", EXPORTED)
def test_the_committed_schemas_are_up_to_date(name: str) -> None:
    assert (REPOSITORY / "datasets" / "schema" / name).read_bytes() == exported(name), "run: ssebench dataset schema"
