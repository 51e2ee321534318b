"""What a suite is made of: data sets in their published formats, a zero-shot prompt, barred tools and a metric.

A reader turns the files of a data set into items; this module turns items into questions, and says of a file that is not there or
of another format what was expected, what was found, and where to get it.
"""

import datetime
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from toolformer_ops.errors import EvaluationDataError, MissingDataSetError, WrongFormatError
from toolformer_ops.evaluation.data_files import DataFile, DataFolder
from toolformer_ops.evaluation.numbers import first_number, first_number_is_right
from toolformer_ops.evaluation.records import Question
from toolformer_ops.evaluation.words import first_words, stands_among_first_words
from toolformer_ops.evaluation.zero_shot import load_prompt

MATH_WORDS = 40
"""Words in which the first number is looked for, so that a model that writes more has no other chance than one that writes less."""


@dataclass(frozen=True)
class Item:
    """What a reader makes of one record."""

    slots: Mapping[str, str]
    """Texts for the slots of the prompt."""
    answers: tuple[str, ...]
    """Any of these is right."""
    date: datetime.date | None = None
    """The current date, where the data set gives one."""


@dataclass(frozen=True)
class DataSet:
    """A published data set, which is one column of the paper's tables."""

    name: str
    """The subset's name in results, such as squad."""
    folders: tuple[str, ...]
    """Names under which its folder may lie in the data folder; the first is the usual one."""
    files: tuple[str, ...]
    """Published names, as patterns of `PurePath.match`."""
    prompt: str
    """Name of its zero-shot prompt."""
    format: str
    """What its files hold, for people."""
    source: str
    """Where it can be had."""
    read: Callable[[Sequence[DataFile]], Iterable[Item]]
    first_only: bool = False
    """Of `files`, read only what the first pattern finds: they are splits, the usual one first."""
    generate: Callable[[], bytes] | None = None
    """Makes the file where none lies there."""


@dataclass(frozen=True)
class Metric:
    """How a continuation is judged."""

    name: str
    """What it asks, in words."""
    words: int
    """How many words of the continuation are read."""
    number: bool = False
    """The first number counts; otherwise the answer must stand among the words."""

    def judge(self, text: str, answers: Sequence[str]) -> tuple[str, bool]:
        """What the text predicts, and whether that is right. `text` is a continuation without calls."""
        read = first_words(text, self.words)
        if not self.number:
            return read, stands_among_first_words(text, answers, self.words)
        predicted = first_number(read)
        return "" if predicted is None else str(predicted), first_number_is_right(read, answers)


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
    """The questions of a data set."""

    data_set: DataSet
    questions: tuple[Question, ...]
    sha256: str
    """Of the names and stored contents of the files that were read, 64 hex digits."""


def load_data_set(folder: DataFolder, data_set: DataSet, limit: int | None = None) -> LoadedDataSet:
    """The (first `limit`) questions of a data set.

    Raises:
        EvaluationDataError: its files are not there, or hold something else, or no question.
    """
    files = read_files(folder, data_set)
    prompt = load_prompt(data_set.prompt)
    try:
        items = list(itertools.islice(data_set.read(files), limit))
    except WrongFormatError as error:
        raise EvaluationDataError(wrong_format(folder, data_set, files, str(error))) from error
    if not items:
        raise EvaluationDataError(wrong_format(folder, data_set, files, "no question that can be asked"))
    heads = [prompt.head(item.slots) for item in items]
    shared = {head for head, count in Counter(heads).items() if head and count > 1}
    questions = tuple(
        Question(
            data_set.name, number, prompt.fill(item.slots), item.answers, item.date, head if head in shared else ""
        )
        for number, (item, head) in enumerate(zip(items, heads, strict=True), start=1)
    )
    return LoadedDataSet(data_set, questions, files_sha256(files))


def read_files(folder: DataFolder, data_set: DataSet) -> list[DataFile]:
    """The files of a data set.

    Raises:
        EvaluationDataError: there is none.
    """
    groups = [(pattern,) for pattern in data_set.files] if data_set.first_only else [data_set.files]
    for patterns in groups:
        found = folder.find(data_set.folders, patterns)
        if data_set.first_only:
            found = found[:1]
        if found:
            return [folder.read(name, uri) for name, uri in found]
    if data_set.generate is not None:
        content = data_set.generate()
        return [DataFile(data_set.files[0], data_set.files[0], content, hashlib.sha256(content).hexdigest())]
    others = [name for name, _ in folder.find(data_set.folders, ("*",))][:5]
    raise MissingDataSetError(_expectation(folder, data_set, f"only {', '.join(others)}" if others else "nothing"))


def files_sha256(files: Sequence[DataFile]) -> str:
    """One hash of several files."""
    lines = "".join(f"{file.sha256}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def wrong_format(folder: DataFolder, data_set: DataSet, files: Sequence[DataFile], found: str) -> str:
    """The message for files that hold something else."""
    names = ", ".join(file.uri for file in files[:3]) + (", ..." if len(files) > 3 else "")
    return _expectation(folder, data_set, f"{found}, in {names}")


def _expectation(folder: DataFolder, data_set: DataSet, found: str) -> str:
    place = f"{folder.address}/{data_set.folders[0]}"
    return (
        f"{data_set.name}: expected {data_set.format} in {place} ({', '.join(data_set.files)}; also .gz, .zst), found {found}. "
        f"It can be had from {data_set.source}."
    )
