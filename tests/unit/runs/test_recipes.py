"""What changes a recipe, what does not, and which later recipes a change reaches."""

from dataclasses import replace
from typing import Any

import pytest

from toolformer_ops.finetuning.recipe import FinetuningRecipe
from toolformer_ops.runs.choices import (
    DECIDE_NOTHING,
    LORA,
    FinetuningChoices,
    PlaceboChoices,
    ReleaseChoices,
    RunChoices,
)
from toolformer_ops.runs.presets import PRESETS
from toolformer_ops.runs.recipes import Recipe, placebo_recipe, tool_recipes
from toolformer_ops.stages.release import ToolsOfRun, release_definition
from toolformer_ops.tools.base import ToolSpec

SPEC = ToolSpec(
    name="Calculator",
    purpose="computes",
    prompt_file="calculator.txt",
    max_positions=20,
    has_sharp_filter=True,
)
GIVEN: dict[str, Any] = {"corpus": "c", "model": "m"}


def choices(**values: Any) -> RunChoices:
    return RunChoices.parse(GIVEN | values)


def recipes(**changes: Any) -> list[Recipe]:
    named = {"prompt_text": "Input: {text}", "tool_version": "1", "model_identity": "m", "dtype": "float32"}
    return tool_recipes(**{"spec": SPEC, "choices": choices(), **named, **changes})


def test_a_change_reaches_no_stage_before_its_own() -> None:
    for change, reached in (
        ({}, []),
        # A number that is the tool's is the same choice as none.
        ({"choices": choices(max_positions=20, samples_per_position=5, sampling_threshold=0.05)}, []),
        ({"choices": choices(sample_until="bracket")}, []),
        ({"tool_version": "2"}, ["execute", "score"]),
        *(
            ({name: "other"}, ["sample", "execute", "score"])
            for name in ("prompt_text", "model_identity", "dtype")
        ),
        ({"proposer_identity": "p"}, ["sample", "execute", "score"]),
        ({"choices": choices(filter_rule="paper")}, []),
        ({"spec": replace(SPEC, filter_version="2")}, ["filter", "sample", "execute", "score"]),
    ):
        pairs = zip(recipes(), recipes(**change), strict=True)
        assert [after.stage for before, after in pairs if before.recipe_id != after.recipe_id] == reached


def test_the_filter_rule_is_in_no_recipe_of_a_tool_with_one_rule() -> None:
    spec = replace(SPEC, has_sharp_filter=False)
    assert recipes(spec=spec, choices=choices(filter_rule="sharp")) == recipes(spec=spec)


FROM_SAMPLING_ON = {"sample", "execute", "score", "placebo"}
REACHED = {
    ("max_text_tokens", "filter_rule"): {"filter", *FROM_SAMPLING_ON},
    (
        "call_prefix",
        "max_positions",
        "samples_per_position",
        "sampling_threshold",
        "max_call_tokens",
    ): FROM_SAMPLING_ON,
    ("temperature", "top_p", "sample_until", "prune_below", "chains", "keep_rule"): FROM_SAMPLING_ON,
    ("seed",): {*FROM_SAMPLING_ON, "finetune"},
    ("scoring_context_tokens", "verify_in_float32"): {"score", "placebo"},
    ("placebos", "placebo_sample"): {"placebo"},
    ("finetune_steps", "finetune_batch", "finetune_length", "finetune_learning_rate"): {"finetune"},
    ("finetune_results", "finetune_dev_documents", "finetune_eval_steps"): {"finetune"},
    ("finetune_method", "finetune_optimizer"): {"finetune"},
    ("finetune_lora_rank",): {"finetune"},  # with lora
    ("max_examples_per_tool", "decontaminate", "require_following"): {"release"},
}
"""For each field that decides what is written: what it changes."""
REACHED_BY = {name: reached for names, reached in REACHED.items() for name in names}
OTHER_VALUES: dict[str, Any] = {
    "filter_rule": "sharp",
    "call_prefix": "tool_name", "sample_until": "arrow", "verify_in_float32": "off",
    "finetune_results": "mask", "finetune_method": "lora", "finetune_optimizer": "adamw_8bit",
    "decontaminate": "report", "keep_rule": "probability", "approve": "before_publishing",
    "preset": "only_look", "corpus": "d", "fields": ["text=t"],
    "model": "n", "proposer": "endpoint:p", "tools": ["Calculator", "MT"], "keep_thresholds": {"Calculator": 2.0},
    "sampling_threshold": 0.125, "max_false_discovery_rate": 0.1,
    "evaluation_suites": ["temporal"], "evaluation_data": "data",
}  # fmt: skip
"""Another value than the default, for what is neither a switch nor a number with a default."""


def another_value(name: str) -> Any:
    default = RunChoices.model_fields[name].default
    if name in OTHER_VALUES or isinstance(default, bool):
        return OTHER_VALUES.get(name, default is False)
    return 0.25 if isinstance(default, float) else 17


def ids(chosen: RunChoices, dtype: str = "float32") -> dict[str, str]:
    """By stage, the id of what is written under it; for a release, what its id is made of."""
    found = {recipe.stage: recipe.recipe_id for recipe in recipes(choices=chosen, dtype=dtype)}
    found["placebo"] = placebo_recipe(
        found["score"], SPEC.name, chosen.part(PlaceboChoices), sample_share=1.0, pool_hash="0"
    ).recipe_id
    training = FinetuningRecipe(release_id="0" * 16, base_model="m@1", choices=chosen.part(FinetuningChoices))
    found["finetune"] = training.model_id
    found["release"] = repr(release_definition(ToolsOfRun((), {}, "m@1", {}), chosen.part(ReleaseChoices)))
    return found


def test_every_choice_decides_something_or_is_listed_with_the_reason_why_not() -> None:
    fields = set(RunChoices.model_fields)
    assert set(REACHED_BY) | set(DECIDE_NOTHING) == fields
    assert not set(REACHED_BY) & set(DECIDE_NOTHING)
    assert all(reason.strip() for reason in DECIDE_NOTHING.values())


@pytest.mark.parametrize("name", RunChoices.model_fields)
def test_each_choice_changes_only_the_recipes_that_it_decides(name: str) -> None:
    extra = {"evaluation_data": "data"} if name == "evaluation_suites" else {}
    if name.startswith(LORA):
        extra = {"finetune_method": "lora"}
    if name == "preset":
        extra = dict(PRESETS["only_look"])  # so that it fills nothing
    before, after = choices(**extra), choices(**extra, **{name: another_value(name)})
    assert getattr(before, name) != getattr(after, name)
    dtype = (
        "bfloat16" if name == "verify_in_float32" else "float32"
    )  # a network in float32 has one format of losses
    was, then = ids(before, dtype), ids(after, dtype)
    assert {stage for stage in was if was[stage] != then[stage]} == REACHED_BY.get(name, set())


def test_thresholds_decide_rows_only_where_they_decide_what_float32_computes_again() -> None:
    all_of_them = {"verify_in_float32": "all"}
    other = {"keep_thresholds": {"Calculator": 2.0}}

    def score(dtype: str, **values: Any) -> str:
        return ids(choices(**values), dtype)["score"]

    for choice in ("auto", "on"):
        near = {"verify_in_float32": choice}
        assert score("bfloat16", **near) != score("bfloat16", **near, **other)
        assert (
            score("float32", **near) == score("float32", **near, **other) == score("float32", **all_of_them)
        )
    for choice in ("all", "off"):
        everywhere = {"verify_in_float32": choice}
        assert score("bfloat16", **everywhere) == score("bfloat16", **everywhere, **other)


@pytest.mark.parametrize(("require_following", "named"), [(True, True), (False, False)])
def test_a_release_names_the_rule_for_results_that_follow_if_it_decides(
    require_following: bool, named: bool
) -> None:
    choices = ReleaseChoices(require_following=require_following)
    definition = release_definition(ToolsOfRun((), {}, "m@1", {}), choices)
    assert ("following_version" in definition) is named


def sampling_of_a_tool(**changes: Any) -> Recipe:
    """The sampling recipe of a run whose tool proposes."""
    values = {"proposer": "tool", **changes.pop("values", {})}
    named = {"choices": choices(**values), "proposer_identity": "tool:calculator-1"}
    return recipes(**{**named, **changes})[1]


@pytest.mark.parametrize("values", [{"seed": 1}, {"max_positions": 3}, {"temperature": 0.5}])
def test_no_number_of_sampling_is_in_the_recipe_of_a_tool_that_proposes(values) -> None:
    assert sampling_of_a_tool(values=values) == sampling_of_a_tool()


@pytest.mark.parametrize("change", [{"proposer_identity": "tool:calculator-2"}, {"model_identity": "n"}])
def test_the_recipe_of_a_tool_that_proposes_holds_its_version_beside_the_vocabulary(change) -> None:
    assert sampling_of_a_tool(**change) != sampling_of_a_tool()


@pytest.mark.parametrize("proposer", ["tool+model", "tool-or-model"])
def test_a_tool_that_cannot_propose_has_the_recipes_of_the_model_beside_one_that_can(proposer) -> None:
    assert recipes(choices=choices(proposer=proposer)) == recipes()


def test_a_tool_that_proposes_beside_others_that_cannot_has_the_recipe_of_one_that_proposes() -> None:
    assert sampling_of_a_tool(values={"proposer": "tool-or-model"}) == sampling_of_a_tool()
