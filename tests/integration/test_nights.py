"""Night after night over one corpus that changes, in one database, through all stages: what each computes, and what it releases.

The language model is scripted: at each word it writes one call of the calculator and one of the calendar. The
sum that the next word states saves 1 nat, the day that the next word names saves 1.5.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.annotated_runs import release
from tests.fake_language_model import FakeLanguageModel, StoppedError
from tests.run_sql import run_sql
from toolformer_ops.audit.checking import check_tool
from toolformer_ops.config import Settings
from toolformer_ops.records import CallLosses, PlacedCall
from toolformer_ops.release.format import read_release
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.stages.execution import execute_stage
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.release import release_prefix
from toolformer_ops.stages.run_setup import finish_run, start_run
from toolformer_ops.stages.sampling import sample_stage
from toolformer_ops.stages.scoring import score_stage
from toolformer_ops.storage.objects.publication import ObjectStore

TOOLS = ("Calculator", "Calendar")
SUM = "[Calculator(2 + 3) -> 5]"
MONDAY = "[Calendar() -> Today is Monday, January 30, 2023.]"
NEXT_MONDAY = "[Calendar() -> Today is Monday, February 6, 2023.]"


class Model(FakeLanguageModel):
    """Also expects the day that a text names."""

    def _exact_losses(self, text: str, call: PlacedCall) -> CallLosses:
        word = text.split(" ")[call.token].rstrip(".,")
        if call.call.tool == "Calendar":
            return CallLosses(2.0, 2.5, 0.5 if f" {word}," in call.result else 2.25)
        return CallLosses(2.0, 2.5, 1.0 if word == call.result else 2.25)


def box(name: str) -> str:
    return f"Box {name} exactly holds 2 pens and 3 caps, a total of 5 things."


def boxed(name: str) -> str:
    """As it is released."""
    return box(name).replace(" 5 ", f" {SUM} 5 ")


def note(name: str) -> str:
    return f"Note {name} was written on Monday in the evening."


def noted(name: str, call: str = MONDAY) -> str:
    return note(name).replace(" Monday", f" {call} Monday")


@dataclass
class Nights:
    settings: Settings
    monkeypatch: pytest.MonkeyPatch
    path: Path
    texts: list[str] = field(default_factory=list)
    """Of the newest release."""

    def use_model(self, **fields: Any) -> Model:
        model = Model(("Calculator(2 + 3)", "Calendar()"), identity="fake", **fields)
        self.monkeypatch.setattr(
            "toolformer_ops.language_model.models.model_identity", lambda *_, **__: "fake"
        )
        self.monkeypatch.setattr("toolformer_ops.runs.models.load_run_model", model.load)
        return model

    def ingest(self, *records: dict[str, str]) -> None:
        self.path.write_text("".join(json.dumps(record) + "\n" for record in records))
        ingest_corpus(self.settings, str(self.path))

    def start(self, run_id: str) -> None:
        choices = {"corpus": str(self.path), "model": "fake", "tools": list(TOOLS), "max_positions": 12}
        choices |= {"samples_per_position": 2, "keep_thresholds": {"Calculator": 1.0}}
        start_run(self.settings, run_id, RunChoices.parse(choices), "nightly_posts")

    def expect(self, run_id: str, computed: dict[str, dict[str, int]], released: list[str] | None) -> None:
        """A whole night that computes these numbers of documents, and releases this (None: as the night before)."""
        self.use_model()
        before = self.ledger()
        self.start(run_id)
        for tool in TOOLS:
            filter_stage(self.settings, run_id, tool)
            for stage in (sample_stage, execute_stage, score_stage):
                stage(self.settings, run_id, tool, "0/1")
            check_tool(self.settings, run_id, tool)
        folder = self.path.parent / run_id
        ObjectStore(self.settings).fetch(release_prefix(release(self.settings, run_id)), folder)
        finish_run(self.settings, run_id, "success")
        found: dict[str, dict[str, int]] = {}
        for (tool, name), count in self.ledger().items():
            if gained := count - before.get((tool, name), 0):
                found.setdefault(tool, {})[name] = gained
        assert found == computed
        texts = sorted(text.text for text in read_release(folder))
        assert texts == (self.texts if released is None else sorted(released))
        self.texts = texts

    def ledger(self) -> dict[tuple[str, str], int]:
        done = "select r.tool, l.stage, count(*) from stage_ledger l join recipes r using (recipe_id) group by r.tool, l.stage"
        return {(tool, stage): documents for tool, stage, documents in run_sql(self.settings, done)}


def all_stages(documents: int) -> dict[str, int]:
    return dict.fromkeys(("filter", "sample", "execute", "score"), documents)


def test_nights_over_a_corpus_that_changes(settings, monkeypatch, tmp_path):
    nights = Nights(
        settings.model_copy(update={"micro_batch_documents": 2}), monkeypatch, tmp_path / "posts.jsonl"
    )
    dated = {"text": note("N"), "date": "2023-01-30", "title": "A note"}
    with_id = {"text": box("I"), "id": "i"}
    first, second, third = ({"text": box(name)} for name in "ABC")

    # The first night: three sums and a dated note.
    nights.ingest(first, second, with_id, dated)
    of_a_note, of_sums = {"sample": 1, "execute": 1, "score": 1}, {"sample": 3, "execute": 3, "score": 3}
    computed = {"Calculator": {"filter": 4, **of_sums}, "Calendar": {"filter": 4, **of_a_note}}
    nights.expect("first", computed, [boxed("A"), boxed("B"), boxed("I"), noted("N")])
    nights.expect("nothing new", {}, None)

    # A text joins, and two change: one of a record with an id, and one without.
    with_id = {"text": box("I2"), "id": "i"}
    second = {"text": box("B2")}
    nights.ingest(first, second, with_id, dated, third)
    left = [boxed("A"), boxed("B2"), boxed("I2")]
    computed = {"Calculator": all_stages(3), "Calendar": {"filter": 3}}
    nights.expect("changed", computed, [*left, boxed("C"), noted("N")])

    # A text leaves, and a date is corrected: the Calendar is asked again, and no other tool.
    dated = {**dated, "date": "2023-02-06"}
    nights.ingest(first, second, with_id, dated)
    note_of_february = noted("N", NEXT_MONDAY)
    nights.expect("date corrected", {"Calendar": all_stages(1)}, [*left, note_of_february])

    # Killed in the middle, then the corpus changes, then the retry: it works on its version.
    fourth, fifth, sixth = ({"text": box(name)} for name in "DEF")
    nights.ingest(first, second, with_id, dated, fourth, fifth, sixth)
    nights.use_model(texts_before_stop=2)
    nights.start("killed")
    filter_stage(nights.settings, "killed", "Calculator")
    with pytest.raises(StoppedError):
        sample_stage(nights.settings, "killed", "Calculator", "0/1")
    nights.ingest(first, dated, fourth, fifth, sixth, third)
    joined = [boxed(name) for name in "DEF"]
    computed = {"Calculator": {"sample": 1, "execute": 3, "score": 3}, "Calendar": {"filter": 3}}
    nights.expect("killed", computed, [*left, *joined, note_of_february])

    # The night after takes the new version, to which a text returned that had left: all that it needs is
    # stored.
    nights.expect("returned", {}, [boxed("A"), boxed("C"), *joined, note_of_february])
