"""What the paragraphs of a text are: lines, or in hard-wrapped text what stands between blank lines."""

import re
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolformer_ops.tools.paragraphs import on_one_line, paragraphs

RIVER = (
    "The old man walked slowly along the river and looked at the boats that came down from the hills, laden "
    "with apples and with wood; he knew all of them, and most of them knew him."
)
HOME = (
    "Then he went home again and spoke to nobody about it for a year, since there was nobody who would have "
    "listened to him."
)
ANSWER = (
    "I think that you are right, and I will send another version tomorrow, after I have looked at the other "
    "two places where it is taken."
)
HEADING = "CHAPTER II"
_LINE_START = re.compile(r"(?m)^(?:> ?)+")


def wrapped(text: str, *, first: str = "", prefix: str = "", width: int = 72, line_end: str = "\n") -> str:
    """A paragraph as mail programs wrap it; `first` stands before its first line, `prefix` before the others."""
    return line_end.join(textwrap.wrap(text, width, initial_indent=first or prefix, subsequent_indent=prefix))


def quoted(text: str, mark: str = "> ") -> str:
    return wrapped(text, prefix=mark)


def texts_of(text: str) -> list[str]:
    """The paragraphs on one line each, without the quotation marks before their lines."""
    joined = [_LINE_START.sub(" ", text[start:end]) for start, end in paragraphs(text)]
    return [" ".join(lines.split()) for lines in joined]


SONNET = """\
Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date:
"""
ADDRESS = "Toolmakers' Company\n12 Main Street\nSpringfield\nthe United States"
TABLE = """\
Quarter    Revenue    Costs     Profit in thousands
first      1,200      1,000     200
second     1,400      1,150     250
third      1,600      1,300     300"""
DRAWN_TABLE = "+----------+--------------+\n| an octet | its meaning  |\n| 0        | nothing      |\n+----------+--------------+"
SUMS = """\
There are 7 * 5 = 35 dolls in the big boxes.
There are 4 * 9 = 36 dolls in the small boxes.
There are 35 + 36 = 71 dolls altogether.
#### 71"""
EQUATIONS = "Let x be the number of home runs that Dave Winfield hit\nx+175=755\nx=580"
CHINESE = (
    "人人生而自由在尊严和权利上一律平等他们赋有理性和良心并应\n"
    "以兄弟关系的精神相对待人人有资格享有本宣言所载的一切权利\n"
    "和自由不分种族肤色性别语言宗教政治或其他见解"
)
GERMAN = (
    "Der alte Mann ging langsam am Fluss entlang und sah den Booten nach, die von den Bergen kamen, mit "
    "Äpfeln und Holz beladen; er kannte sie alle, und die meisten kannten ihn."
)

ONE_PARAGRAPH = {
    "on one line": RIVER,
    "wrapped at 72 columns": wrapped(RIVER),
    "wrapped at 60 columns": wrapped(RIVER, width=60),
    "lines that end with CR and LF": wrapped(RIVER, line_end="\r\n"),
    "lines that end with CR": wrapped(RIVER, line_end="\r"),
    "U+2028, which breaks lines within a paragraph": RIVER.replace("; ", "; \u2028"),
    "indented": wrapped(RIVER, prefix="   "),
    "an indented first line": wrapped(RIVER, first="    "),
    "quoted in mail": quoted(RIVER),
    "two lines, of which the second goes on": wrapped(HOME),
    "an item whose later lines hang": wrapped(RIVER, first="o  ", prefix="   "),
    "another language": wrapped(GERMAN),
    "with an address that is longer than a line": wrapped(f"{RIVER} See https://example.org/{'a' * 90} or ask him why it is so."),
}  # fmt: skip


@pytest.mark.parametrize("text", ONE_PARAGRAPH.values(), ids=ONE_PARAGRAPH)
def test_one_paragraph_is_one(text):
    assert texts_of(text) == [" ".join(_LINE_START.sub(" ", text).split())]


LINES = {
    "paragraphs of one line each": f"{RIVER}\n{HOME}\n{ANSWER}",
    "verse": SONNET,
    "short verse": "so much depends\nupon\na red wheel\nbarrow",
    "an address": ADDRESS,
    "a table": TABLE,
    "a drawn table": DRAWN_TABLE,
    "a list": "- apples from the old man's garden\n- wood\n- a boat that came down the river with the rest",
    "a sum in steps": SUMS,
    "equations": EQUATIONS,
    "a menu": "About us\nContact\nprivacy policy\nterms of use",
}


@pytest.mark.parametrize("text", LINES.values(), ids=LINES)
def test_lines_that_are_not_wrapped_are_paragraphs(text):
    assert texts_of(text) == [" ".join(line.split()) for line in text.splitlines()]


WIDE = "He has lived for more than forty years in the house on the corner of\nMain Street."
"""Two lines of which the second begins with a capital."""
THREE = [RIVER, HOME, ANSWER]
SEVERAL = [
    # Separated by blank lines
    ("\n\n".join(map(wrapped, THREE)), THREE),
    ("\n \t\n".join(map(wrapped, THREE)), THREE),
    ("\n\n".join(map(wrapped, THREE)).replace("\n", "\r\n"), THREE),
    (f"{HEADING}\n\n{wrapped(RIVER)}", [HEADING, RIVER]),
    (f"{wrapped(RIVER)}\n\n-- \nJohn\nMain Street", [RIVER, "--", "John", "Main Street"]),
    (f"{wrapped(RIVER)}\n\n{WIDE}", [RIVER, WIDE.replace("\n", " ")]),
    (f"{CHINESE}\n\n{CHINESE}", [CHINESE.replace("\n", " ")] * 2),
    # By a first line that is indented, or a last one that is short
    ("\n".join(wrapped(text, first="    ") for text in THREE), THREE),
    (f"{wrapped(RIVER)}\n{wrapped(ANSWER)}", [RIVER, ANSWER]),
    # By other characters than a line feed
    (f"{RIVER}\u2029{HOME}", [RIVER, HOME]),
    (f"{RIVER}\x85{HOME}", [RIVER, HOME]),
    # At a page break with a footer and a header, and not at one within a paragraph
    (f"{wrapped(RIVER)}\n\n    [Page 1]\n\f\nTCP\n\n{wrapped(HOME)}", [RIVER, "[Page 1]", "TCP", HOME]),
    (wrapped(RIVER).replace("\n", "\n\f", 1), [RIVER]),
    # Mail: quoted, quoted twice, and an answer on one long line
    (f"{quoted(RIVER)}\n>\n{quoted(HOME)}\n{ANSWER}", THREE),
    (f"{quoted(RIVER, '> > ')}\n{quoted(HOME)}", [RIVER, HOME]),
    # A wrapped block beside lines that are not wrapped
    (f"{wrapped(RIVER)}\n\n{HOME}\n{ANSWER}", THREE),
    # Items of a list
    ("\n".join(wrapped(text, first=" * ", prefix="   ") for text in THREE), [f"* {text}" for text in THREE]),
    ("\n".join(wrapped(f"1. {text}") for text in THREE), [f"1. {text}" for text in THREE]),
    # Nothing
    (" \n\t\r\n>\n \u2028 \n", []),
]


@pytest.mark.parametrize(("text", "expected"), SEVERAL)
def test_paragraphs_end_where_their_author_ended_them(text, expected):
    assert texts_of(text) == expected


def test_a_wrapped_text_on_one_line_has_neither_line_breaks_nor_marks_of_quotation():
    assert on_one_line("> > When the\r\n> > guests\n\n  had > gone\n>she") == "When the guests had > gone she"


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.text(alphabet="aB1. >\n\r\t\f\u2028\u2029-|好", max_size=200))
def test_all_but_white_space_between_lines_is_in_one_paragraph(text):
    spans = paragraphs(text)
    inside = "".join(text[start:end] for start, end in spans)
    assert [start for start, _ in spans] == sorted({start for start, _ in spans})
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
    assert sorted("".join(inside.split()).replace(">", "")) == sorted("".join(text.split()).replace(">", ""))
