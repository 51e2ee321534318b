"""Calls with labels that follow from how they are made: a right call in a real text, and calls that differ from it in one thing.

    problems   word problems of GSM8K; the computation that the filter finds before its result
    reports    passages of TAT-QA, likewise
    facts      sentences of Wikipedia; a SELECT from the table of what such sentences state
    posts      dated posts that state their year, weekday or day; the Calendar

A right call stands before the very words that its result holds. Beside it are calls of other content at its place
(`content`), and itself some words away (`place`). Nobody judges a call, so that labels are lexical: a wrong call is one
whose result is not what the text says there. What is scored and stored of them is in `labelled_scores.py`.
"""

import datetime
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from os.path import commonprefix
from pathlib import Path
from typing import Any

from studies.real_texts import Posts, read_records, word_problem
from studies.sentences import Sentence
from toolformer_ops.call_syntax import Call
from toolformer_ops.tools.calculator import TOOL as CALCULATOR
from toolformer_ops.tools.calendar import MONTHS, write_day
from toolformer_ops.tools.computations import Computation, computations
from toolformer_ops.tools.operands import UNIT, Operand, operands

ARTICLES = "Articles"
"""The tool that answers with what articles state; labelled calls are written, not run."""
RIGHT = "right"
PLACE = "place"
PLACES = (-5, -3, -1, 1, 3, 5)
"""How many words a call is moved."""
_MARK = re.compile("<<[^<>]*>>|####.*")
"""How GSM8K marks a computation, and the answer."""
OTHER_OPERATOR = {"+": "-", "-": "+", "*": "+", "/": "*"}
MOST_WORDS = 60
"""Of a word problem: its passes are short."""
SHOWN_BEFORE, SHOWN_AFTER = 300, 120
"""Characters of a long passage around a right call that are its text."""


@dataclass(frozen=True)
class LabelledCall:
    """A call with its result at a place of a text."""

    place: int
    """Offset of the white space before which it stands."""
    call: Call
    result: str
    label: str
    """`right`, what was exchanged in it (`operand`, `row`, `year`), or by how many words it was moved (`place -3`)."""


@dataclass(frozen=True)
class LabelledText:
    """A text with its right call and the calls made from it."""

    name: str
    """Text whose hash decides on the half: texts of one name are in the same."""
    text: str
    calls: tuple[LabelledCall, ...]
    """The right one first."""

    @classmethod
    def of(
        cls, name: str, text: str, right: LabelledCall, contents: Iterable[LabelledCall]
    ) -> "LabelledText":
        """The right call, those of other content whose result is another, and the right call at other places."""
        others = [call for call in contents if call.result not in ("", right.result)]
        moved = [
            replace(right, place=place, label=f"{PLACE} {words:+d}")
            for words, place in places_around(text, right.place)
        ]
        distinct = {(call.place, call.call, call.result): call for call in reversed([right, *others, *moved])}
        return cls(name, text, tuple(reversed(distinct.values())))

    @property
    def right(self) -> LabelledCall:
        """The right call."""
        return self.calls[0]


def places_around(text: str, place: int) -> Iterator[tuple[int, int]]:
    """By how many words a place is away, and the place, as far as the text reaches."""
    starts = [match.start() for match in re.finditer(r"\s(?=\S)", text)]
    index = starts.index(place)
    for words in PLACES:
        if 0 <= index + words < len(starts):
            yield words, starts[index + words]


def in_hash_order(texts: Iterable[LabelledText]) -> list[LabelledText]:
    """The texts in an order that follows from each text alone."""
    return sorted(texts, key=lambda item: hashlib.sha256(item.text.encode()).digest())


# --- Calculator ---


def problems(records: Iterable[Mapping[str, Any]]) -> Iterator[LabelledText]:
    """Of word problems as GSM8K has them, those whose solution's first step is computed from two numbers.

    The equation of the first step is left out, so that its result is said first behind the call; the other steps follow.
    """
    for record in records:
        first, _, others = record["answer"].partition("\n")
        problem = word_problem(record["question"], first)
        if problem is None or len(problem.text.split()) > MOST_WORDS:
            continue
        text = " ".join(f"{problem.text} {_MARK.sub('', others)}".split())
        for labelled in _computed(record["question"], text):
            if _is_equal(labelled.right.result, problem.answer):
                yield labelled
                break


def reports(records: Iterable[Mapping[str, Any]]) -> Iterator[LabelledText]:
    """Of the passages of TAT-QA, a text for each number that is computed from two before it."""
    for record in records:
        for paragraph in dict.fromkeys(record["text"].splitlines()):
            yield from _computed(paragraph, " ".join(paragraph.split()))


def _computed(name: str, text: str) -> Iterator[LabelledText]:
    """A text for each sum, difference, product or quotient that the filter finds."""
    numbers = operands(text)
    for computation in computations(text, numbers):
        place = text.rfind(" ", 0, computation.result.start_char)
        expression = _expression(text, computation)
        if expression is None or place < 0:
            continue
        first, operator, second = expression
        right = _sum(place, RIGHT, first, operator, second)
        before = [_written(text, number) for number in numbers if number.start_char < place]
        # The result is said nowhere before.
        if not any(_is_equal(right.result, number) for number in before):
            yield LabelledText.of(name, text, right, _wrong_sums(place, expression, before))


def _expression(text: str, computation: Computation) -> tuple[str, str, str] | None:
    """Two numbers with the operator between them that gives the third; None of percentages and years."""
    if computation.how not in ("sum", "product"):
        return None
    first, second, result = [
        _written(text, number) for number in (computation.first, computation.second, computation.result)
    ]
    for left, right in ((first, second), (second, first)):
        for operator in "+-" if computation.how == "sum" else "*/":
            if _is_equal(_sum(0, RIGHT, left, operator, right).result, result):
                return left, operator, right
    return None


def _wrong_sums(
    place: int, expression: tuple[str, str, str], numbers: Sequence[str]
) -> Iterator[LabelledCall]:
    """The sum with another operator, another number of the text, a changed digit, and its numbers exchanged."""
    first, operator, second = expression
    yield _sum(place, "operator", first, OTHER_OPERATOR[operator], second)
    if operator in "-/":
        yield _sum(place, "sign" if operator == "-" else "reversed", second, operator, first)
    others = [number for number in dict.fromkeys(numbers) if number not in (first, second)]
    for number in others[:1]:
        yield _sum(place, "operand", number, operator, second)
    for number in others[-1:]:
        yield _sum(place, "operand", first, operator, number)
    last = int(second[-1])
    yield _sum(place, "digit", first, operator, second[:-1] + str(last + 1 if last < 9 else last - 1))


def _sum(place: int, label: str, first: str, operator: str, second: str) -> LabelledCall:
    expression = f"{first} {operator} {second}"
    (output,) = CALCULATOR.run([expression])
    return LabelledCall(place, Call("Calculator", expression), "".join(output.results[:1]), label)


def _is_equal(result: str, number: str) -> bool:
    """Whether a result, of two decimals if it has any, is a number; an expression may have no result."""
    return result != "" and Decimal(result) == Decimal(number)


def _written(text: str, number: Operand) -> str:
    """A number in plain digits: `111.8` of `$111.8 million`, `3` of `three`."""
    digits = re.search(r"\d[\d,.]*", text[number.start_char : number.end_char])
    if digits is None:
        return str(number.value.millionths // UNIT)
    plain = digits[0].rstrip(".,").replace(",", "")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


# --- Calendar ---


def posts(file: Path) -> Iterator[LabelledText]:
    """Of the paragraphs of dated posts, those that state the year, weekday or day of their post, and not before."""
    for paragraph in Posts(file).paragraphs():
        place, day = paragraph.answer_place, paragraph.date
        if place is None or day is None or paragraph.answer in paragraph.text[:place]:
            continue
        yield _dated(paragraph, place, day)


def _dated(paragraph: Sentence, place: int, day: datetime.date) -> LabelledText:
    """The Calendar's call before what a paragraph states of its day, and those of other days which do not hold that."""

    def call(label: str, of_day: datetime.date) -> LabelledCall:
        return LabelledCall(place, Call("Calendar", ""), write_day(of_day), label)

    other_days = {
        "day": (day + datetime.timedelta(days=1), day - datetime.timedelta(days=1)),
        "month": (day + datetime.timedelta(days=30),),
        "year": (_years_later(day, -1), _years_later(day, 1), _years_later(day, -10)),
    }
    wrong = [call(label, other) for label, others in other_days.items() for other in others]
    contents = [other for other in wrong if paragraph.answer not in other.result]
    return LabelledText.of(paragraph.text, paragraph.text, call(RIGHT, day), contents)


def _years_later(day: datetime.date, years: int) -> datetime.date:
    """The same day of another year; of 29 February the day before."""
    return day.replace(year=day.year + years, day=min(day.day, 28) if day.month == 2 else day.day)


# --- A table of facts ---

_DATE = rf"(?:(?:{'|'.join(MONTHS)}) \d{{1,2}}, \d{{4}}|\d{{1,2}} (?:{'|'.join(MONTHS)}) \d{{4}})"
_YEAR = r"(?:1\d{3}|20[012]\d)(?![\d\u2013-])"
_WHEN = rf"(?:{_DATE}|{_YEAR})"
_NAMED = r"(?:[A-Z]\.|[A-Z][\w'\u2019-]+)"
_NAME = rf"{_NAMED}(?: (?:of |de |van |the )?{_NAMED}){{0,3}}"
_MAKING = (
    "written|directed|produced|created|recorded|composed|performed|developed|published|founded|designed|portrayed|played"
    "|narrated|hosted|sung|released|built|invented|discovered|distributed|voiced|owned|made|painted|led"
)
_HAPPENING = (
    "released|premiered|published|founded|opened|established|introduced|built|completed|adopted|formed|launched|aired"
    "|recorded|written|born|signed|died|began|ended|held|ratified|created|elected|appointed|discovered|invented"
)
_BEING = "located|set|based|filmed|shot|headquartered|situated|held|born"


@dataclass(frozen=True)
class _Statement:
    """What a sentence says of its article's subject."""

    pattern: re.Pattern[str]
    """The verb is its first group, the value its second."""
    column: str
    """The table's column of a verb."""


def _statement(words: str, value: str, column: str) -> _Statement:
    return _Statement(re.compile(f"{words} ({value})"), column)


_STATEMENTS = (
    _statement(rf"\b({_MAKING}) by(?: the)?", _NAME, "{verb}_by"),
    _statement(rf"\b({_HAPPENING})(?: on| in|)", _WHEN, "{verb}_on"),
    _statement(rf"\b({_BEING}) (?:in|at)(?: the)?", _NAME, "{verb}_in"),
    _statement(r"\b(starring|stars|starred)", _NAME, "starring"),
    _statement(r"\bis (an?)(?= \d{4} [A-Z]?[a-z])", _YEAR, "year"),
)


@dataclass(frozen=True)
class Fact:
    """A value that a passage states of its article's subject."""

    title: str
    column: str
    value: str
    passage: str
    place: int
    """Offset of the white space before the value."""


def read_facts(records: Iterable[Mapping[str, Any]]) -> list[Fact]:
    """Of articles as KILT has them, the first value of each column that an article states and has not named before."""
    facts: dict[tuple[str, str], Fact] = {}
    for record in records:
        title = re.sub(r" \(.*", "", record["wikipedia_title"])
        for passage in map(plain_spaces, record["text"][1:]):
            for fact in _stated(title, passage):
                facts.setdefault((fact.title, fact.column), fact)
    return list(facts.values())


def plain_spaces(passage: str) -> str:
    """A passage without the spaces that a tokenizer put around its punctuation."""
    text = " ".join(passage.split())
    text = re.sub(r"``\s?|\s?''", '"', text)
    text = re.sub(r"\s+([,.;:!?)\]%]|'s\b|n't\b|'(?=\s))", r"\1", text)
    text = re.sub(r"([(\[$])\s+", r"\1", text)
    return text.replace(" -- ", "\N{EN DASH}").replace(" - ", "-")


def _stated(title: str, passage: str) -> Iterator[Fact]:
    for statement in _STATEMENTS:
        for match in statement.pattern.finditer(passage):
            verb, value = match.groups()
            if value in title or value in passage[: match.start(2)] or re.search(r"[\[\]]", passage):
                continue
            yield Fact(
                title=title,
                column=statement.column.format(verb=verb),
                value=value,
                passage=passage,
                place=match.start(2) - 1,
            )


def _select(fact: Fact) -> Call:
    """A query that is written into a text; nothing runs it."""
    title = fact.title.replace("'", "''")
    return Call(ARTICLES, " ".join(("SELECT", fact.column, "FROM articles WHERE title =", f"'{title}'")))


def facts(records: Iterable[Mapping[str, Any]]) -> Iterator[LabelledText]:
    """Of articles as KILT has them, a text before each value that one states: a SELECT from the table of all of them.

    Wrong calls ask for other rows, one of them with a like value, and for other columns.
    """
    table = read_facts(records)
    by_column: dict[str, list[Fact]] = defaultdict(list)
    by_title: dict[str, list[Fact]] = defaultdict(list)
    for fact in table:
        by_column[fact.column].append(fact)
        by_title[fact.title].append(fact)
    for fact in table:
        text, place = _around(fact)

        def call(label: str, other: Fact, place: int = place) -> LabelledCall:
            return LabelledCall(place, _select(other), other.value, label)

        rows = in_order_of(fact, [other for other in by_column[fact.column] if other.value != fact.value])
        columns = in_order_of(fact, [other for other in by_title[fact.title] if other.value != fact.value])
        contents = [call("row", other) for other in rows[:2]]
        by_likeness = sorted(rows, key=lambda other: -len(commonprefix((other.value, fact.value))))  # noqa: RUF071 - of characters
        contents += [call("near row", other) for other in by_likeness[:1]]
        contents += [call("column", other) for other in columns[:2]]
        yield LabelledText.of(fact.title, text, call(RIGHT, fact), contents)


def in_order_of(fact: Fact, others: Iterable[Fact]) -> list[Fact]:
    """Other facts in an order by chance that follows from one fact."""
    key = f"{fact.title}|{fact.column}"
    return sorted(
        others, key=lambda other: hashlib.sha256(f"{key}|{other.title}|{other.column}".encode()).digest()
    )


def _around(fact: Fact) -> tuple[str, int]:
    """The passage around a fact, and the fact's place in it: from the passage's start, or from a sentence not far before."""
    start = 0
    if fact.place > SHOWN_BEFORE:
        sentence = fact.passage.rfind(". ", 0, fact.place)
        start = max(sentence + 2, fact.place - SHOWN_BEFORE) if sentence >= 0 else fact.place - SHOWN_BEFORE
    text = fact.passage[start : fact.place + SHOWN_AFTER]
    return text, fact.place - start


SETS: Mapping[str, Callable[[Path], Iterator[LabelledText]]] = {
    "problems": lambda file: problems(read_records(file)),
    "facts": lambda file: facts(read_records(file)),
    "posts": posts,
    "reports": lambda file: reports(read_records(file)),
}
"""By name, what makes a set of a file."""
