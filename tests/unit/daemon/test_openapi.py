"""openapi.yaml is the daemon: routes, access rules, difficulty table and every field of every body."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from marshmallow import Schema, fields, validate

from daemon import schemas
from daemon.access import HIGHEST_LEVEL
from daemon.app import create_app
from daemon.routes.declare import rule_of
from daemon.services import Services
from sse.version import __version__

DOCUMENT: dict[str, Any] = yaml.safe_load(Path(schemas.__file__).with_name("openapi.yaml").read_text("utf-8"))
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
PATHS: dict[str, Any] = DOCUMENT["paths"]
OPERATIONS = [(path, method, PATHS[path][method]) for path in PATHS for method in PATHS[path]]

# The specification, written down a second time: neither document may drift from it unnoticed.
SPECIFIED = {
    ("get", "/version"): ("any", {"200"}),
    ("get", "/project"): ("any", {"200"}),
    ("get", "/capabilities"): ("any", {"200"}),
    ("post", "/tool/{name}"): ("tool", {"200", "400", "403", "500"}),
    ("get", "/diff"): ("any", {"200", "500"}),
    ("get", "/files"): ("any", {"200", "500"}),
    ("get", "/agent/dialog"): ("any", {"200", "500"}),
    ("get", "/result"): ("any", {"200"}),
    ("post", "/prepare_grading"): ("admin", {"200", "403", "500"}),
    ("get", "/final_diff"): ("any", {"200", "500"}),
    ("post", "/admin/agent_exited"): ("admin", {"200", "403", "500"}),
    ("get", "/reference/patch"): ("admin", {"200", "403"}),
}
# What the contract adds to the specification's tables.
ADDED = {
    ("post", "/tool/{name}"): {"413"},
    ("post", "/prepare_grading"): {"413"},
    ("post", "/admin/agent_exited"): {"413"},
    ("get", "/agent/dialog"): {"400"},
}


def test_operations_rules_and_statuses_are_the_specified_ones() -> None:
    described = {
        (method, path): (operation["x-access"], set(operation["responses"])) for path, method, operation in OPERATIONS
    }
    wanted = {
        operation: (rule, statuses | ADDED.get(operation, set())) for operation, (rule, statuses) in SPECIFIED.items()
    }
    assert described == wanted


def test_the_routes_served_are_the_paths_described_with_their_rules(services: Services) -> None:
    app = create_app(services)
    served = {}
    for rule in app.url_map.iter_rules():
        path = rule.rule.replace("<", "{").replace(">", "}")
        view_rule = rule_of(app.view_functions[rule.endpoint])
        assert view_rule is not None
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            served[(path, method.lower())] = view_rule.value
    assert served == {(path, method): operation["x-access"] for path, method, operation in OPERATIONS}


def test_the_difficulty_table_is_what_access_decides() -> None:
    for row in PATHS["/tool/{name}"]["post"]["x-difficulty"]:
        assert set(row["runs"]) == {action for action, highest in HIGHEST_LEVEL.items() if row["level"] <= highest}
    assert [row["level"] for row in PATHS["/tool/{name}"]["post"]["x-difficulty"]] == [0, 1, 2, 3, 4]


def test_the_version_is_the_packages() -> None:
    assert DOCUMENT["info"]["version"] == __version__


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_schema_is_valid_and_closed(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    assert SCHEMAS[name]["additionalProperties"] is False
    assert set(SCHEMAS[name].get("required", [])) <= set(SCHEMAS[name]["properties"])
    for field in SCHEMAS[name]["properties"].values():
        assert "$ref" in field or field["description"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_marshmallow_and_openapi_agree_field_by_field(name: str) -> None:
    schema: Schema = getattr(schemas, name)()
    described = {field: _meaning(spec) for field, spec in SCHEMAS[name]["properties"].items()}
    assert {field: _meaning_of(declared) for field, declared in schema.fields.items()} == described
    required = {field for field, declared in schema.fields.items() if declared.required}
    assert required == set(SCHEMAS[name].get("required", []))


def test_every_schema_of_either_side_has_its_counterpart() -> None:
    ours = {
        name
        for name, value in vars(schemas).items()
        if isinstance(value, type) and issubclass(value, Schema) and value.__module__ == schemas.__name__
    }
    assert ours - {"StrictSchema"} == set(SCHEMAS)


def _meaning(spec: dict[str, Any]) -> Any:
    """What a described field may hold, without its prose."""
    if "$ref" in spec:
        return spec["$ref"].rpartition("/")[2]
    if "const" in spec:
        return ("const", spec["const"])
    if "enum" in spec:
        return ("enum", tuple(spec["enum"]))
    types = spec["type"] if isinstance(spec["type"], list) else [spec["type"]]
    if types[0] == "array":
        return ("array", _meaning(spec["items"]), "null" in types)
    return (types[0], "null" in types)


_TYPES = {
    fields.String: "string",
    schemas.Text: "string",
    fields.Boolean: "boolean",
    schemas.StrictBoolean: "boolean",
    fields.Integer: "integer",
    schemas.PositiveNumber: "number",
    fields.Dict: "object",
}


def _meaning_of(declared: fields.Field[Any]) -> Any:
    """The same of a marshmallow field."""
    if isinstance(declared, fields.Nested):
        return type(declared.schema).__name__
    if isinstance(declared, fields.Constant):
        return ("const", declared.constant)
    if isinstance(declared, fields.List):
        return ("array", _meaning_of(declared.inner), declared.allow_none)
    for rule in declared.validators:
        if isinstance(rule, validate.OneOf):
            return ("enum", tuple(rule.choices))
    return (_TYPES[type(declared)], declared.allow_none)
