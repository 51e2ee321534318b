"""`toolformer-ops evaluate` and `dateset`, with a fake writing model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.evaluation import published_files as published
from tests.unit.evaluation.fake_writing_model import FakeWritingModel, made_call
from toolformer_ops.__main__ import app
from toolformer_ops.errors import EXIT_USAGE, EvaluationDataError, UsageError, exit_code

Loaded = list[tuple[str, Any]]


@pytest.fixture
def loaded(monkeypatch):
    """What was loaded. M answers nothing; the tuned model answers Oslo, with a call where it may make one."""
    from toolformer_ops.decoding.model import WritingModel

    found: Loaded = []

    def load(_: Any, name: str, *, tools: Sequence[str] | None = None) -> FakeWritingModel:
        found.append((name, tools))
        if name != "tuned":
            return FakeWritingModel(lambda *_: (" nothing", ()), f"{name}@1")
        return FakeWritingModel(
            lambda _, settings: (" Oslo", (made_call("QA", "Oslo"),) if settings.call_start_rank else ()),
            "tuned@1",
            down=["WikiSearch"],
        )

    monkeypatch.setattr(WritingModel, "load", load)
    return found


@pytest.fixture
def data(tmp_path):
    return published.write(tmp_path, "lama", *published.QUESTIONS)


def run(data: Path, suite: str, *arguments: str) -> Any:
    command = ["evaluate", "--model", "tuned", "--data", str(data), "--suite", suite, *arguments]
    return CliRunner().invoke(app, command, env={"COLUMNS": "160"})


def test_compare_prints_the_table_of_the_paper_with_paired_differences(loaded, data):
    found = run(data, "lama", "--compare", "--base", "m", "--without-calls", "plain")
    assert found.exit_code == 0, found.output
    lines = [" ".join(line.split()) for line in found.output.splitlines()]
    rows = "\n".join(line for line in lines if line.startswith("│"))
    # SQuAD's answer is blue; of Google-RE's two one is Oslo; of T-REx's three one is Oslo.
    assert "│ M │ 0.0 (0.0 to 79.3) │ 0.0 (0.0 to 65.8) │ 0.0 (0.0 to 56.1) │\n" in rows
    assert "│ M, finetuned without calls │ 0.0" in rows
    assert "│ Toolformer (disabled) │ 0.0 (0.0 to 79.3) │ 50.0 (9.5 to 90.5) │ 33.3" in rows
    assert "100.0 │ QA 100.0 │" in rows  # the share with a call
    assert rows.count("│ 10 │ M │") == 3
    assert loaded == [("tuned", None), ("m", ()), ("plain", ())]


def test_no_model_is_loaded_if_no_suite_has_data(loaded, data):
    assert (run(data, "mlqa").exit_code, loaded) == (1, [])  # no model is loaded if no suite has data


def test_json_holds_every_score_beside_each_failure(loaded, data):
    # qa may use WikiSearch, which is down; lama may not; mlqa has no data.
    out = data / "new" / "inputs.jsonl"
    found = run(data, "qa,lama:trex,mlqa", "--k", "3,0", "--sample", "2", "--json", "--out", str(out))
    assert found.exit_code == 1
    outcome = json.loads(found.stdout)
    assert "a tool is down: WikiSearch" in outcome["failures"]["qa"]
    assert "MLQA_V1.zip" in outcome["failures"]["mlqa"]
    assert outcome["left_out"]["lama"]["trex"] == {"mask_not_last": 1, "repeated_fact": 1}
    assert len([difference for difference in outcome["differences"] if difference["suite"] == "lama"]) == 1
    scores = {
        (one["suite"], one["variant"], one["call_start_rank"], one["inputs"]) for one in outcome["scores"]
    }
    assert scores >= {("lama", "disabled", 0, 2), ("lama", "with_tools", 3, 2)}


def test_out_holds_every_input(loaded, data):
    out = data / "new" / "inputs.jsonl"
    run(data, "qa,lama:trex,mlqa", "--k", "3,0", "--sample", "2", "--json", "--out", str(out))
    lines = [json.loads(line) for line in out.open(encoding="utf-8")]
    line, _ = [one for one in lines if one["call_start_rank"] == 3]
    assert line["prompt"].startswith("Please complete the following text")
    assert (line["written"], line["predicted"]) == (" [QA(input) -> Oslo] Oslo", "Oslo")
    assert line["correct"] == (line["answers"] == ["Oslo"])
    assert (line["calls"][0]["tool"], line["date"]) == ("QA", "2023-02-09")


def test_a_wrong_request_is_said_once_before_a_model_is_loaded(loaded, data, caplog):
    for arguments, error, message in (
        (["--base", "m"], UsageError, "expected --compare"),
        (["--compare"], UsageError, "as --base"),
        (["--k", "-1"], UsageError, "--k: expected whole numbers"),
        (["--suite", "sums"], UsageError, "--suite: expected names"),
        (["--out", "/"], UsageError, "--out: expected a file that can be written"),
        (["--data", "/no/such/folder"], EvaluationDataError, "/no/such/folder"),
    ):
        found = run(data, "lama", *arguments)
        assert isinstance(found.exception, error)
        assert exit_code(found.exception) == EXIT_USAGE
        assert message in str(found.exception)
        assert message not in caplog.text + found.output  # `main` writes the error
        assert loaded == []
