"""Look at what a run would work with, before anything starts: corpus, fields, tools, model and memory.

Reads the first `MOST_TEXTS` records of the corpus and asks the filters about them; the number of all texts
follows from the share of the bytes that was read. What answers for a tool of a file is started or reached
once. `estimation.py` measures from there how long a run takes. Starts no service of its own, and writes
nothing.
"""

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolformerError
from toolformer_ops.language_model.batch_sizes import free_main_memory
from toolformer_ops.language_model.models.identity import (
    local_folder,
    model_config,
    model_identity,
    split_revision,
)
from toolformer_ops.on_a_file.annotate.annotator import models_of
from toolformer_ops.on_a_file.look.estimation import KeptTexts, count_kept
from toolformer_ops.on_a_file.look.near_duplicates import near_duplicates
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.models import require_endpoint
from toolformer_ops.runs.reasons import title
from toolformer_ops.runs.recipes import model_proposes, require_proposing_tools, tool_proposes
from toolformer_ops.shown_text import threshold_in_words
from toolformer_ops.storage.corpora.addresses import UNMAPPED, CorpusAddress, FieldNames, likely_fields
from toolformer_ops.storage.corpora.files import OpenedFile, find_files
from toolformer_ops.storage.corpora.record_rules import Record, Rejection
from toolformer_ops.storage.corpora.records import field_names, read_records
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits
from toolformer_ops.tools.files.answering import MOST_PROPOSED_CALLS
from toolformer_ops.tools.files.file_tool import FileTool
from toolformer_ops.tools.foreign_passages import COMMON_WORDS
from toolformer_ops.tools.registry import get_tool

MOST_TEXTS = 1000
"""Records that are read: a second's work."""
MOST_MEASURED_TEXTS = 20_000
"""Records that are read before a measurement: half a minute's work."""
MOST_REASONS = 3
MOST_SKETCHED_CHARACTERS = 500_000
"""The beginning of the texts that are compared with each other: a second's work."""
NEAR_SHARE = 0.8
"""Texts that share so much of their passages nearly repeat each other."""
CHARACTERS_FOR_LANGUAGE, LETTERS_FOR_LANGUAGE = 4000, 40
ENGLISH_SHARE = 0.15
"""At least this share of the words is common ones in all but five of 2,130 English posts."""
_WORD = re.compile(r"[^\W\d_]+")
NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SMALL_WEIGHTS = 1e9
"""Models with fewer weights need the numbers of the preset `small_model`; larger ones those of the paper."""
SMALL_PRESETS = ("small_model", "preview")
GIB = 2**30

State = Literal["ok", "mind", "wrong"]


@dataclass(frozen=True)
class Observation:
    """One line of what was seen."""

    state: State
    """`mind`: it works, and is perhaps not what is meant; `wrong`: a run would end with it."""
    subject: str
    detail: str
    """What exists, with the remedy if that is not what is meant."""

    def __str__(self) -> str:
        return f"{self.state:6}{self.subject}: {self.detail}"


def observed(subject: str, look: Callable[[], Observation]) -> Observation:
    """What a look shows; `wrong` with the message if it raises a known error."""
    try:
        return look()
    except ToolformerError as error:
        return Observation("wrong", subject, str(error))


@dataclass(frozen=True)
class Remedies:
    """How what is chosen otherwise is written where a person chooses it."""

    field: Callable[[str, str], str]
    """The name of a field of the records, by what it is for, such as text, and the name."""
    preset: Callable[[str], str]


COMMAND = Remedies(
    field=lambda target, name: f"--field {target}={name}",
    preset=lambda preset: f'--parameters \'{{"preset": "{preset}"}}\'',
)
FORM = Remedies(
    field=lambda target, name: f"{target}={name} in Fields",
    preset=lambda preset: f"{preset} as Preset",
)


@dataclass
class CorpusLook:
    """The first records of a corpus, and what the filters of tools keep of them."""

    remedies: Remedies = COMMAND
    most_texts: int = MOST_TEXTS
    """Most records that are read."""
    names: FieldNames = UNMAPPED
    documents: list[tuple[str, Document]] = field(default_factory=list)
    """Each text once, with the name of its record."""
    records: int = 0
    with_field: Counter[str] = field(default_factory=Counter)
    """Usable records with a url, a date, a title, an id."""
    refused: Counter[str] = field(default_factory=Counter)
    first_refusal: Rejection | None = None
    likely_text: str | None = None
    """The field that may be the text of the first record that has none under its name."""
    fields: list[str] = field(default_factory=list)
    """That the first records have in common; empty if that is not known."""
    kept: dict[str, KeptTexts] = field(default_factory=dict)
    """By tool."""
    share_read: float = 1.0
    """The share of the bytes that was read, or of the limit of documents if that is more."""

    @property
    def lines(self) -> int:
        """Records that were read, the refused ones among them."""
        return self.records + self.refused.total()

    @property
    def texts(self) -> int:
        """Distinct texts in all, about if not all were read."""
        return round(len(self.documents) / self.share_read)

    @property
    def lacks_text(self) -> bool:
        """Whether no record has a text under the chosen name, and another field may be the text."""
        return not self.records and self.likely_text is not None

    @property
    def is_whole(self) -> bool:
        """Whether all records were read."""
        return self.share_read == 1.0


def read_corpus_into(settings: Settings, choices: RunChoices, look: CorpusLook) -> None:
    """Read the first records; raises `CorpusError` or `UsageError` if there is no file that may be read."""
    address = CorpusAddress.parse(choices.corpus_address).normal()
    limits = UnpackingLimits()
    files = find_files(settings, address.files)
    look.names = address.names
    look.fields = field_names(files[0], limits)
    most = choices.document_limit or look.most_texts
    seen: set[object] = set()
    whole_bytes = sum(file.size or 0 for file in files)
    read_bytes = 0
    for file in files:
        with OpenedFile(file, limits) as opened:
            for line, record, _ in read_records(opened, names=address.names):
                _take(look, f"{Path(file.uri).name}:{line}", record, seen)
                if len(look.documents) >= most or look.lines >= look.most_texts:
                    read_bytes += opened.bytes_read
                    byte_share = min(1.0, read_bytes / whole_bytes) if whole_bytes else 1.0
                    limit_share = (
                        len(look.documents) / choices.document_limit if choices.document_limit else 0.0
                    )
                    look.share_read = max(byte_share, limit_share)
                    return
        read_bytes += file.size or 0


def _take(look: CorpusLook, place: str, record: Record | Rejection, seen: set[object]) -> None:
    if isinstance(record, Rejection):
        look.refused[record.reason] += 1
        look.first_refusal = look.first_refusal or record
        look.likely_text = look.likely_text or record.likely_text
        return
    look.records += 1
    values = {"url": record.url, "date": record.document_date, "title": record.title, "id": record.record_id}
    look.with_field.update(name for name, value in values.items() if value is not None)
    document = record.document()
    if document.document_id not in seen:
        seen.add(document.document_id)
        look.documents.append((record.record_id or place, document))


def of_corpus(look: CorpusLook, choices: RunChoices) -> Iterator[Observation]:
    """What the records say: how many texts, which fields, which records are refused."""
    # 1. The texts.
    most_common = look.refused.most_common(MOST_REASONS)
    refused = ", ".join(f"{count:,} {title(reason)}" for reason, count in most_common)
    first = look.first_refusal
    if not look.documents:
        reasons = refused or "the file is empty"
        yield Observation("wrong", "corpus", f"no usable record: {reasons}. {_remedy(look)}")
        return
    characters = sum(len(document.text) for _, document in look.documents) / len(look.documents)
    texts = f"{len(look.documents):,} texts"
    if choices.document_limit is not None and choices.document_limit <= len(look.documents):
        texts += ", the limit"
    elif not look.is_whole:
        texts = f"about {look.texts:,} texts, of which the first {len(look.documents):,} were read"
    yield Observation("ok", "corpus", f"{texts}, of {characters:,.0f} characters on average")
    if look.refused and first is not None:
        refused_share = f"{look.refused.total():,} of {look.lines:,}"
        yield Observation(
            "mind", "records", f"{refused_share} are refused: {refused}. The first: {first.detail}"
        )
    # 2. The fields.
    said = [f"text={look.names.text}"]
    for target in ("url", "date"):
        name, count = getattr(look.names, target), look.with_field[target]
        said.append(f"{target}={name} (in {count:,} of {look.records:,})" if count else f"no {target}")
    others = [name for name in look.fields if name not in look.names.read.values()]
    more = " and more" if len(others) > 8 else ""
    unread = [f"not read: {', '.join(others[:8])}{more}"] if others else []
    remedies = []
    for target in ("date", "url"):
        likely = likely_fields(others, target)
        if likely and not look.with_field[target]:
            remedies.append(f"{likely[0]} may be the {target}, {look.remedies.field(target, likely[0])}")
    yield Observation(
        "mind" if remedies else "ok", "fields", "; ".join([", ".join(said), *unread, *remedies])
    )
    # 3. Texts of other languages.
    first_texts = look.documents[:MOST_TEXTS]
    foreign = sum(_is_of_another_language(document.text) for _, document in first_texts)
    if 2 * foreign > len(first_texts):
        yield Observation(
            "mind",
            "language",
            f"{foreign:,} of {len(first_texts):,} texts are hardly English; the prompts of the tools, "
            "and the number words that they know, are English: a tool file with a prompt of your own asks in another "
            "language",
        )
    # 4. Texts that nearly repeat another.
    if CorpusAddress.parse(choices.corpus_address).near_duplicates is None:
        yield from _near_duplicates(look)


def _is_of_another_language(text: str) -> bool:
    """Whether few words of a text are common English words; a text of a few words is not judged."""
    words = _WORD.findall(text[:CHARACTERS_FOR_LANGUAGE].lower())
    common = sum(word in COMMON_WORDS for word in words)
    return sum(map(len, words)) >= LETTERS_FOR_LANGUAGE and common < ENGLISH_SHARE * len(words)


def _near_duplicates(look: CorpusLook) -> Iterator[Observation]:
    """How many of the first texts nearly repeat another one of them, if any does."""
    texts: list[tuple[str, Document]] = []
    characters = 0
    for name, document in look.documents:
        characters += len(document.text)
        if characters > MOST_SKETCHED_CHARACTERS:
            break
        texts.append((name, document))
    repeated = list(near_duplicates(texts, NEAR_SHARE))
    if repeated:
        (repeats, _), (original, _) = repeated[0]
        remedy = look.remedies.field("near_duplicates", f"{NEAR_SHARE:g}")
        yield Observation(
            "mind",
            "near-duplicates",
            f"{len(repeated):,} of {len(texts):,} texts nearly repeat another one, such as {repeats} that of "
            f"{original}; {remedy} leaves them out",
        )


def _remedy(look: CorpusLook) -> str:
    """What to do about records of which none is usable."""
    first = look.first_refusal
    if first is None:
        return "Write a JSON object on each line."
    if look.likely_text is not None:
        return f"{look.likely_text}, not {look.names.text}: {look.remedies.field('text', look.likely_text)}"
    return f"The first: {first.detail}."


def of_tool(
    settings: Settings, name: str, look: CorpusLook, choices: RunChoices, *, is_here: bool
) -> Observation:
    """In how many texts the tool is asked, and with `is_here` whether what it needs is on this machine."""
    tool = get_tool(name)
    if is_here:
        tool.version(settings, "")  # raises if an index or a model is not there
        if isinstance(tool, FileTool):  # raises if its server, database or function is not there
            tool.open(settings, models_of(settings, choices).model).close()
    if not choices.model_proposes:
        require_proposing_tools(choices.model_copy(update={"tools": (name,)}))
    look.kept[name] = kept = count_kept(tool, (document for _, document in look.documents), choices)
    why = "; ".join(f"{count:,} {title(reason)}" for reason, count in kept.reasons.most_common(MOST_REASONS))
    numbers = choices.for_tool(tool.spec, tool.prompt)
    places, samples = numbers.max_positions, numbers.samples_per_position
    proposals = [f"{places} x {samples} samples"] if model_proposes(choices, tool) else []
    if tool_proposes(choices, tool):
        proposals.append(f"{MOST_PROPOSED_CALLS} proposed calls")
    threshold = threshold_in_words(choices.keep_threshold(tool.spec), choices.keep_rule)
    cost = f"at most {' and '.join(proposals)} a text, kept from {threshold}"
    share = f"asked in {kept.documents:,} of {len(look.documents):,} texts"
    if not kept.documents:
        return Observation("mind", name, f"{share}, so it does nothing here: {why}")
    return Observation("ok", name, f"{share}{f' (not: {why})' if why else ''}; {cost}")


def of_model(
    settings: Settings, choices: RunChoices, remedies: Remedies = COMMAND, *, looks_at_memory: bool = True
) -> Iterator[Observation]:
    """Whether the model exists and can annotate, and whether its weights fit into memory now."""
    name, revision = split_revision(choices.model)
    weights: list[int] = []

    def look() -> Observation:
        identity = model_identity(name, revision, annotates=True, settings=settings)
        architecture = (model_config(choices.model, settings).get("architectures") or ["?"])[0]
        folder = None if name.startswith("s3://") else local_folder(name, settings)
        if folder is None:
            detail = f"{identity}, {architecture}; its size is known once it is fetched"
            return Observation("ok", "model", detail)
        weights.append(weights_of(folder))
        size = f"{weights[0] / 1e6:,.0f} million weights"
        is_small, has_small_numbers = weights[0] < SMALL_WEIGHTS, choices.preset in SMALL_PRESETS
        if choices.preset != "only_look" and is_small != has_small_numbers:
            better = "small_model" if is_small else "paper"
            remedy = (
                f"the numbers of the preset {choices.preset} are for other sizes: {remedies.preset(better)}"
            )
            return Observation("mind", "model", f"{identity}, {architecture}, {size}; {remedy}")
        return Observation("ok", "model", f"{identity}, {architecture}, {size}; preset {choices.preset}")

    yield observed("model", look)
    if weights and looks_at_memory:
        needed = weights[0] * NUMBER_BYTES[settings.dtype]
        free = _free_bytes(settings)
        detail = (
            f"{needed / GIB:.1f} GiB for the weights in {settings.dtype}, {free / GIB:.1f} GiB free on "
            f"{settings.device}"
        )
        remedy = (
            ". Choose a smaller model, bfloat16 (TOOLFORMER_DTYPE), or another device (TOOLFORMER_DEVICE)"
        )
        state: State = "ok" if needed < 0.7 * free else "mind" if needed < free else "wrong"
        yield Observation(state, "memory", detail + ("" if state == "ok" else remedy))


def of_proposer(settings: Settings, choices: RunChoices) -> Observation:
    """Whether the proposer behind an endpoint answers; it is asked for one token, and for no text."""
    endpoint = require_endpoint(settings, choices)
    assert endpoint is not None  # noqa: S101 - the caller has looked
    detail = f"{endpoint.model} at {endpoint.url} answers ({endpoint.api}, licence {endpoint.licence})"
    return Observation("ok", "proposer", detail)


def weights_of(folder: Path) -> int:
    """How many weights the safetensors of a folder hold, by their headers."""
    weights = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        weights += sum(math.prod(item["shape"]) for key, item in header.items() if key != "__metadata__")
    return weights


def _free_bytes(settings: Settings) -> int:
    if settings.device == "cpu":
        return free_main_memory()
    import torch

    from toolformer_ops.language_model.devices import free_memory

    return free_memory(torch.device(settings.device))


def observations(
    settings: Settings,
    choices: RunChoices,
    look: CorpusLook,
    *,
    is_here: bool = True,
    looks_at_memory: bool = True,
) -> Iterator[Observation]:
    """What is seen without running anything, each line as soon as it is known; fills `look`.

    With `is_here` a run would work in this process, on this machine; with `looks_at_memory`, which starts the
    libraries of a GPU, at once.
    """
    try:
        read_corpus_into(settings, choices, look)
    except ToolformerError as error:
        yield Observation("wrong", "corpus", str(error))
    else:
        yield from of_corpus(look, choices)
    if look.documents:
        for name in choices.tools:
            look_at_tool = functools.partial(of_tool, settings, name, look, choices, is_here=is_here)
            yield observed(name, look_at_tool)
    if is_here:
        yield from of_model(settings, choices, look.remedies, looks_at_memory=looks_at_memory)
        if choices.endpoint is not None:
            yield observed("proposer", lambda: of_proposer(settings, choices))
