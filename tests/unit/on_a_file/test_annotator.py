"""`annotate` and `explain` in one process: lines are what a run would store, and one call is scored token by token."""

import datetime
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.annotated_files import annotate_file
from tests.fake_language_model import FULL_CONTEXT, FakeLanguageModel
from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, UsageError
from toolformer_ops.language_model.losses import is_kept
from toolformer_ops.on_a_file.annotate import annotation
from toolformer_ops.on_a_file.annotate.annotator import distinct_documents, read_corpus
from toolformer_ops.on_a_file.look.explanation import call_in_text, explain_call, explanation_table, token_at
from toolformer_ops.storage.corpora.record_rules import Record

SUM = "There were 2 cats and 3 dogs, a total of 5 animals."


@pytest.fixture(autouse=True)
def model(monkeypatch):
    fake = FakeLanguageModel(("Calculator(2 + 3)",), sure_words=frozenset({"and"}))
    monkeypatch.setattr("toolformer_ops.on_a_file.annotate.annotator.load_scoring_model", lambda *_: fake)
    return fake


def lines(tmp_path: Path, **values: Any) -> dict[int, dict[str, Any]]:
    """The printed lines by their position."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"text": SUM}) + "\n")
    numbers = {"max_positions": 9, "samples_per_position": 1} | values
    found = annotate_file(Settings(), corpus, "Calculator", "fake", numbers)
    return {line["position_char"]: json.loads(json.dumps(line, allow_nan=False)) for line in found}


def test_no_call_is_sampled_where_none_could_be_kept(tmp_path):
    found = lines(tmp_path)
    assert {at: line["kept"] for at, line in found.items() if line["kept"]} == {SUM.index(" 5"): True}
    assert SUM.index(" and") not in found  # no call there could be kept, so none was sampled


def test_a_pruned_call_is_shown_with_its_bound_beside_the_computed_losses(tmp_path):
    found = lines(tmp_path)
    pruned = found[SUM.index(" dogs")]
    assert (pruned["reason"], pruned["reduction_bound"], pruned["loss_reduction"]) == (
        "pruned_below",
        -0.25,
        None,
    )
    assert (pruned["loss_without_call"], pruned["loss_without_result"], pruned["loss_with_result"]) == (
        2.0,
        None,
        2.25,
    )
    assert not pruned["kept"]


def test_the_context_window_reaches_the_model(tmp_path, model):
    found = lines(tmp_path, scoring_context_tokens=16)
    assert model.context_tokens == [16]
    kept = found[SUM.index(" 5")]
    assert (kept["loss_without_call_full_context"], kept["loss_reduction"]) == (FULL_CONTEXT, 0.75)


def test_a_bad_line_is_a_refusal_but_a_file_without_a_good_one_is_an_error(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("no JSON\n" + json.dumps({"text": SUM}) + "\n")
    assert [isinstance(record, Record) for _, record in read_corpus(Settings(), corpus)] == [False, True]
    corpus.write_text("# A page\n\nin Markdown\n")
    with pytest.raises(CorpusError, match=r"usable record in .*corpus\.jsonl, found corrupt_json 2"):
        list(read_corpus(Settings(), corpus))
    with pytest.raises(CorpusError, match="usable record"):
        list(annotate_file(Settings(), corpus, "Calculator", "fake", {}))


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
    return annotate_file(Settings(), corpus, "Calculator", "fake", numbers)


def test_the_calls_of_a_file_are_the_pool_of_its_placebos(tmp_path, model, monkeypatch):
    found = list(annotated_boxes(tmp_path, model))
    kept = [line for line in found if line["kept"]]
    columns = ("loss_reduction", "placebo_reduction", "information", "placebos")
    assert [tuple(line[name] for name in columns) for line in kept] == [(1.0, -0.25, 1.25, 3)] * len(BOXES)
    # Batches change nothing.
    monkeypatch.setenv("TOOLFORMER_MICRO_BATCH_DOCUMENTS", "1")
    assert list(annotated_boxes(tmp_path, model)) == found


def test_a_file_with_one_result_has_no_placebo_for_the_rule_probability(tmp_path, model):
    for rule, kept in (("paper", 1), ("probability", 0)):
        found = list(annotated_boxes(tmp_path, model, range(2, 3), keep_rule=rule))
        assert sum(line["kept"] for line in found) == kept
        assert {(line["information"], line["placebos"]) for line in found} == {(None, 0)}


def test_without_placebos_the_calls_of_a_part_are_printed_before_the_next_is_annotated(
    tmp_path, model, monkeypatch
):
    monkeypatch.setattr(annotation, "TEXTS_TOGETHER", {"cpu": 3})
    found = annotated_boxes(tmp_path, model, placebos=0, placebo_sample=0)
    first = next(found)
    assert len(model.added) == 3
    every = [first, *found]
    assert all(line["information"] is None for line in every)
    assert sum(line["kept"] for line in every) == len(BOXES)


AT = SUM.index(" 5")


@pytest.mark.parametrize(
    "marked",
    [
        "2 cats and 3 dogs make [Calculator(2 + 3)] 5 animals.",
        "2 cats and 3 dogs make [Calculator(2 + 3) -> 7] 5 animals.",
        "2 cats and 3 dogs make [calculator(2 + 3) -> ] 5 animals.",
    ],
)
def test_a_call_in_brackets_is_taken_out_of_its_text(marked):
    text, at, call = call_in_text(marked)
    assert text == "2 cats and 3 dogs make 5 animals."
    assert text[at:] == " 5 animals."
    assert call.lower() == "calculator(2 + 3)"


def test_the_tokens_add_up_to_the_losses(tiny_model_dir, capsys):
    found = explain_call(Settings(), SUM, AT, "[Calculator(2 + 3)]", None, str(tiny_model_dir))
    assert (found["call"], found["result"], found["reason"]) == ("Calculator(2 + 3)", "5", None)
    for name in ("without_call", "without_result", "with_result"):
        added = -sum(token["weight"] * token[f"log_p_{name}"] for token in found["tokens"])
        assert added == pytest.approx(found[f"loss_{name}"], abs=1e-4)
    reduction = min(found["loss_without_call"], found["loss_without_result"]) - found["loss_with_result"]
    assert found["loss_reduction"] == pytest.approx(reduction)
    assert found["gain"] == pytest.approx(math.log(found["probability_with"] / found["probability_without"]))
    assert found["kept"] == is_kept(found["gain"], found["keep_threshold"])
    explanation_table(found)
    shown = " ".join(capsys.readouterr().out.split())
    assert "[Calculator(2 + 3) -> 5] probability of the next tokens" in shown
    assert f"it saves {reduction:.3f} nats by the paper's rule" in shown
    # A stored call has the text around it and no words for its tokens; one that was pruned has a bound and no
    # losses.
    token = {"text": None, "weight": 1 / 3, "log_p_without_call": -6.0, "log_p_without_result": None}
    stored = {
        "run_id": "r",
        "document_id": "d",
        "call_id": "c",
        "text_before": "2 and 3",
        "text_after": " make 5.",
    }
    pruned = {"reason": "pruned_below", "loss_without_result": None, "gain_bound": 0.25}
    explanation_table({**found, **stored, **pruned, "tokens": [{**token, "log_p_with_result": -3.0}]})
    shown = capsys.readouterr().out
    assert "...2 and 3[Calculator(2 + 3)] make 5...." in shown
    assert "│1│0.333│-6.000│-│-3.000│" in shown.replace(" ", "")
    pruned_words = "it makes the next tokens at most 1.28 times as probable"
    assert f"not scored to the end (pruned_below): {pruned_words}" in " ".join(shown.split())
    explanation_table({**found, "tokens": [], "result": None, "reason": "divides_by_zero"})
    assert "no result (divides_by_zero)" in capsys.readouterr().out


def test_placebos_of_a_stored_call_are_shown_with_their_losses(tiny_model_dir, capsys):
    explanation = explain_call(Settings(), SUM, AT, "Calculator(2 + 3)", None, str(tiny_model_dir))
    placebos = [{"result": "7", "loss_with_result": 1.25}, {"result": None, "loss_with_result": 2.0}]
    explanation_table({**explanation, "information": 0.5, "placebos": placebos})
    shown = " ".join(capsys.readouterr().out.split())
    assert "information of the result: 0.500 nats beyond other calls' results" in shown
    assert "(losses: 7 1.250, (forgotten) 2.000)" in shown


def test_a_call_without_a_result_gives_its_reason(tiny_model_dir):
    found = explain_call(Settings(), SUM, AT, "Calculator(cats + 3)", None, str(tiny_model_dir))
    assert (found["result"], found["reason"]) == (None, "invalid_expression")
    with pytest.raises(UsageError, match="2023-01-30"):
        explain_call(Settings(), SUM, AT, "Calendar()", "yesterday", str(tiny_model_dir))


def test_an_offset_is_that_of_a_token_or_of_the_word_behind_its_space():
    starts, text = (0, 5, 10), "There were two"
    assert [token_at(starts, text, at) for at in (5, 6, 10, 11)] == [1, 1, 2, 2]
    with pytest.raises(UsageError, match=r"found 8\. The nearest are 10, 5\."):
        token_at(starts, text, 8)
    with pytest.raises(UsageError, match="one token"):
        token_at((0,), "There", 0)


def test_an_offset_that_cannot_be_used_is_refused_before_the_model_is_loaded(tiny_model_dir, monkeypatch):
    monkeypatch.setattr(
        "toolformer_ops.on_a_file.look.explanation.load_scoring_model", lambda *_: pytest.fail("loaded")
    )
    for at in (999, -1, 0):
        with pytest.raises(UsageError, match=rf"--at: expected .* {len(SUM)} characters, found {at}\."):
            explain_call(Settings(), SUM, at, "Calculator(2 + 3)", None, str(tiny_model_dir))


def test_a_folder_named_by_its_day_dates_its_records(tmp_path):
    folder = tmp_path / "date=2021-10-13"
    folder.mkdir()
    (folder / "docs.jsonl").write_text('{"text": "Today it rains."}\n')
    [(_, document)] = distinct_documents(Settings(), str(tmp_path), None)
    assert document.document_date == datetime.date(2021, 10, 13)


def test_the_date_of_a_record_counts_before_that_of_its_folder(tmp_path):
    folder = tmp_path / "date=2021-10-13"
    folder.mkdir()
    (folder / "docs.jsonl").write_text('{"text": "Today it rains.", "date": "2020-01-02"}\n')
    [(_, document)] = distinct_documents(Settings(), str(tmp_path), None)
    assert document.document_date == datetime.date(2020, 1, 2)
