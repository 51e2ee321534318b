"""`annotate` in one process, with a scripted model and the real calculator: its lines are what a run would store."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_language_model import FULL_CONTEXT, FakeLanguageModel
from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, UsageError
from toolformer_ops.on_a_file.annotator import annotate_file, filter_lines

SUM = "There were 2 cats and 3 dogs, a total of 5 animals."


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeLanguageModel:
    fake = FakeLanguageModel(("Calculator(2 + 3)",), sure_words=frozenset({"and"}))
    monkeypatch.setattr("toolformer_ops.on_a_file.annotator.load_scoring_model", lambda *_: fake)
    return fake


def lines(tmp_path: Path, **values: Any) -> dict[int, dict[str, Any]]:
    """The printed lines by their position."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"text": SUM}) + "\n")
    numbers = {"max_positions": 9, "samples_per_position": 1} | values
    found = annotate_file(Settings(), corpus, "Calculator", "fake", None, numbers)
    return {line["position_char"]: json.loads(json.dumps(line, allow_nan=False)) for line in found}


def test_a_pruned_call_is_shown_with_its_bound_and_the_losses_that_are_known(
    tmp_path: Path, model: FakeLanguageModel
) -> None:
    found = lines(tmp_path)
    assert {at: line["kept"] for at, line in found.items() if line["kept"]} == {SUM.index(" 5"): True}
    assert SUM.index(" and") not in found  # no call there could be kept, so none was sampled
    pruned = found[SUM.index(" dogs")]
    assert (pruned["reason"], pruned["reduction_bound"], pruned["loss_reduction"]) == ("pruned_below", -0.25, None)
    assert (pruned["loss_without_call"], pruned["loss_without_result"], pruned["loss_with_result"]) == (2.0, None, 2.25)
    assert not pruned["kept"]


def test_the_context_window_reaches_the_model_and_nats_for_each_second_need_the_seconds_of_a_call(
    tmp_path: Path, model: FakeLanguageModel
) -> None:
    found = lines(tmp_path, scoring_context_tokens=16)
    assert model.context_tokens == [16]
    kept = found[SUM.index(" 5")]
    assert (kept["loss_without_call_full_context"], kept["loss_reduction"]) == (FULL_CONTEXT, 0.75)
    seconds = {"call_seconds": {"Calculator": 0.5}}
    assert lines(tmp_path, nats_per_second=2.0, **seconds)[SUM.index(" 5")]["kept"]  # saves exactly 1 nat
    assert not lines(tmp_path, nats_per_second=2.01, **seconds)[SUM.index(" 5")]["kept"]
    with pytest.raises(UsageError, match="expected the seconds of a call of Calculator, found none"):
        lines(tmp_path, nats_per_second=2.0)


def test_a_bad_line_is_a_refusal_and_a_file_without_a_good_one_is_an_error(
    tmp_path: Path, model: FakeLanguageModel
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("no JSON\n" + json.dumps({"text": SUM}) + "\n")
    assert [line["kept"] for line in filter_lines(Settings(), "Calculator", corpus)] == [False, True]
    corpus.write_text("# A page\n\nin Markdown\n")
    with pytest.raises(CorpusError, match=r"usable record in .*corpus\.jsonl, found corrupt_json 2"):
        list(filter_lines(Settings(), "Calculator", corpus))
    with pytest.raises(CorpusError, match="usable record"):
        list(annotate_file(Settings(), corpus, "Calculator", "fake", None, {}))


BOXES = range(2, 10)
"""Things in a box; in the text of each only one call helps, by 1 nat, and any other result makes it harder."""


def annotated_boxes(
    tmp_path: Path, model: FakeLanguageModel, boxes: range = BOXES, **values: Any
) -> Iterator[dict[str, Any]]:
    model.script, model.sure_words = tuple(f"Calculator({n} + 1)" for n in boxes), frozenset()
    corpus = tmp_path / "boxes.jsonl"
    texts = [f"Box {n} holds {n} pens and 1 cap, a total of {n + 1} things." for n in boxes]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    numbers = {"max_positions": 2, "samples_per_position": 12} | values
    return annotate_file(Settings(), corpus, "Calculator", "fake", None, numbers)


def test_the_calls_of_a_file_are_the_pool_of_its_placebos(
    tmp_path: Path, model: FakeLanguageModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        found = list(annotated_boxes(tmp_path, model))
    kept = [line for line in found if line["kept"]]
    columns = ("loss_reduction", "placebo_reduction", "information", "placebos")
    assert [tuple(line[name] for name in columns) for line in kept] == [(1.0, -0.25, 1.25, 3)] * len(BOXES)
    assert "Calculator from 0.5 nats: 8 calls kept; by chance" in caplog.text
    # Batches change nothing.
    monkeypatch.setenv("TOOLFORMER_MICRO_BATCH_DOCUMENTS", "1")
    assert list(annotated_boxes(tmp_path, model)) == found


def test_a_file_with_one_result_has_no_placebo_and_the_rule_of_information_keeps_nothing_of_it(
    tmp_path: Path, model: FakeLanguageModel
) -> None:
    for rule, kept in (("paper", 1), ("information", 0)):
        found = list(annotated_boxes(tmp_path, model, range(2, 3), keep_rule=rule))
        assert sum(line["kept"] for line in found) == kept
        assert {(line["information"], line["placebos"]) for line in found} == {(None, 0)}


def test_without_placebos_the_calls_of_a_text_are_printed_before_the_next_is_annotated(
    tmp_path: Path, model: FakeLanguageModel
) -> None:
    found = annotated_boxes(tmp_path, model, placebos=0, placebo_sample=0)
    first = next(found)
    assert len(model.added) == 1
    every = [first, *found]
    assert all("information" not in line for line in every)
    assert sum(line["kept"] for line in every) == len(BOXES)
