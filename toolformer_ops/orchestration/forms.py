"""Trigger forms: Airflow params made from `run_parameters.RunParameters`, which is the one home of names, bounds and descriptions.

Airflow shows them as a form by section, and validates each value, from the form, the API or the command line alike.
"""

from typing import Any

from airflow.sdk import Param

from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError
from toolformer_ops.run_parameters import RunParameters
from toolformer_ops.tools.registry import tool_names

KEYWORDS = (
    "type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "items", "additionalProperties", "title", "section",
)  # fmt: skip
"""JSON schema keywords that are taken over, and the form's section."""

INDEX_SOURCE_MAX_LENGTH = 2000


def annotation_form(settings: Settings) -> dict[str, Param]:
    """One param a field of `RunParameters`, in its order.

    Raises:
        ConfigurationError: a schedule is set, but not which corpus and model it is for.
    """
    defaults = {"corpus": settings.default_corpus, "model": settings.default_model}
    if settings.annotation_schedule:
        for name, value in defaults.items():
            if not value:
                raise ConfigurationError(
                    f"expected TOOLFORMER_DEFAULT_{name.upper()} beside TOOLFORMER_ANNOTATION_SCHEDULE, found it empty: "
                    f"a scheduled run takes its {name} from there. Set it, or unset the schedule."
                )
    properties = RunParameters.model_json_schema()["properties"]
    return {name: _param(name, schema, defaults.get(name)) for name, schema in properties.items()}


def corpus_form(settings: Settings) -> dict[str, Param]:
    """The corpus alone, as in the annotation form."""
    schema = RunParameters.model_json_schema()["properties"]["corpus"]
    return {"corpus": _param("corpus", schema, settings.default_corpus)}


def index_form() -> dict[str, Param]:
    """Where the Wikipedia pages for the search index come from."""
    return {
        "source": Param(
            type="string",
            minLength=1,
            maxLength=INDEX_SOURCE_MAX_LENGTH,
            title="Wikipedia pages",
            section="Wikipedia",
            description="KILT knowledge source, JSON Lines, optionally .gz or .zst: a path, file:// or s3:// address.",
        )
    }


def _param(name: str, schema: dict[str, Any], default: str | None) -> Param:
    """The param for one field; without a default, the form asks for it."""
    keywords = {key: value for key, value in _flat(schema).items() if key in KEYWORDS}
    if name == "tools":
        keywords |= {
            "items": {"type": "string", "enum": list(tool_names())},
            "examples": list(tool_names()),  # what the form offers
            "uniqueItems": True,
        }
    if name == "keep_thresholds":
        keywords["propertyNames"] = {"enum": list(tool_names())}
    if default or "default" in schema:
        return Param(default or schema["default"], description=schema["description"], **keywords)
    return Param(description=schema["description"], **keywords)


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `anyOf [type, null]` written as `type: [type, null]`, as Airflow's form wants it."""
    flat = dict(schema)
    for option in flat.pop("anyOf", ()):
        if option["type"] != "null":
            flat |= {**option, "type": [option["type"], "null"]}
    return flat
