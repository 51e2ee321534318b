"""Trigger forms: Airflow params made from `RunChoices` (`runs/choices.py`), the one home of names, bounds and descriptions.

Airflow shows them as a form by section, and validates each value, from the form, the API or the command line alike.
"""

from typing import Any

from airflow.sdk import Param
from pydantic_core import to_jsonable_python

from toolformer_ops.config import Settings
from toolformer_ops.runs.choices import FINETUNING_FIELDS, PRESETS, THRESHOLD_OF, RunChoices
from toolformer_ops.tools.registry import get_tool, tool_names

KEYWORDS = (
    "type", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "items", "additionalProperties", "title",
    "section",
)  # fmt: skip
"""JSON schema keywords that are taken over, and the form's section: what Airflow's form itself holds a field to.

Of `exclusiveMaximum` or `pattern` its API alone would know. The form then says "Bad Request", and the reason above what is in view.
So the run's first task checks them.
"""

MAX_ADDRESS_LENGTH = 2000

COST_HINT = "What a document costs, the command toolformer-ops estimate says beforehand: it measures a few texts."

PRESET_NAMES = {"paper": "the paper", "small_model": "a small model", "only_look": "only look"}

OPEN_SECTIONS = frozenset({"Corpus", "Tools", "Language model"})
"""What every run has to think about: without a section, Airflow shows these first and unfolded; the others are folded."""


def annotation_form(settings: Settings, filled_in: RunChoices | None = None) -> dict[str, Param]:
    """One param a field of `RunChoices`, in its order; for the keep thresholds one a tool, in place of an object.

    Airflow's form can be filled in by nobody but the user: no address holds values for it. So a field that a preset names starts
    empty, and says what that means under each preset.

    Args:
        settings: the corpus, the preset and the model that the form starts with.
        filled_in: the choices of a schedule; its form starts with these.
    """
    defaults: dict[str, Any] = {
        "corpus": settings.default_corpus,
        "preset": settings.default_preset,
        "model": settings.default_model,
    }
    if filled_in is not None:
        defaults = dict(filled_in)
    properties = RunChoices.model_json_schema()["properties"]
    form = {}
    for name, schema in properties.items():
        if name == "keep_thresholds":
            for tool in tool_names():
                form[f"{THRESHOLD_OF}{tool}"] = _threshold_param(tool, schema, defaults.get(name, {}).get(tool))
        else:
            form[name] = _param(name, schema, defaults.get(name), empty_is_preset=filled_in is None)
    return form


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
            description="Sampled, executed and scored again by the engine: seconds each for a small model.",
        )
    }


def finetuning_form() -> dict[str, Param]:
    """Which release, and the choices of finetuning and evaluation, with their defaults."""
    release = Param(
        type="string",
        minLength=1,
        maxLength=MAX_ADDRESS_LENGTH,
        title="Release",
        description="Id of a release, 16 hex digits: `release_id` in the table dataset_releases, or the name of its folder on S3.",
    )
    properties = RunChoices.model_json_schema()["properties"]
    return {"release": release} | {name: _param(name, properties[name], None) for name in FINETUNING_FIELDS}


def finetuning_parameters() -> str:
    """The fields of the finetuning form but for the release, as JSON; templated."""
    return "{" + ", ".join(f'"{name}": {{{{ params.{name} | tojson }}}}' for name in FINETUNING_FIELDS) + "}"


def _threshold_param(tool: str, schema: dict[str, Any], default: float | None) -> Param:
    """The param for one tool's keep threshold; empty is the tool's own."""
    bounds = schema["additionalProperties"]
    return Param(
        default,
        description=f"Nats from which a call of {tool} is kept, at least prune_below; empty means "
        f"{get_tool(tool).spec.keep_threshold:g}, the tool's own.",
        type=["number", "null"],
        minimum=bounds["minimum"],
        maximum=bounds["maximum"],
        title=f"Keep threshold of {tool}",
        section=schema["title"],
    )


def _param(name: str, schema: dict[str, Any], default: Any, *, empty_is_preset: bool = False) -> Param:
    """The param for one choice; it starts with `default`, or else with the choice's; without either, the form asks for it.

    With `empty_is_preset`, a field that a preset names starts empty.
    """
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
    elif name == "preset":
        keywords["values_display"] = PRESET_NAMES
    elif name == "evaluation_suites":
        keywords |= {"type": ["array", "null"], "examples": schema["choices"], "uniqueItems": True}
    elif name == "document_limit":
        description = f"{description} {COST_HINT}"
    # 3. The default.
    field = RunChoices.model_fields[name]
    if not field.is_required():
        usual = field.get_default(call_default_factory=True)
        if empty_is_preset and (meaning := _meaning_of_empty(name, usual)):
            types = [keywords["type"]] if isinstance(keywords["type"], str) else keywords["type"]
            keywords["type"] = [*dict.fromkeys((*types, "null"))]
            if "enum" in keywords:
                keywords["enum"] = [None, *keywords["enum"]]
            return Param(default, description=f"{description} {meaning}", **keywords)
        default = usual if default is None else default
        if usual == "":
            # Airflow asks for a text that is empty, unless it may be null; the stages read null as the default.
            keywords["type"], default = ["string", "null"], default or None
    elif not default:
        return Param(description=description, **keywords)
    return Param(to_jsonable_python(default), description=description, **keywords)


def _meaning_of_empty(name: str, usual: Any) -> str:
    """What the field holds under each preset if it is left empty; nothing for a switch, and for a field that no preset names."""
    named = {preset: values[name] for preset, values in PRESETS.items() if name in values}
    if not named or isinstance(usual, bool):
        return ""
    meanings = [] if usual is None else [f"empty means {usual}"]
    meanings += [f"empty means {value} with the preset {PRESET_NAMES[preset]!r}" for preset, value in named.items()]
    return f"{'; '.join(meanings).capitalize()}."
