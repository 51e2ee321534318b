"""What changes a recipe, what does not, and which later recipes a change reaches."""

from dataclasses import replace
from typing import Any

import pytest

from toolformer_ops.finetuning.recipe import FinetuningRecipe
from toolformer_ops.runs.choices import (
    DECIDE_NOTHING,
    FinetuningChoices,
    PlaceboChoices,
    ReleaseChoices,
    RunChoices,
)
from toolformer_ops.runs.recipes import ToolRecipes, placebo_recipe, tool_recipes
from toolformer_ops.stages.release import ToolsOfRun, release_definition
from toolformer_ops.tools.base import ToolSpec

SPEC = ToolSpec(name="Calculator", purpose="computes", prompt_file="calculator.txt", max_positions=20)
GIVEN: dict[str, Any] = {"corpus": "c", "model": "m"}


def choices(**values: Any) -> RunChoices:
    return RunChoices.parse(GIVEN | values)


def recipes(**changes: Any) -> ToolRecipes:
    named = {"prompt_text": "Input: {text}", "tool_version": "1", "model_identity": "m", "dtype": "float32"}
    return tool_recipes(**{"spec": SPEC, "choices": choices(), **named, **changes})


@pytest.mark.parametrize(
    ("change", "reached"),
    [
        ({}, []),
        # A number that is the tool's is the same choice as none.
        ({"choices": choices(max_positions=20, samples_per_position=5, sampling_threshold=0.05)}, []),
        ({"choices": choices(sample_until="bracket")}, []),
        ({"tool_version": "2"}, ["execute", "score"]),
        *(({name: "other"}, ["sample", "execute", "score"]) for name in ("prompt_text", "model_identity", "dtype")),
        ({"proposer_identity": "p"}, ["sample", "execute", "score"]),
        ({"spec": replace(SPEC, filter_version="2")}, ["filter", "sample", "execute", "score"]),
    ],
)
def test_a_change_reaches_its_own_stage_and_those_after_it(change: dict[str, Any], reached: list[str]) -> None:
    pairs = zip(recipes().in_order(), recipes(**change).in_order(), strict=True)
    assert [after.stage for before, after in pairs if before.recipe_id != after.recipe_id] == reached


FROM_SAMPLING_ON = {"sample", "execute", "score", "placebo"}
REACHED: dict[str, tuple[Any, set[str]]] = {
    "max_text_tokens": (512, {"filter", *FROM_SAMPLING_ON}),
    "long_texts": ("leave_out", {"filter", *FROM_SAMPLING_ON}),
    "call_prefix": ("tool_name", FROM_SAMPLING_ON),
    "max_positions": (3, FROM_SAMPLING_ON),
    "samples_per_position": (3, FROM_SAMPLING_ON),
    "sampling_threshold": (0.125, FROM_SAMPLING_ON),
    "max_call_tokens": (20, FROM_SAMPLING_ON),
    "temperature": (0.75, FROM_SAMPLING_ON),
    "top_p": (0.5, FROM_SAMPLING_ON),
    "sample_until": ("arrow", FROM_SAMPLING_ON),
    "prune_below": (0.25, FROM_SAMPLING_ON),
    "scoring_context_tokens": (16, {"score", "placebo"}),
    "verify_in_float32": ("off", {"score", "placebo"}),
    "score_unreleasable": (False, {"score", "placebo"}),
    "placebos": (5, {"placebo"}),
    "placebo_sample": (100, {"placebo"}),
    "chains": (True, FROM_SAMPLING_ON),
    "seed": (1, FROM_SAMPLING_ON | {"finetune"}),
    "finetune_steps": (7, {"finetune"}),
    "finetune_batch": (7, {"finetune"}),
    "finetune_length": (70, {"finetune"}),
    "finetune_learning_rate": (0.25, {"finetune"}),
    "finetune_warmup": (0.25, {"finetune"}),
    "finetune_results": ("mask", {"finetune"}),
    "finetune_dev_documents": (7, {"finetune"}),
    "finetune_eval_steps": (7, {"finetune"}),
    "max_examples_per_tool": (7, {"release"}),
    "decontaminate": ("report", {"release"}),
}
"""For each field that decides what is written: another value than its default, and what that changes."""

NOT_REACHED: dict[str, Any] = {
    "corpus": "d",
    "preset": "only_look",  # the one that sets nothing that decides
    "document_limit": 3,
    "tools": ["Calculator", "MT"],
    "model": "n",
    "proposer": "p",
    "keep_thresholds": {"Calculator": 2.0},
    "keep_rule": "information",
    "approve": "before_publishing",
    "tau_information": 0.5,
    "nats_per_second": 0.5,
    "nats_per_price": 0.5,
    "call_seconds": {"Calculator": 0.5},
    "max_false_discovery_rate": 0.1,
    "min_kept_texts": 3,
    "max_kept_share": 0.5,
    "token_log_probabilities": False,
    "finetune": False,
    "finetune_baseline": True,
    "finetune_device_batch": 2,
    "finetune_checkpoint_steps": 7,
    "evaluation_suites": ["temporal"],
    "evaluation_data": "data",
    "evaluation_inputs": 7,
}
"""For each field in `DECIDE_NOTHING`, another value than its default."""


def ids(chosen: RunChoices, dtype: str = "float32") -> dict[str, str]:
    """By stage, the id of what is written under it; for a release, what its id is made of."""
    found = {recipe.stage: recipe.recipe_id for recipe in recipes(choices=chosen, dtype=dtype).in_order()}
    found["placebo"] = placebo_recipe(
        found["score"], SPEC.name, chosen.part(PlaceboChoices), sample_share=1.0, pool_hash="0"
    ).recipe_id
    training = FinetuningRecipe(release_id="0" * 16, base_model="m@1", choices=chosen.part(FinetuningChoices))
    found["finetune"] = training.model_id
    found["release"] = repr(release_definition(ToolsOfRun((), {}, "m@1", {}), chosen.part(ReleaseChoices)))
    return found


def test_every_choice_decides_something_or_is_listed_with_the_reason_why_not() -> None:
    fields = set(RunChoices.model_fields)
    assert set(REACHED) | set(DECIDE_NOTHING) == fields
    assert not set(REACHED) & set(DECIDE_NOTHING)
    assert set(NOT_REACHED) == set(DECIDE_NOTHING)
    assert all(reason.strip() for reason in DECIDE_NOTHING.values())


@pytest.mark.parametrize("name", RunChoices.model_fields)
def test_each_choice_changes_the_recipes_that_it_decides_and_no_other(name: str) -> None:
    value, reached = REACHED.get(name) or (NOT_REACHED[name], set())
    extra = {"evaluation_data": "data"} if name == "evaluation_suites" else {}
    before, after = choices(**extra), choices(**extra, **{name: value})
    assert getattr(before, name) != getattr(after, name)
    dtype = "bfloat16" if name == "verify_in_float32" else "float32"  # a network in float32 has one format of losses
    was, then = ids(before, dtype), ids(after, dtype)
    assert {stage for stage in was if was[stage] != then[stage]} == reached


def test_thresholds_decide_rows_only_where_they_decide_what_float32_computes_again() -> None:
    all_of_them = {"verify_in_float32": "all"}
    other = {"keep_thresholds": {"Calculator": 2.0}}

    def score(dtype: str, **values: Any) -> str:
        return ids(choices(**values), dtype)["score"]

    for choice in ("auto", "on"):
        near = {"verify_in_float32": choice}
        assert score("bfloat16", **near) != score("bfloat16", **near, **other)
        assert score("float32", **near) == score("float32", **near, **other) == score("float32", **all_of_them)
    for choice in ("all", "off"):
        everywhere = {"verify_in_float32": choice}
        assert score("bfloat16", **everywhere) == score("bfloat16", **everywhere, **other)
