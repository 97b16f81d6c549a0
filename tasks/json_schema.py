"""JSON Schemas of the task files, exported from the marshmallow schemas that validate them."""

from __future__ import annotations

import json
from typing import Any

from marshmallow import Schema, fields

from tasks.fields import Choice, Listing, Section, Table, Text, Whole
from tasks.schemas import ConfigSchema, DatasetSchema, ImagesLockSchema, ManifestSchema

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

EXPORTED: dict[str, type[Schema]] = {
    "config.schema.json": ConfigSchema,
    "dataset.schema.json": DatasetSchema,
    "images-lock.schema.json": ImagesLockSchema,
    "manifest.schema.json": ManifestSchema,
}


def exported(name: str) -> bytes:
    """The bytes of one of ``EXPORTED``: the same for the same schema, with one newline at the end."""
    schema = {"$schema": _DIALECT, "title": name.partition(".")[0], **_of_schema(EXPORTED[name]())}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _of_schema(schema: Schema) -> dict[str, Any]:
    return {
        "type": "object",
        "description": " ".join((type(schema).__doc__ or "").split()),
        "properties": {name: _of_field(field) for name, field in schema.fields.items()},
        "required": sorted(name for name, field in schema.fields.items() if field.required),
        "additionalProperties": False,
    }


def _of_field(field: fields.Field[Any]) -> dict[str, Any]:
    described = _described(field)
    return {"anyOf": [described, {"type": "null"}]} if field.allow_none else described


def _described(field: fields.Field[Any]) -> dict[str, Any]:
    if isinstance(field, Choice):
        return {"enum": list(field.choices)}
    if isinstance(field, Text):
        text: dict[str, Any] = {"type": "string", "description": field.expected}
        # JSON Schema's patterns are ECMAScript's, which has no \Z, and need anchors of their own.
        return {**text, "pattern": f"^(?:{_ecma(field.pattern)})$"} if field.pattern is not None else text
    if isinstance(field, Whole):
        return {"type": "integer", "minimum": field.least}
    if isinstance(field, Listing):
        return {"type": "array", "items": _of_field(field.inner)}
    if isinstance(field, Table):
        names, values = _of_field(field.keys), _of_field(field.values)
        return {"type": "object", "propertyNames": names, "additionalProperties": values}
    assert isinstance(field, Section), f"no JSON Schema for {type(field).__name__}"
    return _of_schema(field.schema)


def _ecma(pattern: str) -> str:
    return pattern.replace(r"\Z", "$")
