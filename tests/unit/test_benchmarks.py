"""The benchmarks' reference and the engine annotate alike; the comparisons and the tables say what they should."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import benchmarks.__main__
from benchmarks import roofline
from benchmarks.engine import (
    NO_PRUNING,
    VARIANTS,
    agreement,
    annotate_plainly,
    compare_kept,
    disagreements,
    measure_jobs,
    sample_job,
    score_job,
)
from benchmarks.random_models import prompt_tokenizer, text_of_tokens
from benchmarks.reference import PlainReference
from benchmarks.report import table, write_report
from benchmarks.works import Job, Text, random_text_job, sampling_choices
from tests.unit.language_model.conftest import PROMPT, TEXT
from toolformer_ops.config import Settings
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.records import CallLosses, Document


def small_job() -> Job:
    """Two short texts; calls that were made stand in for the sampled ones."""
    return Job(
        tool="Calculator",
        prompt=PROMPT,
        texts=tuple(Text(text, Document.of(text), str(number)) for number, text in enumerate((TEXT, TEXT[25:]))),
        choices=sampling_choices(positions=4, samples=3, tokens=8),
        call_start=" [",
        injects_calls=True,
    )


@pytest.fixture(scope="module")
def reference(tiny_gpt2_dir: Path) -> PlainReference:
    return PlainReference(tiny_gpt2_dir, [0])


@pytest.fixture(scope="module")
def words(reference: PlainReference) -> Tokenization:
    return Tokenization(reference.tokenizer)


@pytest.mark.parametrize("variant", VARIANTS)
def test_reference_and_engine_sample_and_keep_the_same_calls(
    reference: PlainReference, words: Tokenization, tiny_gpt2_dir: Path, variant: str
) -> None:
    job, engine = small_job(), LanguageModel.load(str(tiny_gpt2_dir))
    plain, calls = annotate_plainly(Settings(), reference, words, job)
    outcome = sample_job(engine, job, VARIANTS[variant])
    score_job(engine, job, VARIANTS[variant], outcome, calls)
    found = agreement(plain, outcome)
    assert found["positions"] == 8
    assert found["positions differing"] == 0
    assert found["samples"] == 3 * (8 - found["positions pruned"])
    assert found["samples differing"] == 0
    assert (found["calls"], found["differing at 0.5"], found["differing at 1.0"]) == (40, 0, 0)
    assert found["kept at 0.5"] > 0
    row = {"tool": "Calculator", "variant": variant, "format": "float32", **found}
    assert disagreements([row]) == []
    assert disagreements([row | {"differing at 1.0": 2}]) == [
        f"Calculator, {variant}, float32: 2 of 40 calls are kept by one alone at 1.0 nats"
    ]


def test_a_whole_measurement_has_a_row_a_variant_and_a_report(tiny_gpt2_dir: Path, tmp_path: Path) -> None:
    found = measure_jobs(Settings(), tiny_gpt2_dir, [small_job()], ["float32"], runs=1)
    assert [(row["variant"], row["texts"]) for row in found["times"]] == [
        ("reference", 2),
        *((name, 2) for name in VARIANTS),
    ]
    assert all(row["total"] > 0 for row in found["times"])
    text = write_report(tmp_path / "out", "bench", found)
    assert (tmp_path / "out" / "bench.md").read_text() == text
    assert re.search(
        rf"\d{{4}}-\d\d-\d\dT.* cores, load .* torch {re.escape(torch.__version__.partition('+')[0])}", text
    )
    assert f"| Calculator | {NO_PRUNING} | float32 | 2 | 20 |" in text
    assert '"times"' in (tmp_path / "out" / "bench.json").read_text()


@pytest.mark.parametrize("differing", [0, 1])
def test_the_command_fails_if_engine_and_reference_keep_other_calls(
    differing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"tool": "QA", "variant": NO_PRUNING, "format": "bfloat16", "calls": 4}
    found = {"times": [], "agreement": [row | {"differing at 0.5": differing, "differing at 1.0": 0}]}
    monkeypatch.setattr(benchmarks.__main__, "saved_gpt2", lambda *_: tmp_path)
    monkeypatch.setattr(benchmarks.__main__, "measure_jobs", lambda *_: found)
    ended = CliRunner().invoke(benchmarks.__main__.app, ["--work=A", f"--out={tmp_path}"])
    assert ended.exit_code == 3 * differing
    assert ("work A, QA, ours, no pruning, bfloat16: 1 of 4 calls are kept" in ended.output) == bool(differing)


def test_kept_calls_are_compared_call_by_call() -> None:
    expected = [CallLosses(2.0, 2.5, 1.0), CallLosses(2.0, 2.5, 1.9), CallLosses(3.0, 1.2, 0.6)]
    found = [CallLosses(2.0, 2.5, 1.0), CallLosses(0.4, None, None), CallLosses(3.0, 1.0, 0.6)]
    # At 0.5: the reference keeps the first (1.0) and the third (0.6), the other the first alone (the third: 0.4).
    assert compare_kept(expected, found, 0.5) == (2, 1)
    assert compare_kept(expected, [None, None, None], 1.0) == (1, 1)


def test_texts_of_work_a_have_exactly_their_tokens_and_differ() -> None:
    tokenizer = prompt_tokenizer()
    texts = [text_of_tokens(tokenizer, 50, number) for number in range(3)]
    assert [len(tokenizer.encode(text)) for text in texts] == [50, 50, 50]
    assert len(set(texts)) == 3
    assert [len(tokenizer.encode(item.text)) for item in random_text_job(2).texts] == [200, 200]


def test_every_predicted_figure_says_that_it_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = roofline.SHAPES["7B"] | {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 100}
    monkeypatch.setattr(roofline, "SHAPES", {"tiny": shape})
    monkeypatch.setattr(roofline, "DEVICES", roofline.DEVICES[:1])
    rows = roofline.predict()
    assert len(rows) == 5  # tools
    assert {name for name in rows[0] if not name.startswith("predicted")} == {"device", "shape", "tool"}
    assert all(row[name].endswith("bytes") for row in rows for name in row if "ms, pos" in name)  # a tiny model
    assert benchmarks.__main__.TITLES["roofline"].startswith("Predicted, not measured")
    assert "predicted texts an hour" in table(rows)


def test_a_predicted_model_is_on_as_many_gpus_as_hold_it_and_verified_if_float32_weights_fit_too() -> None:
    [small, large] = roofline.DEVICES[0], roofline.DEVICES[3]
    of_7b, of_70b = (roofline.Prediction(roofline.SHAPES[name], small) for name in ("7B", "70B"))
    # 6.74 and 69 billion weights of two bytes, and 32 GB of an A100's 40 for weights
    assert (round(of_7b.weights / 1e9, 2), round(of_70b.weights / 1e9)) == (6.74, 69)
    assert (of_7b.devices, of_70b.devices) == (1, 5)
    assert not of_7b.has_room_for_float32  # 40 GB of 32
    assert roofline.Prediction(roofline.SHAPES["7B"], large).has_room_for_float32
