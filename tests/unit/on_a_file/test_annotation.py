"""Several tools in one process, told as it works, and continued after a kill with the rows of a run that was left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.fake_language_model import FakeLanguageModel, StoppedError
from toolformer_ops.cli.on_a_file import app
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.errors import ToolformerError, UsageError
from toolformer_ops.on_a_file.annotate.annotation import Annotation
from toolformer_ops.on_a_file.annotate.partial_folder import finish, parts_beside
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.shown_progress import panel, shown
from toolformer_ops.storage.objects.parts import FolderParts
from toolformer_ops.tools.registry import get_tool

SPEC = get_tool("Calculator").spec
SUM = "There were 2 cats and 3 dogs, a total of 5 animals."
NO_SUM = "No number at all."
DATED = {"text": "The market opens today with oysters.", "url": "https://example.org/2013/02/14/market"}


class Loaded:
    """The model that is loaded, and how often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *script: str) -> None:
        self.model = FakeLanguageModel(script or ("Calculator(2 + 3)",))
        self.loads = 0
        monkeypatch.setattr("toolformer_ops.on_a_file.annotate.annotator.load_scoring_model", self.load)

    def load(self, *_: object) -> FakeLanguageModel:
        self.loads += 1
        return self.model


@pytest.fixture
def loaded(monkeypatch):
    return Loaded(monkeypatch)


def corpus_of(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "docs.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def annotation(corpus: Path, *tools: str, **values: Any) -> Annotation:
    numbers = {"max_positions": 9, "samples_per_position": 1, "placebos": 0, "placebo_sample": 0} | values
    choices = {**numbers, "tools": tools or ("Calculator",), "corpus": str(corpus), "model": "fake"}
    return Annotation.of(Settings(), RunChoices.parse(choices))


def rows(corpus: Path, out: Path | None = None, **values: Any) -> list[dict[str, Any]]:
    work = annotation(corpus, **values)
    with parts_beside(out) as work.parts:
        return list(work.rows())


def test_two_tools_share_one_load(tmp_path, loaded):
    loaded.model.script = ("Calculator(2 + 3)", "Calendar()")
    corpus = corpus_of(tmp_path, {"text": SUM}, DATED)
    numbers = {"samples_per_position": 2, "prune_below": 0.0}
    tools = {row["tool"] for row in annotation(corpus, "Calculator", "Calendar", **numbers).rows()}
    assert (tools, loaded.loads) == ({"Calculator", "Calendar"}, 1)


def test_a_text_that_is_there_twice_is_annotated_once(tmp_path, loaded):
    once, twice = ({"id": "a", "text": SUM}, {"id": "b", "text": SUM})
    assert {row["id"] for row in rows(corpus_of(tmp_path, once, twice))} == {"a"}
    assert loaded.model.added == [SUM]


def test_records_that_share_an_id_are_texts_of_their_own(tmp_path, loaded):
    texts = [SUM, SUM.replace("There", "Here")]
    corpus = corpus_of(tmp_path, *({"id": "same", "text": text} for text in texts))
    assert {row["before"].split()[0] for row in rows(corpus)} == {"There", "Here"}


def test_a_finished_text_is_not_annotated_again(tmp_path, loaded):
    corpus, out = corpus_of(tmp_path, {"text": SUM}), tmp_path / "calls.jsonl"
    first = rows(corpus, out)
    loaded.model.added.clear()
    assert rows(corpus, out) == first
    assert loaded.model.added == []


def test_what_other_parameters_made_is_not_taken(tmp_path, loaded):
    corpus, out = corpus_of(tmp_path, {"text": SUM}), tmp_path / "calls.jsonl"
    rows(corpus, out)
    rows(corpus, out, seed=1)
    assert loaded.model.added == [SUM, SUM]


def test_a_keep_threshold_decides_anew_about_finished_texts(tmp_path, loaded):
    corpus, out = corpus_of(tmp_path, {"text": SUM}), tmp_path / "calls.jsonl"
    assert sum(row["kept"] for row in rows(corpus, out)) == 1  # saves 1 nat
    again = rows(corpus, out, keep_thresholds={"Calculator": 1.5})
    assert {(row["kept"], row["keep_threshold"]) for row in again} == {(False, 1.5)}
    assert loaded.model.added == [SUM]


def test_each_text_that_gave_nothing_has_a_reason(tmp_path, loaded):
    loaded.model.script = ("Calculator(2 / 0)",)
    work = annotation(corpus_of(tmp_path, {"text": SUM}, {"text": NO_SUM}))
    assert list(work.rows()) == []
    counted = work.counts.tools["Calculator"]
    assert (dict(counted.filtered_out), dict(counted.nothing)) == (
        {"fewer_than_three_numbers": 1},
        {"division_by_zero": 1},
    )
    console = Console(width=120)
    with console.capture() as summary:
        console.print(work.counts.summary())
    assert "Calculator, not asked: 1 fewer than three numbers" in summary.get()
    assert "Calculator, nothing kept: 1 division by zero" in summary.get()


def test_a_result_that_is_passed_over_says_why_a_text_gave_nothing(tmp_path, loaded, monkeypatch):
    monkeypatch.setattr(get_tool("Calculator"), "spec", replace(SPEC, pass_over_own_text=True))
    monkeypatch.setattr("toolformer_ops.tools.retrieval.own_text.OwnText.repeated_by", lambda *_: True)
    work = annotation(corpus_of(tmp_path, {"text": SUM}))
    assert list(work.rows()) == []
    assert dict(work.counts.tools["Calculator"].nothing) == {"repeats_document_text": 1}


def test_a_pipe_gets_lines_about_the_progress(tmp_path, loaded, monkeypatch):
    monkeypatch.setattr("toolformer_ops.runs.shown_progress.SECONDS_TO_FIRST_LINE", 0.01)
    work = annotation(corpus_of(tmp_path, {"text": SUM}))
    with (tmp_path / "lines").open("w") as file, shown(work.counts.progress, Console(file=file)):
        time.sleep(0.2)
    assert "starting, 0 calls scored, 0 gain enough" in (tmp_path / "lines").read_text()


def test_the_panel_shows_the_newest_call_in_its_text(tmp_path, loaded):
    work = annotation(corpus_of(tmp_path, {"text": SUM}))
    list(work.rows())
    console = Console(width=200, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(panel(work.counts.progress(), 1.0))
    assert (
        "newest, saves 1.00 nats: kept, 0.5 are needed: There were 2 cats and 3 dogs, a total of "
        "[Calculator(2 + 3) -> 5] 5 animals." in captured.get()
    )


def test_the_parameters_of_the_help_are_taken_by_the_small_preset(tmp_path, loaded):
    corpus = corpus_of(tmp_path, {"text": SUM})
    chosen = ["--parameters", '{"placebos": 0, "placebo_sample": 0}']
    words = ["annotate", str(corpus), "--tools", "calculator", "--model", "fake", *chosen]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0
    assert [json.loads(line)["call"] for line in ended.stdout.splitlines()] == ["Calculator(2 + 3)"]
    assert ended.stderr.startswith(f"annotating {corpus} with Calculator; fake on cpu in float32\n")


def test_a_tool_without_its_index_is_refused_before_the_model_is_loaded(tmp_path, loaded):
    work = annotation(corpus_of(tmp_path, {"text": SUM}), "QA")
    with pytest.raises(ToolformerError, match="expected a search index"):
        list(work.rows())
    assert loaded.loads == 0


def test_an_error_says_that_the_same_command_continues(tmp_path, loaded):
    loaded.model.texts_before_stop = 40  # the first part is 16 texts, each of which the model sees twice
    texts = [SUM.replace("There", f"Here {number}") for number in range(24)]
    corpus, out = corpus_of(tmp_path, *({"text": text} for text in texts)), tmp_path / "calls.jsonl"
    words = ["annotate", str(corpus), "--tools", "Calculator", "--model", "fake", "--out", str(out)]
    ended = CliRunner().invoke(app, words)
    assert isinstance(ended.exception, StoppedError)
    assert f"stopped; the same command continues, from {out}.partial" in ended.stderr
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["calls.jsonl.partial", "docs.jsonl"]


def test_no_tool_is_refused(tmp_path):
    ended = CliRunner().invoke(app, ["annotate", str(corpus_of(tmp_path, DATED)), "--model", "fake"])
    assert "--tools: expected tools such as Calculator,Calendar, found none." in str(ended.exception)


def refusal(out: Path) -> str:
    with pytest.raises(UsageError) as refused, parts_beside(out):
        pass
    return str(refused.value)


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    out = tmp_path / "calls.jsonl"
    out.write_text("mine\n")
    assert "expected no file at" in refusal(out)
    assert out.read_text() == "mine\n"


def test_a_folder_of_something_else_is_not_touched(tmp_path):
    mine = tmp_path / "calls.jsonl.partial" / "mine"
    mine.parent.mkdir()
    mine.write_text("mine\n")
    assert "found mine. Remove it, or name another file." in refusal(tmp_path / "calls.jsonl")
    assert mine.read_text() == "mine\n"


def test_a_partial_file_of_an_older_version_is_refused(tmp_path):
    (tmp_path / "calls.jsonl.partial").write_text("{}\n")
    assert "found a file. Remove it, or name another file." in refusal(tmp_path / "calls.jsonl")


def test_two_processes_do_not_share_a_file(tmp_path):
    out = tmp_path / "calls.jsonl"
    with parts_beside(out):
        assert "found another process at work on it" in refusal(out)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    assert "No such file or directory" in refusal(tmp_path / "none" / "calls.jsonl")


def test_the_finished_file_takes_the_place_of_the_partial_one(tmp_path):
    out = tmp_path / "calls.jsonl"
    with parts_beside(out) as parts:
        parts.put("calls/a", b"")
        finish(out, iter(["1", "2"]))
    assert ([file.name for file in tmp_path.iterdir()], out.read_text()) == (["calls.jsonl"], "1\n2\n")


TEXTS = 40
SCRIPT = [f"Calculator({number} + 1)" for number in range(2, 6)]
HANGING_MODEL = """
import os, time
from tests.fake_language_model import FakeLanguageModel
from toolformer_ops.__main__ import main

class Hanging(FakeLanguageModel):
    def _see(self, text):
        super()._see(text)
        if len(self.seen) == int(os.environ.get("HANGS_AFTER", -1)):
            time.sleep(120)

import toolformer_ops.on_a_file.annotate.annotator as annotator
annotator.load_scoring_model = lambda *_: Hanging(tuple(os.environ["SCRIPT"].split("|")))
main()
"""
"""The command line with a model that stops to answer after so many texts."""


def finished_parts(partial: Path) -> list[str]:
    """The folders of the parts that are put; a try is none."""
    folders = [name.split("/")[0] for name in FolderParts(partial).names()]
    return [folder for folder in folders if folder != "tries"]


# The model sees 80 texts by the end of the pool, and 128 until the first 16 texts have their placebos.
@pytest.mark.parametrize(
    ("killed_in", "hangs_after", "parts"),
    [("annotation", 40, ["pool"]), ("placebos", 136, ["pool"] * 3 + ["calls"])],
)
def test_the_rows_after_a_kill_are_those_of_an_undisturbed_run(
    tmp_path, monkeypatch, killed_in, hangs_after, parts
):
    texts = [f"Box {n} holds {n} pens and 1 cap, a total of {n + 1} things." for n in range(2, TEXTS + 2)]
    corpus = corpus_of(tmp_path, *({"text": text} for text in texts))
    words = ["annotate", str(corpus), "--tools", "Calculator", "--model", "fake", "--all"]
    words += ["--parameters", '{"max_positions": 9, "samples_per_position": 4}']
    program = [sys.executable, "-c", HANGING_MODEL, *words]
    # 1. Killed as soon as these parts are there.
    killed, partial = tmp_path / "killed.jsonl", tmp_path / "killed.jsonl.partial"
    hanging = {**os.environ, "HANGS_AFTER": str(hangs_after), "SCRIPT": "|".join(SCRIPT)}
    with subprocess.Popen([*program, "--out", str(killed)], cwd=REPOSITORY, env=hanging) as process:
        while len(finished_parts(partial)) < len(parts):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not killed.exists()
    assert sorted(finished_parts(partial)) == sorted(parts)
    # 2. Continued in this process, beside a run that was left alone.
    left_alone = tmp_path / "left_alone.jsonl"
    for out in (killed, left_alone):
        Loaded(monkeypatch, *SCRIPT)
        CliRunner().invoke(app, [*words, "--out", str(out)], catch_exceptions=False)
    assert killed.read_bytes() == left_alone.read_bytes()
    assert len(left_alone.read_bytes().splitlines()) > TEXTS


def summary_of(work: Annotation) -> str:
    """What is told at the end of an annotation."""
    list(work.rows())
    console = Console(width=120)
    with console.capture() as summary:
        console.print(work.counts.summary())
    return summary.get()


def test_the_calls_that_a_tool_proposed_are_told(tmp_path, loaded):
    corpus = corpus_of(tmp_path, {"text": "There were 21 cats and 32 dogs, a total of 53 animals."})
    [row] = [line for line in summary_of(annotation(corpus, proposer="tool")).splitlines() if "Calc" in line]
    assert row.replace("│", " ").split() == ["Calculator", "1", "0", "1", "1", "1", "1"]


def test_the_summary_of_samples_alone_has_no_column_of_proposals(tmp_path, loaded):
    assert "proposed" not in summary_of(annotation(corpus_of(tmp_path, {"text": SUM})))


@pytest.mark.parametrize("texts_together", [1, 7, 100])
@pytest.mark.parametrize("rule", [{}, {"keep_rule": "probability", "placebos": 1, "placebo_sample": 9}])
def test_until_enough_calls_are_kept_come_the_first_texts_by_their_ids(
    tmp_path, loaded, rule, texts_together
):
    texts = [f"Box {n} holds 2 pens and 3 caps, a total of {5 if n % 3 else 9} things." for n in range(60)]
    loaded.model.script = ("Calculator(2 + 3)", "Calculator(4 + 5)")
    corpus = corpus_of(tmp_path, *({"text": text} for text in texts))
    numbers = {"max_positions": 2, "samples_per_position": 2, "prune_below": 0.1, "until_kept": 10}
    work = annotation(corpus, **numbers, **rule)
    work.texts_together = work.pool_texts = texts_together
    kept = [row["document_id"] for row in work.rows() if row["kept"]]
    assert kept == sorted(str(Document.of(text).document_id) for text in texts)[:10]


def test_a_run_until_enough_calls_are_kept_counts_the_texts_that_it_needs(tmp_path, loaded):
    corpus = corpus_of(tmp_path, *({"text": SUM.replace("cats", f"cats {n}")} for n in range(20)))
    work = annotation(corpus, until_kept=3)
    list(work.rows())
    assert work.counts.tools["Calculator"].kept == 3
