"""The trigger form against `RunChoices`: some of its fields, and the same verdict on good and bad values."""

import copy
import json
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from jinja2.sandbox import SandboxedEnvironment

from toolformer_ops.airflow_tasks.forms import FORM, description_of
from toolformer_ops.errors import UsageError
from toolformer_ops.runs.choices import PRESETS, RunChoices
from toolformer_ops.tools.registry import PAPER_TOOLS

GIVEN = {"corpus": "posts.jsonl", "model": "models/m"}


def validated(dag: DAG, **values: Any) -> dict[str, Any]:
    """The params as Airflow validates them for a run with this conf."""
    params = dag.params
    merged = type(params)({name: copy.copy(params.get_param(name)) for name in params})
    merged.update(values)
    return merged.validate()


def as_a_stage_reads(values: dict[str, Any]) -> RunChoices:
    """What `start-run` makes of the form: null is the default."""
    return RunChoices.parse_json(json.dumps(values))


def test_no_field_has_to_be_filled_in_but_corpus_model_and_release(local_dags: dict[str, DAG]) -> None:
    # Airflow's form lets nobody trigger while a field that may not be null is empty.
    for dag in local_dags.values():
        for name in dag.params:
            param = dag.params.get_param(name)
            may_be_null = "null" in param.schema["type"]
            asked_for = name in {"corpus", "model", "release", "source"}
            assert may_be_null or asked_for or param.value not in (None, "", []), name


def test_the_form_has_at_most_26_fields_each_of_one_line(local_dags: dict[str, DAG]) -> None:
    params = local_dags["annotate_corpus"].params
    named = [name for names in FORM.values() for name in names]
    assert set(named) <= set(RunChoices.model_fields)
    thresholds = {f"keep_threshold_{tool}" for tool in PAPER_TOOLS}
    assert set(params) == set(named) - {"keep_thresholds"} | thresholds
    assert len(named) == len(set(named))
    assert len(params) <= 26
    for name in params:
        assert len(params.get_param(name).description) <= 95, name  # what Airflow's dialog shows in a line
    assert set(local_dags["ingest_corpus"].params) == {"corpus", "accept_shrink"}


def test_corpus_and_model_are_asked_for_and_all_else_has_a_default(local_dags: dict[str, DAG]) -> None:
    dag = local_dags["annotate_corpus"]
    with pytest.raises(ParamValidationError, match="corpus"):
        validated(dag, model="m")
    with pytest.raises(ParamValidationError, match="model"):
        validated(dag, corpus="c")
    assert as_a_stage_reads(validated(dag, **GIVEN)) == RunChoices(**GIVEN)


def test_what_every_run_thinks_about_stands_unfolded_and_first(local_dags: dict[str, DAG]) -> None:
    params = local_dags["annotate_corpus"].params
    unfolded = [name for name in params if "section" not in params.get_param(name).schema]
    assert unfolded == ["corpus", "model", "tools", "preset", "document_limit"] == list(params)[:5]


def test_a_field_that_a_preset_names_starts_empty_and_says_what_that_means(local_dags: dict[str, DAG]) -> None:
    params = local_dags["annotate_corpus"].params
    named = {name for values in PRESETS.values() for name in values} & set(params)
    for name in named - {"finetune"}:
        assert params.get_param(name).value is None, name
    assert params.get_param("finetune").value is True
    assert {name: params.get_param(name).description for name in ("temperature", "max_positions", "finetune")} == {
        "temperature": "Temperature of sampling (1.0; 0.7 for a small model).",
        "max_positions": "Most call positions a text (5, Calculator and MT 20; 2 for a small model).",
        "finetune": "Finetunes the language model on the release and publishes it (on; off to only look).",
    }
    assert description_of("seed") == RunChoices.model_fields["seed"].description  # no preset names it
    assert params.get_param("preset").schema["values_display"].keys() == PRESETS.keys()


@pytest.mark.parametrize("preset", PRESETS)
def test_the_preset_that_is_chosen_fills_the_empty_fields(local_dags: dict[str, DAG], preset: str) -> None:
    values = validated(local_dags["annotate_corpus"], **GIVEN, preset=preset, max_call_tokens=17)
    assert as_a_stage_reads(values) == RunChoices(
        **GIVEN, **{**PRESETS[preset], "preset": preset, "max_call_tokens": 17}
    )


def test_tools_and_suites_are_offered_for_choice(local_dags: dict[str, DAG]) -> None:
    assert local_dags["annotate_corpus"].params.get_param("tools").schema["examples"] == list(PAPER_TOOLS)
    assert PAPER_TOOLS == ("Calculator", "Calendar", "WikiSearch", "QA", "MT")
    for dag_id in ("annotate_corpus", "finetune_release"):
        param = local_dags[dag_id].params.get_param("evaluation_suites")
        assert param.schema["examples"] == ["lama", "math", "qa", "mlqa", "temporal", "perplexity"]
        assert param.value == []  # none is chosen


GOOD = [
    {"evaluation_suites": ["math", "lama"], "evaluation_data": "s3://data/evaluation", "evaluation_inputs": 100},
    {"finetune_baseline": True},
    {"document_limit": 1},
    {"document_limit": None},
    {"tools": ["Calendar"]},
    {"tools": ["MT", "QA"]},
    {"keep_threshold_Calculator": 0.5, "keep_threshold_MT": 0, "keep_threshold_QA": None},
    {"keep_rule": "information"},
    {"call_prefix": "tool_name", "placebos": 1},  # not in the form
    {"sampling_threshold": 0.0},
    {"temperature": 2},
    {"finetune": False},
    {"finetune_learning_rate": 1},
    {"max_kept_share": 0},
]
BAD = [
    {"evaluation_suites": ["chess"]},
    {"evaluation_suites": "math"},
    {"evaluation_inputs": 0},
    {"corpus": ""},
    {"document_limit": 0},
    {"document_limit": 1.5},
    {"document_limit": "many"},
    {"tools": []},
    {"tools": "Calendar"},
    {"tools": ["Calendar", "Calendar"]},
    {"keep_threshold_Calculator": -0.1},
    {"keep_threshold_Calculator": 20.5},
    {"keep_threshold_Calculator": "much"},
    {"preset": "large_model"},
    {"keep_rule": "none"},
    {"temperature": 2.01},
    {"seed": -1},
    {"finetune": "perhaps"},
    {"finetune_steps": 0},
    {"max_positions": 201},
]


@pytest.mark.parametrize("change", GOOD, ids=str)
def test_the_form_and_the_choices_take(local_dags: dict[str, DAG], change: dict[str, Any]) -> None:
    values = validated(local_dags["annotate_corpus"], **(GIVEN | change))
    assert as_a_stage_reads(values) == RunChoices(**(GIVEN | change))


@pytest.mark.parametrize("change", BAD, ids=str)
def test_the_form_and_the_choices_refuse(local_dags: dict[str, DAG], change: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        validated(local_dags["annotate_corpus"], **(GIVEN | change))
    with pytest.raises(UsageError):
        RunChoices.parse(GIVEN | change)


def test_what_airflows_form_holds_nobody_to_is_left_to_the_first_task(local_dags: dict[str, DAG]) -> None:
    for dag in local_dags.values():
        for name in dag.params:
            assert not {"exclusiveMinimum", "exclusiveMaximum", "pattern"} & set(dag.params.get_param(name).schema), (
                name
            )
    for change in ({"sampling_threshold": 1.0}, {"temperature": 0}, {"finetune_learning_rate": 0}):
        values = validated(local_dags["annotate_corpus"], **(GIVEN | change))
        with pytest.raises(UsageError):
            as_a_stage_reads(values)


def test_the_form_refuses_a_tool_that_is_not_registered(local_dags: dict[str, DAG]) -> None:
    with pytest.raises(ParamValidationError):
        validated(local_dags["annotate_corpus"], **GIVEN, tools=["Abacus"])


@pytest.mark.parametrize(
    ("chosen", "argument"), [({}, "--no-accept-shrink"), ({"accept_shrink": True}, "--accept-shrink")]
)
def test_a_corpus_that_shrank_is_accepted_in_the_form(
    local_dags: dict[str, DAG], chosen: dict[str, bool], argument: str
) -> None:
    dag = local_dags["ingest_corpus"]
    values = validated(dag, corpus="posts.jsonl", **chosen)
    template = SandboxedEnvironment()
    rendered = [template.from_string(item).render(params=values) for item in dag.task_dict["ingest"].arguments]
    assert rendered == ["stage", "ingest", "--corpus", "posts.jsonl", argument]
    for answer in ("perhaps", None):
        with pytest.raises(ParamValidationError):
            validated(dag, corpus="posts.jsonl", accept_shrink=answer)
