"""An audit finds what was damaged, and nothing else; what can be derived again is brought back to the same hashes.

One state is made by the stages, with a scripted model, in a database that each test copies, and a bucket that
is put back.
"""

import dataclasses
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text as sql
from typer.testing import CliRunner

from tests.annotated_runs import release
from tests.fake_language_model import UNFINISHED, FakeLanguageModel, loaded_by_stages
from tests.kept_bucket import KeptBucket, kept_bucket
from tests.run_sql import engine_of, run_sql
from tests.servers import RunningPostgres, copied_database, settings_of
from toolformer_ops.__main__ import app
from toolformer_ops.audit import rows
from toolformer_ops.audit.auditing import AuditOutcome, Page, findings_of
from toolformer_ops.audit.checking import check_release, check_tool
from toolformer_ops.audit.running import audit, require_sound
from toolformer_ops.cli import housekeeping, stages
from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    EXIT_NO_RESULT,
    DatabaseUnreachableError,
    NoResultError,
    UsageError,
    exit_code,
)
from toolformer_ops.evaluation.records import CALENDAR_DATE, EvaluatedInput, SuiteScore
from toolformer_ops.evaluation.running import ShareCorrect
from toolformer_ops.evaluation.store import write_inputs, write_scores
from toolformer_ops.finetuning.recipe import FinetuningRecipe
from toolformer_ops.release.format import CallSpan, ReleasedText, read_release, write_texts
from toolformer_ops.runs import recipes
from toolformer_ops.runs.choices import FinetuningChoices, RunChoices
from toolformer_ops.stages.execution import execute_stage
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.placebo import placebo_stage
from toolformer_ops.stages.run_setup import finish_run, start_run
from toolformer_ops.stages.sampling import sample_stage
from toolformer_ops.stages.scoring import score_stage
from toolformer_ops.storage.history.forgetting import forget, withdraw
from toolformer_ops.storage.objects import artifacts
from toolformer_ops.storage.objects.publication import Manifest, ObjectStore
from toolformer_ops.storage.postgres import database, queries

TOOLS = ("Calculator", "Calendar")
RUN = "night"
MODEL = FakeLanguageModel(
    ("Calculator(2 + 3)", "Calculator(7 / 0)", "Calculator 2 +", "Calendar()", UNFINISHED),
    sure_words=frozenset({"things"}),
)


@dataclass
class State:
    """A database and a bucket with an annotated, released and finetuned corpus."""

    settings: Settings
    bucket: KeptBucket
    release_id: str = ""
    model_id: str = ""
    corpus: str = ""

    @property
    def store(self) -> ObjectStore:
        return ObjectStore(self.settings)

    def damage(self, name: str) -> None:
        how = DAMAGES[name]
        for step in how if isinstance(how, Sequence) and not isinstance(how, str) else (how,):
            self.change(step) if isinstance(step, str) else step(self)

    def change(self, statement: str, **parameters: object) -> None:
        """Run a statement, which has to change one row (behind a `*`: some rows)."""
        with database.transaction(engine_of(self.settings)) as connection:
            changed = connection.execute(sql(statement.removeprefix("*")), parameters).rowcount
            assert changed == 1 or (changed > 1 and statement.startswith("*")), statement

    def ask(self, statement: str) -> list[Any]:
        return run_sql(self.settings, statement)

    def audit(self, *scope: Any, **options: Any) -> AuditOutcome:
        return audit(self.settings, *scope, orphans_after=timedelta(0), **options)

    def findings(self, outcome: AuditOutcome) -> list[Any]:
        return findings_of(engine_of(self.settings), outcome.audit_id)

    def found(self, outcome: AuditOutcome | None = None) -> list[str]:
        """Kind and table of each finding, of a new audit if none is given."""
        return sorted(f"{row.kind} {row.relation}" for row in self.findings(outcome or self.audit()))

    def put(self, key: str, content: bytes, metadata: dict[str, str] | None = None) -> None:
        self.store._client.put_object(
            Bucket=self.settings.s3_bucket, Key=key, Body=content, Metadata=metadata or {}
        )

    def key(self, *parts: str) -> str:
        [found] = [key for key in self.bucket.objects if all(part in key for part in parts)]
        return found

    def flip(self, key: str) -> None:
        kept = self.bucket.objects[key]
        content = bytearray(kept.content)
        content[len(content) // 2] ^= 1
        self.put(key, bytes(content), kept.metadata)


Damage = str | Sequence[str] | Callable[[State], Any]


def annotate(settings: Settings, run_id: str = RUN) -> None:
    for tool in TOOLS:
        filter_stage(settings, run_id, tool)
        for stage in (sample_stage, execute_stage, score_stage, placebo_stage):
            stage(settings, run_id, tool, "0/1")
    for tool in TOOLS:
        check_tool(settings, run_id, tool)


def choices(state: State) -> RunChoices:
    chosen = {
        "corpus": state.corpus,
        "model": "fake",
        "tools": TOOLS,
        "max_positions": 4,
        "samples_per_position": 5,
    }
    return RunChoices.parse(chosen)


def make(state: State, folder: Path) -> None:
    """Two versions of a corpus, a run over the second, its release, a model and an index."""
    texts = [f"Box {n} holds 2 pens and 3 caps, a total of 5 things." for n in range(12)]
    texts += ["No number at all.", "nan There were 2 cats and 3 dogs, a total of 5 animals."]
    records = [
        {"text": text, "url": f"https://example.org/2020/01/{n + 1:02}/a"} for n, text in enumerate(texts)
    ]
    corpus, weights = folder / "corpus", folder / "weights"
    corpus.mkdir()
    state.corpus = str(corpus)
    (corpus / "b.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in [*records[8:], records[0]])
    )
    for last in (8, 7):
        (corpus / "a.jsonl").write_text(
            "".join(json.dumps(record) + "\n" for record in records[:last]) + "no json\n"
        )
        ingest_corpus(state.settings, state.corpus)
        records[1]["url"] = "https://example.org/2021/05/05/b"  # a variant
    start_run(state.settings, RUN, choices(state))
    annotate(state.settings)
    state.release_id = release(state.settings, RUN)
    recipe = FinetuningRecipe(release_id=state.release_id, base_model="fake", choices=FinetuningChoices())
    state.model_id = recipe.model_id
    weights.write_bytes(b"weights " * 100)
    record = folder / "finetuning.json"
    training = {"training_loss_nats_per_token": 1.0, "best_step": None, "development_perplexity": None}
    record.write_text(json.dumps(training))
    files = {"model.safetensors": weights, "finetuning.json": record}
    manifest = state.store.publish(f"models/{recipe.model_id}", files)
    with database.transaction(database.connect(state.settings)) as connection:
        database.execute(
            connection, queries.finetuning.register, model_id=recipe.model_id, release_id=state.release_id, run_id=RUN,
            uri=state.store.uri(manifest.prefix), manifest_sha256=manifest.sha256, definition=recipe.definition, training_loss=1.0,
            without_calls=False, best_step=None, development_perplexity=None,
        )  # fmt: skip
        database.execute(
            connection, queries.finetuning.model_of_run_set, run_id=RUN, model_id=recipe.model_id, without_calls=False
        )  # fmt: skip
    evaluate_model(state)
    artifacts.publish(
        state.settings, "index", "fingerprint", "indices/wiki", {"terms": weights}, source="a Wikipedia"
    )
    finish_run(state.settings, RUN, "success")


def evaluate_model(state: State) -> None:
    """Scores of the model on two data sets of a suite: one of three answers is right, and one of one."""
    of_model = {"suite": "lama", "model": state.model_id, "variant": "with_tools", "call_start_rank": 10}
    inputs = [
        EvaluatedInput(
            **of_model,
            subset=subset,
            number=number,
            prompt="What?",
            answers=("5",),
            written=" 5",
            predicted="5",
            correct=number == 1,
            calls=(),
            date=CALENDAR_DATE,
        )
        for subset, number in (("squad", 1), ("squad", 2), ("squad", 3), ("trex", 1))
    ]
    state.store.require_bucket()
    file = write_inputs(state.store, RUN, inputs)
    scores = [
        SuiteScore(
            **of_model,
            subset=subset,
            metric="share_correct",
            seconds=1.0,
            data_sha256="0" * 64,
            **vars(ShareCorrect.of([item for item in inputs if item.subset == subset])),
        )
        for subset in ("squad", "trex")
    ]
    with database.transaction(database.connect(state.settings)) as connection:
        write_scores(
            connection, RUN, scores, {state.model_id: state.model_id}, {("lama", "with_tools", 10): file}
        )


@pytest.fixture(scope="module")
def made(postgres_server, migrated_template, object_store_server, tmp_path_factory):
    """The state and the name of its database, which nobody is connected to."""
    folder = tmp_path_factory.mktemp("audited")
    with (
        copied_database(postgres_server, migrated_template) as name,
        kept_bucket(object_store_server.address) as bucket,
        pytest.MonkeyPatch.context() as patch,
    ):
        dsn = postgres_server.address.dsn(name)
        state = State(settings_of(dsn, state_dir=folder / "state", **bucket.settings), bucket)
        loaded_by_stages(patch)(MODEL)
        make(state, folder)
        bucket.keep()
        yield state, name


@contextmanager
def copied_state(made: tuple[State, str], server: RunningPostgres, folder: Path) -> Iterator[State]:
    """The state with a copy of its database; afterwards the bucket and the corpus are put back."""
    original, template = made
    files = {path: path.read_bytes() for path in Path(original.corpus).iterdir()}
    (folder / "state").mkdir(exist_ok=True)
    with copied_database(server, template) as name:
        places = {
            "database_dsn": SecretStr(server.address.dsn(name)),
            "state_dir": folder / "state",
        }
        yield dataclasses.replace(original, settings=original.settings.model_copy(update=places))
    original.bucket.restore()
    for path, content in files.items():
        path.write_bytes(content)


@pytest.fixture
def state(made, postgres_server, use_model, tmp_path):
    """A copy of the database; the bucket and the corpus are put back."""
    use_model(MODEL)
    with copied_state(made, postgres_server, tmp_path) as state:
        yield state


def test_an_undamaged_state_gives_no_finding_though_every_check_looked_at_something(state):
    lines: list[str] = []
    outcome = state.audit(sample=20, page_documents=3, say=lines.append)
    assert state.found(outcome) == []
    require_sound(outcome)
    assert {check.name for check in outcome.checks} >= {
        "documents",
        "score rows",
        "releases",
        "calls computed again",
    }
    assert all(check.items > 0 for check in outcome.checks if check.name != "left folders"), outcome.checks
    assert sum(check.unprovable for check in outcome.checks) == 0
    assert lines[-1] == f"audit {outcome.audit_id}: nothing is wrong"


def test_a_changed_file_of_a_dag_bundle_is_found(state):
    files = {"a.py": b"first", "b.py": b"second"}
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest())
    version = digest.hexdigest()[:16]
    for name, content in files.items():
        database.execute(
            engine_of(state.settings), queries.bundles.store, version=version, name=name, content=content
        )
    assert state.found(state.audit()) == []
    run_sql(state.settings, "update bundle_versions set content = 'third' where name = 'b.py'")
    [finding] = findings_of(engine_of(state.settings), state.audit().audit_id)
    assert (finding.kind, finding.relation, finding.place) == ("changed", "bundle_versions", version)


def test_an_undamaged_state_gives_no_finding_in_any_scope(state):
    scopes = {"corpus": state.corpus, "run": RUN, "release": state.release_id, "model": state.model_id}
    assert all(state.found(state.audit(*scope)) == [] for scope in scopes.items())


def test_an_audit_of_an_unknown_release_is_refused(state):
    with pytest.raises(UsageError, match="expected a known release, found 'none'"):
        state.audit("release", "none")


A_CALL = "(document_id, call_id) = (select document_id, call_id from {} where {} order by document_id, call_id limit 1)"
ONE_CALL = A_CALL.format("candidate_calls", "true")
LAST_CALL = ONE_CALL.replace("order by document_id, call_id", "order by document_id desc, call_id desc")
"""Of another document: the audit says one thing of a document's calls under a recipe."""
ONE_LOSS = A_CALL.format("call_losses", "reason is null")
A_RELEASED_CALL = "(document_id, call_id) = (select document_id, call_id from release_calls order by document_id desc limit 1)"
HASHED_AGAIN = (
    "update stage_ledger done set rows_hash = rows_hash(("
    "select string_agg(losses_row_text(loss), chr(10) order by loss.call_id) from call_losses loss "
    "where loss.scoring_recipe_id = done.recipe_id and loss.document_id = done.document_id)) "
    "where stage = 'score' and rows_written > 0"
)
"""The hashes of the ledger fit the losses as they are."""
A_DOCUMENT = "document_id = (select document_id from candidate_calls order by document_id limit 1)"
CALCULATOR = "tool = 'Calculator'"
RECIPES = {
    stage: f"(select {stage}_recipe_id from run_tools where {CALCULATOR})"
    for stage in ("filter", "sampling", "execution", "scoring", "placebo")
}
FILTERED_BY, SAMPLED_BY, _, SCORED_BY, PLACEBOS_BY = (
    f"{stage}_recipe_id = {one}" for stage, one in RECIPES.items()
)
SAMPLED, EXECUTED, SCORED = (
    f"{A_DOCUMENT} and stage = '{stage}' and recipe_id = {RECIPES[recipe]}"
    for stage, recipe in (("sample", "sampling"), ("execute", "execution"), ("score", "scoring"))
)
FILTERED_OUT = "document_id = (select document_id from documents where text = 'No number at all.')"
A_BOX = "document_id = (select document_id from documents where text like 'Box {} %')"
KEPT_FROM = f"(tool, threshold) = (select tool, keep_threshold from run_tools where {CALCULATOR})"
COPY = "insert into {0} select (jsonb_populate_record(one, jsonb_build_object({1}))).* from {0} one"
MARKS = ("stage_ledger", "finished_work")
A_COUNT = "(placebos, calls) = (select placebos, calls from placebo_counts where {0} limit 1) and {0}"
RESULT = (
    "insert into quality_results (run_id, subject, check_name, severity, success, observed, message, checked_at) "
    "select run_id, {}, {}, 'fail', true, '{{}}', 'so', checked_at from quality_results limit 1"
)


def update(table: str, values: str, where: str = "true", finds: str = "") -> tuple[str, str]:
    """A damage by an update, and what is found: that the table changed, if nothing else is said."""
    return f"update {table} set {values} where {where}", finds or f"changed {table}"


def delete(table: str, where: str, finds: str = "") -> tuple[str, str]:
    return f"delete from {table} where {where}", finds or f"lost {table}"


def add(column: str, **values: object) -> str:
    """Change members of an object."""
    return f"{column} = {column} || '{json.dumps(values)}'"


def publish_changed(state: State, change: Callable[[list[ReleasedText]], Iterable[ReleasedText]]) -> None:
    """Publish the release with other texts, under its own id, and register that."""
    prefix = f"releases/{state.release_id}"
    with tempfile.TemporaryDirectory() as folder:
        state.store.fetch(prefix, Path(folder) / "in")
        (Path(folder) / "out").mkdir()
        files = write_texts(Path(folder) / "out", change(list(read_release(Path(folder) / "in"))))
        state.store.remove(state.store.list(prefix))
        manifest = state.store.publish(prefix, {**files, "README.md": Path(folder) / "in" / "README.md"})
    state.change("update dataset_releases set manifest_sha256 = :sha256", sha256=manifest.sha256)


def publish_other_urls(state: State) -> None:
    publish_changed(
        state, lambda texts: (dataclasses.replace(text, url="https://example.org/other") for text in texts)
    )


def forge_call(state: State, **values: object) -> None:
    """Publish the release with other values of the first call of its first text, woven into the text."""

    def change(texts: list[ReleasedText]) -> Iterator[ReleasedText]:
        first, *others = texts
        call, *more = first.calls
        forged = dataclasses.replace(call, **values)
        yield ReleasedText.of(first.document_id, first.plain_text, [forged, *more], first.url)
        yield from others

    publish_changed(state, change)


def publish_without_first_call(state: State) -> None:
    publish_changed(state, lambda texts: texts[1:])


def release_of_another_run(state: State) -> None:
    start_run(state.settings, "another", choices(state))
    finish_run(state.settings, "another", "failed")
    state.change("update dataset_releases set run_id = 'another'")


# fmt: off
ROUNDS: tuple[dict[str, tuple[Damage, str]], ...] = (
    {
        "all of a tool deleted but its numbers": (
            (
                *(f"*delete from {table} where {SAMPLED_BY}" for table in ("candidate_calls", "pruned_positions")),
                *(f"*delete from {table}" for table in (f"call_losses where {SCORED_BY}", f"placebo_losses where {PLACEBOS_BY}")),
                *(f"*delete from {table} where recipe_id in ({', '.join([*RECIPES.values()][1:])})" for table in MARKS),
            ),
            "lost stage_ledger+",
        ),
        "probability changed": update("candidate_calls", "position_probability = 0.25", ONE_CALL),
        "text that no corpus holds": (
            "insert into documents (document_id, text) select content_uuid(hashed_part('document') || hashed_part('one')), 'one'",
            "orphaned documents",
        ),
        "run stuck": (
            (
                "update annotation_runs set state = 'running', started_at = now() - interval '9 days', finished_at = null",
                "*update micro_batches set committed_at = now() - interval '8 days'",
                "update run_releases set released_at = now() - interval '8 days'",
                "update run_models set published_at = now() - interval '8 days'",
                "*update evaluation_scores set evaluated_at = now() - interval '8 days'",
                "*update quality_results set checked_at = now() - interval '8 days'",
            ),
            "orphaned annotation_runs",
        ),
        "manifest flipped": (lambda s: s.flip(s.key("releases/", "manifest")), "changed object"),
    },
    {
        "count of samples forged": update("stage_ledger", add("counts", samples=99), SAMPLED),
        "loss in the ledger forged": update("stage_ledger", add("counts", divides_by_zero=99), SCORED),
        "corpus version of a run": update(
            "annotation_runs", "corpus_version = 99", finds="changed annotation_runs, lost corpus_versions"
        ),
        "run copied": (COPY.format("annotation_runs", "'run_id', 'copy'"), "changed annotation_runs"),
        "time in the future": update("stage_ledger", "committed_at = now() + interval '1 year'", SAMPLED),
        "judgement of an unknown call": (
            "insert into judgements (submission_id, release_id, seed, tool, document_id, call_id, scoring_recipe_id, is_placebo, "
            "reviewer, verdict) select gen_random_uuid(), release_id, 1, tool, document_id, gen_random_uuid(), scoring_recipe_id, "
            "false, 'r', 'useful' from release_calls limit 1",
            "orphaned judgements",
        ),
        "hash of a corpus file": update("corpus_files", "content_sha256 = repeat('0', 64)", "file_uri like '%a.jsonl'"),
        "ordinal beyond the others": update("corpus_documents", "ordinal = 1000", FILTERED_OUT),
        "date of a text": update("documents", "document_date = '1999-01-01'", FILTERED_OUT),
        "filter decision turned": update("filter_decisions", "kept = true", f"not kept and {FILTERED_OUT} and {FILTERED_BY}"),
        "byte flipped": (lambda s: s.flip(s.key("releases/", ".parquet")), "changed object"),
    },
    {
        "loss forged with its hash": (
            (
                f"update call_losses set loss_with_result = loss_with_result / 2 where {ONE_LOSS}",
                f"*{HASHED_AGAIN}",
            ),
            "changed call_losses",
        ),
        "result of a released call forged with its hash": (
            (
                f"update call_losses set result = '6' where {A_RELEASED_CALL}",
                f"*{HASHED_AGAIN}",
            ),
            "changed release",
        ),
        "hash of results forged": update("stage_ledger", "rows_hash = gen_random_uuid()", EXECUTED, "changed call_results"),
        "filter decision deleted": delete("filter_decisions", f"{A_DOCUMENT} and {FILTERED_BY}"),
        "member lost": delete("corpus_documents", A_BOX.format(9), "lost corpus_files, orphaned documents"),
    },
    {
        "recipe of another tool": update(
            "run_tools", "scoring_recipe_id = (select scoring_recipe_id from run_tools where tool = 'Calendar')", CALCULATOR
        ),
        "no definition of a release": update("dataset_releases", "definition = null", finds="lost dataset_releases"),
        "version of finished work": ("*update finished_work set version = 99", "lost corpus_versions"),
        "parameters of a run": update("annotation_runs", add("parameters", seed=99)),
        "micro-batches deleted": ("*delete from micro_batches where stage = 'score'", "lost micro_batches+"),
        "run of a release": (release_of_another_run, "changed dataset_releases"),
        "ordinals swapped": (
            [update("corpus_documents", f"ordinal = {to}", A_BOX.format(n))[0] for n, to in ((8, 1000), (9, 8), (8, 9))],
            "changed corpus_documents",
        ),
        "url of a text": update("documents", "url = 'https://example.org/1999/01/01/x'", FILTERED_OUT),
        "row deleted": delete("candidate_calls", ONE_CALL),
        "object deleted": (lambda s: s.store.delete(s.key("releases/", ".parquet")), "lost object"),
    },
    {
        "recipe that is not there": update(
            "run_tools", "scoring_recipe_id = '0123456789abcdef'", CALCULATOR, "changed run_tools, lost recipes"
        ),
        "forgotten text": (
            "insert into forgotten_documents (document_id, reason, removed_at) "
            f"select document_id, '', now() from documents where {FILTERED_OUT}",
            "orphaned documents",
        ),
        "corpus version deleted": (
            ("*delete from corpus_version_files where version = 1", "delete from corpus_versions where version = 1"),
            "lost corpus_versions",
        ),
        "run set back": update("annotation_runs", "state = 'running', finished_at = null"),
        "quality result of an unknown check": (RESULT.format("subject", "'all_is_well'"), "doubled quality_results"),
        "urls of a release": (publish_other_urls, "changed release+, changed dataset_releases"),
        "text changed": update("documents", "text = substr(text, 1, 20)", A_DOCUMENT),
        "recipe changed": update("recipes", add("definition", seed=7), f"stage = 'sample' and {CALCULATOR}"),
        "base model changed": update("finetuned_models", add("definition", base_model="another")),
        "index gone": (lambda s: s.store.delete(s.key("indices/", "terms")), "lost object"),
    },
    {
        "rate changed": update("placebo_rates", "rate_high = 0.999", KEPT_FROM),
        "rate on a card changed": update("dataset_releases", add("rates", Calculator={"false_discovery_rate": 0.123})),
        "counts of a rate changed": update(
            "placebo_counts", "documents = documents + 1", A_COUNT.format(f"{CALCULATOR} and threshold = 1")
        ),
        "checked yield changed": update("checked_yields", "judged_calls = judged_calls + 1", CALCULATOR),
        "quality result of a release that was not checked": (
            RESULT.format("'release'", "'every_tool_is_present'"), "doubled quality_results"
        ),
        "release marked as withdrawn": update("dataset_releases", "withdrawn_at = now()", finds="orphaned object"),
        "stored number changed": update(
            "finished_run_thresholds", "calls = calls + 1", f"{CALCULATOR} and threshold = 1", "changed finished_run_numbers"
        ),
        "definition of a release changed": update("dataset_releases", add("definition", model="another")),
        "weights cut": (lambda s: s.put(s.key("models/", "safetensors"), b"weights"), "changed object"),
    },
    {
        "loss changed by 1e-6": update("call_losses", "loss_with_result = loss_with_result + 1e-6", ONE_LOSS),
        "call renamed, and no hash": (
            (f"update candidate_calls set call_id = gen_random_uuid() where {ONE_CALL}",
             f"update stage_ledger set rows_hash = null where {SAMPLED}"),
            "changed candidate_calls",
        ),
        "doubled row": (
            COPY.format("candidate_calls", "'call_id', gen_random_uuid()") + f" where {LAST_CALL}", "doubled candidate_calls"
        ),
    },
    {
        "loss deleted": delete("call_losses", ONE_LOSS),
        "result swapped": update("call_losses", "result = '6'", ONE_LOSS),
        "pruned position deleted": delete(
            "pruned_positions",
            "(document_id, position_token) = (select document_id, position_token from pruned_positions order by 1, 2 limit 1) "
            f"and {SAMPLED_BY}",
        ),
        "call of a release lost": delete("release_calls", A_CALL.format("release_calls", "true")),
    },
    {
        "ledger row lost": delete("stage_ledger", SAMPLED),
        "last ledger row lost, with all rows": (
            (f"*delete from call_losses where {A_DOCUMENT} and {SCORED_BY}", f"delete from stage_ledger where {SCORED}"),
            "lost stage_ledger",
        ),
        "sum of a file wrong": update(
            "corpus_files", "duplicates = duplicates + 1, records = records + 1", "file_uri like '%b.jsonl'",
            "doubled corpus_versions, lost corpus_files",
        ),
        "manifest swapped": (
            lambda s: s.put(s.key("releases/", "manifest"), Manifest(f"releases/{s.release_id}", ()).to_bytes()),
            "changed object",
        ),
    },
    {
        "registered manifest changed": update("dataset_releases", "manifest_sha256 = repeat('0', 64)", finds="changed object"),
    },
    {
        "address of a corpus": update("corpora", "uri = uri || '2'"),
        "index that nobody registered": ("delete from published_artifacts", "lost published_artifacts"),
        "model of a run lost": delete("run_models", "not without_calls"),
        "training loss of a model": update("finetuned_models", "training_loss = 0.5"),
        "share of right answers": update("evaluation_scores", "score = 0.9", "subset = 'squad'"),
        "score that was invented": (
            COPY.format("evaluation_scores", "'subset', 'google_re'") + " where subset = 'trex'", "changed evaluation_scores"
        ),
        "document that was not given up": (
            "insert into failed_documents (recipe_id, document_id, stage, tool, reason, deaths, run_id) "
            f"select recipe_id, document_id, stage, 'Calculator', 'process_killed', 3, '{RUN}' from stage_ledger where {SAMPLED}",
            "changed failed_documents",
        ),
    },
    {
        "manifest deleted": (lambda s: s.store.delete(s.key("models/", "manifest")), "lost object"),
        "mean of placebos changed": update(
            "call_information", "information = information + 1", A_CALL.format("call_information", "true"), "changed placebo_losses"
        ),
        "choice of a released call lost": delete("release_choices", A_CALL.format("release_calls", "true")),
        "file added": (lambda s: s.put(f"releases/{s.release_id}/note.txt", b"hello"), "orphaned object"),
        "older folder left": (
            lambda s: [s.put(f"releases/{s.release_id}/data-0123456789abcdef/part-{n}.parquet", b"x") for n in range(3)],
            "orphaned object",
        ),
        "killed release": (lambda s: s.put("releases/0123456789abcdef/data-0/part-0.parquet", b"x"), "orphaned object"),
        "folder left": (lambda s: (s.settings.state_dir / "release-abc").mkdir(), "orphaned folder"),
    },
)
# fmt: on
"""Damages that are done to one state together: none hides or repairs another. How, and kind and table of each
finding (+: many)."""
DAMAGES = {name: damage for together in ROUNDS for name, (damage, _) in together.items()}


def tables(state: State) -> dict[str, Counter[str]]:
    """The rows of all tables but those of audits, as texts; and the objects' bytes."""
    names = (
        "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') "
        "and not relispartition and relname not like 'audit%' order by 1"
    )
    found = {
        name: Counter(row for (row,) in state.ask(f"select cast({name} as text) from {name}"))
        for (name,) in state.ask(names)
    }
    return found | {"objects": Counter(f"{key} {content!r}" for key, content in contents(state).items())}


@dataclass(frozen=True)
class Round:
    """Damages that were done to one state together, and what an audit and then a repair make of them."""

    expected: list[str]
    """Kind and table of each finding (+: many)."""
    found: list[str]
    refusal: str
    """What the audit ends with."""
    found_by_repair: list[str]
    repaired: list[str]
    """Where something was repaired, an object by its key."""
    before: dict[str, Counter[str]]
    after: dict[str, Counter[str]]
    """All rows and objects before the audit and after the repair."""

    @property
    def several(self) -> set[str]:
        """The findings that are expected many times."""
        return {finding.removesuffix("+") for finding in self.expected if finding.endswith("+")}


@pytest.fixture(scope="module", params=ROUNDS, ids=[next(iter(together)) for together in ROUNDS])
def audited_round(request, made, postgres_server, tmp_path_factory):
    together: dict[str, tuple[Damage, str]] = request.param
    folder = tmp_path_factory.mktemp("round")
    with pytest.MonkeyPatch.context() as patch, copied_state(made, postgres_server, folder) as state:
        loaded_by_stages(patch)(MODEL)
        for name in together:
            state.damage(name)
        before = tables(state)
        outcome = state.audit()
        with pytest.raises(NoResultError) as refusal:
            require_sound(outcome)
        found = state.found(outcome)
        repair = state.audit(sample=100, repairs=True)
        places = [row.place for row in state.findings(repair) if row.is_repaired]
        words = [word for place in places for word in place.split(" ")]
        return Round(
            expected=sorted(finding for _, findings in together.values() for finding in findings.split(", ")),
            found=found,
            refusal=str(refusal.value),
            found_by_repair=state.found(repair),
            repaired=[word.removeprefix("s3://").partition("/")[2] or word for word in words],
            before=before,
            after=tables(state),
        )


def test_exactly_the_damages_are_found(audited_round):
    several = audited_round.several
    once = [finding for finding in audited_round.expected if not finding.endswith("+")]
    assert [finding for finding in audited_round.found if finding not in several] == once
    assert set(audited_round.found) >= several


def test_an_audit_of_a_damaged_state_ends_without_a_result(audited_round):
    assert f"found {len(audited_round.found)} places" in audited_round.refusal


def test_a_repair_finds_what_an_audit_finds(audited_round):
    expected = {finding.removesuffix("+") for finding in audited_round.expected}
    assert set(audited_round.found_by_repair) >= expected


def test_a_repair_takes_nothing_away_that_was_sound(audited_round):
    """But marks of finished work, which the next run makes again."""
    sound = []
    for table in audited_round.after.keys() - {"finished_work", "corpus_files"}:
        gone = audited_round.before[table] - audited_round.after[table]
        sound += [row for row in gone if not any(place in row for place in audited_round.repaired)]
    assert sound == []


def test_a_repair_of_nothing_changes_nothing(audited_round):
    assert audited_round.repaired or audited_round.after == audited_round.before


FORGED_CALLS: dict[str, tuple[dict[str, object], str]] = {
    "result": ({"result": "7"}, "expected result '5' of Calculator, as in call_losses, found '7'"),
    "loss": ({"loss_with_result": 0.0}, "as in call_losses, found 0.0"),
    "reduction": ({"loss_reduction": 99.0}, "as in call_losses, found 99.0"),
    "probability": ({"position_probability": 1.0}, "as in candidate_calls, found 1.0"),
    "input": (
        {"input": "1 + 4"},
        "expected input '2 + 3' of Calculator, as in candidate_calls, found '1 + 4'",
    ),
    "recipe": ({"scoring_recipe_id": "0123456789abcdef"}, "as the release's definition says, found {"),
    "tool": ({"tool": "Oracle"}, "expected no call of the tool, as the release's definition says"),
}
"""What of a released call is changed in the Parquet, with a manifest that is made anew and registered."""


@pytest.mark.parametrize("forged", FORGED_CALLS)
def test_an_audit_finds_a_call_that_was_changed_in_the_files_of_a_release(state, forged):
    values, what = FORGED_CALLS[forged]
    forge_call(state, **values)
    found = [row for row in state.findings(state.audit()) if row.relation == "release"]
    assert [(row.kind, what in row.what) for row in found] == [("changed", True)], found


def test_the_check_of_a_release_finds_a_result_that_was_changed_in_its_files(state):
    forge_call(state, result="7")
    with pytest.raises(NoResultError, match=r"calls_are_those_of_their_rows: .* found '7'"):
        check_release(state.settings, RUN)


def test_an_audit_finds_spans_of_calls_that_were_moved_in_the_files_of_a_release(state, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ReleasedText, "call_spans", lambda _: [CallSpan(0, 1, 0, 1)])
        publish_changed(state, lambda texts: texts)
    found = state.findings(state.audit())
    assert {row.what for row in found} == {
        "expected tools and call_spans that follow from the text and its calls, found others"
    }


def test_an_audit_finds_an_answer_that_is_not_the_result_of_a_released_call(state):
    state.change("update call_results set results = '{7}' where input = '2 + 3'")
    state.change(
        "*update stage_ledger done set rows_hash = (select rows_hash(string_agg(result_row_text(result), chr(10) "
        "order by result.input_key)) from (select distinct call.input_key from candidate_calls call "
        "join run_tools rt on rt.sampling_recipe_id = call.sampling_recipe_id and rt.execution_recipe_id = done.recipe_id "
        "where call.document_id = done.document_id and call.input_key is not null) asked "
        "join call_results result using (input_key)) where stage = 'execute'"
    )
    found = list(state.findings(state.audit()))
    assert {(row.kind, row.relation) for row in found} == {("changed", "release")}
    assert "expected the result '7' of Calculator, as in call_results, found '5'" in found[0].what


def test_a_document_that_the_ledger_counts_as_given_up_is_missed_in_failed_documents(state):
    state.change(
        f"update stage_ledger set {add('counts', process_killed=1)} where {FILTERED_OUT} and stage = 'filter' "
        f"and recipe_id = {RECIPES['filter']}"
    )
    state.change(
        f"update micro_batches set {add('counts', process_killed=1)} where recipe_id = {RECIPES['filter']}"
    )
    assert state.found() == ["lost failed_documents"]


def test_a_document_that_was_given_up_gives_no_finding(state):
    test_a_document_that_the_ledger_counts_as_given_up_is_missed_in_failed_documents(state)
    state.change(
        "insert into failed_documents (recipe_id, document_id, stage, tool, reason, deaths, run_id) "
        f"select recipe_id, document_id, stage, 'Calculator', 'process_killed', 3, '{RUN}' from stage_ledger "
        f"where {FILTERED_OUT} and stage = 'filter' and recipe_id = {RECIPES['filter']}"
    )
    assert state.found() == []


def test_a_model_of_another_training_is_no_model_of_the_run(state):
    other = FinetuningRecipe(
        release_id=state.release_id, base_model="fake", choices=FinetuningChoices(finetune_steps=7)
    )
    state.change(
        "insert into finetuned_models (model_id, release_id, run_id, uri, manifest_sha256, definition, withdrawn_at) "
        "select :model_id, release_id, run_id, uri || '2', manifest_sha256, cast(:definition as jsonb), now() "
        "from finetuned_models",
        model_id=other.model_id,
        definition=json.dumps(other.definition),
    )
    state.change("update run_models set model_id = :model_id", model_id=other.model_id)
    [found] = [row for row in state.findings(state.audit()) if row.relation == "run_models"]
    assert "with finetune_steps " in found.what


def test_a_file_of_inputs_that_was_changed_shows_in_the_scores(state):
    key = state.key("reports/", "inputs")
    state.put(key, state.bucket.objects[key].content.replace(b'"correct": false', b'"correct": true'))
    [found] = state.findings(state.audit())
    assert (found.kind, found.relation) == ("changed", "evaluation_scores")
    assert "expected score 1.0, as its inputs give, found 0.3333333333333333; the file " in found.what


def test_scores_of_inputs_that_a_later_evaluation_replaced_are_not_provable(state):
    earlier = "evaluated_at = evaluated_at - interval '1 day', score = 0.9, inputs_sha256 = repeat('0', 64)"
    state.change(f"update evaluation_scores set {earlier} where subset = 'squad'")
    outcome = state.audit()
    assert state.found(outcome) == []
    assert [check.unprovable for check in outcome.checks if check.name == "scores"] == [1]


def test_a_release_that_its_id_does_not_fit_is_not_repaired(state):
    publish_without_first_call(state)
    rows, objects = tables(state), contents(state)
    outcome = state.audit(repairs=True)
    assert {f"{row.kind} {row.relation}" for row in state.findings(outcome)} == {
        "changed dataset_releases",
        "doubled release_calls",
    }
    assert (outcome.repaired, tables(state), contents(state)) == (0, rows, objects)


def test_calls_of_a_release_are_not_written_again_from_files_with_another_recipe(state):
    forge_call(state, scoring_recipe_id="0123456789abcdef")
    rows = tables(state)
    outcome = state.audit(repairs=True)
    assert "changed release_calls" in state.found(outcome)
    assert (outcome.repaired, tables(state)) == (0, rows)


def proof(state: State) -> list[tuple[Any, ...]]:
    """The hashes of all rows of stages, the numbers, and the calls of the release."""
    return [
        *state.ask("select stage, recipe_id, document_id, rows_hash from stage_ledger order by 1, 2, 3"),
        *state.ask("select tool, threshold, calls, texts from finished_run_thresholds order by 1, 2"),
        *state.ask("select release_id, document_id, call_id, tool from release_calls order by 1, 2, 3"),
    ]


def contents(state: State) -> dict[str, bytes]:
    """The bytes of all objects, damaged or not."""
    client, bucket = state.store._client, state.settings.s3_bucket
    return {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in state.store.list("")}


REPAIRED = (
    "row deleted, loss changed by 1e-6, pruned position deleted, filter decision turned, text that no corpus holds, "
    "sum of a file wrong, call of a release lost, byte flipped, file added, older folder left, killed release, folder left"
)


def test_what_can_be_derived_is_brought_back_to_the_same_hashes(state):
    before, objects, names = proof(state), contents(state), REPAIRED.split(", ")
    for name in names:
        state.damage(name)
    state.change("update call_results set results = '{6}' where input = '2 + 3'")
    damaged = contents(state)
    # 1. A dry run says what would be done, and does nothing.
    lines: list[str] = []
    planned = state.audit(plans=True, say=lines.append)
    assert planned.wrong == planned.findings > len(names)
    assert sum(line.startswith("--repair --yes would ") for line in lines) == planned.findings
    assert contents(state) == damaged
    # 2. What is derived from sound data comes back at once; the release waits for its rows, which the next
    #    run computes again.
    repaired = state.audit(repairs=True)
    assert [row.relation for row in state.findings(repaired) if not row.is_repaired] == ["object"]
    ingest_corpus(state.settings, state.corpus)
    annotate(state.settings)
    assert state.audit(repairs=True).wrong == 0
    # 3. Everything is as it was.
    assert state.found() == []
    assert proof(state) == before
    assert contents(state) == objects


def test_an_audit_of_a_release_alone_does_not_make_its_files_from_rows_that_it_did_not_read(state):
    state.damage("object deleted")
    outcome = state.audit("release", state.release_id, repairs=True)
    assert (state.found(outcome), outcome.repaired) == (["lost object"], 0)
    assert state.audit("run", RUN, repairs=True).wrong == 0


def test_a_run_that_is_stuck_is_ended_unless_its_numbers_say_that_it_has_ended(state):
    before = proof(state)
    state.damage("run stuck")
    assert state.audit("run", RUN, repairs=True).wrong == 1
    assert state.ask("select state from annotation_runs") == [("running",)]
    state.change("update annotation_runs set numbers_stored_at = null")
    assert state.audit("run", RUN, repairs=True).wrong == 0
    assert state.ask("select state from annotation_runs") == [("failed",)]
    assert proof(state) == before


WITHOUT_HASH = "*update run_tools set registered_hash = null"
FORGED_RULES: dict[str, tuple[Sequence[str], str, str]] = {
    "keep threshold": ((update("run_tools", "keep_threshold = 2", CALCULATOR)[0],), "run_tools", "hash "),
    "keep threshold of a run from before there was a hash": (
        (WITHOUT_HASH, update("run_tools", "keep_threshold = 2", CALCULATOR)[0]),
        "run_tools",
        "keep_threshold 2 where its release has 0.5",
    ),
    "keep threshold that the run names": (
        (
            WITHOUT_HASH,
            'update annotation_runs run set parameters = parameters || \'{"keep_thresholds": {"Calculator": 0.5}}\'',
            "update annotation_runs run set registered_hash = registration_hash(run)",
            update("run_tools", "keep_threshold = 0.75", CALCULATOR)[0],
        ),
        "run_tools",
        "keep_threshold 0.75 where the run has 0.5",
    ),
    "keep rule": (
        (WITHOUT_HASH, update("run_tools", "keep_rule = 'probability'", CALCULATOR)[0]),
        "run_tools",
        "keep_rule probability where the run has paper, keep_rule probability where the scoring recipe has paper",
    ),
    "bound of pruning": (
        (WITHOUT_HASH, update("run_tools", "prune_below = 0", CALCULATOR)[0]),
        "run_tools",
        "prune_below 0 where the run has 0.5, prune_below 0 where the scoring recipe has 0.5",
    ),
    "version of a tool": (
        (WITHOUT_HASH, update("run_tools", "tool_version = 'another'", CALCULATOR)[0]),
        "run_tools",
        "tool_version another where the execution recipe has ",
    ),
    "variant of a member": (
        (
            "update corpus_documents set variant_id = "
            "(select document_id from documents where variant_of is not null limit 1) where "
            + A_BOX.format(9),
        ),
        "corpus_documents",
        "of ",
    ),
}
"""What numbers are counted by and is changed, the table that is named, and how."""


@pytest.mark.parametrize("forged", FORGED_RULES)
def test_what_numbers_are_counted_by_is_found_under_its_own_name(state, forged):
    statements, relation, what = FORGED_RULES[forged]
    for statement in statements:
        state.change(statement)
    found = [row.what for row in state.findings(state.audit()) if row.relation == relation]
    assert len(found) == 1, found
    assert what in found[0]


def test_numbers_are_not_accepted_if_what_they_are_counted_by_was_changed(state):
    for statement in FORGED_RULES["keep threshold"][0]:
        state.change(statement)
    before = tables(state)
    with pytest.raises(NoResultError, match="No number was changed"):
        state.audit("run", RUN, accepts=True)
    assert tables(state) == before


CHOICES_OF_THRESHOLDS: dict[str, dict[str, object]] = {
    "thresholds": {"keep_thresholds": {"Calculator": 0.6}},
    "probability": {"keep_rule": "probability", "prune_below": 0.1},
    "nothing pruned": {"prune_below": 0},
}


@pytest.mark.parametrize("chosen", CHOICES_OF_THRESHOLDS)
def test_a_run_with_its_own_thresholds_gives_no_finding(state, chosen):
    others = choices(state).model_dump() | CHOICES_OF_THRESHOLDS[chosen]
    start_run(state.settings, "other", RunChoices.parse(others))
    assert state.found(state.audit("run", "other")) == []
    state.change(WITHOUT_HASH)  # as in a run from before there was one
    assert state.found(state.audit("run", "other")) == []


def test_numbers_that_the_rows_do_not_give_are_counted_again_only_where_a_person_accepts_it(state):
    for name in ("stored number changed", "counts of a rate changed", "checked yield changed"):
        state.damage(name)
    damaged = tables(state)
    outcome = state.audit(repairs=True)
    assert (outcome.wrong, outcome.repaired, tables(state)) == (3, 0, damaged)
    state.damage("loss deleted")
    with pytest.raises(NoResultError, match=f"run {RUN}: .*found 1 other findings"):
        state.audit("run", RUN, accepts=True)


def test_numbers_of_each_run_are_counted_from_those_of_the_runs_before(state):
    with (Path(state.corpus) / "b.jsonl").open("a") as file:
        file.write(json.dumps({"text": "Box 99 holds 2 pens and 3 caps, a total of 5 things."}) + "\n")
    ingest_corpus(state.settings, state.corpus)
    start_run(state.settings, "second", choices(state))
    annotate(state.settings, "second")
    release(state.settings, "second")
    finish_run(state.settings, "second", "success")
    assert state.found() == []
    sound = tables(state)
    one_more = f"update finished_run_thresholds set calls = calls + 1 where {CALCULATOR} and threshold = 1"
    for run_id in ("second", RUN):
        state.change(f"{one_more} and run_id = :run_id", run_id=run_id)
        for scope in (("all", ""), ("run", run_id)):
            [found] = state.findings(state.audit(*scope))
            assert (found.relation, found.place) == ("finished_run_numbers", run_id)
        assert state.audit("run", run_id, accepts=True).wrong == 0
        assert tables(state) == sound


def test_an_interrupted_audit_continues_behind_its_last_page(state, monkeypatch):
    state.damage("loss deleted")
    pages = []
    of_statement = rows.statement_page

    def stop_at_the_third(*arguments: Any, **parameters: Any) -> Page:
        pages.append(arguments[1].name)
        if pages.count("audited_rows.score") == 3:
            raise DatabaseUnreachableError("gone")
        return of_statement(*arguments, **parameters)

    monkeypatch.setattr(rows, "statement_page", stop_at_the_third)
    with pytest.raises(DatabaseUnreachableError):
        state.audit(page_documents=3)
    assert "audited_rows.documents" in pages
    pages[:] = ["audited_rows.score"] * 3
    outcome = state.audit(page_documents=3)
    assert "audited_rows.documents" not in pages
    assert state.found(outcome) == ["lost call_losses"]
    [scored] = [check for check in outcome.checks if check.name == "score rows"]
    assert [(scored.items,)] == state.ask("select count(*) from stage_ledger where stage = 'score'")


def test_calls_that_the_engine_computes_otherwise_are_found(state):
    def found_with_sample() -> Any:
        assert state.found() == []
        [found] = state.findings(state.audit(sample=1000))
        assert (found.kind, found.relation) == ("changed", "call_losses")
        return found.what

    # A release that is there would say that its losses were others.
    withdraw(state.settings, "release", state.release_id)
    # The loss is that of its terms, whose weights are 5/15 and 4/15, and there is no hash.
    changed = (
        "update call_losses set loss_with_result = loss_with_result {}, token_log_probabilities[3]{} where "
        + ONE_LOSS
    )
    state.change(changed.format("- 0.01", "[1] = token_log_probabilities[3][1] + 0.03"))
    # A call without its log probabilities, as before they were stored, is not another one.
    state.change(f"*update call_losses set token_log_probabilities = null where not ({ONE_LOSS})")
    state.change("*update stage_ledger set rows_hash = null where stage = 'score'")
    assert "expected loss_with_result " in found_with_sample()
    state.change(changed.format("+ 0.01", "[2] = token_log_probabilities[3][2] - 0.0375"))
    assert "expected token_log_probabilities " in found_with_sample()


def test_calls_of_another_version_of_the_code_are_not_compared_with_those_of_this_one(
    state, monkeypatch, caplog
):
    state.change(
        "*update call_losses set loss_with_result = loss_with_result + 1, token_log_probabilities = null"
    )
    state.change("*update stage_ledger set rows_hash = null where stage = 'score'")
    monkeypatch.setattr(recipes, "SCORING_VERSION", recipes.SCORING_VERSION + 1)
    outcome = state.audit(sample=1000)
    [again] = [check for check in outcome.checks if check.name == "calls computed again"]
    assert (again.findings, again.unprovable) == (0, again.items)
    assert (
        "expected recipes of this code and this deployment, found others from the stage score on"
        in caplog.text
    )


def test_the_command_ends_with_3_where_something_is_wrong(state, monkeypatch):
    def command(*words: str) -> Any:
        return CliRunner().invoke(app, words)

    for module in (housekeeping, stages):
        monkeypatch.setattr(module, "load_settings", lambda: state.settings)
    state.damage("stored number changed")
    for words, said in (
        (("--accept-numbers", RUN), "accepted: 1 findings"),
        (("--sample", "3"), "nothing is wrong"),
    ):
        sound = command("audit", *words)
        assert (sound.exit_code, said in sound.output) == (0, True), sound.output
    state.damage("loss deleted")
    damaged = command("audit", "--repair")
    assert exit_code(damaged.exception) == EXIT_NO_RESULT
    assert "--repair --yes would delete the document's rows" in damaged.output
    printed = command("stage", "audit")
    assert "- lost: call_losses score of " in json.loads(printed.output.splitlines()[-1])["report"]
    assert isinstance(printed.exception, NoResultError)
    assert isinstance(command("audit", "--run", RUN, "--release", state.release_id).exception, UsageError)


def test_what_was_forgotten_or_withdrawn_is_not_missed(state):
    [released] = state.ask("select document_id from release_calls order by document_id limit 1")
    forget(state.settings, [released.document_id])
    withdraw(state.settings, "model", state.model_id)
    outcome = state.audit()
    assert state.found(outcome) == []
    # The rows of the text's one call are gone; the release's id follows from its files.
    assert [check.unprovable for check in outcome.checks if check.name == "releases"] == [1]
    ingest_corpus(state.settings, state.corpus)
    annotate(state.settings)
    assert state.found() == []
