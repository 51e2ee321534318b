"""Forgetting: after it no table holds the text or what came of it, and what other texts need is still there."""

import json
import uuid
from collections.abc import Mapping
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from tests.annotated_runs import STAGES, AnnotatedRun, recipe_id, register_run, register_tool, release
from toolformer_ops.__main__ import app
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.records import Document, content_uuid
from toolformer_ops.stages.release import release_prefix
from toolformer_ops.storage.history import forgetting
from toolformer_ops.storage.history.forgetting import forget, withdraw
from toolformer_ops.storage.machine.temporary_folders import temporary_folder
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database, queries

SECRET = "Ms Secret of Elm Street earned 400 of 1400 crowns, that is 29 %, says the clerk."
OTHER = "Out of 1400 people, 400 passed, that is 29 % of them all."
SHARED_INPUT = "400 / 1400"
OWN_INPUT = "1400 - 400"
SAMPLING = recipe_id("sample", "Calculator")


class Corpus(AnnotatedRun):
    """A finished run over the text to forget and another; both ask for SHARED_INPUT, the first alone for OWN_INPUT."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, {"Calculator": 0.5})
        self.secret = self.add_text(SECRET)
        self.other = self.add_text(OTHER)
        self.add_call("Calculator", self.secret, " 29", SHARED_INPUT, "0.29", saves=1.25)
        self.own_call = self.add_call("Calculator", self.secret, " crowns", OWN_INPUT, "1000", saves=0.25)
        self.add_call("Calculator", self.other, " 29", SHARED_INPUT, "0.29", saves=1.0)
        self.complete("Calculator")
        self.variant_id = content_uuid(str(self.secret.document_id), "https://elm.street/", "")
        variant = {"document_id": self.variant_id, "text": SECRET, "url": "https://elm.street/"}
        self.write("documents", variant | {"variant_of": self.secret.document_id})
        for document in self.documents:
            key = {"document_id": document.document_id}
            at = {**key, "sampling_recipe_id": SAMPLING, "paragraph": 0, "position_char": 9}
            pruned = {"position_token": 3, "position_probability": 0.5, "gain_bound": 0.1}
            self.write("pruned_positions", at | pruned)
            lost = {"sample_key": document.document_id, "sample_text": document.text[:20], "sample_count": 1}
            self.write("lost_samples", at | lost | {"reason": "sample_does_not_parse"})
            overlap = {"suite": "math", "data_set": "gsm8k", "question": 1, "words": document.text[:30]}
            overlap |= {"run_id": self.run_id, "shared_ngrams": 1, "is_left_out": False}
            self.write("run_overlaps", key | overlap)
        for version in ("1", "2"):
            for asked in (SHARED_INPUT, OWN_INPUT):
                self.answer("Calculator", asked, version)
        raw = json.dumps({"text": SECRET}).encode()[:60]
        self.refuse(
            {3: f"Unterminated string: {raw!r}", 4: "found the fields question, answer and nothing else"}
        )
        for name, named in (("one", self.own_call), ("two", self.other.document_id)):
            result = {"run_id": self.run_id, "subject": "Calculator", "check_name": name, "severity": "warn"}
            found = {"observed": {"rows": 3, "examples": [{"id": str(named)}]}, "message": f"id {named}"}
            self.write("quality_results", result | found | {"success": False})
        self.insert(
            "proposer_endpoints",
            {"proposer": "p", "model": "m", "api": "chat", "licence": "mit", "parameters": "{}"},
        )
        for document in self.documents:
            reply = {"proposer": "p", "reply": json.dumps({"writings": [{"text": document.text}]})}
            key = {"request_key": document.document_id, "document_id": document.document_id}
            self.insert("proposer_answers", key | reply)
        self.release_id = release(settings, self.run_id)
        self.finish()

    def answer(self, tool: str, asked: str, version: str = "1") -> None:
        of_tool = {"tool": tool, "tool_version": version}
        self.write(
            "call_results", of_tool | {"input_key": content_uuid(asked), "input": asked, "results": ["0.29"]}
        )

    def refuse(self, details: dict[int, str]) -> None:
        """Lines of the corpus that were refused, each with its detail."""
        of_file = {"corpus_id": self.corpus_id, "file_uri": "file:///f", "reason": "corrupt_json"}
        lines = [of_file | {"line": line, "detail": detail} for line, detail in details.items()]
        self.write("rejected_documents", *lines)

    def spare(self, line: int, document: Document, why: str, record_id: str | None = None) -> None:
        place = {"corpus_id": self.corpus_id, "file_uri": "file:///f", "line": line}
        record = {"document_id": document.document_id, "record_id": record_id, "why": why}
        self.insert("corpus_spare_records", place | record)

    def insert(self, table: str, record: Mapping[str, object]) -> None:
        """Add a row to a table that takes no loads."""
        self.change(f"insert into {table} ({', '.join(record)}) values (:{', :'.join(record)})", **record)

    def finish(self, state: str = "success") -> None:
        finished_at = "null" if state == "running" else "now()"
        self.change(f"update annotation_runs set state = '{state}', finished_at = {finished_at}")

    def everything(self) -> dict[str, list[str]]:
        """Every row of every table, as text."""
        tables = "select tablename from pg_tables where schemaname = 'public'"
        found = {
            name: self.rows(f'select t::text from "{name}" t order by 1') for [name] in self.rows(tables)
        }
        return {name: [row for [row] in rows] for name, rows in found.items()}

    def tables_with(self, *needles: object) -> set[str]:
        rows = [(name, row) for name, of_table in self.everything().items() for row in of_table]
        return {name for name, row in rows if any(str(needle) in row for needle in needles)}


write = Corpus


@pytest.fixture
def corpus(settings, written):
    return written.value.in_copy(settings)


def command(*words: object, answer: str = "") -> str:
    """What `forget` prints."""
    result = CliRunner().invoke(app, ["forget", *map(str, words)], input=answer)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_no_table_holds_a_forgotten_text_or_what_came_of_it(corpus):
    before = corpus.everything()
    counted = forget(
        corpus.settings, [corpus.variant_id], dry_run=True
    )  # a variant names the text that it is of
    assert corpus.everything() == before
    found = forget(corpus.settings, [corpus.secret.document_id], reason="asked by letter")

    assert (counted.texts, +counted.rows, counted.places) == (found.texts, +found.rows, found.places)
    assert [(source.uri, source.texts, source.line) for source in counted.sources] == [("file:///f", 1, 1)]
    assert corpus.tables_with("Secret", "Elm Street", OWN_INPUT, "elm.street", corpus.variant_id) == set()
    # What remains is the mark, and the record of the release that holds the text: hashes.
    of_release = {"release_calls", "release_choices"}
    assert corpus.tables_with(corpus.secret.document_id) == {"forgotten_documents", *of_release}
    [mark] = corpus.rows("select reason, removed_at >= forgotten_at from forgotten_documents")
    assert tuple(mark) == ("asked by letter", True)
    assert found.texts == 1
    assert found.rows == {
        "documents": 2, "corpus_documents": 1, "filter_decisions": 1, "candidate_calls": 2, "pruned_positions": 1,
        "lost_samples": 1,
        "call_losses": 2, "stage_ledger": 4, "quality_results": 1, "rejected_documents": 1, "call_results": 2,
        "corpus_spare_records": 0, "text_bands": 0, "text_sketches": 0,
        "placebo_losses": 0, "call_information": 0, "placebo_pool_results": 0, "proposer_answers": 1,
    }  # fmt: skip
    # The other text has all of its rows still, among them the result that both asked for.
    after = corpus.everything()
    about_other = {
        name: {row for row in rows if str(corpus.other.document_id) in row}
        | {row for row in rows if name == "call_results" and SHARED_INPUT in row}
        for name, rows in before.items()
    }
    assert sum(bool(rows) for rows in about_other.values()) >= 9
    for name, rows in about_other.items():
        assert rows <= set(after[name]), name
    assert corpus.rows("select input from call_results") == [(SHARED_INPUT,), (SHARED_INPUT,)]
    assert corpus.rows("select line from rejected_documents where detail is null") == [(3,)]
    # Rows that a stage writes later are deleted by a second call.
    late = {
        "stage": "sample",
        "recipe_id": SAMPLING,
        "document_id": corpus.secret.document_id,
        "rows_written": 0,
    }
    corpus.write("stage_ledger", late)
    assert forget(corpus.settings, [corpus.secret.document_id]).rows["stage_ledger"] == 1


def test_a_refused_record_that_quotes_24_characters_of_a_text_in_a_row_is_rid_of_them(corpus):
    held = corpus.add_text("Zoë Hollow of Elm Street owed 31 crowns, says the clerk Noé Brontë.")
    text = held.text
    details = {10: text[-24:], 11: text[:24], 12: f"found {text[20:44]}", 13: f"{text[:23]}...{text[-23:]}"}
    # As a line of JSON in a file, with and without escapes: of the text itself no 24 characters are in them.
    of_json = [repr(json.dumps(held.text, ensure_ascii=escaped).encode())[3:27] for escaped in (True, False)]
    assert of_json == ["Zo\\\\u00eb Hollow of Elm ", "Zo\\xc3\\xab Hollow of Elm"]
    details |= {8: of_json[0], 9: of_json[1]}
    corpus.refuse(details)
    assert forget(corpus.settings, [held.document_id]).rows["rejected_documents"] == 5
    assert corpus.rows("select line from rejected_documents where line >= 8 and detail is not null") == [
        (13,)
    ]


def test_what_was_noted_of_a_forgotten_text_goes_with_it(corpus):
    secret, other, variant = corpus.secret.document_id, corpus.other.document_id, corpus.variant_id
    [(call,)] = corpus.rows("select call_id from candidate_calls where document_id = :id", id=other)
    noted = {"recipe_id": "r", "stage": "score", "tool": "Calculator", "run_id": "run-1"}
    failed = noted | {"reason": "process_killed", "deaths": 5}
    corpus.write(
        "failed_documents", *(failed | {"document_id": document} for document in (secret, variant, other))
    )
    with database.transaction(corpus.engine) as connection:
        for ids in ([other, secret], [variant], [other]):
            database.execute(connection, queries.tries.begin, **noted, document_ids=ids)
    judged = [
        (secret, corpus.own_call, None),
        (other, call, corpus.own_call),
        (other, call, uuid.UUID(int=9)),
    ]
    of_sample = {"release_id": corpus.release_id, "seed": 0, "tool": "Calculator", "scoring_recipe_id": "s"}
    for number, (document, shown, source) in enumerate(judged):
        asked = {"submission_id": uuid.UUID(int=number), "document_id": document, "call_id": shown}
        placebo = {"is_placebo": source is not None, "source_call_id": source}
        corpus.insert("judgements", of_sample | asked | placebo | {"reviewer": "ann", "verdict": "wrong"})
    corpus.answer(
        "Other", OWN_INPUT
    )  # another tool answers the same input, of which nobody has forgotten a call
    forget(corpus.settings, [secret])
    assert corpus.rows("select document_id from failed_documents") == [(other,)]
    assert corpus.rows("select document_ids from micro_batch_tries") == [([other],)]
    assert corpus.rows("select submission_id, source_call_id from judgements") == [
        (uuid.UUID(int=2), uuid.UUID(int=9))
    ]
    assert corpus.rows("select tool from call_results where input = :input", input=OWN_INPUT) == [("Other",)]


def test_a_killed_forgetting_is_continued_by_the_next(corpus, monkeypatch):
    third = corpus.add_text("A third text about nothing.")
    targets = [corpus.secret.document_id, third.document_id]
    with monkeypatch.context() as patched:
        patched.setattr(forgetting, "_quoting_rejections", Mock(side_effect=[[], KeyboardInterrupt]))
        with pytest.raises(KeyboardInterrupt):
            forget(corpus.settings, targets, texts_per_transaction=1)
    # One text is gone, the other is whole; both are marked, so that no ingestion takes them.
    assert corpus.rows("select count(*) from documents where document_id = any(:ids)", ids=targets) != [(0,)]
    assert {row.document_id for row in corpus.rows("select document_id from forgotten_documents")} == set(
        targets
    )

    forget(corpus.settings, texts_per_transaction=1)

    assert corpus.rows("select text from documents") == [(OTHER,)]
    assert corpus.rows("select input from call_results where tool_version = '1'") == [(SHARED_INPUT,)]
    assert corpus.rows("select count(*) from forgotten_inputs") == [(0,)]
    assert corpus.rows("select count(*) from forgotten_documents where removed_at is null") == [(0,)]


def test_an_unfinished_run_keeps_a_text_from_being_forgotten_only_if_it_uses_it(corpus):
    """The text left the corpus at version 2, and a run that was started then does not meet it."""
    secret = corpus.secret.document_id
    corpus.change("update corpus_documents set left_version = 2 where document_id = :id", id=secret)
    corpus.add_placebo("Calculator", corpus.secret, corpus.own_call, 0.5)
    recipe = recipe_id("placebo", "Calculator")
    drawn = {"placebo_recipe_id": recipe, "source": 0, "call_id": corpus.own_call, "document_id": secret}
    corpus.write("placebo_pool_results", drawn | {"result": "1000"})
    started = {"run_id": "run-2", "state": "running", "corpus_version": 2}
    started |= dict.fromkeys(("finished_at", "placebo_recipe_id"))
    for table in ("annotation_runs", "run_tools"):
        insert = f"insert into {table} select (jsonb_populate_record(o, cast(:v as jsonb))).* from {table} o"
        corpus.change(insert, v=json.dumps(started))
    of_run = "update annotation_runs set {} where run_id = 'run-2'"
    of_tools = "update run_tools set placebo_recipe_id = {} where run_id = 'run-2'"
    release_id = f"'{corpus.release_id}'"
    for made, undone in (
        (of_run.format("corpus_version = 1"), of_run.format("corpus_version = 2")),
        (of_run.format(f"chained_release_id = {release_id}"), of_run.format("chained_release_id = null")),
        (
            f"insert into run_releases values ('run-2', {release_id})",
            "delete from run_releases where run_id = 'run-2'",
        ),
        (of_tools.format(f"'{recipe}'"), of_tools.format("null")),
    ):
        corpus.change(made)
        with pytest.raises(UsageError, match="expected texts that no unfinished run uses, found run-2"):
            forget(corpus.settings, [secret])
        corpus.change(undone)
    assert forget(corpus.settings, [secret]).texts == 1
    assert corpus.rows("select text from documents") == [(OTHER,)]


def test_what_is_not_there_or_in_use_is_neither_forgotten_nor_withdrawn(corpus):
    secret = corpus.secret.document_id
    AnnotatedRun(corpus.settings, {"Calculator": 0.5}, "run-2").add_text(OTHER)
    for refused, named in (
        (lambda: forget(corpus.settings, [secret, uuid.UUID(int=0)]), "--document: .*found 0000"),
        (lambda: forget(corpus.settings, corpus="file:///corpora/never"), "--corpus"),
        # The texts of a corpus may stay in others: an unfinished run uses it nevertheless.
        (lambda: forget(corpus.settings, corpus="file:///corpora/run-2"), "found run-2"),
        (lambda: withdraw(corpus.settings, "release", "nothing"), "--release: .*found 'nothing'"),
    ):
        with pytest.raises(UsageError, match=named):
            refused()
    corpus.finish("running")
    with pytest.raises(UsageError, match="expected no unfinished run to use it, found run-1"):
        withdraw(corpus.settings, "release", corpus.release_id)
    assert corpus.rows("select count(*) from forgotten_documents") == [(0,)]


def test_all_texts_that_a_record_ever_had_are_forgotten_together(corpus):
    """Ms Secret's record has had three texts: of version 1, of version 2, and one that a later line of the same file replaced."""
    newer, replaced = (corpus.add_text(f"Ms Secret of Elm Street, {number}.") for number in (2, 3))
    for document, change in (
        (corpus.secret, "record_id = 'r7', left_version = 2"),
        (newer, "record_id = 'r7', first_version = 2"),
        (corpus.other, "record_id = 'r8'"),
    ):
        corpus.change(
            f"update corpus_documents set {change} where document_id = :id", id=document.document_id
        )
    corpus.change("delete from corpus_documents where document_id = :id", id=replaced.document_id)
    corpus.spare(20, replaced, "same_id_later", "r7")
    uri = "file:///corpora/run-1"
    before = corpus.everything()
    assert "1 texts to forget" in command("--document", corpus.secret.document_id, answer="n\n")
    assert corpus.everything() == before
    shown = command("--document", corpus.secret.document_id, "--yes")
    assert f"2 other texts of the same record: toolformer-ops forget --corpus {uri} --record r7" in shown
    assert f"toolformer-ops forget --release {corpus.release_id}" in shown
    assert corpus.tables_with("Elm Street") == {"documents"}

    with pytest.raises(UsageError, match=r"--record: .*found 'r9'"):
        forget(corpus.settings, corpus=uri, record_ids=["r7", "r9"])
    with pytest.raises(UsageError, match="expected --corpus"):
        command("--record", "r7", "--yes")
    assert "2 texts forgotten" in command("--corpus", uri, "--record", "r7", "--yes")
    assert corpus.tables_with("Elm Street") == set()
    assert corpus.rows("select text from documents") == [(OTHER,)]


def test_a_corpus_takes_the_texts_with_it_that_no_other_corpus_holds(corpus):
    second = AnnotatedRun(corpus.settings, {"Calculator": 0.5}, "run-2")
    shared: Document = second.add_text(OTHER)
    left = second.add_text("A text that the second corpus held once.")
    once: Document = second.add_text(SECRET)  # which the second corpus held once, too
    corpus.finish()
    leave = (
        "update corpus_documents set left_version = 2 where corpus_id = :corpus and document_id = any(:ids)"
    )
    second.change(leave, corpus=second.corpus_id, ids=[left.document_id, once.document_id])
    for line, spare in enumerate((corpus.secret, corpus.other), start=20):
        corpus.spare(line, spare, "duplicate")
    before = corpus.everything()
    counted = forget(corpus.settings, corpus="file:///corpora/run-1", dry_run=True)
    assert corpus.everything() == before

    done = forget(corpus.settings, corpus="file:///corpora/run-1")

    assert (counted.texts, +counted.rows) == (done.texts, +done.rows)
    assert done.texts == 1
    members = "select corpus_id, document_id from corpus_documents order by ordinal"
    assert corpus.rows(members) == [
        (second.corpus_id, shared.document_id),
        (second.corpus_id, left.document_id),
    ]
    assert corpus.rows("select count(*) from corpus_spare_records") == [(0,)]
    assert corpus.rows("select count(*) from rejected_documents where detail is not null") == [(0,)]
    assert corpus.tables_with("Secret") == set()
    assert corpus.tables_with(OTHER) == {"documents", "proposer_answers"}


@pytest.mark.parametrize("kind", ["release", "check-release", "audit", "history"])
def test_a_folder_that_a_killed_process_left_is_deleted(corpus, kind):
    folder = corpus.settings.state_dir / f"{kind}-killed"
    folder.mkdir(parents=True)
    (folder / "old.parquet").write_text(SECRET)
    assert forget(corpus.settings, [corpus.secret.document_id], dry_run=True).left_folders == [folder]
    assert folder.is_dir()
    assert forget(corpus.settings, [corpus.secret.document_id]).left_folders == [folder]
    assert not folder.exists()


def test_the_folder_of_a_living_process_stays(corpus):
    with temporary_folder(corpus.settings.state_dir, "release") as folder:
        assert forget(corpus.settings, [corpus.secret.document_id]).left_folders == []
        assert folder.is_dir()


def test_a_release_that_holds_a_forgotten_text_is_named_until_it_is_withdrawn(corpus):
    assert forget(corpus.settings, [corpus.add_text("A third text about nothing.").document_id]).places == []
    [place] = forget(corpus.settings, [corpus.secret.document_id]).places
    assert (place.kind, place.publication_id, place.withdrawn) == ("release", corpus.release_id, False)
    # A second call names it again: by the text, by the corpus, or for all forgotten texts.
    assert forget(corpus.settings, [corpus.secret.document_id]).places == [place]
    assert forget(corpus.settings, corpus="file:///corpora/run-1", dry_run=True).places == [place]
    assert forget(corpus.settings).places == [place]
    keys = withdraw(corpus.settings, "release", corpus.release_id, dry_run=True)
    store = ObjectStore(corpus.settings)
    assert all(store.exists(key) for key in keys)
    trainings = corpus.settings.state_dir / forgetting.TRAININGS
    copies = [
        trainings / "m1" / forgetting.training_release(corpus.release_id),
        trainings / "m2" / "release-another",
    ]
    for copy in copies:  # of trainings that did not end
        copy.mkdir(parents=True)
    document = corpus.secret.document_id
    shown = command("--document", document, answer="y\n")
    assert "1 texts to forget" in shown
    assert f"toolformer-ops forget --release {corpus.release_id}" in shown
    for arguments, answer in ((["--dry-run"], ""), ([], "y\n")):
        assert all(store.exists(key) for key in keys)
        command("--release", corpus.release_id, *arguments, answer=answer)
    assert f"withdrawn: release s3://{corpus.settings.s3_bucket}/releases/{corpus.release_id}" in command()
    with pytest.raises(UsageError, match="expected one of --document"):
        command("--document", document, "--corpus", "x")
    assert [path.exists() for path in copies] == [False, True]
    assert list(store.list(release_prefix(corpus.release_id))) == []
    [place] = forget(corpus.settings).places
    assert place.withdrawn
    assert withdraw(corpus.settings, "release", corpus.release_id) == []


def test_a_model_trained_on_the_release_is_named_to_be_withdrawn(corpus, tmp_path):
    store = ObjectStore(corpus.settings)
    (tmp_path / "weights").write_bytes(b"w")
    for name in ("m1", "m10"):  # m1 is how the other name begins
        store.publish(f"models/{name}", {"weights": tmp_path / "weights"})
    insert = (
        "insert into finetuned_models (model_id, release_id, run_id, uri, manifest_sha256) "
        "select 'm1', release_id, run_id, :uri, repeat('0', 64) from dataset_releases"
    )
    corpus.change(insert, uri=store.uri("models/m1"))
    places = forget(corpus.settings, [corpus.secret.document_id]).places
    assert [(place.kind, place.publication_id) for place in places] == [
        ("release", corpus.release_id),
        ("model", "m1"),
    ]
    corpus.finish("running")
    annotates = "parameters = parameters || jsonb_build_object('model', cast(:uri as text))"
    corpus.change(f"update annotation_runs set {annotates}", uri=store.uri("models/m1/"))
    with pytest.raises(UsageError, match="expected no unfinished run to use it, found run-1"):
        withdraw(corpus.settings, "model", "m1")
    corpus.finish()
    for name in ("m1", "m10"):
        store.put_if_absent(f"checkpoints/{name}/step-1/weights", tmp_path / "weights")
    withdraw(corpus.settings, "model", "m1")
    assert list(store.list("checkpoints/m1/")) == []  # of a later training that was interrupted
    assert len(list(store.list("checkpoints/m10/"))) == 1
    assert list(store.list("models/m1/")) == []
    assert store.read_manifest("models/m10") is not None
    assert corpus.rows("select withdrawn_at is not null from finetuned_models") == [(True,)]


def run_again(corpus: Corpus) -> list[uuid.UUID]:
    """The texts that a later run over the same version of the corpus releases, which has nothing to do."""
    with database.transaction(corpus.engine) as connection:
        uri = f"file:///corpora/{corpus.run_id}"
        [[parameters]] = connection.exec_driver_sql("select parameters::text from annotation_runs").all()
        register_run(
            connection, "run-2", corpus.corpus_id, uri, ["Calculator"], parameters,
            model_identity="no-such-model@1", limit=None,
        )  # fmt: skip
        register_tool(
            connection, "run-2", "Calculator", {stage: recipe_id(stage, "Calculator") for stage in STAGES},
            keep_threshold=0.5, prune_below=0.0, reads_record=False,
        )  # fmt: skip
    release_id = release(corpus.settings, "run-2")
    texts = "select distinct document_id from release_calls where release_id = :id order by 1"
    return [row.document_id for row in corpus.rows(texts, id=release_id)]


def test_a_run_over_the_same_version_does_not_release_a_text_that_was_forgotten(corpus):
    forget(corpus.settings, [corpus.secret.document_id])
    assert run_again(corpus) == [corpus.other.document_id]


def test_a_run_over_the_same_version_takes_the_release_of_the_run_before(corpus):
    assert run_again(corpus) == sorted([corpus.secret.document_id, corpus.other.document_id])
    assert corpus.rows("select count(*) from dataset_releases") == [(1,)]
