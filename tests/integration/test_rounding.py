"""The margin of a model in low precision is measured once a model, device and format, and stored."""

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.runs import rounding
from toolformer_ops.storage import database


def test_rounding_is_measured_once_and_every_process_takes_what_was_stored_first(
    settings: Settings, tiny_model_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LanguageModel.load(str(tiny_model_dir), dtype="bfloat16")
    engine = database.connect(settings)
    rounding.allow_measured_rounding(settings, model)
    with database.transaction(engine) as connection:
        key = {"model_identity": model.identity, "device": "cpu", "number_format": "bfloat16"}
        [stored] = database.fetch_all(connection, "rounding_margin", **key)
    # Bounds are compared as a stage does: what is below by more than the margin is surely below.
    assert 0.0 < stored.margin < 0.25
    assert model.surely_below(0.5 - 1.01 * stored.margin, 0.5)
    assert not model.surely_below(0.5 - 0.99 * stored.margin, 0.5)

    another = LanguageModel.load(str(tiny_model_dir), dtype="bfloat16")
    assert not another.surely_below(0.5 - 1.01 * stored.margin, 0.5), (
        "what is allowed for a model that was not measured"
    )
    monkeypatch.setattr(rounding, "example_calls", lambda _: pytest.fail("measured twice"))
    rounding.allow_measured_rounding(settings, another)
    assert another.surely_below(0.5 - 1.01 * stored.margin, 0.5)

    rounding.allow_measured_rounding(settings, LanguageModel.load(str(tiny_model_dir)))  # float32 needs no margin


def test_example_calls_are_a_few_hundred(tiny_model_dir: str) -> None:
    model = LanguageModel.load(str(tiny_model_dir))
    texts = rounding.example_calls(model)
    assert 150 <= sum(len(calls) for _, calls in texts) <= 400
    assert all("[" not in call.result for _, calls in texts for call in calls)
