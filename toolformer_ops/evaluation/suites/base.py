"""What a suite is made of: data sets as published, a zero-shot prompt, barred tools and a metric.

A reader turns the records of a data set into items, or names the reason for which a record cannot be asked.
This module turns items into questions, counts the reasons, and says of a file that is missing or of another
format what was expected, what was found, and where to get it.

The zero-shot prompts (appendix C) are one text file each in `prompts/`, with slots that are checked on load.
What fills a slot is never searched for slots itself. White space around the whole is removed, so that a
prompt without a context begins with its question, and no prompt ends in a space (which would keep a model
from the words it knows, ` Paris`).
"""

import datetime
import functools
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toolformer_ops.errors import EvaluationDataError, MissingDataSetError, UsageError, WrongFormatError
from toolformer_ops.evaluation.answers import Metric
from toolformer_ops.evaluation.data_files import DataFile, DataFolder
from toolformer_ops.evaluation.records import CALENDAR_DATE, Question

logger = logging.getLogger(__name__)

MATH_WORDS = 40
"""Words in which the first number is looked for, so that a model that writes more has no other chance than
a model that writes less."""
SAMPLE_SEED = 0
PROMPTS = Path(__file__).parent.parent / "prompts"
SLOTS: Mapping[str, tuple[str, ...]] = {
    "complete_text": ("text",),
    "word_problem": ("context", "question"),
    "question": ("question",),
    "question_on_paragraph": ("context", "question"),
}
"""The prompts with their slots."""
_SLOT = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True)
class ZeroShotPrompt:
    """A prompt with its slots."""

    name: str
    template: str

    def __post_init__(self) -> None:
        slots = sorted(_SLOT.findall(self.template))
        expected = sorted(SLOTS.get(self.name, ()))
        if slots != expected or not expected:
            raise UsageError(
                f"prompt {self.name}: expected the slots {', '.join(expected) or 'of a known prompt'} once "
                f"each, found {', '.join(slots) or 'none'}. Write each as {{name}}."
            )

    def fill(self, slots: Mapping[str, str]) -> tuple[str, str]:
        """The prompt with these texts in its slots, and its beginning up to the last slot.

        Neither has white space around it. The beginning is the instruction, and a paragraph that questions
        share.
        """
        *_, last = _SLOT.finditer(self.template)
        parts = (self.template, self.template[: last.start()])
        whole, head = (_SLOT.sub(lambda slot: slots[slot.group(1)], part).strip() for part in parts)
        return whole, head


@functools.cache
def load_prompt(name: str) -> ZeroShotPrompt:
    """The prompt in `prompts/NAME.txt`.

    Raises:
        UsageError: there is no such file, or its slots are others.
    """
    path = PROMPTS / f"{name}.txt"
    try:
        return ZeroShotPrompt(name, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"expected the prompt {path}, found {error.strerror}. Install the project again."
        ) from error


def with_question_mark(question: str) -> str:
    """The question with a question mark at its end (appendix C.3); one of another script counts."""
    question = question.strip()
    return question if question.endswith(("?", "\uff1f", "\u061f")) else f"{question}?"


@dataclass(frozen=True)
class Item:
    """What a reader makes of a record that can be asked."""

    slots: Mapping[str, str]
    """Texts for the slots of the prompt."""
    answers: tuple[str, ...] = ()
    """Any of these is right."""
    date: datetime.date = CALENDAR_DATE
    """The current date, which some data sets have."""
    part: str = ""
    """The part of the data set that it belongs to, such as a relation or a template; empty if there are
    none."""


@dataclass(frozen=True)
class LeftOut:
    """What a reader makes of a record that is not asked."""

    reason: str
    """In snake_case, such as mask_not_last; docs/evaluation.md lists them."""


@dataclass(frozen=True)
class DataSet:
    """A published data set, which is one column of the paper's tables."""

    name: str
    """The subset's name in results, such as squad."""
    files: tuple[str, ...]
    """Published names, as patterns of `PurePath.match`."""
    prompt: str
    """Name of its zero-shot prompt; empty for texts, which are read as they are (slot `text`)."""
    format: str
    """What its files hold, for people."""
    source: str
    """Where it can be had."""
    read: Callable[[Sequence[DataFile]], Iterable[Item | LeftOut]]
    folders: tuple[str, ...] = ()
    """Names that its folder may have in the data folder, the usual one first; empty: the data set's name."""
    first_only: bool = False
    """Whether only those of `files` are read that the first pattern finds: they are splits, the usual one
    first."""
    generate: Callable[[], bytes] | None = None
    """Makes the file if there is none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "folders", self.folders or (self.name,))


@dataclass(frozen=True)
class Suite:
    """Data sets that are asked and judged in one way."""

    name: str
    data_sets: tuple[DataSet, ...]
    metric: Metric
    answer_tokens: int
    """Most tokens of text that are written: what the words of the metric take, as a rule."""
    call_tokens: int
    """Most tokens of a call up to its arrow."""
    barred_tools: tuple[str, ...] = ()
    """Tools that would give the answer away (sections 4.2.1 and 4.2.3)."""


@dataclass(frozen=True)
class LoadedDataSet:
    """The questions of a data set; of one of texts each is a text alone."""

    data_set: DataSet
    questions: tuple[Question, ...]
    sha256: str
    """Hash of the names and stored contents of the files that were read, 64 hex digits."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many records cannot be asked, by reason."""


def load_data_set(folder: DataFolder, data_set: DataSet, limit: int | None = None) -> LoadedDataSet:
    """The questions of a data set, or a sample of `limit` of them.

    Says in the log how many records cannot be asked, and why.

    Raises:
        EvaluationDataError: its files are not there, or hold something else, or no question.
    """
    # 1. The items that its files hold, or a sample of them.
    items, left_out, sha256 = _read_items(folder, data_set)
    places = (
        range(len(items))
        if limit is None
        else sample_places([item.part for item in items], limit, data_set.name)
    )
    if left_out:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
        logger.info(
            "%s: %d inputs; %d are left out: %s", data_set.name, len(items), left_out.total(), reasons
        )
    if len(places) < len(items):
        parts = len({items[place].part for place in places})
        logger.info(
            "%s: a sample of %d of %d inputs, of %d parts", data_set.name, len(places), len(items), parts
        )
    # 2. Their questions; each is numbered by its place among all that can be asked, from 1.
    prompt = load_prompt(data_set.prompt) if data_set.prompt else None
    filled = []
    for place in places:
        slots = items[place].slots
        filled.append(prompt.fill(slots) if prompt else (slots["text"], ""))
    often = Counter(head for _, head in filled)
    questions = tuple(
        Question(
            subset=data_set.name,
            number=place + 1,
            prompt=whole,
            answers=items[place].answers,
            date=items[place].date,
            shared_head=head if often[head] > 1 else "",
        )
        for place, (whole, head) in zip(places, filled, strict=True)
    )
    return LoadedDataSet(data_set, questions, sha256, dict(sorted(left_out.items())))


def load_texts(folder: DataFolder, data_set: DataSet) -> tuple[list[str], str]:
    """The words that each input of a data set has in addition to its prompt, in the order of their numbers.

    Returns the hash of its files, too.

    Raises:
        EvaluationDataError: as `load_data_set`.
    """
    items, _, sha256 = _read_items(folder, data_set)
    return [" ".join(item.slots.values()) for item in items], sha256


def _read_items(folder: DataFolder, data_set: DataSet) -> tuple[list[Item], "Counter[str]", str]:
    """The items of a data set, at least one.

    Returns how many records cannot be asked, by reason, and the hash of the files, too.
    """
    files = _read_files(folder, data_set)
    names = ", ".join(file.uri for file in files[:3]) + (", ..." if len(files) > 3 else "")
    items: list[Item] = []
    left_out: Counter[str] = Counter()
    try:
        for item in data_set.read(files):
            if isinstance(item, LeftOut):
                left_out[item.reason] += 1
            else:
                items.append(item)
    except WrongFormatError as error:
        raise EvaluationDataError(_expectation(folder, data_set, f"{error}, in {names}")) from error
    if not items:
        raise EvaluationDataError(_expectation(folder, data_set, f"no input that can be asked, in {names}"))
    lines = "".join(f"{file.sha256}  {file.name}\n" for file in files)
    return items, left_out, hashlib.sha256(lines.encode()).hexdigest()


def sample_places(parts: Sequence[str], size: int, name: str) -> list[int]:
    """The places of a sample of `size` items, ascending, given the part of each item.

    They are all places if there are not more. A systematic sample: the items are put in order by part, in
    each part by a hash of the name and the place, and of that order each (items / size)-th is taken. So a
    part has its share of the sample, rounded up or down, and the sample depends on the data set, its size and
    nothing else: it is the same for every model and on every machine.
    """
    order = sorted(
        range(len(parts)),
        key=lambda place: (parts[place], hashlib.sha256(f"{SAMPLE_SEED} {name} {place}".encode()).digest()),
    )
    if size >= len(order):
        return sorted(order)
    # The middle of each of `size` equal stretches of the order.
    return sorted(order[(2 * number + 1) * len(order) // (2 * size)] for number in range(size))


def _read_files(folder: DataFolder, data_set: DataSet) -> list[DataFile]:
    groups = [(pattern,) for pattern in data_set.files] if data_set.first_only else [data_set.files]
    for patterns in groups:
        names_and_addresses = folder.find(data_set.folders, patterns)
        if data_set.first_only:
            names_and_addresses = names_and_addresses[:1]
        if names_and_addresses:
            return [folder.read(name, uri) for name, uri in names_and_addresses]
    if data_set.generate is not None:
        content, name = data_set.generate(), data_set.files[0]
        return [DataFile(name, uri=name, content=content, sha256=hashlib.sha256(content).hexdigest())]
    others = [name for name, _ in folder.find(data_set.folders, ("*",))][:5]
    raise MissingDataSetError(
        _expectation(folder, data_set, f"only {', '.join(others)}" if others else "nothing")
    )


def _expectation(folder: DataFolder, data_set: DataSet, finding: str) -> str:
    place = f"{folder.address}/{data_set.folders[0]}"
    return (
        f"{data_set.name}: expected {data_set.format} in {place} ({', '.join(data_set.files)}; also .gz, "
        f".zst), found {finding}. It can be had from {data_set.source}."
    )
