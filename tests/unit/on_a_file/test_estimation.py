"""Estimates with the real calculator and a scripted model; numbers of seconds are given, not measured."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.fake_language_model import FakeLanguageModel
from toolformer_ops.cli.on_a_file import app
from toolformer_ops.config import load_settings
from toolformer_ops.on_a_file.annotate import annotator
from toolformer_ops.on_a_file.annotate.annotator import Models
from toolformer_ops.on_a_file.look.estimation import (
    KeptTexts,
    ProbedText,
    count_kept,
    extrapolate,
    print_table,
    probe_tool,
    total,
)
from toolformer_ops.records import Document, Paragraph
from toolformer_ops.runs.choices import PlaceboChoices, RunChoices
from toolformer_ops.tools.registry import get_tool

SUMS = [f"Box {number} holds 2 pens and 3 caps, a total of 5 things." for number in range(12)]
NO_SUM = "No number at all."
SCRIPT = ("Calculator(2 + 3)", "Calculator(2 + 3)", "Calculator(7 / 0)")


def parameters(**values: object) -> RunChoices:
    given = {
        "corpus": "c",
        "model": "m",
        "tools": ["Calculator"],
        "max_positions": 3,
        "samples_per_position": 3,
    }
    return RunChoices.model_validate(given | values)


def test_the_probe_is_the_kept_texts_with_the_smallest_hashes_in_any_order():
    documents = [*map(Document.of, SUMS), Document.of(NO_SUM)]
    kept = count_kept(get_tool("Calculator"), documents, parameters())
    probe = [paragraph.document.document_id for paragraph in kept.probe]
    assert probe == sorted(document.document_id for document in documents[:12])[:3]
    assert count_kept(get_tool("Calculator"), documents[::-1], parameters()).probe == kept.probe


def test_what_a_filter_keeps_is_counted_with_the_reasons_for_the_rest():
    kept = count_kept(get_tool("Calculator"), [*map(Document.of, SUMS), Document.of(NO_SUM)], parameters())
    assert (kept.texts, kept.documents, kept.decisions) == (12, 12, 13)
    assert kept.reasons == {"fewer_than_three_numbers": 1}


def test_of_the_first_quarter_of_a_corpus_the_counts_are_multiplied():
    whole = KeptTexts(texts=3, decisions=5, seconds=1.0).of_whole(0.25)
    assert (whole.texts, whole.decisions, whole.seconds) == (12, 20, 4.0)


def test_a_probed_text_has_the_rows_that_the_stages_would_write():
    model: Any = FakeLanguageModel(SCRIPT)
    settings, calculator, document = load_settings(), get_tool("Calculator"), Document.of(SUMS[0])
    whole = Paragraph(document, 0, 0, len(document.text))
    [probed] = probe_tool(settings, Models(lambda: model), calculator, parameters(prune_below=0.0), [whole])
    # at each of 3 positions: 3 samples, of which two are equal; 2 inputs in all; a loss row for each of 6
    # calls
    assert (probed.positions, probed.calls, probed.rows) == (3, 6, 6 + 2 + 6)
    assert set(probed.seconds) == {"sample", "execute", "score", "placebo"}
    # one of the two inputs has a result: a placebo for each of its calls, and K where the call saves 0 nats
    # or more
    assert (probed.pool_calls, probed.own_placebos, probed.sampled_placebos) == (3, 3, 2)
    none = parameters(placebos=0, placebo_sample=0)
    [without] = probe_tool(settings, Models(lambda: model), calculator, none, [whole])
    assert "placebo" not in without.seconds
    assert probe_tool(settings, Models(lambda: pytest.fail("loaded")), calculator, parameters(), []) == []


PROBED = [
    ProbedText(positions=2, calls=3, rows=8, seconds={"sample": 5.0, "execute": 100.0, "score": 1.0}),
    ProbedText(positions=4, calls=5, rows=12, seconds={"sample": 10.0, "execute": 100.0, "score": 2.0}),
]


def test_the_probe_times_the_kept_texts_is_the_estimate_with_its_spread():
    kept = KeptTexts(texts=1200, decisions=2000, seconds=7.0)
    found = extrapolate(get_tool("Calculator"), kept, PROBED, PlaceboChoices())
    assert (found.positions, found.calls, found.rows) == (3600, 4800, 2000 + 12_000)
    assert found.device_hours == pytest.approx(3.0)  # 1,200 texts of 9 s; the calculator needs no device
    assert [found.device_hours_low, found.device_hours_high] == pytest.approx([2.0, 4.0])
    assert found.seconds == {
        "filter": 7.0, "sample": 9000.0, "execute": 120_000.0, "score": 1800.0, "placebo": 0.0,
    }  # fmt: skip


def test_one_probed_text_has_no_spread():
    kept = KeptTexts(texts=1200, decisions=2000, seconds=7.0)
    estimate = extrapolate(get_tool("Calculator"), kept, PROBED[:1], PlaceboChoices())
    assert estimate.device_hours == pytest.approx(2.0)
    assert (estimate.device_hours_low, estimate.device_hours_high) == (None, None)


def test_a_sum_with_a_tool_of_one_probed_text_has_no_spread():
    kept = KeptTexts(texts=1200, decisions=2000, seconds=7.0)
    calculator = get_tool("Calculator")
    both = [extrapolate(calculator, kept, texts, PlaceboChoices()) for texts in (PROBED[:1], PROBED)]
    assert (total(both).device_hours, total(both).device_hours_low) == (pytest.approx(5.0), None)


def test_a_short_time_is_printed_in_seconds(capsys):
    kept = KeptTexts(texts=1, decisions=1, seconds=0.1)
    estimate = extrapolate(get_tool("Calculator"), kept, PROBED[:1], PlaceboChoices())
    print_table(load_settings(), [estimate], parameters())
    shown = " ".join(capsys.readouterr().out.split())
    assert "6.0 s" in shown
    assert "which has no spread" in shown


def test_a_run_that_ends_with_enough_kept_calls_takes_less(capsys):
    print_table(load_settings(), [], parameters(until_kept=1000))
    assert "less if 1,000 calls of a tool are kept before" in " ".join(capsys.readouterr().out.split())


def test_of_the_placebos_that_only_sampled_calls_have_the_share_counts_that_a_run_samples():
    probed = [
        ProbedText(
            1, 5, 10, {"score": 1.0, "placebo": 8.0}, pool_calls=5, own_placebos=6, sampled_placebos=2
        ),
        ProbedText(
            1, 5, 10, {"score": 1.0, "placebo": 4.0}, pool_calls=5, own_placebos=0, sampled_placebos=4
        ),
    ]
    few = extrapolate(
        get_tool("Calculator"), KeptTexts(texts=100), probed, PlaceboChoices(placebo_sample=500)
    )
    assert (few.rows, few.seconds["placebo"]) == (1000 + 600, 600.0)  # 500 calls: all are sampled
    many = extrapolate(
        get_tool("Calculator"), KeptTexts(texts=400), probed, PlaceboChoices(placebo_sample=500)
    )
    assert (many.rows, many.seconds["placebo"]) == (
        4000 + 400 * 3.75,
        400 * (6.5 + 1.0) / 2,
    )  # 2,000: a quarter
    assert many.device_hours == pytest.approx(400 * (1.0 + 3.75) / 3600)


def test_a_tool_that_is_a_model_takes_the_device_too():
    translated = extrapolate(get_tool("MT"), KeptTexts(texts=36), PROBED, PlaceboChoices())
    assert translated.device_hours == pytest.approx(36 * 109 / 3600)


def test_the_total_is_the_sum_of_the_tools():
    translated = extrapolate(get_tool("MT"), KeptTexts(texts=36), PROBED, PlaceboChoices())
    none = extrapolate(get_tool("Calculator"), KeptTexts(decisions=5, seconds=0.5), [], PlaceboChoices())
    assert (none.texts, none.calls, none.rows, none.device_hours, none.device_hours_high) == (
        0,
        0,
        5,
        0.0,
        0.0,
    )
    calculated = extrapolate(get_tool("Calculator"), KeptTexts(texts=400), PROBED, PlaceboChoices())
    whole = total([calculated, translated, none])
    assert (whole.texts, whole.calls) == (436, 436 * 4)
    assert whole.device_hours == pytest.approx(1.0 + translated.device_hours)
    assert whole.seconds["score"] == pytest.approx(436 * 1.5)


def test_the_command_prints_the_same_counts_as_a_table_or_as_json(tmp_path, tiny_model_dir, monkeypatch):
    monkeypatch.setattr(annotator, "load_scoring_model", lambda *_: FakeLanguageModel(SCRIPT))
    path = tmp_path / "corpus.jsonl"  # in which one text is there twice
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [SUMS[0], *SUMS, NO_SUM]))
    chosen = ["--parameters", '{"max_positions": 3, "samples_per_position": 3, "prune_below": 0}']
    named = ["--tool", "Calculator", "--model", str(tiny_model_dir), "--limit", "10"]
    words = ["check", str(path), "--measure", *named, *chosen]
    printed = CliRunner().invoke(app, [*words, "--json"])
    found = json.loads(printed.stdout)
    assert [(item["tool"], item["texts"], item["positions"], item["calls"]) for item in found["tools"]] == [
        ("Calculator", 10, 30, 60)
    ]
    assert found["total"]["rows"] == 10 + 10 * (14 + 3)  # three placebos
    assert found["measured_on"]["device"] == "cpu"
    table = CliRunner().invoke(app, words).stdout
    assert "Calculator" in table
    assert "180" in table
