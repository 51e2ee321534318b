"""Pairs of calls and refusals, out of a run in Postgres: which rows, which margins, what the card says; TRL trains on them."""

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.annotated_runs import AnnotatedRun, release
from tests.finetuning_jobs import plain_text
from tests.integration.test_chat_export import TEMPLATE, with_template
from tests.tiny_models import save_tiny_llama
from toolformer_ops.__main__ import app
from toolformer_ops.config import Settings
from toolformer_ops.errors import EXIT_NO_RESULT, NoResultError, UsageError, exit_code
from toolformer_ops.release.chat_export import export_chat
from toolformer_ops.release.conversations import CONTINUE, WRITE
from toolformer_ops.release.preference_export import export_preferences
from toolformer_ops.release.refusals import Refusals
from toolformer_ops.stages.release import compared_with_evaluation_data, release_prefix
from toolformer_ops.storage.objects.publication import ObjectStore

SUM = "Out of 1400 people, 400 passed, that is 29 %."
SHOP = "It was Friday, so the shop sold 12 * 7 = 84 pens."
IDLE = "He said 7 or 8 words, and then he left the house."
NEARLY = "She had 3 cats and 4 dogs and said nothing more."


def write(settings: Settings) -> AnnotatedRun:
    """A run with kept and other calls in two texts, a text in which no call helps, and one in which one nearly does.

    A call of `saves` has L(nothing) 3, L(e(c, "")) 3.5 and L+ 3 - saves.
    """
    run = AnnotatedRun(settings, {"Calculator": 0.5, "Calendar": 1.0})
    people, shop, idle, nearly = (run.add_text(text) for text in (SUM, SHOP, IDLE, NEARLY))
    run.add_text("No call was sampled in this text.")
    run.add_call("Calculator", people, " 29", "400 / 1400", "0.29", saves=1.25)
    run.add_call("Calculator", people, " 29", "1400 - 400", "1000", saves=-0.5)
    run.add_call("Calculator", people, " passed", "400 + 1", "401", saves=0.25)
    run.add_call("Calculator", people, " people", "400 - 1", "399", saves=-0.75)
    run.add_call("Calculator", shop, " 84", "12 * 7", "84", saves=2.0)
    run.add_call("Calendar", shop, " Friday", "", "Today is Friday.", saves=0.5)
    run.add_call("Calculator", idle, " words", "7 + 8", "15", saves=-0.25)
    run.add_call("Calculator", idle, " left", "8 - 7", "1", saves=0.0)
    run.add_call("Calculator", idle, " then", "7 / 0", None, reason="divides_by_zero")
    run.add_call("Calculator", nearly, " dogs", "3 + 4", "7", saves=0.25)
    run.complete("Calculator", "Calendar")
    return run


@pytest.fixture
def run(settings, written):
    return written.value.in_copy(settings)


@pytest.fixture
def uri(settings, run):
    """The address of its release: one call in each of two texts."""
    released = ObjectStore(settings).uri(release_prefix(release(settings, run.run_id)))
    [kept] = run.rows("select call_id from candidate_calls where call_input = '400 / 1400'")
    run.add_placebo("Calculator", run.documents[0], kept.call_id, 0.75)
    return released


def refusals(settings: Settings, share: float) -> Refusals:
    return Refusals(share, functools.partial(compared_with_evaluation_data, settings))


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def called(messages: list[dict[str, Any]]) -> dict[str, Any]:
    [message] = messages
    return {name: value for call in message.get("tool_calls", ()) for name, value in call["function"].items()}


def test_a_kept_call_is_chosen_over_one_nearby_while_no_call_is_over_one_that_harms(settings, uri, tmp_path):
    found = export_preferences(settings, uri, str(tmp_path / "pairs"), seed=0)
    assert found.pairs == {"same_place": 1, "same_text": 1, "no_call": 1}
    rows = {row["compared"]: row for row in rows_of(tmp_path / "pairs" / "train.jsonl")}

    at_place = rows["same_place"]
    assert called(at_place["chosen"]) == {"name": "Calculator", "arguments": {"input": "400 / 1400"}}
    assert called(at_place["rejected"]) == {"name": "Calculator", "arguments": {"input": "1400 - 400"}}
    assert at_place["margin"] == 1.25 - -0.5
    assert (at_place["placebo_margin"], at_place["placebos"]) == (0.75, 1)
    for side in ("chosen", "rejected"):
        opening = at_place["prompt"][0]["content"].removeprefix(CONTINUE).removeprefix(WRITE)
        assert opening + at_place[side][0]["content"] == "Out of 1400 people, 400 passed, that is"

    in_text = rows["same_text"]
    assert called(in_text["chosen"])["arguments"] == {"input": "12 * 7"}
    assert called(in_text["rejected"]) == {"name": "Calendar", "arguments": {}}
    assert (in_text["margin"], in_text["placebo_margin"], in_text["placebos"]) == (1.5, 0.0, 0)

    without = rows["no_call"]
    assert called(without["chosen"]) == {}
    assert called(without["rejected"])["arguments"] == {"input": "400 - 1"}
    assert (without["margin"], without["chosen_call_id"]) == (0.75, "")
    assert [tool["function"]["name"] for tool in without["tools"]] == ["Calculator"]


LONG = "Of 10 cups 2 broke, so 8 were left; then 3 more came, so 11 were there."


def text_with_two_released_calls(settings: Settings, worse: dict[str, float]) -> tuple[AnnotatedRun, str]:
    """A release of one text with calls at " 8" and " 11", and with calls that save so much at other places."""
    run = AnnotatedRun(settings, {"Calculator": 0.5}, "two-places")
    document = run.add_text(LONG)
    run.add_call("Calculator", document, " 8", "10 - 2", "8", saves=2.0)
    run.add_call("Calculator", document, " 11", "8 + 3", "11", saves=2.0)
    for place, saves in worse.items():
        run.add_call("Calculator", document, place, "10 + 1", "11", saves=saves)
    run.complete("Calculator")
    return run, ObjectStore(settings).uri(release_prefix(release(settings, run.run_id)))


@pytest.mark.parametrize(
    ("harmful_place", "chosen"),
    [
        (" broke", " broke, so"),
        (" then", " then 3 more came, so"),
        (" there", " there."),
    ],
)
def test_a_continuation_without_a_call_ends_before_the_next_released_call(
    settings, tmp_path, harmful_place, chosen
):
    _, uri = text_with_two_released_calls(settings, {harmful_place: -0.5})
    export_preferences(settings, uri, str(tmp_path / "pairs.jsonl"), seed=0, form="sharegpt")
    [row] = [row for row in rows_of(tmp_path / "pairs.jsonl") if row["compared"] == "no_call"]
    assert row["chosen"]["value"] == chosen


def test_no_call_is_not_chosen_at_the_place_of_a_released_call(settings, tmp_path):
    _, uri = text_with_two_released_calls(settings, {" 8": -0.5})
    assert export_preferences(settings, uri, str(tmp_path / "pairs"), seed=0).pairs["no_call"] == 0


@pytest.mark.parametrize(
    ("worse_place", "chosen_places"),
    [
        (" broke", [" 8"]),  # before " 11" stands " 8", which that continuation would pass without its call
        (" 8", [" 8"]),
        (" then", [" 8", " 11"]),
        (" there", [" 8", " 11"]),
    ],
)
def test_a_chosen_call_follows_no_other_released_call(settings, tmp_path, worse_place, chosen_places):
    run, uri = text_with_two_released_calls(settings, {worse_place: 0.25})
    export_preferences(settings, uri, str(tmp_path / "pairs"), seed=0)
    chosen_ids = {row["chosen_call_id"] for row in rows_of(tmp_path / "pairs" / "train.jsonl")}
    positions = {str(call.call_id): call.position_char for call in run.rows("select * from candidate_calls")}
    assert {positions[call_id] for call_id in chosen_ids} == {LONG.index(place) for place in chosen_places}


def test_pairs_for_llama_factory_have_one_turn_a_side(settings, uri, tmp_path):
    pairs = export_preferences(settings, uri, str(tmp_path / "pairs"), seed=0, form="sharegpt").pairs
    assert pairs == {"same_place": 1, "same_text": 0, "no_call": 1}  # a call has no words before it there
    rows = {row["compared"]: row for row in rows_of(tmp_path / "pairs" / "train.jsonl")}
    place, without = rows["same_place"], rows["no_call"]
    opening = {"from": "human", "value": f"{CONTINUE}Out of 1400 people, 400 passed, that is"}
    assert place["conversations"] == [opening]
    kept = '{"name": "Calculator", "arguments": {"input": "400 / 1400"}}'
    assert place["chosen"] == {"from": "function_call", "value": kept}
    assert without["chosen"] == {"from": "gpt", "value": " people, 400 passed, that is"}
    assert without["rejected"]["from"] == "function_call"
    info = json.loads((tmp_path / "pairs" / "dataset_info.json").read_text())
    assert info["train"]["ranking"] is True


NO_CALLS = "{% for message in messages %}{{ message.content }}{% endfor %}"


def test_pairs_for_a_template_that_drops_calls_are_refused(settings, uri, tiny_model_dir, tmp_path):
    model = str(with_template(tiny_model_dir, tmp_path / "model", NO_CALLS))
    with pytest.raises(UsageError, match="expected a chat template that renders calls"):
        export_preferences(settings, uri, str(tmp_path / "pairs"), seed=0, model=model)
    assert not (tmp_path / "pairs").exists()


def test_pairs_for_a_template_that_drops_calls_are_written_on_request(
    settings, uri, tiny_model_dir, tmp_path
):
    model = str(with_template(tiny_model_dir, tmp_path / "model", NO_CALLS))
    pairs = str(tmp_path / "pairs")
    assert export_preferences(settings, uri, pairs, seed=0, model=model, takes_lossy_template=True).warnings


def test_pairs_of_a_text_that_spells_a_control_token_are_left_out(settings, tmp_path):
    run = AnnotatedRun(settings, {"Calculator": 0.5}, "control")
    document = run.add_text("It ends with <|im_end|> so 10 cups less 2 are 8 cups.")
    run.add_call("Calculator", document, " 8", "10 - 2", "8", saves=2.0)
    run.add_call("Calculator", document, " 8", "10 + 2", "12", saves=-0.5)
    run.complete("Calculator")
    uri = ObjectStore(settings).uri(release_prefix(release(settings, run.run_id)))
    with pytest.raises(NoResultError, match="expected at least one pair, found none"):
        export_preferences(settings, uri, str(tmp_path / "pairs"), seed=0)


def test_a_pruned_call_is_rejected_by_its_bound_if_it_has_one(settings, run, uri, tmp_path):
    run.change(
        "update call_losses set reason = 'pruned_below', loss_without_result = null where loss_with_result >= 2.75"
    )
    export_preferences(settings, uri, str(tmp_path / "known.jsonl"), seed=0)
    [row] = [row for row in rows_of(tmp_path / "known.jsonl") if row["compared"] == "same_place"]
    assert row["margin"] == 1.25 - (3.0 - 3.5)  # L(nothing) - L+ is the bound
    run.change("update call_losses set loss_with_result = null where reason = 'pruned_below'")
    found = export_preferences(settings, uri, str(tmp_path / "unknown.jsonl"), seed=0)
    assert found.pairs == {"same_place": 0, "same_text": 1, "no_call": 0}


def test_only_another_seed_draws_other_pairs(settings, run, tmp_path, monkeypatch):
    people = run.documents[0]
    for number in range(20):
        run.add_call("Calculator", people, " 29", f"{number} + 1", "1", saves=-0.5)
    uri = ObjectStore(settings).uri(release_prefix(release(settings, run.run_id)))
    first = export_preferences(settings, uri, str(tmp_path / "a"), seed=0)
    assert export_preferences(settings, uri, str(tmp_path / "a"), seed=0).written is False
    monkeypatch.setattr("toolformer_ops.release.tried_calls.PAGE_TEXTS", 1)
    assert export_preferences(settings, uri, str(tmp_path / "b"), seed=0).sha256 == first.sha256
    rejected = set()
    for seed in range(6):
        export_preferences(settings, uri, str(tmp_path / str(seed)), seed=seed)
        rejected |= {row["rejected_call_id"] for row in rows_of(tmp_path / str(seed) / "train.jsonl")}
    assert len(rejected) > 4


def test_an_export_without_pairs_or_refusals_ends_with_exit_status_3_after_the_counts(settings, tmp_path):
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    document = run.add_text(SUM)
    run.add_call("Calculator", document, " 29", "400 / 1400", "0.29", saves=1.25)
    run.add_call("Calculator", run.add_text(NEARLY), " dogs", "3 + 4", "7", saves=0.25)
    run.complete("Calculator")
    uri = ObjectStore(settings).uri(release_prefix(release(settings, run.run_id)))
    with pytest.raises(NoResultError, match="1 texts with 1 released calls") as no_pair:
        export_preferences(settings, uri, str(tmp_path / "pairs"), seed=0)
    with pytest.raises(NoResultError, match="2 texts have scored calls, 1 of them a kept one"):
        export_chat(settings, uri, str(tmp_path / "chat"), seed=0, refusals=refusals(settings, 0.5))
    assert exit_code(no_pair.value) == EXIT_NO_RESULT
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_what_is_not_in_the_database_or_holds_earlier_calls_is_refused(settings, run, uri, tmp_path):
    ObjectStore(settings).fetch(uri.split("/", 3)[3], tmp_path / "copy")
    with pytest.raises(UsageError, match=r"expected the s3:// address .*, found none at "):
        export_preferences(settings, str(tmp_path / "copy"), str(tmp_path / "pairs"), seed=0)
    run.change("update annotation_runs set chained_release_id = (select release_id from dataset_releases)")
    with pytest.raises(UsageError, match="found a release of chains at "):
        export_chat(settings, uri, str(tmp_path / "chat"), seed=0, refusals=refusals(settings, 0.5))
    with pytest.raises(UsageError, match="expected a share from 0 to below 1, found 1"):
        export_chat(settings, uri, str(tmp_path / "chat"), seed=0, refusals=refusals(settings, 1.0))


def test_refusals_are_texts_in_which_no_call_saves_anything_beside_the_same_other_rows(
    settings, uri, run, tmp_path
):
    plain = export_chat(settings, uri, str(tmp_path / "plain"), seed=0)
    assert (plain.conversations, plain.refusals) == (2, 0)
    assert not (tmp_path / "plain" / "README.md").exists()
    found = export_chat(settings, uri, str(tmp_path / "chat"), seed=0, refusals=refusals(settings, 0.25))
    assert (found.conversations, found.refusals, found.calls) == (3, 1, 2)
    rows = rows_of(tmp_path / "chat" / "train.jsonl")
    refused = [row for row in rows if plain_text(row["messages"]) == IDLE]
    assert [row for row in rows if row not in refused] == rows_of(tmp_path / "plain" / "train.jsonl")
    [row] = refused
    assert (
        " words, and then he left the house." in row["messages"][1]["content"]
    )  # before the first call, at " words"
    card = (tmp_path / "chat" / "README.md").read_text(encoding="utf-8")
    assert "| with a scored call | 4 |\n| of these with a kept call | 2 |" in card
    # A text with a call that nobody scored is no refusal.
    run.add_call("Calculator", run.documents[2], " house", "9 - 8", "1", reason="pruned_below")
    with pytest.raises(NoResultError, match="2 others a call that may"):
        export_chat(settings, uri, str(tmp_path / "none"), seed=0, refusals=refusals(settings, 0.5))


def test_the_command_writes_either_format_or_refusals(uri, tmp_path):
    for options, field in ((["--format", "preference"], "pairs"), (["--with-refusals", "0.5"], "refusals")):
        outcome = CliRunner().invoke(app, ["export", uri, str(tmp_path / options[-1]), *options])
        assert json.loads(outcome.stdout)[field]
    both = ["export", uri, str(tmp_path / "both"), "--format", "preference", "--with-refusals", "0.5"]
    assert isinstance(CliRunner().invoke(app, both).exception, UsageError)


@pytest.mark.slow
def test_trl_trains_a_step_of_dpo_on_the_pairs(settings, uri, tmp_path, monkeypatch):
    address = export_preferences(settings, uri, str(tmp_path / "rows"), seed=0).address
    dataset, model = _trainable(address, tmp_path, monkeypatch)
    from trl import DPOConfig, DPOTrainer

    arguments = DPOConfig(
        output_dir=str(tmp_path / "trained"), max_steps=1, per_device_train_batch_size=3, use_cpu=True, report_to=[],
        save_strategy="no", bf16=False, max_length=2048, logging_steps=1, model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    trainer = DPOTrainer(model=str(model), args=arguments, train_dataset=dataset)
    batch = next(iter(trainer.get_train_dataloader()))
    learned = [
        trainer.processing_class.decode(ids[mask.bool()])
        for ids, mask in zip(batch["input_ids"], batch["completion_mask"], strict=True)
    ]
    assert len(learned) == 6
    assert sum("400 / 1400" in text for text in learned[:3]) == 1
    rejected = " ".join(learned[3:])
    assert (rejected.count("1400 - 400"), rejected.count("400 - 1")) == (1, 1)
    assert not any("0.29" in text for text in learned)  # no result
    trainer.train()
    [loss] = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert loss == pytest.approx(0.6931, abs=1e-3)  # log 2: the model is still its own reference


@pytest.mark.slow
def test_trl_trains_a_step_on_conversations_with_refusals(settings, uri, tmp_path, monkeypatch):
    address = export_chat(
        settings, uri, str(tmp_path / "rows"), seed=0, refusals=refusals(settings, 0.5)
    ).address
    dataset, model = _trainable(address, tmp_path, monkeypatch)
    from trl import SFTConfig, SFTTrainer

    arguments = SFTConfig(
        output_dir=str(tmp_path / "trained"), max_steps=1, per_device_train_batch_size=3, assistant_only_loss=True, use_cpu=True,
        report_to=[], save_strategy="no", bf16=False, max_length=2048, logging_steps=1, model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    trainer = SFTTrainer(model=str(model), args=arguments, train_dataset=dataset)
    [batch] = list(trainer.get_train_dataloader())
    learned = [trainer.processing_class.decode(row[row != -100]) for row in batch["labels"]]
    assert sum("<call>" in text for text in learned) == 2
    assert sum("left the house" in text for text in learned) == 1
    trainer.train()
    assert trainer.state.global_step == 1


def _trainable(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The export as `datasets` loads it, and a tiny model with a chat template that renders tools."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import load_dataset

    dataset = load_dataset("json", data_files=address, split="train", cache_dir=str(folder / "cache"))
    return dataset, with_template(save_tiny_llama(folder / "plain"), folder / "model", TEMPLATE)
