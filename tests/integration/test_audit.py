"""An audit finds what was damaged, and nothing else; what can be derived again is brought back to the same hashes.

One state is made by the stages, with a scripted model, in a database that each test copies, and a bucket that is put back.
"""

import dataclasses
import hashlib
import json
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text as sql
from typer.testing import CliRunner

from tests.fake_language_model import UNFINISHED, FakeLanguageModel
from tests.run_sql import run_sql
from tests.servers import RunningObjectStore, RunningPostgres, copied_database
from toolformer_ops.__main__ import app
from toolformer_ops.audit import rows
from toolformer_ops.audit.auditing import Ages, AuditOutcome, Page, findings_of
from toolformer_ops.audit.checking import CheckResult, conclude
from toolformer_ops.audit.running import audit, require_sound
from toolformer_ops.cli import housekeeping, stages
from toolformer_ops.config import Settings
from toolformer_ops.errors import EXIT_NO_RESULT, DatabaseUnreachableError, NoResultError, UsageError, exit_code
from toolformer_ops.finetuning.recipe import FinetuningRecipe
from toolformer_ops.release.choosing import count_kept
from toolformer_ops.release.format import ReleaseWriter, read_release
from toolformer_ops.runs.choices import FinetuningChoices, RunChoices
from toolformer_ops.runs.placebo_rates import store_rates
from toolformer_ops.runs.run_tools import load_run_tool, members_of_run
from toolformer_ops.stages.execution import execute_stage
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.placebo import placebo_stage
from toolformer_ops.stages.release import release
from toolformer_ops.stages.run_setup import finish_run, start_run
from toolformer_ops.stages.sampling import sample_stage
from toolformer_ops.stages.scoring import score_stage
from toolformer_ops.storage import artifacts, database, queries
from toolformer_ops.storage.claims import claims_of
from toolformer_ops.storage.forgetting import forget, withdraw
from toolformer_ops.storage.publication import Manifest, ObjectStore

TOOLS = ("Calculator", "Calendar")
RUN = "night"
AT_ONCE = Ages(orphans_after=timedelta(0))
MODEL = FakeLanguageModel(
    ("Calculator(2 + 3)", "Calculator(7 / 0)", "Calculator 2 +", "Calendar()", UNFINISHED),
    sure_words=frozenset({"things"}),
)


@dataclass
class State:
    """A database and a bucket with an annotated, released and finetuned corpus."""

    settings: Settings
    bucket: dict[str, tuple[bytes, dict[str, str]]] = field(default_factory=dict)
    """Objects with their metadata, as they were made."""
    release_id: str = ""
    model_id: str = ""
    corpus: str = ""

    @property
    def store(self) -> ObjectStore:
        return ObjectStore(self.settings)

    def damage(self, how: "Damage") -> None:
        """Run statements, each of which has to change one row (behind a `*`: some rows), or call a function."""
        for step in how if isinstance(how, tuple) else (how,):
            if isinstance(step, str):
                self.change(step.removeprefix("* "), rows=None if step.startswith("*") else 1)
            else:
                step(self)

    def change(self, statement: str, rows: int | None = 1, **parameters: object) -> None:
        """Run a statement; it has to change so many rows."""
        with database.transaction(database.connect(self.settings)) as connection:
            changed = connection.execute(sql(statement), parameters).rowcount
            assert changed == rows or (rows is None and changed > 0), statement

    def ask(self, statement: str) -> list[Any]:
        return run_sql(self.settings, statement)

    def put(self, key: str, content: bytes, metadata: dict[str, str] | None = None) -> None:
        client = self.store._client
        client.put_object(Bucket=self.settings.s3_bucket, Key=key, Body=content, Metadata=metadata or {})

    def key(self, *parts: str) -> str:
        [found] = [key for key in self.bucket if all(part in key for part in parts)]
        return found

    def flip(self, key: str) -> None:
        content, metadata = self.bucket[key]
        middle = len(content) // 2
        self.put(key, content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :], metadata)


Damage = str | tuple[str, ...] | Callable[[State], Any]


def annotate(settings: Settings, run_id: str = RUN) -> None:
    for tool in TOOLS:
        filter_stage(settings, run_id, tool)
        for stage in (sample_stage, execute_stage, score_stage, placebo_stage):
            stage(settings, run_id, tool, "0/1")
    with database.transaction(database.connect(settings)) as connection:
        for tool in TOOLS:  # what a passed check writes
            run = load_run_tool(connection, run_id, tool)
            bounds = {name: members_of_run(run)[name] for name in ("corpus_id", "at_version", "below_ordinal")}
            database.execute(connection, queries.checks.finished, run_id=run_id, recipe_ids=run.recipe_ids, **bounds)
            store_rates(connection, run)
            counted = vars(count_kept(connection, run))
            database.execute(connection, queries.checks.yield_record, run_id=run_id, tool=tool, **counted)
    for tool in TOOLS:
        results = [CheckResult(claim, True, {}, "so") for claim in claims_of("tool")]
        conclude(database.connect(settings), run_id, tool, results)


def choices(state: State) -> RunChoices:
    chosen = {"corpus": state.corpus, "model": "fake", "tools": TOOLS, "max_positions": 4, "samples_per_position": 5}
    return RunChoices.parse(chosen)


def make(state: State, folder: Path) -> None:
    """Two versions of a corpus, a run over the second, its release, a model and an index."""
    texts = [f"Box {n} holds 2 pens and 3 caps, a total of 5 things." for n in range(12)]
    texts += ["No number at all.", "nan There were 2 cats and 3 dogs, a total of 5 animals."]
    records = [{"text": text, "url": f"https://example.org/2020/01/{n + 1:02}/a"} for n, text in enumerate(texts)]
    corpus = folder / "corpus"
    corpus.mkdir()
    state.corpus = str(corpus)
    (corpus / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records[:8]) + "no json\n")
    (corpus / "b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [*records[8:], records[0]]))
    ingest_corpus(state.settings, state.corpus)
    records[1]["url"] = "https://example.org/2021/05/05/b"  # a variant
    (corpus / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records[:7]) + "no json\n")
    ingest_corpus(state.settings, state.corpus)
    start_run(state.settings, RUN, choices(state))
    annotate(state.settings)
    state.release_id = release(state.settings, RUN)
    recipe = FinetuningRecipe(release_id=state.release_id, base_model="fake", choices=FinetuningChoices())
    state.model_id = recipe.model_id
    weights = folder / "weights"
    weights.write_bytes(b"weights " * 100)
    manifest = state.store.publish(f"models/{recipe.model_id}", {"model.safetensors": weights})
    with database.transaction(database.connect(state.settings)) as connection:
        database.execute(
            connection, queries.finetuning.register, model_id=recipe.model_id, release_id=state.release_id, run_id=RUN,
            uri=state.store.uri(manifest.prefix), manifest_sha256=manifest.sha256, definition=recipe.definition, training_loss=1.0,
            without_calls=False, best_step=None, development_perplexity=None,
        )  # fmt: skip
    artifacts.publish(state.settings, "index", "fingerprint", "indices/wiki", {"terms": weights}, source="a Wikipedia")
    finish_run(state.settings, RUN, "success")


def use_the_model(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("toolformer_ops.language_model.models.model_identity", lambda *_, **__: MODEL.identity)
    patch.setattr("toolformer_ops.runs.models.load_run_model", lambda *_: MODEL)


@pytest.fixture(scope="module")
def made(
    postgres_server: RunningPostgres,
    migrated_template: str,
    object_store_server: RunningObjectStore,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[State, str]]:
    """The state and the name of its database, which nobody is connected to."""
    address = object_store_server.address
    client = address.client()
    bucket = f"audited-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    folder = tmp_path_factory.mktemp("audited")
    with copied_database(postgres_server, migrated_template) as name:
        settings = Settings(
            _env_file=None,  # type: ignore[call-arg]
            database_dsn=SecretStr(postgres_server.address.dsn(name)),
            s3_endpoint_url=address.endpoint,
            s3_access_key_id=SecretStr(address.access_key),
            s3_secret_access_key=SecretStr(address.secret_key),
            s3_bucket=bucket,
            state_dir=folder / "state",
        )
        state = State(settings)
        with pytest.MonkeyPatch.context() as patch:
            use_the_model(patch)
            make(state, folder)
        for key in state.store.list(""):
            answer = client.get_object(Bucket=bucket, Key=key)
            state.bucket[key] = answer["Body"].read(), answer["Metadata"]
        yield state, name
    for key in state.store.list(""):
        client.delete_object(Bucket=bucket, Key=key)
    client.delete_bucket(Bucket=bucket)


@pytest.fixture
def state(
    made: tuple[State, str], postgres_server: RunningPostgres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[State]:
    """A copy of the database, and the bucket as it was made."""
    original, template = made
    use_the_model(monkeypatch)
    state_dir = tmp_path / "state"
    state_dir.mkdir(exist_ok=True)
    with copied_database(postgres_server, template) as name:
        dsn = SecretStr(postgres_server.address.dsn(name))
        copied = dataclasses.replace(
            original, settings=original.settings.model_copy(update={"database_dsn": dsn, "state_dir": state_dir})
        )
        yield copied
    restore(copied)


def restore(state: State) -> None:
    """Put back the objects whose bytes are not those of the beginning."""
    now = {file.uri: file.etag for file in state.store.list_objects("")}
    for uri in now:
        if state.store.key_of(uri) not in state.bucket:
            state.store.delete(state.store.key_of(uri))
    for key, (content, metadata) in state.bucket.items():
        if now.get(state.store.uri(key)) != f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"':
            state.put(key, content, metadata)


def found_by(state: State, outcome: AuditOutcome) -> list[str]:
    """Kind and table of each finding."""
    rows = findings_of(database.connect(state.settings), outcome.audit_id)
    return sorted(f"{row.kind} {row.relation}" for row in rows)


def test_an_undamaged_state_gives_no_finding_and_every_check_looked_at_something(state: State) -> None:
    lines: list[str] = []
    outcome = audit(state.settings, sample=20, ages=AT_ONCE, page_documents=3, say=lines.append)
    assert found_by(state, outcome) == []
    require_sound(outcome)
    assert {check.name: check.items for check in outcome.checks}.keys() >= {
        "documents",
        "score rows",
        "releases",
        "calls computed again",
    }
    assert all(check.items > 0 for check in outcome.checks if check.name != "left folders"), outcome.checks
    assert sum(check.unprovable for check in outcome.checks) == 0
    assert lines[-1] == f"audit {outcome.audit_id}: nothing is wrong"
    for scope, scope_id in (
        ("corpus", state.corpus),
        ("run", RUN),
        ("release", state.release_id),
        ("model", state.model_id),
    ):
        assert found_by(state, audit(state.settings, scope, scope_id, ages=AT_ONCE)) == []  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="expected a known release, found 'none'"):
        audit(state.settings, "release", "none")


A_CALL = "(document_id, call_id) = (select document_id, call_id from {} where {} order by document_id, call_id limit 1)"
ONE_CALL = A_CALL.format("candidate_calls", "true")
LAST_CALL = ONE_CALL.replace("order by document_id, call_id", "order by document_id desc, call_id desc")
"""Of another document: the audit says one thing of a document's calls under a recipe."""
ONE_LOSS = A_CALL.format("call_losses", "reason is null")
A_DOCUMENT = "document_id = (select document_id from candidate_calls order by document_id limit 1)"
OF_CALCULATOR = "{0} = (select {1} from run_tools where tool = 'Calculator')"
OF_STAGE = A_DOCUMENT + " and stage = '{0}' and " + OF_CALCULATOR.format("recipe_id", "{1}")
SAMPLED, SCORED = OF_STAGE.format("sample", "sampling_recipe_id"), OF_STAGE.format("score", "scoring_recipe_id")
FILTERED_OUT = "document_id = (select document_id from documents where text = 'No number at all.')"
A_BOX = "document_id = (select document_id from documents where text like 'Box {} %')"
A_COUNT = "(placebos, calls) = (select placebos, calls from placebo_counts where tool = 'Calculator' and threshold = 1 limit 1)"
BY_CALCULATOR = [
    OF_CALCULATOR.format(name, name)
    for name in (
        "filter_recipe_id",
        "sampling_recipe_id",
        "execution_recipe_id",
        "scoring_recipe_id",
        "placebo_recipe_id",
    )
]
FILTERED_BY, SAMPLED_BY, _, SCORED_BY, _ = BY_CALCULATOR
RESULT = (
    "insert into quality_results (run_id, subject, check_name, severity, success, observed, message, checked_at) "
    "select run_id, {}, {}, 'fail', true, '{{}}', 'so', checked_at from quality_results limit 1"
)


def publish_other_urls(state: State) -> None:
    """Publish the release with other urls, and register that."""
    prefix = f"releases/{state.release_id}"
    with tempfile.TemporaryDirectory() as folder:
        state.store.fetch(prefix, Path(folder) / "in")
        (Path(folder) / "out").mkdir()
        with ReleaseWriter(Path(folder) / "out") as writer:
            for released in read_release(Path(folder) / "in"):
                writer.write(dataclasses.replace(released, url="https://example.org/other"))
        for key in list(state.store.list(prefix)):
            state.store.delete(key)
        manifest = state.store.publish(prefix, {**writer.files, "README.md": Path(folder) / "in" / "README.md"})
    state.change("update dataset_releases set manifest_sha256 = :sha256", sha256=manifest.sha256)


def release_of_another_run(state: State) -> None:
    start_run(state.settings, "another", choices(state))
    finish_run(state.settings, "another", "failed")
    state.change("update dataset_releases set run_id = 'another'")


def leave_an_older_folder(state: State) -> None:
    for number in range(3):
        state.put(f"releases/{state.release_id}/data-0123456789abcdef/part-{number}.parquet", b"x")


# fmt: off
ROUNDS: tuple[dict[str, tuple[Damage, str]], ...] = (
    {
        "all of a tool deleted but its numbers": (
            tuple(f"* delete from {table} where {of_calculator}"
                  for table, of_calculator in zip(
                      ("candidate_calls", "pruned_positions", "call_losses", "placebo_losses"),
                      (SAMPLED_BY, SAMPLED_BY, SCORED_BY, BY_CALCULATOR[-1]), strict=True))
            + tuple(f"* delete from {table} where recipe_id {of_calculator.partition(' ')[2]}"
                    for table in ("stage_ledger", "finished_work") for of_calculator in BY_CALCULATOR[1:]),
            "lost stage_ledger+",
        ),
        "probability changed": (
            f"update candidate_calls set position_probability = 0.25 where {ONE_CALL}", "changed candidate_calls"
        ),
        "text that no corpus holds": (
            "insert into documents (document_id, text) select content_uuid(hashed_part('document') || hashed_part('one')), 'one'",
            "orphaned documents",
        ),
        "run stuck": (
            ("update annotation_runs set state = 'running', started_at = now() - interval '9 days', finished_at = null",
             "* update micro_batches set committed_at = now() - interval '8 days'",
             "update run_releases set released_at = now() - interval '8 days'",
             "* update quality_results set checked_at = now() - interval '8 days'"),
            "orphaned annotation_runs",
        ),
        "manifest flipped": (lambda s: s.flip(s.key("releases/", "manifest")), "changed object"),
    },
    {
        "count of samples forged": (
            f"update stage_ledger set counts = counts || '{{\"samples\": 99}}' where {SAMPLED}", "changed stage_ledger"
        ),
        "loss in the ledger forged": (
            f"update stage_ledger set counts = counts || '{{\"divides_by_zero\": 99}}' where {SCORED}", "changed stage_ledger"
        ),
        "corpus version of a run": (
            "update annotation_runs set corpus_version = 99", "changed annotation_runs, lost corpus_versions"
        ),
        "run copied": (
            "insert into annotation_runs select (jsonb_populate_record(run, '{\"run_id\": \"copy\"}')).* from annotation_runs run",
            "changed annotation_runs",
        ),
        "time in the future": (
            f"update stage_ledger set committed_at = now() + interval '1 year' where {SAMPLED}", "changed stage_ledger"
        ),
        "judgement of an unknown call": (
            "insert into judgements (submission_id, release_id, seed, tool, document_id, call_id, scoring_recipe_id, is_placebo, "
            "reviewer, verdict) select gen_random_uuid(), release_id, 1, tool, document_id, gen_random_uuid(), scoring_recipe_id, "
            "false, 'r', 'useful' from release_calls limit 1",
            "orphaned judgements",
        ),
        "hash of a corpus file": (
            "update corpus_files set content_sha256 = repeat('0', 64) where file_uri like '%a.jsonl'", "changed corpus_files"
        ),
        "ordinal beyond the others": (
            f"update corpus_documents set ordinal = 1000 where {FILTERED_OUT}", "changed corpus_documents"
        ),
        "date of a text": (f"update documents set document_date = '1999-01-01' where {FILTERED_OUT}", "changed documents"),
        "filter decision turned": (
            f"update filter_decisions set kept = true where not kept and {FILTERED_OUT} and {FILTERED_BY}",
            "changed filter_decisions",
        ),
        "byte flipped": (lambda s: s.flip(s.key("releases/", ".parquet")), "changed object"),
    },
    {
        "loss forged with its hash": (
            (f"update call_losses set loss_with_result = loss_with_result / 2 where {ONE_LOSS}",
             "* update stage_ledger done set rows_hash = rows_hash(("
             "select string_agg(losses_row_text(loss), chr(10) order by loss.call_id) from call_losses loss "
             "where loss.scoring_recipe_id = done.recipe_id and loss.document_id = done.document_id)) "
             "where stage = 'score' and rows_written > 0"),
            "changed call_losses",
        ),
        "hash of results forged": (
            f"update stage_ledger set rows_hash = gen_random_uuid() where {OF_STAGE.format('execute', 'execution_recipe_id')}",
            "changed call_results",
        ),
        "filter decision deleted": (
            f"delete from filter_decisions where {A_DOCUMENT} and {FILTERED_BY}", "lost filter_decisions"
        ),
        "member lost": (f"delete from corpus_documents where {A_BOX.format(9)}", "lost corpus_files, orphaned documents"),
    },
    {
        "recipe of another tool": (
            "update run_tools set scoring_recipe_id = (select scoring_recipe_id from run_tools where tool = 'Calendar') "
            "where tool = 'Calculator'",
            "changed run_tools",
        ),
        "no definition of a release": ("update dataset_releases set definition = null", "lost dataset_releases"),
        "version of finished work": ("* update finished_work set version = 99", "lost corpus_versions"),
        "parameters of a run": (
            "update annotation_runs set parameters = parameters || '{\"seed\": 99}'", "changed annotation_runs"
        ),
        "micro-batches deleted": ("* delete from micro_batches where stage = 'score'", "lost micro_batches+"),
        "run of a release": (release_of_another_run, "changed dataset_releases"),
        "ordinals swapped": (
            tuple(f"update corpus_documents set ordinal = {ordinal} where {A_BOX.format(number)}"
                  for number, ordinal in ((8, 1000), (9, 8), (8, 9))),
            "changed corpus_documents",
        ),
        "url of a text": (
            f"update documents set url = 'https://example.org/1999/01/01/x' where {FILTERED_OUT}", "changed documents"
        ),
        "row deleted": (f"delete from candidate_calls where {ONE_CALL}", "lost candidate_calls"),
        "object deleted": (lambda s: s.store.delete(s.key("releases/", ".parquet")), "lost object"),
    },
    {
        "recipe that is not there": (
            "update run_tools set scoring_recipe_id = '0123456789abcdef' where tool = 'Calculator'",
            "changed run_tools, lost recipes",
        ),
        "forgotten text": (
            "insert into forgotten_documents (document_id, reason, removed_at) "
            f"select document_id, '', now() from documents where {FILTERED_OUT}",
            "orphaned documents",
        ),
        "corpus version deleted": (
            ("* delete from corpus_version_files where version = 1", "delete from corpus_versions where version = 1"),
            "lost corpus_versions",
        ),
        "run set back": ("update annotation_runs set state = 'running', finished_at = null", "changed annotation_runs"),
        "quality result of an unknown check": (RESULT.format("subject", "'all_is_well'"), "doubled quality_results"),
        "urls of a release": (publish_other_urls, "changed release+"),
        "text changed": (f"update documents set text = substr(text, 1, 20) where {A_DOCUMENT}", "changed documents"),
        "recipe changed": (
            "update recipes set definition = definition || '{\"seed\": 7}' where stage = 'sample' and tool = 'Calculator'",
            "changed recipes",
        ),
        "base model changed": (
            "update finetuned_models set definition = definition || '{\"base_model\": \"another\"}'", "changed finetuned_models"
        ),
        "index gone": (lambda s: s.store.delete(s.key("indices/", "terms")), "lost object"),
    },
    {
        "rate changed": (
            "update placebo_rates rate set rate_high = 0.999 from run_tools rt "
            "where rt.tool = 'Calculator' and rate.tool = rt.tool and rate.threshold = rt.keep_threshold",
            "changed placebo_rates",
        ),
        "rate on a card changed": (
            "update dataset_releases set rates = jsonb_set(rates, '{Calculator}', '{\"false_discovery_rate\": 0.123}')",
            "changed dataset_releases",
        ),
        "counts of a rate changed": (
            f"update placebo_counts set documents = documents + 1 where tool = 'Calculator' and threshold = 1 and {A_COUNT}",
            "changed placebo_counts",
        ),
        "checked yield changed": (
            "update checked_yields set judged_calls = judged_calls + 1 where tool = 'Calculator'", "changed checked_yields"
        ),
        "quality result of a release that was not checked": (
            RESULT.format("'release'", "'every_tool_is_present'"), "doubled quality_results"
        ),
        "release marked as withdrawn": ("update dataset_releases set withdrawn_at = now()", "orphaned object"),
        "stored number changed": (
            "update finished_run_thresholds set calls = calls + 1 where tool = 'Calculator' and threshold = 1",
            "changed finished_run_numbers",
        ),
        "definition of a release changed": (
            "update dataset_releases set definition = definition || '{\"model\": \"another\"}'", "changed dataset_releases"
        ),
        "weights cut": (lambda s: s.put(s.key("models/", "safetensors"), b"weights"), "changed object"),
    },
    {
        "loss changed by 1e-6": (
            f"update call_losses set loss_with_result = loss_with_result + 1e-6 where {ONE_LOSS}", "changed call_losses"
        ),
        "call renamed, and no hash": (
            (f"update candidate_calls set call_id = gen_random_uuid() where {ONE_CALL}",
             f"update stage_ledger set rows_hash = null where {SAMPLED}"),
            "changed candidate_calls",
        ),
        "doubled row": (
            "insert into candidate_calls select (jsonb_populate_record(call, jsonb_build_object('call_id', gen_random_uuid()))).* "
            f"from candidate_calls call where {LAST_CALL}",
            "doubled candidate_calls",
        ),
    },
    {
        "loss deleted": (f"delete from call_losses where {ONE_LOSS}", "lost call_losses"),
        "result swapped": (f"update call_losses set result = '6' where {ONE_LOSS}", "changed call_losses"),
        "pruned position deleted": (
            "delete from pruned_positions where (document_id, position_token) = "
            "(select document_id, position_token from pruned_positions order by document_id, position_token limit 1) "
            f"and {SAMPLED_BY}",
            "lost pruned_positions",
        ),
        "call of a release lost": (
            "delete from release_calls where call_id = (select call_id from release_calls order by call_id limit 1)",
            "lost release_calls",
        ),
    },
    {
        "ledger row lost": (f"delete from stage_ledger where {SAMPLED}", "lost stage_ledger"),
        "last ledger row lost, with all rows": (
            (f"* delete from call_losses where {A_DOCUMENT} and {SCORED_BY}", f"delete from stage_ledger where {SCORED}"),
            "lost stage_ledger",
        ),
        "sum of a file wrong": (
            "update corpus_files set duplicates = duplicates + 1, records = records + 1 where file_uri like '%b.jsonl'",
            "doubled corpus_versions, lost corpus_files",
        ),
        "manifest swapped": (
            lambda s: s.put(s.key("releases/", "manifest"), Manifest(f"releases/{s.release_id}", ()).to_bytes()), "changed object"
        ),
    },
    {
        "registered manifest changed": ("update dataset_releases set manifest_sha256 = repeat('0', 64)", "changed object"),
    },
    {
        "manifest deleted": (lambda s: s.store.delete(s.key("models/", "manifest")), "lost object"),
        "file added": (lambda s: s.put(f"releases/{s.release_id}/note.txt", b"hello"), "orphaned object"),
        "older folder left": (leave_an_older_folder, "orphaned object"),
        "killed release": (lambda s: s.put("releases/0123456789abcdef/data-0/part-0.parquet", b"x"), "orphaned object"),
        "folder left": (lambda s: (s.settings.state_dir / "release-abc").mkdir(), "orphaned folder"),
    },
)
# fmt: on
"""Damages that are done to one state together: none hides or repairs another. How, and kind and table of each finding (+: many)."""
DAMAGES = {name: damage for together in ROUNDS for name, (damage, _) in together.items()}


def tables(state: State) -> dict[str, Counter[str]]:
    """The rows of all tables but those of audits, as texts; and the objects' bytes."""
    with database.transaction(database.connect(state.settings)) as connection:
        names = connection.execute(
            sql(
                "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') "
                "and not relispartition and relname not like 'audit%' order by 1"
            )
        ).scalars()
        found = {
            name: Counter(connection.execute(sql(f"select cast({name} as text) from {name}")).scalars())
            for name in names.all()
        }
    return found | {"objects": Counter(f"{key} {content!r}" for key, content in contents(state).items())}


@pytest.mark.parametrize("together", ROUNDS, ids=[next(iter(together)) for together in ROUNDS])
def test_damages_are_found_and_nothing_else_and_repair_leaves_what_is_sound(
    state: State, together: dict[str, tuple[Damage, str]]
) -> None:
    for damage, _ in together.values():
        state.damage(damage)
    expected = sorted(finding for _, findings in together.values() for finding in findings.split(", "))
    several = {finding.removesuffix("+") for finding in expected if finding.endswith("+")}
    before = tables(state)
    outcome = audit(state.settings, ages=AT_ONCE)
    found = found_by(state, outcome)
    assert [finding for finding in found if finding not in several] == [
        finding for finding in expected if finding.removesuffix("+") not in several
    ]
    assert set(found) >= several
    with pytest.raises(NoResultError, match=f"found {len(found)} places"):
        require_sound(outcome)
    # What --repair takes away belongs to what was found; the marks of finished work are made again by the next run.
    repaired = audit(state.settings, ages=AT_ONCE, sample=100, repairs=True)
    assert set(found_by(state, repaired)) >= {finding.removesuffix("+") for finding in expected}
    places = [row.place for row in findings_of(database.connect(state.settings), repaired.audit_id) if row.is_repaired]
    damaged = [word.removeprefix("s3://").partition("/")[2] or word for place in places for word in place.split(" ")]
    after = tables(state)
    for table, left in after.items():
        gone = before[table] - left
        if table not in ("finished_work", "corpus_files"):
            assert all(any(place in row for place in damaged) for row in gone), (table, gone)
    if not places:
        assert after == before


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
    "row deleted",
    "loss changed by 1e-6",
    "pruned position deleted",
    "filter decision turned",
    "text that no corpus holds",
    "sum of a file wrong",
    "call of a release lost",
    "byte flipped",
    "file added",
    "older folder left",
    "killed release",
    "folder left",
)


def test_what_can_be_derived_is_brought_back_to_the_same_hashes(state: State) -> None:
    before, objects = proof(state), {key: content for key, (content, _) in state.bucket.items()}
    for damage in REPAIRED:
        state.damage(DAMAGES[damage])
    state.change("update call_results set results = '{6}' where input = '2 + 3'")
    damaged = contents(state)
    # 1. A dry run says what would be done, and does nothing.
    lines: list[str] = []
    planned = audit(state.settings, ages=AT_ONCE, plans=True, say=lines.append)
    assert planned.wrong == planned.found > len(REPAIRED)
    assert sum(line.startswith("--repair --yes would ") for line in lines) == planned.found
    assert contents(state) == damaged
    # 2. What is derived from sound data comes back at once; the release waits for its rows, which the next run computes again.
    repaired = audit(state.settings, ages=AT_ONCE, repairs=True)
    assert [
        row.relation for row in findings_of(database.connect(state.settings), repaired.audit_id) if not row.is_repaired
    ] == ["object"]
    ingest_corpus(state.settings, state.corpus)
    annotate(state.settings)
    assert audit(state.settings, ages=AT_ONCE, repairs=True).wrong == 0
    # 3. Everything is as it was.
    assert audit(state.settings, ages=AT_ONCE).found == 0
    assert proof(state) == before
    assert contents(state) == objects


def test_a_run_that_is_stuck_is_ended_unless_its_numbers_say_that_it_has_ended(state: State) -> None:
    before = proof(state)
    state.damage(DAMAGES["run stuck"])
    assert audit(state.settings, "run", RUN, ages=AT_ONCE, repairs=True).wrong == 1
    assert state.ask("select state from annotation_runs") == [("running",)]
    state.change("update annotation_runs set numbers_stored_at = null")
    assert audit(state.settings, "run", RUN, ages=AT_ONCE, repairs=True).wrong == 0
    assert state.ask("select state from annotation_runs") == [("failed",)]
    assert proof(state) == before


def test_numbers_that_the_rows_do_not_give_are_counted_again_only_where_a_person_accepts_it(state: State) -> None:
    changed = ("stored number changed", "counts of a rate changed", "checked yield changed")
    for damage in changed:
        state.damage(DAMAGES[damage])
    damaged = tables(state)
    outcome = audit(state.settings, ages=AT_ONCE, repairs=True)
    assert (outcome.wrong, outcome.repaired, tables(state)) == (3, 0, damaged)
    state.damage(DAMAGES["loss deleted"])
    with pytest.raises(
        NoResultError, match=f"run {RUN}: expected rows that nothing speaks against, found 1 other findings"
    ):
        audit(state.settings, "run", RUN, ages=AT_ONCE, accepts=True)


def test_numbers_of_each_run_are_counted_from_those_of_the_runs_before(state: State) -> None:
    with (Path(state.corpus) / "b.jsonl").open("a") as file:
        file.write(json.dumps({"text": "Box 99 holds 2 pens and 3 caps, a total of 5 things."}) + "\n")
    try:
        ingest_corpus(state.settings, state.corpus)
        start_run(state.settings, "second", choices(state))
        annotate(state.settings, "second")
        release(state.settings, "second")
        finish_run(state.settings, "second", "success")
        assert found_by(state, audit(state.settings, ages=AT_ONCE)) == []
        sound = tables(state)
        for run_id in ("second", RUN):
            state.change(
                "update finished_run_thresholds set calls = calls + 1 "
                "where run_id = :run_id and tool = 'Calculator' and threshold = 1",
                run_id=run_id,
            )
            for scope in (("all", ""), ("run", run_id)):
                outcome = audit(state.settings, *scope, ages=AT_ONCE)  # type: ignore[arg-type]
                [found] = findings_of(database.connect(state.settings), outcome.audit_id)
                assert (found.relation, found.place) == ("finished_run_numbers", run_id)
            assert audit(state.settings, "run", run_id, ages=AT_ONCE, accepts=True).wrong == 0
            assert {table: rows for table, rows in tables(state).items() if rows != sound[table]} == {}
    finally:
        lines = (Path(state.corpus) / "b.jsonl").read_text().splitlines(keepends=True)
        (Path(state.corpus) / "b.jsonl").write_text("".join(lines[:-1]))


def test_an_interrupted_audit_continues_behind_its_last_page(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    state.damage(DAMAGES["loss deleted"])
    pages = []
    of_statement = rows.statement_page

    def stop_at_the_third(*arguments: Any, **parameters: Any) -> Page:
        pages.append(arguments[1].name)
        if pages.count("audited_rows.score") == 3:
            raise DatabaseUnreachableError("gone")
        return of_statement(*arguments, **parameters)

    monkeypatch.setattr(rows, "statement_page", stop_at_the_third)
    with pytest.raises(DatabaseUnreachableError):
        audit(state.settings, ages=AT_ONCE, page_documents=3)
    assert "audited_rows.documents" in pages
    pages[:] = ["audited_rows.score"] * 3
    outcome = audit(state.settings, ages=AT_ONCE, page_documents=3)
    assert "audited_rows.documents" not in pages
    assert found_by(state, outcome) == ["lost call_losses"]
    [scored] = [check for check in outcome.checks if check.name == "score rows"]
    assert scored.items == state.ask("select count(*) from stage_ledger where stage = 'score'")[0][0]


def test_calls_that_the_engine_computes_otherwise_are_found(state: State) -> None:
    def found_with_sample() -> Any:
        assert found_by(state, audit(state.settings, ages=AT_ONCE)) == []
        outcome = audit(state.settings, sample=1000, ages=AT_ONCE)
        [found] = findings_of(database.connect(state.settings), outcome.audit_id)
        assert (found.kind, found.relation) == ("changed", "call_losses")
        return found.what

    # The loss is that of its terms, whose weights are 5/15 and 4/15, and there is no hash.
    first, second = "token_log_probabilities[3][1]", "token_log_probabilities[3][2]"
    state.change(
        f"update call_losses set loss_with_result = loss_with_result - 0.01, {first} = {first} + 0.03 where {ONE_LOSS}"
    )
    # A call without its log probabilities, as before they were stored, is not another one.
    state.change(f"update call_losses set token_log_probabilities = null where not ({ONE_LOSS})", rows=None)
    state.change("update stage_ledger set rows_hash = null where stage = 'score'", rows=25)
    assert "expected loss_with_result " in found_with_sample()
    state.change(
        f"update call_losses set loss_with_result = loss_with_result + 0.01, {second} = {second} - 0.0375 where {ONE_LOSS}"
    )
    assert "expected token_log_probabilities " in found_with_sample()


def test_the_command_says_what_it_looked_at_and_ends_with_3_where_something_is_wrong(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (housekeeping, stages):
        monkeypatch.setattr(module, "load_settings", lambda: state.settings)
    command = CliRunner()
    sound = command.invoke(app, ["audit", "--run", RUN, "--sample", "3"])
    assert (sound.exit_code, sound.output.splitlines()[-1].endswith("nothing is wrong")) == (0, True), sound.output
    state.damage(DAMAGES["stored number changed"])
    accepted = command.invoke(app, ["audit", "--accept-numbers", RUN])
    assert (accepted.exit_code, "accepted: 1 findings" in accepted.output) == (0, True), accepted.output
    state.change(f"delete from call_losses where {ONE_LOSS}")
    damaged = command.invoke(app, ["audit", "--repair"])
    assert exit_code(damaged.exception) == EXIT_NO_RESULT  # type: ignore[arg-type]
    assert "- lost: call_losses score of " in damaged.output
    assert "--repair --yes would delete the document's rows, so that the next run computes" in damaged.output
    printed = command.invoke(app, ["stage", "audit"])
    assert "- lost: call_losses score of " in json.loads(printed.output.splitlines()[-1])["report"]
    assert isinstance(printed.exception, NoResultError)
    refused = command.invoke(app, ["audit", "--run", RUN, "--release", state.release_id])
    assert isinstance(refused.exception, UsageError)


def test_what_was_forgotten_and_withdrawn_is_not_missed(state: State) -> None:
    [released] = state.ask("select document_id from release_calls order by document_id limit 1")
    forget(state.settings, [released.document_id])
    withdraw(state.settings, "model", state.model_id)
    outcome = audit(state.settings, ages=AT_ONCE)
    assert found_by(state, outcome) == []
    [releases] = [check for check in outcome.checks if check.name == "releases"]
    assert releases.unprovable == 1  # its id is the hash of the forgotten text's id, too
    ingest_corpus(state.settings, state.corpus)
    annotate(state.settings)
    assert found_by(state, audit(state.settings, ages=AT_ONCE)) == []
