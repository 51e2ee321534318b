"""Annotate texts with several tools: what `annotate` does on a file or as one of many workers, and a notebook.

1. If placebos are wanted, each tool has a pool: the first texts of the corpus that it is asked about are
   annotated, until they have calls enough. Of a small corpus that is all of them. The false-discovery rate is
   measured on these texts.
2. Texts are annotated some together, with one tool after the other, by one loaded model; those of the pool are
   not sampled again. With the placebos their rows are final.

What is computed in both steps is put as parts (`call_parts.py`), so that a process that is killed, or works
beside others, continues with these. The rows of a text depend neither on its batch nor on who computed it.
"""

import functools
import itertools
import json
import random
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from toolformer_ops.annotation.placebo import PlaceboDraw
from toolformer_ops.config import Settings
from toolformer_ops.language_model.batch_sizes import device_kind
from toolformer_ops.language_model.losses import is_kept
from toolformer_ops.on_a_file.annotate.annotation_counts import AnnotationCounts
from toolformer_ops.on_a_file.annotate.annotator import distinct_documents, documents_by_id
from toolformer_ops.on_a_file.annotate.call_parts import part_name, part_of, texts_in
from toolformer_ops.on_a_file.annotate.call_table import printed
from toolformer_ops.on_a_file.annotate.file_tries import FileTries
from toolformer_ops.on_a_file.annotate.pooled_placebos import pool_of
from toolformer_ops.on_a_file.annotate.shown_calls import most_gain
from toolformer_ops.on_a_file.annotate.text_annotator import (
    AnnotatedText,
    Row,
    TextAnnotator,
    TextToAnnotate,
    ToolAnnotator,
)
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import PlaceboChoices, RunChoices
from toolformer_ops.runs.placebo_pools import POOL_CALLS, Pool
from toolformer_ops.storage.objects.parts import NoParts, Parts

TEXTS_TOGETHER = {"cpu": 16, "cuda": 128}
"""By kind of device, the texts of a part: a kill loses no more. On two cores 24 short texts together take 23
CPU seconds, one by one 68."""
AHEAD = 16
"""So many parts of a pool that other workers have begun are passed over."""

Documents = Callable[[], Iterator[tuple[str, Document]]]
"""Returns the documents with the names of their records, the same ones each time."""
Items = Callable[[ToolAnnotator | None], Iterator[TextToAnnotate]]
"""Returns the texts with what each tool is asked about, or one alone, the same ones each time."""
Claim = Callable[[str], bool]
"""Whether a part of this name is computed here: no other worker has said so before."""


@dataclass(frozen=True)
class ToolPool:
    """What a tool's placebos are drawn from."""

    pool: Pool
    recipe_id: str
    """Names all that decides a placebo and its losses."""
    texts: dict[uuid.UUID, AnnotatedText]
    """Those whose calls it was drawn from, by what tools read of them, before placebos."""

    @functools.cached_property
    def draw(self) -> PlaceboDraw:
        """How placebos are drawn from it."""
        return PlaceboDraw(self.pool)

    def as_json(self) -> bytes:
        """The pool, with the number of the calls that it was drawn from."""
        calls = sum(len(text.judged_calls) for text in self.texts.values())
        results = list(map(asdict, self.pool.results))
        value = {"calls": calls, "sample_share": self.pool.sample_share, "results": results}
        return json.dumps(value, sort_keys=True, default=str).encode("ascii")


@dataclass
class Annotation:
    """The annotation of some documents by the tools of a run's parameters."""

    annotator: TextAnnotator
    items: Items
    counts: AnnotationCounts
    parts: Parts = field(default_factory=NoParts)
    """Where what is computed is put."""
    texts_together: int | None = None
    """Texts of a part; None: as the device says."""
    pool_texts: int | None = None
    """Texts of a part of a pool; None: as many."""
    pool_calls: int | None = None
    """Calls that are enough for a pool; None: as the choices say."""
    doing: str = "annotating"
    """The word for what is done with a text."""
    claim: Claim = lambda _: True

    @classmethod
    def of(cls, settings: Settings, choices: RunChoices, documents: Documents | None = None) -> "Annotation":
        """Annotate documents by the tools and the model of a run's parameters; by default those of its corpus.

        Raises as `TextAnnotator.of`.
        """
        return cls.by(TextAnnotator.of(settings, choices), choices, documents)

    @classmethod
    def by(
        cls, annotator: TextAnnotator, choices: RunChoices, documents: Documents | None = None
    ) -> "Annotation":
        """Annotate documents by an annotator; by default those of the corpus that the choices name."""
        corpus, limit = choices.corpus_address, choices.document_limit
        documents = documents or functools.partial(distinct_documents, annotator.settings, corpus, limit)
        if choices.until_kept:
            documents = functools.partial(documents_by_id, documents)

        def items(only: ToolAnnotator | None) -> Iterator[TextToAnnotate]:
            for name, document in documents():
                yield annotator.to_annotate(name, document, only)

        return cls(annotator, items, AnnotationCounts.of(choices.tools))

    def rows(self) -> Iterator[Row]:
        """Every call with a result, text by text and tool by tool, as soon as nothing can change it any more.

        Raises as `read_corpus`, and as the model and the tools do.
        """
        self.count_texts()
        for text in self.texts():
            yield from map(printed, text.rows)
        self.counts.ended()

    def count_texts(self) -> None:
        """Ask the filters about all documents, and count what they say, so that it is known how much there is to do.

        Raises before that if an index or a model of a tool is not there.
        """
        self.annotator.require_tools()
        self.counts.begins("reading the texts")
        for _ in self.counted(self.items(None)):
            pass

    def counted(self, items: Iterable[TextToAnnotate]) -> Iterator[TextToAnnotate]:
        """The texts, each counted by what the filters say of it."""
        for item in items:
            self.counts.read(item)
            yield item

    def texts(self) -> Iterator[AnnotatedText]:
        """What each tool finds in each text that it is asked about, in order.

        None is annotated before its turn comes; with `until_kept` all are before the first is returned.
        """
        self.counts.begins("loading the model")
        pools = self.pools()
        if self.annotator.choices.until_kept:
            every_text = itertools.chain.from_iterable(self.first_texts(pools).values())
            yield from sorted(every_text, key=lambda text: text.document.text_id.bytes)
            return
        for batch in self.batches(self.items(None)):
            texts_by: dict[str, dict[uuid.UUID, AnnotatedText]] = {}
            for annotator in self.annotator.tools:
                annotated = self.finished(annotator, batch, pools.get(annotator.name)) or []
                texts_by[annotator.name] = {text.document.document_id: text for text in annotated}
            for item in batch:
                for texts in texts_by.values():
                    if (text := texts.get(item.document.document_id)) is not None:
                        yield text

    def batches(self, items: Iterable[TextToAnnotate]) -> Iterator[list[TextToAnnotate]]:
        """The texts that a tool is asked about, so many a part."""
        return _chunks((item for item in items if any(item.paragraphs.values())), self._together)

    def finished(
        self,
        annotator: ToolAnnotator,
        batch: Sequence[TextToAnnotate],
        pool: ToolPool | None,
        shard: int = 0,
        *,
        is_claimed: bool = False,
    ) -> list[AnnotatedText] | None:
        """The texts of a batch that a tool is asked about, final.

        It is None if another worker has begun them; with `is_claimed` they are computed here all the same.
        """
        items = [item for item in batch if item.asks(annotator.name)]
        if not items:
            return []
        recipe_id = recipe_of(annotator, pool)
        name = part_name("calls", annotator.name, recipe_id, shard, items)
        texts = self._stored(name, annotator, items)
        is_new = texts is None
        if texts is None:
            if not is_claimed and not self.claim(name):
                return None
            texts = self._computed(annotator, items, pool)
            self._put(name, annotator, recipe_id, texts)
        self._count(texts, is_new=is_new, pooled=pool.texts if pool else ())
        return texts

    def first_texts(self, pools: Mapping[str, ToolPool]) -> dict[str, list[AnnotatedText]]:
        """By tool, the first texts that it is asked about, final, up to enough kept calls (`until_kept`)."""
        texts = {}
        for annotator in self.annotator.tools:
            pool = pools.get(annotator.name)
            texts[annotator.name] = self._until(
                annotator,
                "until",
                recipe_of(annotator, pool),
                compute=functools.partial(self._computed, annotator, pool=pool),
                counted=kept_calls,
                enough=self.annotator.choices.until_kept or 0,
            )
        self.counts.begins_anew({})
        for name, own in texts.items():
            self._count(own, is_new=False, pooled=pools[name].texts if pools else ())
        return texts

    def pools(self) -> dict[str, ToolPool]:
        """The pool of each tool; none without placebos."""
        if not self.annotator.choices.wants_placebos:
            return {}
        pools = {annotator.name: self._pool(annotator) for annotator in self.annotator.tools}
        self.counts.begins_anew({name: pool.pool.sample_share for name, pool in pools.items()})
        return pools

    def _pool(self, annotator: ToolAnnotator) -> ToolPool:
        """The first texts that the tool is asked about, until they have calls enough.

        With `until_kept`: until so many calls gain enough without a placebo.
        """
        choices = self.annotator.choices
        scored = self._until(
            annotator,
            "pool",
            annotator.recipe_id,
            compute=functools.partial(self._annotated, annotator),
            counted=may_be_kept if choices.until_kept else calls_with_losses,
            enough=self.pool_calls or choices.until_kept or max(POOL_CALLS, choices.placebo_sample),
        )
        placebo_choices = choices.part(PlaceboChoices)
        pool = pool_of(itertools.chain.from_iterable(text.judged_calls for text in scored), placebo_choices)
        recipe = pool.recipe(annotator.recipe_id, annotator.name, placebo_choices)
        return ToolPool(pool, recipe.recipe_id, {text.document.document_id: text for text in scored})

    def _until(
        self,
        annotator: ToolAnnotator,
        folder: str,
        recipe_id: str,
        *,
        compute: Callable[[Sequence[TextToAnnotate]], list[AnnotatedText]],
        counted: Callable[[AnnotatedText], int],
        enough: int,
    ) -> list[AnnotatedText]:
        """The first texts that the tool is asked about which together count enough; all if they do not.

        They are put as parts into the folder. Of several workers each computes the first part that is not
        begun. What others have begun is looked past, but not far: they may be dead.
        """
        items = (item for item in self.items(annotator) if item.asks(annotator.name))
        chunks = _chunks(items, self.pool_texts or self._together)
        whole_parts = not self.annotator.choices.until_kept
        read: list[list[TextToAnnotate]] = []
        scored: dict[str, list[AnnotatedText]] = {}
        while True:
            # 1. The parts that are there, up to enough calls, and those that are missing before.
            needed: list[AnnotatedText] = []
            missing: dict[str, list[TextToAnnotate]] = {}
            calls = 0
            for number in itertools.count():
                if number == len(read):
                    read += itertools.islice(chunks, 1)
                if number == len(read) or calls >= enough or len(missing) == AHEAD:
                    break
                name = part_name(folder, annotator.name, recipe_id, 0, read[number])
                if name not in scored and (texts := self._stored(name, annotator, read[number])) is not None:
                    scored[name] = texts
                    self._count(texts, is_new=False)
                if name not in scored:
                    missing[name] = read[number]
                for text in scored.get(name, ()):
                    if whole_parts or calls < enough:
                        needed.append(text)
                        calls += counted(text)
            if not missing:
                return needed
            # 2. One of those that are missing.
            any_name = random.choice(list(missing))  # noqa: S311 - no row depends on it
            name = next(filter(self.claim, missing), any_name)
            scored[name] = compute(missing[name])
            self._put(name, annotator, recipe_id, scored[name])
            self._count(scored[name], is_new=True)

    def _computed(
        self, annotator: ToolAnnotator, items: Sequence[TextToAnnotate], pool: ToolPool | None
    ) -> list[AnnotatedText]:
        """The texts with all that the rows have; those of the pool are not annotated again."""
        pooled = {} if pool is None else pool.texts
        new = self._annotated(annotator, [item for item in items if item.document.document_id not in pooled])
        by_id = {text.document.document_id: text for text in new}
        texts: list[AnnotatedText] = []
        for item in items:
            key = item.document.document_id
            texts.append(by_id[key] if key in by_id else pooled[key].named(item.name))
        if pool is not None:
            # The sample for the false-discovery rate are calls of the pool's texts.
            sampled = [text for text in texts if text.document.document_id in pooled]
            draw, recipe_id = pool.draw, pool.recipe_id
            self._judge(annotator, sampled, draw, recipe_id)
            self._judge(annotator, new, draw.without_sample(), recipe_id)
        return texts

    def _annotated(self, annotator: ToolAnnotator, items: Sequence[TextToAnnotate]) -> list[AnnotatedText]:
        if items:
            self.counts.begins(f"{self.doing} with {annotator.name}")
        return self.annotator.annotated(annotator, items, self._tries[annotator.name])

    @functools.cached_property
    def _tries(self) -> dict[str, FileTries]:
        """The tries at the texts of each tool, as they were when one was first asked for."""
        return {
            annotator.name: FileTries.of(self.parts, annotator.name) for annotator in self.annotator.tools
        }

    def _judge(
        self, annotator: ToolAnnotator, texts: Sequence[AnnotatedText], draw: PlaceboDraw, recipe_id: str
    ) -> None:
        if any(text.rows for text in texts):
            self.counts.begins(f"scoring placebos of {annotator.name}")
            annotator.judge(texts, draw, recipe_id)

    def _stored(
        self, name: str, annotator: ToolAnnotator, items: Sequence[TextToAnnotate]
    ) -> list[AnnotatedText] | None:
        """The texts of a part; None if it is not there."""
        content = self.parts.get(name)
        return None if content is None else texts_in(name, content, items, annotator.keep_threshold)

    def _put(
        self, name: str, annotator: ToolAnnotator, recipe_id: str, texts: Sequence[AnnotatedText]
    ) -> None:
        self.parts.put(name, part_of(annotator.name, recipe_id, texts))

    def _count(
        self, texts: Sequence[AnnotatedText], *, is_new: bool, pooled: Container[uuid.UUID] = ()
    ) -> None:
        for text in texts:
            self.counts.finished(text, is_new=is_new, in_pool=text.document.document_id in pooled)

    @property
    def _together(self) -> int:
        return self.texts_together or TEXTS_TOGETHER[device_kind(self.annotator.settings.device)]


def recipe_of(annotator: ToolAnnotator, pool: ToolPool | None) -> str:
    """Names all that decides the rows of a tool's calls: with placebos that of these."""
    return pool.recipe_id if pool else annotator.recipe_id


def calls_with_losses(text: AnnotatedText) -> int:
    """How many calls a pool may have from a text."""
    return len(text.judged_calls)


def may_be_kept(text: AnnotatedText) -> int:
    """How many calls of a text gain enough without a placebo."""
    scored = [row for row in text.rows if row["reason"] is None]
    return sum(is_kept(most_gain(row), row["keep_threshold"]) for row in scored)


def kept_calls(text: AnnotatedText) -> int:
    """How many calls of a text are kept."""
    return sum(row["kept"] for row in text.rows)


def _chunks(items: Iterator[TextToAnnotate], size: int) -> Iterator[list[TextToAnnotate]]:
    while chunk := list(itertools.islice(items, size)):
        yield chunk
