"""The benchmarks' reference and the engine annotate alike; the comparisons and the tables say what they should."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import benchmarks.__main__
from benchmarks import gpu, roofline
from benchmarks.engine import (
    NO_PRUNING,
    STAGES,
    VARIANTS,
    added_up,
    agreement,
    annotate_plainly,
    compare_kept,
    compare_samples,
    disagreements,
    measure_jobs,
    sample_job,
    score_job,
)
from benchmarks.random_models import prompt_tokenizer, text_of_tokens
from benchmarks.reference import DrawnSample, DrawnStep, PlainReference, border_distance
from benchmarks.report import table, write_report
from benchmarks.works import Job, Text, random_text_job, sampling_choices
from tests.unit.language_model.conftest import PROMPT, TEXT
from toolformer_ops.config import Settings
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.records import CallLosses, Document, SampledContinuation


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


def test_positions_in_one_pass_and_samples_in_a_batch_are_those_of_a_pass_a_token(reference: PlainReference) -> None:
    positions = reference.find_positions(PROMPT.template, TEXT, [3, 5, 8], at_most=2, threshold=0.0)
    expected = {token: reference.probability(PROMPT.template, TEXT, token) for token in (3, 5, 8)}
    assert {item.token for item in positions} == set(sorted(expected, key=expected.__getitem__)[1:])
    for item in positions:
        assert item.probability == pytest.approx(expected[item.token], rel=1e-4)
        assert reference.encode(TEXT[: item.char]) == reference.encode(TEXT)[: item.token]
    for call_start in (" [", " [Calculator("):
        numbers = {"call_start": call_start, "max_new_tokens": 6, "seed_key": "5"}
        sampled = reference.sample_position(PROMPT.template, TEXT, positions[0], samples=3, **numbers)
        for number, sample in enumerate(sampled):
            plain = reference.sample(PROMPT.template, TEXT, positions[0], number, temperature=1.0, **numbers)
            assert sample.continuation == plain
            assert sample.steps[-1].text.partition("]")[0] == plain.text


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
    assert found["not at a border"] == 0
    assert (found["calls"], found["differing at 0.5"], found["differing at 1.0"]) == (40, 0, 0)
    assert found["kept at 0.5"] > 0
    row = {"tool": "Calculator", "variant": variant, "format": "float32", **found}
    assert disagreements([row]) == []
    assert disagreements([row | {"differing at 1.0": 2, "not at a border": 1}]) == [
        f"Calculator, {variant}, float32: 2 of 40 calls are kept by one alone at 1.0 nats",
        f"Calculator, {variant}, float32: 1 of {found['samples']} sampled calls differ away from a border",
    ]


def test_a_whole_measurement_has_a_row_a_variant_and_a_report(tiny_gpt2_dir: Path, tmp_path: Path) -> None:
    found = measure_jobs(Settings(), tiny_gpt2_dir, [small_job()], ["float32"], runs=1, plain_texts=1)
    assert [(row["variant"], row["texts"]) for row in found["times"]] == [
        ("reference", 1),
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
    row = {"tool": "QA", "variant": NO_PRUNING, "format": "bfloat16", "calls": 4, "not at a border": 0}
    found = {"times": [], "agreement": [row | {"differing at 0.5": differing, "differing at 1.0": 0}]}
    monkeypatch.setattr(benchmarks.__main__, "saved_model", lambda *_: tmp_path)
    monkeypatch.setattr(benchmarks.__main__, "measure_jobs", lambda *_: found)
    ended = CliRunner().invoke(benchmarks.__main__.app, ["--work=A", f"--out={tmp_path}"])
    assert ended.exit_code == 3 * differing
    assert ("work A, QA, ours, no pruning, bfloat16: 1 of 4 calls are kept" in ended.output) == bool(differing)


def test_a_draw_is_as_far_from_a_border_as_its_number_is() -> None:
    cumulative = torch.tensor([0.2, 0.7, 1.0], dtype=torch.float64)
    found = [border_distance(cumulative, at, drawn) for drawn, at in enumerate((0.05, 0.69, 0.999))]
    # 0.05 is 0.15 below 0.2; 0.69 is 0.01 below 0.7; behind 1.0 lies no other token, so 0.999 is 0.299 above 0.7.
    assert found == pytest.approx([0.15, 0.01, 0.299])


def sample(text: str, *steps: tuple[str, float]) -> DrawnSample:
    return DrawnSample(SampledContinuation(text, True), tuple(DrawnStep(*step) for step in steps))


def test_a_sample_that_parts_at_a_border_is_explained_and_one_that_parts_elsewhere_is_not() -> None:
    expected = sample("a(1)", ("a", 0.3), ("a(1", 1e-5), ("a(1)]", 0.2))
    same, at_border, elsewhere = (SampledContinuation(text, True) for text in ("a(1)", "a(2)", "b(1)"))
    found = compare_samples([(expected, same), (expected, at_border), (expected, elsewhere)])
    assert list(found.values()) == [3, 2, 1, 9, 3]


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


def test_rows_of_several_tools_are_added_up_and_set_against_the_reference() -> None:
    head = {"variant": NO_PRUNING, "format": "float32", "calls a text": 4.0, "positions": 1.0, "sampling": 1.0}
    one = head | {"tool": "QA", "texts": 1, "scoring": 2.0, "total": 4.0, "times the reference": 10.0}
    three = head | {"tool": "MT", "texts": 3, "scoring": 4.0, "total": 6.0, "times the reference": 20.0}
    [row] = added_up([one, three])
    # (40 + 3 * 120) / (4 + 3 * 6) = 400 / 22
    assert (row["tool"], row["texts"], row["total"], row["scoring"]) == ("all", 4, 5.5, 3.5)
    assert row["times the reference"] == pytest.approx(400 / 22)
    assert added_up([one]) == []


def test_the_arithmetic_of_a_predicted_layer_is_that_of_its_weights() -> None:
    shape = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "vocab_size": 1000}
    layer, outside = roofline.layer_and_rest(shape, 48, torch.bfloat16)
    # Queries and output 64 x 64, keys and values 64 x 32, gate, up and down 64 x 160; two operations a weight and token.
    assert sum(operations for operations, _ in layer) == 2 * 48 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160)
    assert sum(operations for operations, _ in outside) == 0
    # The product with `gate` reads its weights and 48 tokens and writes 48 rows, two bytes each.
    assert 2 * (64 * 160 + 48 * 64 + 48 * 160) in [moved for _, moved in layer]
    assert len(layer) > 20  # each is a launch


def test_a_predicted_phase_is_limited_by_what_takes_longest() -> None:
    device = roofline.Device("abacus", 1e9, 100.0, {torch.bfloat16: 1000.0})
    # 10 s at 0.75 of the peak and 1 s at 0.85 of the bandwidth; the other way round; ten launches of hardly anything
    every = ([(7500.0, 85.0)], [(75.0, 850.0)], [(0.0, 1e-5)] * 10)
    costs = [roofline.cost_of(kernels, device, torch.bfloat16) for kernels in every]
    assert [roofline.limit_of(cost) for cost in costs] == ["operations", "bytes", "launches"]
    assert [roofline.seconds_of(cost) for cost in costs] == pytest.approx([10.0, 10.0, 10 * roofline.LAUNCH_SECONDS])
    assert roofline.seconds_of(costs[0] * 2 + costs[1]) == pytest.approx(30.0)
    assert roofline.limit_of(costs[0] * 2 + costs[1]) == "operations"


def test_every_predicted_figure_says_that_it_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = roofline.SHAPES["7B"] | {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 100}
    monkeypatch.setattr(roofline, "SHAPES", {"tiny": shape})
    monkeypatch.setattr(roofline, "DEVICES", roofline.DEVICES[:1])
    rows = roofline.predict()
    assert len(rows) == 5  # tools
    assert {name for name in rows[0] if not name.startswith("predicted")} == {"device", "shape", "tool"}
    assert all(row[name].endswith("launches") for row in rows for name in row if "ms, pos" in name)  # a tiny model
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


def test_the_measurement_of_a_gpu_runs_as_it_would_there() -> None:
    shape = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 4000,
    }
    found = gpu.measure_engine(Settings(), shape, 1, "cpu")
    assert {name for name in found if name.startswith("ms a text")} == {f"ms a text, {stage}" for stage in STAGES}
    assert min(found["ms a row, generate"], found["ms a row, engine"]) > 0
    assert found["texts an hour"] == pytest.approx(3.6e6 / sum(found[f"ms a text, {stage}"] for stage in STAGES))
