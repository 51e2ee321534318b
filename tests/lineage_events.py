"""OpenLineage's JSON Schema, put together from the classes that its Python client generates from it, for tests.

The client ships no JSON Schema. It ships a class for the event, for each of its parts and for each standard facet, made from the
specification by the client's generator: names, types, and what is required. A facet's `_schemaURL` says of which class it is.
"""

import importlib
import json
import pkgutil
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

import attr
import jsonschema
from openlineage.client import generated
from openlineage.client.generated import base

FORMATS = {"runId": "uuid", "eventTime": "date-time"} | dict.fromkeys(
    ("_schemaURL", "schemaURL", "_producer", "producer"), "uri"
)
"""By property, the format that the specification gives its text."""


def schema_of_events() -> dict[str, Any]:
    """The schema of a RunEvent. A standard facet has its own schema wherever it stands."""
    names = [found.name for found in pkgutil.iter_modules(generated.__path__)]
    modules = [importlib.import_module(f"{generated.__name__}.{name}") for name in names]
    classes = {name: value for module in modules for name, value in vars(module).items() if attr.has(value)}
    defs = {name: _schema_of_class(value) for name, value in classes.items()}
    facets = {
        name: value._get_schema()
        for name, value in classes.items()
        if issubclass(value, base.BaseFacet) and not name.endswith("BaseFacet")
    }
    defs["AnyFacet"] = {
        "$ref": "#/$defs/BaseFacet",
        "allOf": [
            {"if": {"properties": {"_schemaURL": {"const": schema}}}, "then": {"$ref": f"#/$defs/{name}"}}
            for name, schema in facets.items()
        ],
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": defs, "$ref": "#/$defs/RunEvent"}


def _schema_of_class(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    fields = [field for field in attr.fields(kind) if not field.name.startswith("_abc")]
    return {
        "type": "object",
        "properties": {
            field.name: _schema_of_type(hints[field.name])
            | ({"format": FORMATS[field.name]} if field.name in FORMATS else {})
            for field in fields
        },
        # What the client always writes is required, too: who made it, and by which schema.
        "required": [field.name for field in fields if field.default is attr.NOTHING or field.name in FORMATS],
    }


def _schema_of_type(hint: Any) -> dict[str, Any]:  # noqa: PLR0911
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema_of_type(item) for item in arguments]}
    if origin is list:
        return {"type": "array", "items": _schema_of_type(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of_type(arguments[1])}
    if isinstance(hint, type) and issubclass(hint, base.BaseFacet):
        return {"$ref": "#/$defs/AnyFacet"}
    if isinstance(hint, type) and attr.has(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [item.value for item in hint]}
    plain = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return {"type": plain[hint]} if hint in plain else {}


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The events that the file transport wrote, by time."""
    events = [json.loads(path.read_text(encoding="utf-8")) for path in folder.iterdir()]
    return sorted(events, key=lambda event: str(event["eventTime"]))


def validate(events: list[dict[str, Any]]) -> None:
    """Compare each event with the schema.

    Raises:
        jsonschema.ValidationError: an event is not of it.
    """
    validator = jsonschema.Draft202012Validator(schema_of_events(), format_checker=jsonschema.FormatChecker())
    for event in events:
        validator.validate(event)
