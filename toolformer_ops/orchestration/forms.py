"""Trigger forms: Airflow params made from `RunChoices` (`runs/choices.py`), the one home of names, bounds and descriptions.

Airflow shows them as a form by section, and validates each value, from the form, the API or the command line alike.
"""

from typing import Any

from airflow.sdk import Param
from pydantic_core import to_jsonable_python

from toolformer_ops.config import Settings
from toolformer_ops.runs.choices import CHOSEN_ANEW, RunChoices
from toolformer_ops.tools.registry import get_tool, tool_names

KEYWORDS = (
    "type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "items", "additionalProperties", "title", "section",
)  # fmt: skip
"""JSON schema keywords that are taken over, and the form's section."""

MAX_ADDRESS_LENGTH = 2000
RELEASE_ID = "^[0-9a-f]{16}$"
FINETUNING_FIELDS = tuple(
    name for name in RunChoices.model_fields if name.startswith(CHOSEN_ANEW) and name != "finetune"
)
"""The choices for a run on a release that is there; such a run always finetunes."""

COST_HINT = "What a document costs, the command toolformer-ops estimate says beforehand: it measures a few texts."

OPEN_SECTIONS = frozenset({"Corpus", "Tools", "Language model"})
"""What every run has to think about: without a section, Airflow shows these first and unfolded; the others are folded."""


def annotation_form(settings: Settings, filled_in: RunChoices | None = None) -> dict[str, Param]:
    """One param a field of `RunChoices`, in its order but for the large fields, which come last in their section.

    Args:
        settings: the corpus and the model that the form starts with.
        filled_in: the choices of a schedule; its form starts with these.
    """
    defaults: dict[str, Any] = {"corpus": settings.default_corpus, "model": settings.default_model}
    if filled_in is not None:
        defaults = dict(filled_in)
    properties = RunChoices.model_json_schema()["properties"]
    in_order = sorted(properties, key=lambda name: properties[name].get("type") == "object")  # large editors last
    return {name: _param(name, properties[name], defaults.get(name)) for name in in_order}


def corpus_form(settings: Settings) -> dict[str, Param]:
    """The corpus, as in the annotation form, and whether it may shrink."""
    schema = RunChoices.model_json_schema()["properties"]["corpus"]
    accept_shrink = Param(
        False,
        type="boolean",
        title="Accept shrink",
        description="Take a file that breaks off, holds too much, or lost more than half of its records, as it is.",
    )
    return {"corpus": _param("corpus", schema, settings.default_corpus), "accept_shrink": accept_shrink}


def index_form() -> dict[str, Param]:
    """Where the Wikipedia pages for the search index come from."""
    return {
        "source": Param(
            type="string",
            minLength=1,
            maxLength=MAX_ADDRESS_LENGTH,
            title="Wikipedia pages",
            description="KILT knowledge source, JSON Lines, optionally .gz or .zst: a path, file:// or s3:// address.",
        )
    }


def audit_form() -> dict[str, Param]:
    """How many calls an audit computes again."""
    return {
        "sample": Param(
            0,
            type="integer",
            minimum=0,
            maximum=100_000,
            title="Calls to compute again",
            description="Sampled, executed and scored again by the engine, on the Airflow worker: seconds each for a small model.",
        )
    }


def finetuning_form() -> dict[str, Param]:
    """Which release, and the choices of finetuning and evaluation, with their defaults."""
    release = Param(
        type="string",
        pattern=RELEASE_ID,
        minLength=16,
        maxLength=16,
        title="Release",
        description="Id of a release, 16 hex digits: `release_id` in the table dataset_releases, or the name of its folder on S3.",
    )
    properties = RunChoices.model_json_schema()["properties"]
    return {"release": release} | {name: _param(name, properties[name], None) for name in FINETUNING_FIELDS}


def finetuning_parameters() -> str:
    """The fields of the finetuning form but for the release, as JSON; templated."""
    return "{" + ", ".join(f'"{name}": {{{{ params.{name} | tojson }}}}' for name in FINETUNING_FIELDS) + "}"


def _param(name: str, schema: dict[str, Any], default: Any) -> Param:
    """The param for one choice; it starts with `default`, or else with the choice's; without either, the form asks for it."""
    # 1. The JSON schema's own keywords, with `anyOf [type, null]` written as `type: [type, null]`, as Airflow's form wants it.
    keywords = {key: value for key, value in schema.items() if key in KEYWORDS}
    for option in schema.get("anyOf", ()):
        if option["type"] != "null":
            keywords |= {key: value for key, value in option.items() if key in KEYWORDS}
            keywords["type"] = [option["type"], "null"]
    if keywords["section"] in OPEN_SECTIONS:
        del keywords["section"]
    # 2. What the form offers to choose from.
    description = str(schema["description"])
    if name == "tools":
        names = list(tool_names())
        keywords |= {"items": {"type": "string", "enum": names}, "examples": names, "uniqueItems": True}
        description = " ".join([description, *(f"{tool}: {get_tool(tool).spec.purpose}" for tool in names)])
    elif name == "keep_thresholds":
        keywords |= {"type": ["object", "null"], "propertyNames": {"enum": list(tool_names())}}
    elif name == "evaluation_suites":
        keywords |= {"type": ["array", "null"], "examples": schema["choices"], "uniqueItems": True}
    elif name == "document_limit":
        description = f"{description} {COST_HINT}"
    # 3. The default.
    field = RunChoices.model_fields[name]
    if not field.is_required():
        usual = field.get_default(call_default_factory=True)
        default = usual if default is None else default
        if usual == "":
            # Airflow asks for a text that is empty, unless it may be null; the stages read null as the default.
            keywords["type"], default = ["string", "null"], default or None
    elif not default:
        return Param(description=description, **keywords)
    return Param(to_jsonable_python(default), description=description, **keywords)
