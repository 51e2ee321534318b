"""What sampling and scoring should have taken on a run's GPUs stands beside what they took."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.annotated_runs import AnnotatedRun, recipe_id
from toolformer_ops.config import Settings
from toolformer_ops.runs.roofline import SHAPES, Prediction, ToolWork, device_of
from toolformer_ops.stages.run_setup import finish_run

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11_008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32_000,
}  # fmt: skip
H200 = "NVIDIA H200"
WORK = {
    "sample": {"paragraphs": 100, "positions": 520, "positions_pruned_below": 20, "samples": 2000},
    "score": {"scored": 800, "pruned_below": 200, "verified_in_tf32": 80, "verified_in_float32": 8},
}


def finished(
    settings: Settings, folder: Path, cards: str = H200, *, dtype: str = "bfloat16", **config: Any
) -> dict[str, Any]:
    """The cost of a run that has sampled for 60 s and scored for 120 s on these cards."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA | config))
    for name in ("model.safetensors", "tokenizer.json"):  # of a model folder; they are not read
        (folder / name).touch()
    run = AnnotatedRun(settings, {"Calculator": 0.5}, model=str(folder))
    document = run.add_text("x" * 799 + " y")
    run.add_call("Calculator", document, " y", "400 / 1400", "0.29", saves=1.0)
    run.complete("Calculator")
    run.change(
        "insert into recipes (recipe_id, stage, tool, definition) values (:recipe, 'sample', 'Calculator', "
        "jsonb_build_object('dtype', cast(:dtype as text), 'prompt', cast(:prompt as text)))",
        recipe=recipe_id("sample", "Calculator"),
        dtype=dtype,
        prompt="p" * 1400,
    )
    for stage, seconds in (("sample", 60), ("score", 120)):
        run.change(
            "update micro_batches set counts = cast(:counts as jsonb), network_tokens = 1000, "
            "network_seconds = :seconds, cards = :cards where stage = :stage",
            counts=json.dumps(WORK[stage]),
            seconds=seconds,
            cards=cards,
            stage=stage,
        )
    finish_run(settings, "run-1", "success")
    [(cost,)] = run.rows("select cost from annotation_runs")
    return dict(cost)


def test_measured_hours_stand_beside_predicted_ones(settings: Settings, tmp_path: Path) -> None:
    cost = finished(settings, tmp_path / "model")
    # 500 places and 2,000 samples in 100 texts; a call that is pruned after its first pass counts for half.
    work = ToolWork(
        positions=5.0,
        samples=4.0,
        prompt=1400 / 4,
        call=len("Calculator(400 / 1400)") / 4,
        result=len("0.29") / 4,
        text=801 / 4,
        scored_calls=9.0,
    )
    device = device_of(H200)
    assert device is not None
    prediction = Prediction(SHAPES["7B"], device)
    seconds = 100 * (
        float((prediction.positions(work) + prediction.sampling(work) + prediction.scoring(work)).sum())
        + prediction.verifying(work, in_tf32=0.1, in_float32=0.01)
    )
    predicted = {
        "network_hours": 0.05,
        "predicted_hours": round(seconds / 3600, 4),
        "times_predicted": round(180 / seconds, 2),
    }
    assert {name: cost["tools"][0][name] for name in predicted} == predicted
    assert {name: cost["total"][name] for name in predicted} == predicted


def test_two_cards_take_two_hours_in_one(settings: Settings, tmp_path: Path) -> None:
    total = finished(settings, tmp_path / "model", f"2 {H200}")["total"]
    assert total["network_hours"] == 0.1


@pytest.mark.parametrize(
    ("cards", "config"),
    [
        ("cpu", {}),
        ("Tesla T4", {}),
        ("NVIDIA H100 PCIe", {}),
        ("NVIDIA H200 MIG 1g.18gb", {}),
        (H200, {"num_experts": 8}),
        (H200, {"intermediate_size": None}),
    ],
    ids=["cpu", "another card", "a slower H100", "a slice", "experts", "other parts"],
)
def test_of_what_the_roofline_does_not_know_nothing_is_predicted(
    settings: Settings, tmp_path: Path, cards: str, config: dict[str, Any]
) -> None:
    cost = finished(settings, tmp_path / "model", cards, **config)
    assert "predicted_hours" not in cost["total"]
    assert "predicted_hours" not in cost["tools"][0]


def test_a_model_that_is_gone_ends_no_run(settings: Settings, tmp_path: Path) -> None:
    run = AnnotatedRun(settings, {"Calculator": 0.5}, model=str(tmp_path / "gone"))
    run.add_text("a b")
    run.complete("Calculator")
    run.change("update micro_batches set cards = :cards where stage = 'sample'", cards=H200)
    finish_run(settings, "run-1", "success")
    [(state,)] = run.rows("select state from annotation_runs")
    assert state == "success"


@pytest.mark.parametrize(
    ("card", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100 40 GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80 GB"),
        ("NVIDIA H100 80GB HBM3", "H100 80 GB"),
        ("NVIDIA H200", "H200 141 GB"),
    ],
)
def test_a_device_is_known_by_the_name_of_its_card(card: str, name: str) -> None:
    device = device_of(card)
    assert device is not None
    assert device.name == name
