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
from toolformer_ops.evaluation.dateset import dateset_lines

LOADED: list[tuple[str, Any]] = []


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    """M answers nothing; the tuned model answers Oslo, with a call where it may make one."""
    from toolformer_ops.decoding.model import WritingModel

    def load(_: Any, name: str, *, tools: Sequence[str] | None = None) -> FakeWritingModel:
        LOADED.append((name, tools))
        if name != "tuned":
            return FakeWritingModel(lambda *_: (" nothing", ()), f"{name}@1")
        return FakeWritingModel(
            lambda _, settings: (" Oslo", (made_call("QA", "Oslo"),) if settings.call_start_rank else ()),
            "tuned@1",
            down=["WikiSearch"],
        )

    LOADED.clear()
    monkeypatch.setattr(WritingModel, "load", load)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["evaluate", *arguments], env={"COLUMNS": "160"})


def test_compare_prints_the_table_of_the_paper_with_paired_differences(models: None, tmp_path: Path) -> None:
    published.write_lama(tmp_path)
    others = ("--compare", "--base", "m", "--without-calls", "plain")
    found = run(*others, "--model", "tuned", "--suite", "lama", "--data", str(tmp_path))
    assert found.exit_code == 0, found.output
    lines = [" ".join(line.split()) for line in found.output.splitlines()]
    assert lines[0] == "lama: % right: right word among the first 5 words"
    rows = [line for line in lines if line.startswith("│")]
    # SQuAD's answer is blue; of Google-RE's two one is Oslo; of T-REx's three one is Oslo.
    assert "│ M │ 0.0 (0.0 to 79.3) │ 0.0 (0.0 to 65.8) │ 0.0 (0.0 to 56.1) │" in rows
    assert any(line.startswith("│ M, finetuned without calls │ 0.0") for line in rows)
    assert any(
        line.startswith("│ Toolformer (disabled) │ 0.0 (0.0 to 79.3) │ 50.0 (9.5 to 90.5) │ 33.3") for line in rows
    )
    assert any(line.startswith("│ Toolformer, k = 10 │ 0.0") for line in rows)
    assert any("100.0 │ QA 100.0 │" in line for line in rows)  # the share with a call
    assert sum("│ 10 │ M │" in line for line in rows) == 3
    assert LOADED == [("tuned", None), ("m", ()), ("plain", ())]


def test_json_holds_every_field_of_a_score(models: None, tmp_path: Path) -> None:
    published.write_lama(tmp_path)
    found = run(
        "--model", "tuned", "--suite", "lama:trex", "--data", str(tmp_path), "--k", "3,0", "--limit", "2", "--json"
    )
    assert found.exit_code == 0
    scores = json.loads(found.stdout)["scores"]
    assert {(score["variant"], score["call_start_rank"]) for score in scores} == {("disabled", 0), ("with_tools", 3)}
    assert {score["inputs"] for score in scores} == {2}
    assert len(scores[0]["data_sha256"]) == 64
    assert len(json.loads(found.stdout)["differences"]) == 1


def test_every_input_is_written_with_what_was_asked_written_and_judged(models: None, tmp_path: Path) -> None:
    published.write_lama(tmp_path)
    out = tmp_path / "new" / "inputs.jsonl"
    found = run(
        "--model", "tuned", "--suite", "lama:trex", "--data", str(tmp_path), "--k", "3,0", "--json", "--out", str(out)
    )
    assert found.exit_code == 0
    assert json.loads(found.stdout)["scores"][0]["calendar_date"] == "2023-02-09"
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert sorted((line["call_start_rank"], line["number"]) for line in lines) == [
        (k, n) for k in (0, 3) for n in (1, 2, 3)
    ]
    [line] = [line for line in lines if (line["call_start_rank"], line["number"]) == (3, 2)]
    assert line["prompt"].endswith("The capital of Norway is")
    assert (line["answers"], line["written"], line["predicted"]) == (["Oslo"], " [QA(input) -> Oslo] Oslo", "Oslo")
    assert (line["correct"], line["calls"][0]["tool"], line["date"]) == (True, "QA", "2023-02-09")
    assert [line["correct"] for line in lines if line["number"] == 1] == [False, False]


def test_a_file_that_cannot_be_written_is_said_before_the_evaluation(models: None, tmp_path: Path) -> None:
    published.write_lama(tmp_path)
    found = run("--model", "tuned", "--suite", "lama:trex", "--data", str(tmp_path), "--out", str(tmp_path))
    assert isinstance(found.exception, UsageError)
    assert "--out: expected a file that can be written" in str(found.exception)
    assert LOADED == []


def test_a_suite_that_fails_is_named_and_the_status_is_not_0(models: None, tmp_path: Path) -> None:
    published.write_lama(tmp_path)
    published.write_qa(tmp_path)
    # qa may use WikiSearch, which is down; lama may not.
    found = run("--model", "tuned", "--suite", "qa,lama,mlqa", "--data", str(tmp_path), "--json")
    assert found.exit_code == 1
    outcome = json.loads(found.stdout)
    assert {score["suite"] for score in outcome["scores"]} == {"lama"}
    assert outcome["left_out"]["lama"] == {
        "squad": {"mask_not_last": 1},
        "google_re": {"judged_wrong": 1, "repeated_fact": 1},
        "trex": {"mask_not_last": 1, "repeated_fact": 1},
    }
    assert "a tool is down: WikiSearch" in outcome["failures"]["qa"]
    assert "MLQA_V1.zip" in outcome["failures"]["mlqa"]


def test_no_model_is_loaded_where_no_suite_has_data(
    models: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = run("--model", "tuned", "--suite", "mlqa", "--data", str(tmp_path))
    assert found.exit_code == 1
    assert [line.message for line in caplog.records if "suite mlqa failed" in line.message]
    assert "suite mlqa failed" not in found.output  # said by the log alone
    assert LOADED == []


def test_a_data_folder_that_is_not_there_is_a_wrong_request_said_once(
    models: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = run("--model", "tuned", "--suite", "qa,math", "--data", str(tmp_path / "nowhere"))
    assert isinstance(found.exception, EvaluationDataError)
    assert exit_code(found.exception) == EXIT_USAGE
    assert "nowhere" not in caplog.text + found.output  # `main` writes the error, once


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--base", "m"), "expected --compare"),
        (("--compare",), "as --base"),
        (("--k", "ten"), "--k: expected whole numbers"),
        (("--k", "-1"), "--k: expected whole numbers"),
        (("--suite", "sums"), "--suite: expected names"),
    ],
)
def test_a_wrong_request_is_named(models: None, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    found = run("--model", "tuned", "--suite", "lama", "--data", str(tmp_path), *arguments)
    assert isinstance(found.exception, UsageError)
    assert message in str(found.exception)


def test_dateset_is_written_as_json_lines(tmp_path: Path) -> None:
    out = tmp_path / "data" / "dateset" / "dateset.jsonl"
    found = CliRunner().invoke(app, ["dateset", "--out", str(out)])
    assert found.exit_code == 0
    assert out.read_bytes() == dateset_lines(0)
