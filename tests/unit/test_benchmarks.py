"""The benchmarks' reference and the engine annotate alike, and a measurement says so."""

from pathlib import Path

import pytest

from benchmarks.engine import NO_PRUNING, VARIANTS, disagreements, measure_jobs
from benchmarks.reference import PlainReference
from benchmarks.report import write_report
from benchmarks.works import Job, Text, sampling_choices
from tests.unit.language_model.conftest import PROMPT, TEXT
from toolformer_ops.config import Settings
from toolformer_ops.records import Document


def test_positions_in_one_pass_and_samples_in_a_batch_are_those_of_a_pass_a_token(tiny_gpt2_dir: Path) -> None:
    reference = PlainReference(tiny_gpt2_dir, [0])
    positions = reference.find_positions(PROMPT.template, TEXT, [3, 5, 8], at_most=2, threshold=0.0)
    expected = {token: reference.probability(PROMPT.template, TEXT, token) for token in (3, 5, 8)}
    assert {item.token for item in positions} == set(sorted(expected, key=expected.__getitem__)[1:])
    for item in positions:
        assert item.probability == pytest.approx(expected[item.token], rel=1e-4)
    numbers = {"call_start": " [", "max_new_tokens": 6, "seed_key": "5"}
    sampled = reference.sample_position(PROMPT.template, TEXT, positions[0], samples=3, **numbers)
    for number, sample in enumerate(sampled):
        plain = reference.sample(PROMPT.template, TEXT, positions[0], number, temperature=1.0, **numbers)
        assert sample.continuation == plain


def test_reference_and_engine_sample_and_keep_the_same_calls(tiny_gpt2_dir: Path, tmp_path: Path) -> None:
    """Two short texts; calls that were made stand in for the sampled ones."""
    job = Job(
        tool="Calculator",
        prompt=PROMPT,
        texts=tuple(Text(text, Document.of(text), str(number)) for number, text in enumerate((TEXT, TEXT[25:]))),
        choices=sampling_choices(positions=4, samples=3, tokens=8),
        call_start=" [",
        injects_calls=True,
    )
    found = measure_jobs(Settings(), tiny_gpt2_dir, [job], ["float32"], runs=1, plain_texts=2)
    assert [row["variant"] for row in found["times"]] == ["reference", *VARIANTS]
    assert [row["variant"] for row in found["agreement"]] == list(VARIANTS)
    assert disagreements(found["agreement"]) == []
    for row in found["agreement"]:
        assert row["samples"] == 3 * (row["positions"] - row["positions pruned"]) > 0
        assert (row["calls"], row["kept at 0.5"] > 0) == (40, True)
    [same, *_] = found["agreement"]
    assert len(disagreements([same | {"differing at 1.0": 2, "not at a border": 1}])) == 2
    text = write_report(tmp_path / "out", "bench", found)
    assert f"| Calculator | {NO_PRUNING} | float32 |" in text
