"""The trigger form against `RunChoices`: some of its fields, and the same verdict on good and bad values."""

import copy
import json
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError

from toolformer_ops.airflow_tasks.forms import FORM, annotation_form, description_of
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ToolError, UsageError
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.presets import PRESETS
from toolformer_ops.runs.requests import require_annotation
from toolformer_ops.tools.registry import BUILT_IN_TOOLS

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


def test_only_corpus_model_or_release_have_to_be_filled_in(local_dags):
    # Airflow's form lets nobody trigger while a field that may not be null is empty.
    for dag in local_dags.values():
        for name in dag.params:
            param = dag.params.get_param(name)
            may_be_null = "null" in param.schema["type"]
            asked_for = name in {"corpus", "model", "release", "source"}
            assert may_be_null or asked_for or param.value not in (None, "", []), name


def test_the_form_has_at_most_28_fields_each_of_one_line(local_dags):
    params = local_dags["annotate_corpus"].params
    named = [name for names in FORM.values() for name in names]
    assert set(params) == set(named) - {"keep_thresholds"} | {
        f"keep_threshold_{tool}" for tool in BUILT_IN_TOOLS
    }
    assert len(params) <= 28
    for name in params:
        assert len(params.get_param(name).description) <= 95, name  # what Airflow's dialog shows in a line


def test_the_form_begins_with_what_every_run_thinks_about(local_dags):
    params = local_dags["annotate_corpus"].params
    unfolded = [name for name in params if "section" not in params.get_param(name).schema]
    first = ["corpus", "model", "tools", "preset", "document_limit", "until_kept"]
    assert unfolded == first == list(params)[:6]


def test_the_form_of_the_demo_model_begins_with_the_preset_of_a_small_model(tmp_path):
    demo_model = str(tmp_path / "models" / "demo")
    settings = load_settings().model_copy(update={"state_dir": tmp_path, "default_model": demo_model})
    assert annotation_form(settings, [])["preset"].value == "small_model"


def test_all_but_corpus_with_model_has_a_default(local_dags):
    dag = local_dags["annotate_corpus"]
    with pytest.raises(ParamValidationError, match="corpus"):
        validated(dag, model="m")
    with pytest.raises(ParamValidationError, match="model"):
        validated(dag, corpus="c")
    assert as_a_stage_reads(validated(dag, **GIVEN)) == RunChoices(**GIVEN)


def test_a_field_that_a_preset_names_starts_empty_with_words_for_what_that_means(local_dags):
    params = local_dags["annotate_corpus"].params
    named = {name for values in PRESETS.values() for name in values} & set(params)
    for name in named - {"finetune"}:
        assert params.get_param(name).value is None, name
    assert params.get_param("finetune").value is True
    assert "(5, Calculator and MT 20; 2 for a small model)" in params.get_param("max_positions").description
    assert description_of("seed") == RunChoices.model_fields["seed"].description  # no preset names it


def test_the_preset_that_is_chosen_fills_the_empty_fields(local_dags):
    for preset, values in PRESETS.items():
        chosen = {"preset": preset, "max_call_tokens": 17}
        form = validated(local_dags["annotate_corpus"], **GIVEN, **chosen)
        assert as_a_stage_reads(form) == RunChoices(**GIVEN, **(values | chosen))


GOOD: list[dict[str, Any]] = [
    {
        "evaluation_suites": ["math", "lama"],
        "evaluation_data": "s3://data/evaluation",
        "evaluation_inputs": 100,
    },
    {"document_limit": None},
    {"tools": ["MT", "QA"]},
    {"fields": ["text=raw_content", "url=link"]},
    {"fields": None},
    {"keep_threshold_Calculator": 0.5, "keep_threshold_MT": 0, "keep_threshold_QA": None},
    {"call_prefix": "tool_name", "placebos": 1},  # not in the form
    {"sampling_threshold": 0.0},
    {"temperature": 2, "finetune_learning_rate": 1},
]
BAD: list[dict[str, Any]] = [
    {"evaluation_suites": ["chess"]},
    {"corpus": ""},
    {"document_limit": 0},
    {"tools": []},
    {"tools": ["Calendar", "Calendar"]},
    {"keep_threshold_Calculator": -0.1},
    {"keep_rule": "none"},
    {"fields": 7},
    {"seed": -1},
    {"max_positions": 201},
]


def test_the_form_takes_what_the_choices_take(local_dags):
    dag = local_dags["annotate_corpus"]
    for change in GOOD:
        assert as_a_stage_reads(validated(dag, **(GIVEN | change))) == RunChoices(**(GIVEN | change))
    for change in BAD:
        with pytest.raises(ParamValidationError):
            validated(dag, **(GIVEN | change))
        with pytest.raises(UsageError):
            RunChoices.parse(GIVEN | change)


def test_the_form_leaves_it_to_the_first_task_to_refuse_a_tool_that_is_gone(local_dags):
    form = validated(local_dags["annotate_corpus"], **GIVEN, tools=["Abacus"])
    with pytest.raises(ToolError, match=r"found 'Abacus'\. If it was a tool of yours, put its file back"):
        require_annotation(load_settings(), form)
