"""The margin of a model in low precision is measured once a model, device and format, and stored."""

import json

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.language_model.devices import DeviceMemory
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.scoring import MARGINS
from toolformer_ops.runs import models, rounding
from toolformer_ops.runs.models import load_scoring_model
from toolformer_ops.storage.postgres import database, queries


def test_rounding_is_measured_once_for_every_process(settings, tiny_model_dir, monkeypatch):
    model = LanguageModel.load(str(tiny_model_dir), dtype="bfloat16")
    engine = database.connect(settings)
    rounding.allow_measured_rounding(settings, model, "auto", "paper")
    with database.transaction(engine) as connection:
        key = {
            "model_identity": model.identity,
            "device": "cpu",
            "number_format": "bfloat16",
            "keep_rule": "paper",
        }
        [stored] = database.fetch_all(connection, queries.rounding.rounding_margin, **key)
    # Bounds are compared as a stage does: what is below by more than the margin is surely below.
    assert 0.0 < stored.margin < 0.25
    assert model.surely_below(0.5 - 1.01 * stored.margin, 0.5)
    assert not model.surely_below(0.5 - 0.99 * stored.margin, 0.5)

    another = LanguageModel.load(str(tiny_model_dir), dtype="bfloat16")
    assert not another.surely_below(0.5 - 1.01 * stored.margin, 0.5), (
        "what is allowed for a model that was not measured"
    )
    monkeypatch.setattr(rounding, "example_calls", lambda _: pytest.fail("measured twice"))
    rounding.allow_measured_rounding(settings, another, "auto", "paper")
    assert another.surely_below(0.5 - 1.01 * stored.margin, 0.5)

    models.load_scoring_model(settings, str(tiny_model_dir), "on", "paper")  # float32 needs no margin


def test_the_margin_is_twice_the_largest_difference_that_was_measured(settings, tiny_model_dir, monkeypatch):
    model = LanguageModel.load(str(tiny_model_dir), dtype="bfloat16")
    monkeypatch.setattr(model, "rounding_differences", lambda *_: [0.01, 0.03, 0.02])
    rounding.allow_measured_rounding(settings, model, "auto", "paper")
    assert model.margins["paper"]["bfloat16"] == 0.06


@pytest.mark.parametrize(("choice", "has_room"), [("off", True), ("auto", False)])
def test_where_no_float32_weights_are_wanted_the_margin_is_the_one_of_any_model(
    settings, tiny_model_dir, choice, has_room, monkeypatch
):
    monkeypatch.setattr(DeviceMemory, "has_room_for", lambda *_: has_room)
    model = LanguageModel.load(str(tiny_model_dir), dtype="bfloat16")
    monkeypatch.setattr(model, "_load", lambda _: pytest.fail("loaded"))
    rounding.allow_measured_rounding(settings, model, choice, "paper")
    assert model.margins["paper"]["bfloat16"] == MARGINS["bfloat16"]
    with database.transaction(database.connect(settings)) as connection:
        database.execute(
            connection, queries.rounding.insert_rounding_margin, model_identity=model.identity, device="cpu",
            number_format="bfloat16", keep_rule="paper", calls=1, mean_difference=0.0, largest_difference=0.0, margin=0.125,
        )  # fmt: skip
    rounding.allow_measured_rounding(settings, model, choice, "paper")
    assert model.margins["paper"]["bfloat16"] == 0.125


def test_commands_without_a_database_measure_it_once_too(tiny_model_dir, tmp_path, monkeypatch):
    settings = Settings(state_dir=tmp_path / "state", dtype="bfloat16", device="cpu")
    model = load_scoring_model(settings, str(tiny_model_dir))
    [margin] = json.loads((tmp_path / "state" / rounding.FILE).read_text()).values()
    assert 0.0 < margin < 0.25
    assert model.surely_below(0.5 - 1.01 * margin, 0.5)

    with monkeypatch.context() as patch:
        patch.setattr(rounding, "example_calls", lambda _: pytest.fail("measured twice"))
        assert load_scoring_model(settings, str(tiny_model_dir)).surely_below(0.5 - 1.01 * margin, 0.5)

    (tmp_path / "state" / rounding.FILE).write_text("{damaged")
    assert load_scoring_model(settings, str(tiny_model_dir)).surely_below(0.5 - 1.01 * margin, 0.5)


def with_tf32(folder: str) -> LanguageModel:
    """A model in bfloat16 on a device that has TF32; on a CPU that is float32 itself."""
    model = LanguageModel.load(str(folder), dtype="bfloat16")
    model.has_tf32 = True
    return model


def test_a_device_that_has_tf32_has_a_margin_for_it(settings, tiny_model_dir):
    model = with_tf32(tiny_model_dir)
    rounding.allow_measured_rounding(settings, model, "auto", "paper")
    assert model.margins["paper"]["tf32"] == 0.0 < model.margins["paper"]["bfloat16"]


def test_the_margin_of_tf32_is_measured_once(settings, tiny_model_dir, monkeypatch):
    rounding.allow_measured_rounding(settings, with_tf32(tiny_model_dir), "auto", "paper")
    monkeypatch.setattr(rounding, "example_calls", lambda _: pytest.fail("measured twice"))
    another = with_tf32(tiny_model_dir)
    rounding.allow_measured_rounding(settings, another, "auto", "paper")
    assert another.margins["paper"]["tf32"] == 0.0


def test_commands_without_a_database_keep_the_margin_of_tf32(tiny_model_dir, tmp_path):
    settings = Settings(state_dir=tmp_path / "state", dtype="bfloat16", device="cpu")
    rounding.allow_rounding_without_database(settings, with_tf32(tiny_model_dir), "auto", "paper")
    margins = json.loads((tmp_path / "state" / rounding.FILE).read_text())
    assert [key.split()[-2] for key in margins] == ["bfloat16", "tf32"]
