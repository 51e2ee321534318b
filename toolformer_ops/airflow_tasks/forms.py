"""Trigger forms: Airflow params made from `RunChoices` (`runs/choices.py`), the one home of names, bounds and descriptions.

Airflow shows them by section, and validates each value, from the form, the API or the command line alike. A
form has the choices that `FORM` names. All others are keys of a run's conf, which the run's first task checks
(`requests.py`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from airflow.sdk import Param
from pydantic_core import to_jsonable_python

from toolformer_ops.airflow_tasks.bundles.dag_tools import DagTool
from toolformer_ops.config import Settings
from toolformer_ops.runs.choices import FINETUNING_FIELDS, THRESHOLD_OF, RunChoices
from toolformer_ops.runs.presets import ON_ONE_MACHINE, PRESETS

FORM: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "": ("corpus", "model", "tools", "preset", "document_limit", "until_kept"),
        "Corpus": ("fields",),
        "What is kept": ("keep_thresholds", "keep_rule", "prune_below"),
        "Sampling": (
            "proposer",
            "filter_rule",
            "max_positions",
            "samples_per_position",
            "sampling_threshold",
            "seed",
        ),
        "Finetuning": (
            "finetune",
            "finetune_steps",
            "finetune_batch",
            "finetune_learning_rate",
            "approve",
        ),
        "Evaluation": ("evaluation_suites", "evaluation_data", "evaluation_inputs"),
    }
)
"""By section, the choices of a form: what a person changes in the first month. Airflow unfolds what has no
section."""

SECTION_OF: Mapping[str, str] = MappingProxyType(
    {name: section for section, names in FORM.items() for name in names}
)
"""The section of each choice of a form."""

KEYWORDS = (
    "type", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "items", "additionalProperties", "title",
)  # fmt: skip
"""JSON schema keywords that are taken over: what Airflow's form itself holds a field to.

Of `exclusiveMaximum` or `pattern` its API alone would know. The form then says "Bad Request", and the reason
above what is in view. So the run's first task checks them.
"""

MAX_ADDRESS_LENGTH = 2000

PRESET_NAMES = {
    "paper": "the paper",
    "small_model": "a small model",
    "only_look": "only look",
    "preview": "a preview",
}
WITH_PRESET = {"small_model": "for a small model", "only_look": "to only look", "preview": "for a preview"}
"""How a field says which preset a value is of."""

FINETUNING_PARAMETERS = "{{ dict(params.items() | rejectattr(0, 'eq', 'release')) | tojson }}"
"""What a run of `finetune_release` chooses, as JSON; templated."""

PROPERTIES: Mapping[str, Any] = MappingProxyType(RunChoices.model_json_schema()["properties"])


def annotation_form(
    settings: Settings, tools: Sequence[DagTool], filled_in: RunChoices | None = None
) -> dict[str, Param]:
    """The params of a run that annotates; for the keep thresholds one a tool, instead of an object.

    Airflow's form can be filled in by the user alone: no address holds values for it. So a field that a
    preset names starts empty, and says what it holds then.

    Args:
        settings: the model that the form starts with.
        tools: the tools that may be chosen.
        filled_in: the choices of a schedule; its form starts with these, and has also the others that its
        file sets.
    """
    defaults: dict[str, Any] = {"model": settings.default_model}
    # The demo's model, which is small, is in the state folder.
    is_of_this_machine = Path(settings.default_model).is_relative_to(settings.state_dir / "models")
    if is_of_this_machine:
        defaults["preset"] = ON_ONE_MACHINE
    names_of_file: list[str] = []
    if filled_in is not None:
        defaults = dict(filled_in)
        usual = RunChoices(corpus=filled_in.corpus, model=filled_in.model, preset=filled_in.preset)
        names_of_file = [
            name for name in PROPERTIES if name not in SECTION_OF and defaults[name] != getattr(usual, name)
        ]
    form = {}
    for name in (*SECTION_OF, *names_of_file):
        if name != "keep_thresholds":
            form[name] = _param(
                name,
                defaults.get(name),
                starts_empty=filled_in is None and is_of_presets(name),
                tools=[tool.name for tool in tools],
            )
            continue
        bounds = PROPERTIES[name]["additionalProperties"]
        for tool in tools:
            form[f"{THRESHOLD_OF}{tool.name}"] = Param(
                defaults.get(name, {}).get(tool.name),
                description=f"Nats from which its calls are kept ({tool.keep_threshold:g}); prune_below is not higher.",
                type=["number", "null"],
                minimum=bounds["minimum"],
                maximum=bounds["maximum"],
                title=f"Keep threshold of {tool.name}",
                section=SECTION_OF[name],
            )
    return form


def corpus_form(settings: Settings) -> dict[str, Param]:
    """The corpus with its fields, as in the annotation form, and whether it may shrink."""
    accept_shrink = Param(
        False,
        type="boolean",
        title="Accept shrink",
        description="Take a file that breaks off, holds too much, or lost more than half of its records, as it is.",
    )
    return {
        "corpus": _param("corpus"),
        "fields": _param("fields"),
        "accept_shrink": accept_shrink,
    }


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


def retention_form(settings: Settings) -> dict[str, Param]:
    """Whether retention drops what its policy lets go."""
    return {
        "drop": Param(
            settings.retention_drops,
            type="boolean",
            title="Drop it",
            description="Drop what the policy lets go; without, only say what that is (docs/operations.md).",
        )
    }


def finetuning_form() -> dict[str, Param]:
    """Which release, and the choices of finetuning and evaluation, with their defaults."""
    release = Param(
        type="string",
        minLength=1,
        maxLength=MAX_ADDRESS_LENGTH,
        title="Release",
        description="Id of a release, 16 hex digits, or its s3:// address: `release_id` and `uri` in the table dataset_releases.",
    )
    return {"release": release} | {name: _param(name) for name in FINETUNING_FIELDS if name in SECTION_OF}


def is_of_presets(name: str) -> bool:
    """Whether a preset says what a field holds that is left empty. A switch is never empty."""
    return any(name in values and not isinstance(values[name], bool) for values in PRESETS.values())


def description_of(name: str) -> str:
    """What a field does, in one line, and what it holds if it is left empty: the usual value, and that of a preset that names it.

    A field that no preset names shows its usual value itself, unless that is nothing.
    """
    description, usual = PROPERTIES[name]["description"], PROPERTIES[name].get("usual", usual_of(name))
    values: list[str] = []
    earlier_values: list[Any] = []  # a field says once what several presets have
    for preset, choices in PRESETS.items():
        value = choices.get(name)
        if name in choices and value not in earlier_values:
            values.append(f"{shown(value)} {WITH_PRESET[preset]}")
        earlier_values.append(value)
    if not values and "usual" not in PROPERTIES[name]:
        return str(description)
    return f"{description.removesuffix('.')} ({'; '.join((shown(usual), *values))})."


def usual_of(name: str) -> Any:
    """The default of a choice; None if it has none."""
    field = RunChoices.model_fields[name]
    return None if field.is_required() else field.get_default(call_default_factory=True)


def shown(value: Any) -> str:
    """A choice's value as a person reads it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _param(name: str, default: Any = None, *, starts_empty: bool = False, tools: Sequence[str] = ()) -> Param:
    """The param for one choice.

    It starts with `default`, or else with the choice's; without either, the form asks for it. With
    `starts_empty`, it starts empty if there is no `default`, and may be left so.
    """
    # 1. The JSON schema of the choice as Airflow's form wants it, with its section.
    schema, usual = PROPERTIES[name], usual_of(name)
    keywords = {key: value for key, value in schema.items() if key in KEYWORDS}
    for option in schema.get("anyOf", ()):
        if option["type"] != "null":
            keywords |= _or_null({key: value for key, value in option.items() if key in KEYWORDS})
    if name == "tools":
        # No enum: Airflow holds a run that is cleared to it too, and would say that it lacks a tool that is
        # gone in a traceback. The first task says it in words.
        keywords |= {"items": {"type": "string"}, "examples": list(tools), "uniqueItems": True}
    elif name == "fields":
        keywords = _or_null(keywords)
    elif name == "preset":
        keywords["values_display"] = PRESET_NAMES
    elif name == "evaluation_suites":
        keywords |= {"type": ["array", "null"], "examples": schema["choices"], "uniqueItems": True}
    if section := SECTION_OF.get(name, "Others that the schedule sets"):
        keywords["section"] = section
    # 2. What it starts with.
    if starts_empty or usual == "":
        # Airflow asks for a text that is empty, unless it may be null; the stages read null as the default.
        keywords, usual = _or_null(keywords), None
    value = usual if default in (None, "") else default
    keywords["description"] = description_of(name)
    if RunChoices.model_fields[name].is_required() and not value:
        return Param(**keywords)
    return Param(to_jsonable_python(value), **keywords)


def _or_null(keywords: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a field that may be left empty."""
    types = keywords["type"] if isinstance(keywords["type"], list) else [keywords["type"]]
    values = {}
    if "enum" in keywords:
        values = {"enum": [None, *keywords["enum"]], "values_display": {"null": "as the preset says"}}
    return keywords | {"type": [*dict.fromkeys((*types, "null"))], **values}
