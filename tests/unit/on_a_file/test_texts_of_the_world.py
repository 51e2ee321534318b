"""What the world's files hold, a small input of each kind, as a file is read and a tool's filter asked.

Each row is a kind of input that a text of one paragraph with `text` and `date` is not; what is right stands
beside it.
"""

import bz2
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from toolformer_ops.annotation.filtering import filter_document
from toolformer_ops.config import Settings
from toolformer_ops.on_a_file.annotate.annotator import read_corpus
from toolformer_ops.runs.choices import FilterChoices
from toolformer_ops.storage.corpora.record_rules import Rejection
from toolformer_ops.tools.registry import get_tool

PROSE = "The ferry left the pier at dawn with twelve people on board. "
SUM = "They picked 14 pears and ate 5, so 9 pears were left. "
FRENCH = "il faut que nous partions demain matin avant que le soleil ne se lève"
MIXED = (
    "She looked at the old man for a long while and then she said to him quite slowly, "
    f"{FRENCH}, and after that she closed the door of the house behind her and went away."
)
WRAPPED = (
    "She looked at the old man for a long while and then she said to him\n"
    "quite slowly, il faut que nous partions demain matin avant que le\n"
    "soleil ne se lève, and after that she closed the door of the house\n"
    "behind her and went away."
)
NAMES = (
    "In the end the jury gave its prize to nobody, though it had heard Ana Lovric, Jens Mortensen, Pilar Ibarra, "
    "Tomasz Zielinski, Aiko Hayashi and Marek Dvorak, and it went home before the music had begun."
)


def line(text: str = PROSE, **fields: Any) -> bytes:
    """A record as a line of JSON."""
    return json.dumps({"text": text, **fields}).encode() + b"\n"


@dataclass(frozen=True)
class Kind:
    """A kind of input."""

    name: str
    tool: str
    content: bytes
    right: list[tuple[bool, str]]
    """Of each paragraph or piece: whether it is kept, and the reason."""
    file: str = "docs.jsonl"
    fields: tuple[str, ...] = ()
    choices: dict[str, Any] = field(default_factory=dict)


SHARP = {"filter_rule": "sharp"}
DIVIDED = {"max_text_tokens": 40}
KINDS = [
    Kind(
        "a long text of which one piece holds a sum",
        "Calculator",
        line(f"{SUM * 2}\n\n{PROSE * 2}\n\n{PROSE * 2}"),
        [
            (True, "rule_i_result_of_two_others"),
            (False, "fewer_than_three_numbers"),
            (False, "fewer_than_three_numbers"),
        ],
        choices=DIVIDED,
    ),
    Kind("a foreign phrase", "MT", line(MIXED), [(True, "foreign_between_english")]),
    Kind("hard-wrapped text", "MT", line(WRAPPED), [(True, "foreign_between_english")]),
    Kind("names of many countries", "MT", line(NAMES), [(False, "no_foreign_chunk")]),
    Kind("a date that stands for none", "Calendar", line(date="0001-01-01"), [(False, "no_url")]),
    Kind(
        "the day of a crawl behind the day in the address",
        "Calendar",
        line(url="https://example.com/2014/03/09/ferry", date="2020-02-02T10:00:00Z"),
        [(True, "earlier_date_in_url")],
    ),
    Kind(
        "a day in a title",
        "Calendar",
        line(url="https://example.com/2019/05/july-4-1996-remembered"),
        [(False, "dates_conflict_in_url")],
    ),
    Kind(
        "a day in a question to a server",
        "Calendar",
        line(url="https://example.com/list?since=2018-06-01"),
        [(False, "no_date_in_url")],
    ),
    Kind(
        "the day of an archive",
        "Calendar",
        line(url="https://archive.example.com/web/20160708/http://example.com/ferry"),
        [(False, "no_date_in_url")],
    ),
    Kind(
        "a date of a mail",
        "Calendar",
        line(date="Tue, 11 Apr 2017 08:30:00 +0200"),
        [(True, "date_in_record")],
    ),
    Kind("a date with slashes", "Calendar", line(date="2017/04/11"), [(True, "date_in_record")]),
    Kind(
        "the text under another name",
        "Calculator",
        json.dumps({"raw_content": SUM}).encode(),
        [(True, "rule_i_result_of_two_others")],
        fields=("text=raw_content",),
    ),
    Kind(
        "a file packed by xz",
        "Calculator",
        lzma.compress(line(SUM)),
        [(True, "rule_i_result_of_two_others")],
        file="docs.jsonl.xz",
    ),
    Kind(
        "a file packed by bzip2 without a known ending",
        "Calculator",
        bz2.compress(line(SUM)),
        [(True, "rule_i_result_of_two_others")],
        file="part-00000",
    ),
    Kind(
        "numbers of a list, by the paper's rule",
        "Calculator",
        line("Before you leave:\n1. Lock the shed.\n2. Feed the cat.\n3. Close the gate."),
        [(True, "rule_i_result_of_two_others")],
    ),
    Kind(
        "numbers of a list",
        "Calculator",
        line("Before you leave:\n1. Lock the shed.\n2. Feed the cat.\n3. Close the gate."),
        [(False, "fewer_than_three_numbers")],
        choices=SHARP,
    ),
    Kind(
        "days and clocks",
        "Calculator",
        line("Changed on 2019-03-05 at 12:30, again on 2019-03-08 at 09:15."),
        [(False, "fewer_than_three_numbers")],
        choices=SHARP,
    ),
    Kind(
        "a share in per cent",
        "Calculator",
        line("Of 640 houses on the island 512 have a boat, or 80 %."),
        [(True, "percentage_of_two_others")],
        choices=SHARP,
    ),
    Kind(
        "a page break",
        "Calculator",
        line(f"{SUM}\f{PROSE}"),
        [(True, "rule_i_result_of_two_others")],
    ),
    Kind(
        "a link that looks like a call",
        "Calculator",
        line(f"See [[Calendar (New South Wales)|the calendar]] and [QA (quality)]. {SUM}"),
        [(True, "rule_i_result_of_two_others")],
    ),
    Kind(
        "a call with its result",
        "Calculator",
        line(f"{SUM} It has [Calculator(14 - 5) -> 10] pears."),
        [(False, "holds_call_markup")],
    ),
    Kind(
        "Chinese characters, which are two tokens each",
        "QA",
        line("渡船在黎明时离开了码头。" * 10),
        [(True, "every_text")] * 6,
        choices=DIVIDED,
    ),
]


def decisions(kind: Kind, address: str) -> Iterator[tuple[bool, str]]:
    """Whether each paragraph or piece of a file is kept, and why; a record that cannot be read is not."""
    for _, record in read_corpus(Settings(), address):
        if isinstance(record, Rejection):
            yield False, record.reason
            continue
        for decision in filter_document(
            get_tool(kind.tool), record.document(), FilterChoices(**kind.choices)
        ):
            yield decision.kept, decision.reason


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_of_text_gets_what_is_right(kind, tmp_path):
    file = tmp_path / kind.file
    file.write_bytes(kind.content)
    address = " ".join([str(file), *(f"--field {name}" for name in kind.fields)])
    assert list(decisions(kind, address)) == kind.right


def test_a_file_that_is_not_read_is_named(tmp_path, caplog):
    (tmp_path / "docs.jsonl").write_bytes(line(SUM))
    (tmp_path / "notes.docx").write_bytes(b"PK\x03\x04")
    list(read_corpus(Settings(), tmp_path))
    assert "notes.docx" in caplog.text
