"""Workers on one folder: its files are those of an undisturbed worker, whoever was killed, started twice or beside others."""

import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.annotated_files import annotate_file
from tests.fake_language_model import FakeLanguageModel, StoppedError
from toolformer_ops.cli.on_a_file import app
from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, CorruptObjectError, DeviceMemoryError, UsageError
from toolformer_ops.on_a_file.annotate import annotator as tool_annotator
from toolformer_ops.on_a_file.annotate.annotator import distinct_documents
from toolformer_ops.on_a_file.annotate.call_parts import ledger_of
from toolformer_ops.on_a_file.annotate.call_table import printed
from toolformer_ops.on_a_file.annotate.workers import HEADER, Worker, finished_shards
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.run_tools import Shard
from toolformer_ops.storage.objects.parts import FolderParts, ObjectParts

TEXTS = [f"Box {n} holds {n} pens and 1 cap, a total of {n + 1} things." for n in range(2, 22)]
SCRIPT = [f"Calculator({number} + 1)" for number in range(2, 6)]
VALUES: dict[str, Any] = {"preset": "small_model", "max_positions": 3, "samples_per_position": 4}

Files = dict[str, bytes]


@pytest.fixture(autouse=True)
def model(monkeypatch):
    fake = FakeLanguageModel(SCRIPT)
    monkeypatch.setattr(tool_annotator, "load_scoring_model", fake.load)
    return fake


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def worker(corpus: Path, out: Path | str, shards: int = 3, **values: Any) -> Worker:
    choices = RunChoices.parse(
        {**VALUES, **values, "tools": ["Calculator"], "corpus": str(corpus), "model": "fake"}
    )
    return Worker.of(Settings(), choices, str(out), shards, 4)


def files_of(folder: Path) -> Files:
    """The files of a folder but for who began what."""
    parts = FolderParts(folder)
    return {name: parts.get(name) or b"" for name in parts.names() if not name.startswith("claims/")}


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory):
    """The files of one worker, made once for all tests."""
    out = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool_annotator, "load_scoring_model", FakeLanguageModel(SCRIPT).load)
        worker(corpus, out).work()
    return files_of(out)


@pytest.fixture
def finished(undisturbed, tmp_path):
    """A folder of the test's own with these files."""
    for name, content in undisturbed.items():
        FolderParts(tmp_path / "finished").put(name, content)
    return tmp_path / "finished"


def rows_in(files: Files) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, content in files.items():
        if name.startswith("calls/"):
            rows += ledger_of(name, content)[1].to_pylist()
    return rows


def test_the_rows_of_a_folder_are_those_of_a_file(corpus, undisturbed):
    lines = annotate_file(Settings(), corpus, "Calculator", "fake", VALUES)
    by_id = {row["call_id"]: row for row in lines}
    assert {row["call_id"]: printed(row) for row in rows_in(undisturbed)} == by_id
    assert len(by_id) > len(TEXTS)


def test_shards_of_their_own_workers_have_the_files_of_one_worker(corpus, tmp_path, undisturbed):
    for shard in (2, 0, 1):
        worker(corpus, tmp_path / "out").work(shard)
    assert files_of(tmp_path / "out") == undisturbed


def test_a_worker_that_is_started_again_changes_nothing(corpus, finished, undisturbed):
    worker(corpus, finished).work()
    assert files_of(finished) == undisturbed


def test_a_finished_folder_is_not_annotated_again(corpus, finished, model):
    worker(corpus, finished).work()
    assert model.seen == []


def test_what_a_dead_worker_has_begun_is_done(corpus, tmp_path, undisturbed):
    parts = FolderParts(tmp_path / "out")
    worker(corpus, tmp_path / "out")
    for name in undisturbed:
        parts.put(f"claims/{name}", b"dead")
    worker(corpus, tmp_path / "out").work()
    assert files_of(tmp_path / "out") == undisturbed


@dataclass
class Killed(FolderParts):
    """Parts whose process ends before or after a put."""

    folder: Path
    puts_left: int
    is_before: bool

    def __post_init__(self) -> None:
        super().__init__(self.folder)

    def put(self, name: str, content: bytes) -> bool:
        if self.puts_left == 0 and self.is_before:
            raise StoppedError(name)
        is_put = super().put(name, content)
        if self.puts_left == 0:
            raise StoppedError(name)
        self.puts_left -= 1
        return is_put


def work_until_killed(killed: Worker, folder: Path, puts: int, is_before: bool) -> None:
    """Let a worker be killed before or after it has put so many files."""
    parts = Killed(folder, puts, is_before)
    killed.annotation.parts = parts
    killed.annotation.claim = lambda part: parts.put(f"claims/{part}", b"killed")
    with pytest.raises(StoppedError):
        killed.work()


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("puts", range(0, 19, 3))
def test_the_files_after_a_kill_at_any_file_are_those_of_an_undisturbed_worker(
    corpus, tmp_path, undisturbed, puts, is_before
):
    work_until_killed(worker(corpus, tmp_path / "out"), tmp_path / "out", puts, is_before)
    worker(corpus, tmp_path / "out").work()
    assert files_of(tmp_path / "out") == undisturbed


def interleaved(
    corpus: Path, out: Path, workers: int, start: Callable[[Path, Path], Worker] = worker
) -> Iterator[None]:
    """Each worker works up to its next claim in turn: none waits for another."""

    turns = [threading.Semaphore(0) for _ in range(workers)]
    done = threading.Semaphore(0)

    def run(number: int) -> None:
        turns[number].acquire()
        one = start(corpus, out)
        claim = one.annotation.claim

        def claim_in_turn(part: str) -> bool:
            done.release()
            turns[number].acquire()
            return claim(part)

        one.annotation.claim = claim_in_turn
        one.work()
        ended[number] = True
        done.release()

    ended = [False] * workers
    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(workers)]
    for thread in threads:
        thread.start()
    while not all(ended):
        for number, turn in enumerate(turns):
            if not ended[number]:
                turn.release()
                done.acquire()
                yield


def test_three_workers_at_once_leave_the_files_of_one(corpus, tmp_path, undisturbed):
    for _ in interleaved(corpus, tmp_path / "out", 3):
        pass
    assert files_of(tmp_path / "out") == undisturbed


def test_workers_share_the_texts(corpus, tmp_path, model):
    for _ in interleaved(corpus, tmp_path / "out", 2):
        pass
    once = len(TEXTS) * 2  # positions, and losses
    assert model.added.count(TEXTS[0]) <= 3
    assert len(model.seen) < 3 * once


def test_the_summary_counts_all_finished_shards(corpus, tmp_path):
    worker(corpus, tmp_path / "out").work(1)
    worker(corpus, tmp_path / "out").work(2)
    finished, counts = finished_shards(FolderParts(tmp_path / "out"), ("Calculator",))
    ledgers = [
        json.loads(content) for name, content in files_of(tmp_path / "out").items() if "ledger" in name
    ]
    assert (finished, counts.texts) == (2, sum(ledger["texts"] for ledger in ledgers))
    assert 0 < counts.tools["Calculator"].done < len(TEXTS)


def test_the_rate_of_a_folder_is_that_of_a_file(corpus, tmp_path):
    words = ["annotate", str(corpus), "--tools", "Calculator", "--model", "fake"]
    words += ["--parameters", json.dumps({"max_positions": 3, "samples_per_position": 4})]
    runner = CliRunner()
    of_file = runner.invoke(app, [*words, "--out", str(tmp_path / "calls.jsonl")], catch_exceptions=False)
    of_folder = runner.invoke(app, [*words, "--out", f"{tmp_path}/calls/"], catch_exceptions=False)
    [rate] = [line for line in of_file.stderr.splitlines() if "kept by chance" in line]
    assert rate in of_folder.stderr
    assert "1 of 1 shards are finished, 20 texts" in of_folder.stderr.replace("\n", " ")


def test_a_later_pool_is_no_larger_than_it_needs_to_be(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("toolformer_ops.on_a_file.annotate.annotation.POOL_CALLS", 20)
    worker(corpus, tmp_path / "out", placebo_sample=10).work()
    pooled = [name for name in files_of(tmp_path / "out") if name.startswith("pool/")]
    assert len(pooled) == 1


def test_the_rows_of_a_small_pool_do_not_depend_on_shards(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("toolformer_ops.on_a_file.annotate.annotation.POOL_CALLS", 20)
    rows = []
    for shards in (1, 5):
        worker(corpus, tmp_path / str(shards), shards, placebo_sample=10).work()
        of_folder = rows_in(files_of(tmp_path / str(shards)))
        rows.append({row["call_id"]: row for row in of_folder})
    assert rows[0] == rows[1]


@pytest.fixture
def files(tmp_path):
    """A corpus of five files."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(5):
        lines = [json.dumps({"text": text}) + "\n" for text in TEXTS[number::5]]
        (folder / f"{number}.jsonl").write_text("".join(lines))
    return folder


def test_a_shard_of_a_corpus_of_many_files_reads_every_so_many_of_them(files):
    names = [name for name, _ in distinct_documents(Settings(), str(files), None, Shard(1, 2))]
    assert {name.partition(":")[0] for name in names} == {"1.jsonl", "3.jsonl"}


def test_the_shards_of_many_files_are_the_corpus(files):
    shards = [distinct_documents(Settings(), str(files), None, Shard(number, 3)) for number in range(3)]
    texts = [document.text for shard in shards for _, document in shard]
    assert sorted(texts) == sorted(TEXTS)


def test_a_limited_corpus_is_divided_by_its_texts(files):
    shards = [distinct_documents(Settings(), str(files), 11, Shard(number, 3)) for number in range(3)]
    texts = [document.text for shard in shards for _, document in shard]
    whole = [document.text for _, document in distinct_documents(Settings(), str(files), 11)]
    assert sorted(texts) == sorted(whole)


def test_a_shard_whose_files_hold_no_text_is_finished(files, tmp_path):
    (files / "1.jsonl").write_text("")
    worker(files, tmp_path / "out", 5).work()
    assert finished_shards(FolderParts(tmp_path / "out"), ("Calculator",))[0] == 5


def test_the_rows_of_many_files_are_those_of_one(corpus, files, tmp_path, undisturbed):
    worker(files, tmp_path / "out").work()
    by_id = {row["call_id"]: row["loss_with_result"] for row in rows_in(files_of(tmp_path / "out"))}
    assert by_id == {row["call_id"]: row["loss_with_result"] for row in rows_in(undisturbed)}


def texts_by_id() -> dict[str, str]:
    return {str(Document.of(text).record_id): text for text in TEXTS}


def leave_tries(out: Path, *tries: Sequence[str], pid: int, host: str = "") -> None:
    """Processes of this number that began these texts, and never said that they ended."""
    ids = {text: key for key, text in texts_by_id().items()}
    for number, texts in enumerate(tries):
        begun = {"host": host or socket.gethostname(), "pid": pid, "texts": [ids[text] for text in texts]}
        FolderParts(out).put(f"tries/Calculator/{number:06d}-0.json", json.dumps(begun).encode())


@pytest.fixture
def dead():
    """The number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


DEADLY, OTHER = TEXTS[3], TEXTS[4]
FOUR_DEATHS = ([DEADLY, OTHER], [DEADLY, OTHER], [DEADLY, OTHER], [DEADLY])


def test_a_text_that_kills_its_process_again_and_again_is_set_apart(corpus, tmp_path, undisturbed, dead):
    worker(corpus, tmp_path / "out")
    leave_tries(tmp_path / "out", *FOUR_DEATHS, pid=dead)
    worker(corpus, tmp_path / "out").work()
    rows = rows_in(files_of(tmp_path / "out"))
    left_out = Document.of(DEADLY).document_id
    others = [row["call_id"] for row in rows_in(undisturbed) if row["document_id"] != str(left_out)]
    assert sorted(row["call_id"] for row in rows) == sorted(others)


def test_a_text_that_is_set_apart_is_counted_under_its_reason(corpus, tmp_path, dead):
    worker(corpus, tmp_path / "out")
    leave_tries(tmp_path / "out", *FOUR_DEATHS, pid=dead)
    worker(corpus, tmp_path / "out").work()
    _, counts = finished_shards(FolderParts(tmp_path / "out"), ("Calculator",))
    assert counts.tools["Calculator"].nothing["process_killed"] == 1


ALIVE = [({"pid": 1}, "alive"), ({"pid": 2**22 + 1, "host": "another"}, "elsewhere")]


@pytest.mark.parametrize(("process", "_where"), ALIVE)
def test_a_process_that_may_be_alive_is_no_death(corpus, tmp_path, undisturbed, process, _where):
    worker(corpus, tmp_path / "out")
    leave_tries(tmp_path / "out", *FOUR_DEATHS, **process)
    worker(corpus, tmp_path / "out").work()
    files = {name: content for name, content in files_of(tmp_path / "out").items() if "tries/" not in name}
    assert files == undisturbed


@dataclass
class SmallMemory(FakeLanguageModel):
    """Has too little memory for one text, and for more than three."""

    def find_positions(self, prompt: object, texts: Sequence[str], **numbers: Any) -> Any:
        if len(texts) > 3 or DEADLY in texts:
            raise DeviceMemoryError("too little")
        return super().find_positions(prompt, texts, **numbers)


def test_a_text_that_does_not_fit_into_memory_is_set_apart(corpus, tmp_path, undisturbed, monkeypatch):
    monkeypatch.setattr(tool_annotator, "load_scoring_model", SmallMemory(SCRIPT).load)
    worker(corpus, tmp_path / "out").work()
    counts = finished_shards(FolderParts(tmp_path / "out"), ("Calculator",))[1].tools["Calculator"]
    assert (counts.done, counts.nothing["out_of_memory"]) == (len(TEXTS), 1)


def test_where_no_text_fits_into_memory_the_machine_is_to_blame(tmp_path, monkeypatch):
    monkeypatch.setattr(tool_annotator, "load_scoring_model", SmallMemory(SCRIPT).load)
    (tmp_path / "docs.jsonl").write_text(json.dumps({"text": DEADLY}) + "\n")
    with pytest.raises(DeviceMemoryError):
        worker(tmp_path / "docs.jsonl", tmp_path / "out").work()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1}, "expected recipes .* as the other workers on .*, found .* Start all with the same command"),
    ({"shards": 4}, "expected shards 3 as the other workers"),
    ({"document_limit": 5}, "expected document_limit null as the other workers"),
    ({"keep_thresholds": {"Calculator": 0.5}}, "expected keep_thresholds"),
    ({"placebos": 2}, r"expected placebos \[1, 2000\]"),
    ({"shards": 1, "until_kept": 5}, "expected shards 3 as the other workers|expected until_kept null"),
]


@pytest.mark.parametrize(("values", "said"), REFUSED)
def test_a_worker_with_other_choices_is_refused(corpus, tmp_path, values, said):
    worker(corpus, tmp_path / "out")
    with pytest.raises(UsageError, match=said):
        worker(corpus, tmp_path / "out", **values)


def test_a_worker_on_another_corpus_is_refused(corpus, tmp_path):
    worker(corpus, tmp_path / "out")
    other = tmp_path / corpus.name
    other.write_text(json.dumps({"text": TEXTS[0]}) + "\n")
    with pytest.raises(UsageError, match="expected corpus_files"):
        worker(other, tmp_path / "out")


OTHERS = [
    ("data.csv", "mine", r"expected an empty folder or calls of .*, found data.csv\. Name another folder"),
    (HEADER, "mine", "found another file. Name another folder"),
    (
        HEADER,
        '{"format": "toolformer-ops/calls/9"}',
        "expected calls of the format toolformer-ops/calls/2 in",
    ),
]


@pytest.mark.parametrize(("name", "content", "said"), OTHERS)
def test_a_folder_of_something_else_is_refused(corpus, tmp_path, name, content, said):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text(content)
    with pytest.raises(UsageError, match=said):
        worker(corpus, tmp_path / "out")


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], lambda content: b"mine"])
def test_a_damaged_file_is_named_with_the_remedy(corpus, finished, undisturbed, damage):
    [name, *_] = [name for name in undisturbed if name.startswith("calls/")]
    (finished / name).write_bytes(damage(undisturbed[name]))
    for ledger in (finished / "ledger").iterdir():
        ledger.unlink()
    with pytest.raises(CorruptObjectError, match=f"{name}: .*Remove it, and start the command again"):
        worker(corpus, finished).work()


def test_a_removed_file_is_annotated_anew(corpus, finished, undisturbed):
    for name in undisturbed:
        if name.startswith(("calls/", "ledger/")):
            (finished / name).unlink()
    worker(corpus, finished).work()
    assert files_of(finished) == undisturbed


def test_no_text_is_refused_as_elsewhere(tmp_path):
    (tmp_path / "docs.jsonl").write_text("")
    with pytest.raises(CorpusError, match="expected JSON Lines"):
        worker(tmp_path / "docs.jsonl", tmp_path / "out").work()


class ForgetfulObjects:
    """An S3 that writes over what is there, whatever it is told."""

    def put_if_absent(self, key: str, content: bytes) -> bool:
        return True

    def uri(self, key: str) -> str:
        return f"s3://bucket/{key}"

    def delete(self, key: str) -> None:
        """Nothing stays."""


def test_a_store_that_ignores_put_if_absent_is_refused():
    with pytest.raises(UsageError, match="expected a store that keeps an object it has"):
        ObjectParts(ForgetfulObjects(), "calls").require_put_if_absent()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--shards", "2"], "expected --out with a folder"),
        (["--shards", "2", "--out", "calls.jsonl"], "found calls.jsonl. Name one"),
        (
            ["--shards", "2", "--shard", "2", "--out", "calls/"],
            r"expected a number from 0 to 1 \(--shards 2\), found 2",
        ),
    ],
)
def test_shards_without_a_folder_are_refused(corpus, options, said):
    ended = CliRunner().invoke(
        app, ["annotate", str(corpus), "--tools", "Calculator", "--model", "fake", *options]
    )
    with pytest.raises(UsageError, match=said):
        raise ended.exception or AssertionError


UNTIL: dict[str, Any] = {"until_kept": 3, "keep_rule": "probability", "placebos": 1, "placebo_sample": 9}


def until_kept(corpus: Path, out: Path, **values: Any) -> Worker:
    """A worker on so many kept calls, with parts of few texts."""
    first = worker(corpus, out, 1, **{**UNTIL, **values})
    first.annotation.pool_texts = 3
    return first


def final_files(folder: Path) -> Files:
    """The files of a folder but for what was looked at on the way, which may be more than is needed."""
    looked_at = ("pool/", "until/", "tries/")
    return {name: content for name, content in files_of(folder).items() if not name.startswith(looked_at)}


@pytest.fixture
def until_enough(corpus, tmp_path):
    """The files of an undisturbed worker that ends with enough kept calls."""
    until_kept(corpus, tmp_path / "undisturbed").work()
    return final_files(tmp_path / "undisturbed")


def test_workers_until_enough_calls_are_kept_have_the_rows_of_a_file(corpus, until_enough):
    by_id = {
        row["call_id"]: row for row in annotate_file(Settings(), corpus, "Calculator", "fake", VALUES | UNTIL)
    }
    assert {row["call_id"]: printed(row) for row in rows_in(until_enough)} == by_id
    assert sum(row["kept"] for row in by_id.values()) == 3


def test_of_too_few_kept_calls_workers_have_all_texts(corpus, tmp_path):
    until_kept(corpus, tmp_path / "out", until_kept=1000).work()
    lines = annotate_file(Settings(), corpus, "Calculator", "fake", VALUES | UNTIL | {"until_kept": None})
    rows = rows_in(final_files(tmp_path / "out"))
    assert {row["call_id"] for row in rows} == {line["call_id"] for line in lines}


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("puts", range(0, 12, 2))
def test_a_kill_before_enough_calls_are_kept_changes_no_file(corpus, tmp_path, until_enough, puts, is_before):
    work_until_killed(until_kept(corpus, tmp_path / "out"), tmp_path / "out", puts, is_before)
    until_kept(corpus, tmp_path / "out").work()
    assert final_files(tmp_path / "out") == until_enough


@pytest.mark.parametrize("workers", [2, 5])
def test_workers_at_once_keep_the_calls_of_one(corpus, tmp_path, until_enough, workers):
    for _ in interleaved(corpus, tmp_path / "out", workers, until_kept):
        pass
    assert final_files(tmp_path / "out") == until_enough


def test_several_shards_until_enough_calls_are_kept_are_refused(corpus, tmp_path):
    with pytest.raises(UsageError, match="--shards: expected 1 beside --until-kept"):
        worker(corpus, tmp_path / "out", until_kept=5)
