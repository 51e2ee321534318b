"""The benchmarks' reference and the engine annotate alike, and a measurement says so."""

from benchmarks.engine import NO_PRUNING, VARIANTS, disagreements, measure_jobs
from benchmarks.report import write_report
from benchmarks.works import Job, Text, sampling_choices
from tests.unit.language_model.conftest import PROMPT, TEXT
from toolformer_ops.config import Settings
from toolformer_ops.records import Document


def test_the_reference_keeps_the_calls_that_the_engine_keeps(tiny_gpt2_dir, tmp_path):
    """Two short texts; calls that were made stand in for the sampled ones."""
    job = Job(
        tool="Calculator",
        prompt=PROMPT,
        texts=tuple(
            Text(text, Document.of(text), str(number)) for number, text in enumerate((TEXT, TEXT[25:]))
        ),
        choices=sampling_choices(positions=4, samples=3, tokens=8),
        call_start=" [",
        injects_calls=True,
    )
    found = measure_jobs(Settings(), tiny_gpt2_dir, [job], ["float32"], runs=1)
    assert [row["variant"] for row in found["times"]] == ["reference", *VARIANTS]
    assert [row["variant"] for row in found["agreement"]] == list(VARIANTS)
    assert disagreements(found["agreement"]) == []
    for row in found["agreement"]:
        assert row["samples"] == 3 * (row["positions"] - row["positions pruned"]) > 0
        assert (row["calls"], row["kept at 0.5"] > 0) == (40, True)
    [same, *_] = found["agreement"]
    assert len(disagreements([same | {"differing at 1.0": 2}])) == 1
    text = write_report(tmp_path / "out", "bench", found)
    assert f"| Calculator | {NO_PRUNING} | float32 |" in text
