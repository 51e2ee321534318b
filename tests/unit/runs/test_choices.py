"""What a run accepts, and what it says about what it does not."""

import pytest

from toolformer_ops.errors import ParameterError
from toolformer_ops.runs.choices import RunChoices

LEAST = {"corpus": "posts.jsonl", "model": "models/m"}


def test_the_defaults_are_the_papers() -> None:
    parameters = RunChoices.parse(LEAST)
    assert parameters.tools == ("Calculator", "Calendar", "WikiSearch", "QA", "MT")
    assert (parameters.finetune_steps, parameters.finetune_batch, parameters.finetune_length) == (2000, 128, 1024)
    assert (parameters.finetune_learning_rate, parameters.finetune_warmup) == (1e-5, 0.1)
    assert (parameters.max_examples_per_tool, parameters.call_prefix) == (25_000, "free")
    assert parameters.scoring_context_tokens is None  # the whole text


def test_what_is_pruned_unless_told_otherwise_is_below_every_threshold_of_the_paper() -> None:
    assert RunChoices.parse(LEAST).prune_below == 0.5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"corpus": ""}, "corpus"),
        ({"document_limit": 0}, "document_limit"),
        ({"tools": []}, "tools"),
        ({"tools": ["QA", "QA"]}, "each tool once"),
        ({"keep_thresholds": {"QA": -1}}, "keep_thresholds.QA"),
        ({"sampling_threshold": 1.0}, "sampling_threshold"),
        ({"prune_below": -0.5}, "prune_below"),
        ({"scoring_context_tokens": 0}, "scoring_context_tokens"),
        ({"call_prefix": "half"}, "call_prefix"),
        ({"max_position": 5}, "max_position"),
    ],
)
def test_a_wrong_value_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        RunChoices.parse({**LEAST, **change})


def test_every_field_has_a_title_a_description_and_a_section() -> None:
    for name, field in RunChoices.model_fields.items():
        extra = field.json_schema_extra
        assert field.title, name
        assert field.description, name
        assert isinstance(extra, dict), name
        assert extra["section"], name


def test_suites_that_read_files_need_their_folder_when_the_run_starts() -> None:
    minimal = {"corpus": "corpus.jsonl", "model": "model"}
    for suite in ("lama", "math", "qa", "mlqa", "perplexity"):
        with pytest.raises(ParameterError, match=f"evaluation_data must name the folder .* {suite}"):
            RunChoices.parse({**minimal, "evaluation_suites": ["temporal", suite]})
        assert RunChoices.parse({**minimal, "evaluation_suites": [suite], "evaluation_data": "data"})
    assert RunChoices.parse({**minimal, "evaluation_suites": ["temporal"]}).evaluation_suites == ("temporal",)
