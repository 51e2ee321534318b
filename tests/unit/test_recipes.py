"""What changes a recipe, what does not, and which later recipes a change reaches."""

from typing import Any

import pytest

from toolformer_ops.errors import ParameterError
from toolformer_ops.runs.choices import RunParameters, parse_run_parameters
from toolformer_ops.runs.recipes import ToolRecipes, keep_threshold, tool_recipes
from toolformer_ops.tools.base import ToolSpec

SPEC = ToolSpec("Calculator", "computes", "calculator.txt", "1", "appendix A", max_positions=20)


def recipes(**changes: Any) -> ToolRecipes:
    given: dict[str, Any] = {
        "spec": SPEC,
        "prompt_text": "Input: {text}",
        "tool_version": "1",
        "model_identity": "m",
        "dtype": "float32",
        "run": {},
    } | changes
    parameters = parse_run_parameters({"corpus": "c", "model": "m", **given.pop("run")})
    return tool_recipes(**given, parameters=parameters)


def changed(other: ToolRecipes) -> list[str]:
    pairs = zip(recipes().in_order(), other.in_order(), strict=True)
    return [after.stage for before, after in pairs if before.recipe_id != after.recipe_id]


def test_the_same_input_has_the_same_recipes() -> None:
    assert changed(recipes()) == []


@pytest.mark.parametrize(
    ("change", "reached"),
    [
        ({"tool_version": "2"}, ["execute", "score"]),
        ({"prompt_text": "Text: {text}"}, ["sample", "execute", "score"]),
        ({"model_identity": "n"}, ["sample", "execute", "score"]),
        ({"dtype": "bfloat16"}, ["sample", "execute", "score"]),
        ({"run": {"seed": 1}}, ["sample", "execute", "score"]),
        ({"run": {"max_positions": 3}}, ["sample", "execute", "score"]),
        ({"run": {"prune_below": 0.0}}, ["sample", "execute", "score"]),
        ({"run": {"scoring_context_tokens": 16}}, ["score"]),
        (
            {"spec": ToolSpec("Calculator", "p", "f", "2", "s", max_positions=20)},
            ["filter", "sample", "execute", "score"],
        ),
    ],
)
def test_a_change_reaches_its_own_stage_and_those_after_it(change: dict[str, Any], reached: list[str]) -> None:
    assert changed(recipes(**change)) == reached


@pytest.mark.parametrize(
    "run", [{"keep_thresholds": {"Calculator": 2.0}}, {"finetune": False}, {"document_limit": 3}, {"max_positions": 20}]
)
def test_what_does_not_decide_the_rows_changes_no_recipe(run: dict[str, Any]) -> None:
    assert changed(recipes(run=run)) == []


def parameters(**values: Any) -> RunParameters:
    return parse_run_parameters({"corpus": "c", "model": "m", **values})


def test_the_runs_keep_threshold_goes_before_the_tools() -> None:
    own = SPEC.keep_threshold
    assert keep_threshold(SPEC, parameters(keep_thresholds={"QA": 2.0})) == own
    assert keep_threshold(SPEC, parameters(keep_thresholds={"Calculator": 2.0})) == 2.0


def test_a_keep_threshold_may_equal_prune_below() -> None:
    assert keep_threshold(SPEC, parameters(keep_thresholds={"Calculator": 0.75}, prune_below=0.75)) == 0.75
    assert keep_threshold(SPEC, parameters(keep_thresholds={"Calculator": 0.0}, prune_below=0.0)) == 0.0


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"keep_thresholds": {"Calculator": 0.25}}, r"found 0\.25 for Calculator \(the run's\)"),
        ({"prune_below": 1.5}, r"found 1 for Calculator \(the tool's own\)"),
    ],
)
def test_a_keep_threshold_below_prune_below_is_refused_with_the_remedy(values: dict[str, Any], found: str) -> None:
    with pytest.raises(ParameterError, match=found) as caught:
        keep_threshold(SPEC, parameters(**values))
    assert "Set prune_below to" in str(caught.value)
