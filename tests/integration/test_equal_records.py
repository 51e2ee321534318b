"""One corpus in a fresh database, and in databases that knew its texts with other urls: rows and release are the same.

The language model is scripted. What it samples follows from the seed of a text, as in the real one.
"""

import functools
import json
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.annotated_runs import release
from tests.fake_language_model import FakeLanguageModel, FakeSampler, loaded_by_stages
from tests.kept_bucket import kept_bucket
from tests.run_sql import run_sql
from tests.servers import copied_database, settings_of
from toolformer_ops.audit.checking import check_tool
from toolformer_ops.audit.running import audit
from toolformer_ops.config import Settings
from toolformer_ops.records import CallLosses, PlacedCall, SampledContinuation
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.stages.execution import execute_stage
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.placebo import placebo_stage
from toolformer_ops.stages.release import release_prefix
from toolformer_ops.stages.run_setup import finish_run, start_run
from toolformer_ops.stages.sampling import sample_stage
from toolformer_ops.stages.scoring import score_stage
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.tools.calendar import DAYS

ROWS = {
    "candidate_calls": ("sampling", "call_id, call_text, position_token, sample_count, effective_input"),
    "lost_samples": ("sampling", "sample_key, sample_text, sample_count"),
    "call_losses": ("scoring", "stored.call_id, result, loss_with_result"),
    "placebo_losses": ("placebo", "stored.placebo_recipe_id, call_id, number, source, is_sampled, loss_with_result"),
}  # fmt: skip
"""By table: whose recipe its rows are under, and what they hold besides the id that the record of the run is stored under."""


def rows_of_run(settings: Settings, table: str) -> list[Any]:
    """Rows of the run, in an order of their own."""
    recipe, columns = ROWS[table]
    statement = f"""
        select member.document_id, {columns}
        from run_tools rt
        join run_tool_documents member using (run_id, tool)
        join {table} stored on stored.{recipe}_recipe_id = rt.{recipe}_recipe_id and stored.document_id = member.variant_id
        where run_id = 'may'
    """
    return sorted(run_sql(settings, statement), key=str)


class SeededSampler(FakeSampler):
    """Writes at each position what the seed of its text says."""

    def finish(self) -> list[list[list[SampledContinuation]]]:
        samples = []
        for seed_key, count in zip(self.seed_keys, self.positions, strict=True):
            chance = random.Random(seed_key)  # noqa: S311
            drawn = [chance.choices(self.said, k=len(self.said)) for _ in range(count)]
            samples.append([[SampledContinuation(said, True) for said in of_place] for of_place in drawn])
        return samples


@dataclass
class SeededModel(FakeLanguageModel):
    """Expects the day that a text names."""

    script: Sequence[str] = ("Calendar()", "Calendar(x)", "Calendar()", "none", "other")

    def start_sampling(self, prompt: object, *, samples: int, **_: Any) -> FakeSampler:
        return SeededSampler([*self.script[:samples]], [], [])

    def _exact_losses(self, text: str, call: PlacedCall) -> CallLosses:
        word = text.split(" ")[call.token].rstrip(".,")
        return CallLosses(2.0, 2.5, 0.5 if f" {word}," in call.result else 2.25)


def posts(month: str) -> list[dict[str, str]]:
    """Twelve texts, the same in each month; a text names its day, if the month begins on a Monday."""
    return [
        {
            "text": f"Note {day} was written on {DAYS[(day - 1) % 7]}.",
            "url": f"https://example.org/{month}/{day:02}/",
        }
        for day in range(1, 13)
    ]


MAY, JANUARY = posts("2023/05"), posts("2024/01")


@dataclass(frozen=True)
class Annotated:
    """A database with a run over the posts of May."""

    settings: Settings
    release_id: str

    def released_files(self) -> dict[str, str]:
        """The hashes of the release's files, by their names."""
        manifest = ObjectStore(self.settings).read_manifest(release_prefix(self.release_id))
        assert manifest is not None
        return {item.name: item.sha256 for item in manifest.files}


def ingest(settings: Settings, file: Path, of_month: list[dict[str, str]]) -> None:
    file.write_text("".join(json.dumps(post) + "\n" for post in of_month))
    ingest_corpus(settings, str(file))


def annotate(settings: Settings, file: Path, run_id: str) -> str:
    """A run over a file; returns the id of its release."""
    choices: dict[str, Any] = {"corpus": str(file), "model": "fake", "tools": ["Calendar"]}
    choices |= {"max_positions": 2, "samples_per_position": 5, "max_examples_per_tool": 5}
    start_run(settings, run_id, RunChoices.parse(choices | {"placebo_sample": 6, "prune_below": 0.0}))
    filter_stage(settings, run_id, "Calendar")
    for stage in (sample_stage, execute_stage, score_stage, placebo_stage):
        stage(settings, run_id, "Calendar", "0/1")
    check_tool(settings, run_id, "Calendar")
    release_id = release(settings, run_id)
    finish_run(settings, run_id, "success")
    return release_id


def alone(settings: Settings, folder: Path) -> str:
    """The posts of May in a fresh database."""
    ingest(settings, folder / "posts.jsonl", MAY)
    return annotate(settings, folder / "posts.jsonl", "may")


def behind_another_corpus(settings: Settings, folder: Path) -> str:
    """The posts of May, whose texts another corpus has with other urls."""
    ingest(settings, folder / "others.jsonl", JANUARY)
    annotate(settings, folder / "others.jsonl", "january")
    return alone(settings, folder)


def corrected(settings: Settings, folder: Path) -> str:
    """The posts of May, which the corpus had with other urls before."""
    ingest(settings, folder / "posts.jsonl", JANUARY)
    annotate(settings, folder / "posts.jsonl", "january")
    return alone(settings, folder)


def in_january(settings: Settings, folder: Path) -> str:
    """The posts of January in a fresh database."""
    ingest(settings, folder / "posts.jsonl", JANUARY)
    return annotate(settings, folder / "posts.jsonl", "january")


History = Callable[[Settings, Path], str]


@pytest.fixture(scope="module")
def annotated(postgres_server, migrated_template, object_store_server, tmp_path_factory):
    """A database with this history; each is made once."""
    folder = tmp_path_factory.mktemp("equal")
    with ExitStack() as opened:
        loaded_by_stages(opened.enter_context(pytest.MonkeyPatch.context()))(SeededModel())

        @functools.cache
        def make(history: History) -> Annotated:
            name = opened.enter_context(copied_database(postgres_server, migrated_template))
            bucket = opened.enter_context(kept_bucket(object_store_server.address))
            dsn = postgres_server.address.dsn(name)
            settings = settings_of(dsn, state_dir=folder / history.__name__, **bucket.settings)
            return Annotated(settings, history(settings, folder))

        yield make


HISTORIES = pytest.mark.parametrize("history", [behind_another_corpus, corrected])


@HISTORIES
@pytest.mark.parametrize("table", ["candidate_calls", "lost_samples", "call_losses"])
def test_a_record_has_the_rows_that_it_has_in_a_fresh_database(annotated, history, table):
    fresh = rows_of_run(annotated(alone).settings, table)
    assert fresh
    assert rows_of_run(annotated(history).settings, table) == fresh


def test_placebos_are_those_of_a_fresh_database_behind_another_corpus(
    annotated,
):  # a corpus whose records are corrected keeps its pool
    fresh = rows_of_run(annotated(alone).settings, "placebo_losses")
    assert fresh
    assert rows_of_run(annotated(behind_another_corpus).settings, "placebo_losses") == fresh


@HISTORIES
def test_a_corpus_has_the_release_that_it_has_in_a_fresh_database(annotated, history):
    assert annotated(history).release_id == annotated(alone).release_id


@HISTORIES
def test_a_release_has_the_bytes_that_it_has_from_a_fresh_database(annotated, history):
    fresh = annotated(alone).released_files()
    assert annotated(history).released_files() == fresh


def test_the_same_texts_with_other_urls_are_another_release(annotated):
    assert annotated(in_january).release_id != annotated(alone).release_id


@HISTORIES
def test_an_audit_has_no_finding(annotated, history):
    assert not audit(annotated(history).settings, "run", "may", sample=10).findings
