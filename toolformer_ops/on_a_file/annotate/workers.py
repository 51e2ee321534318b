"""Workers without a scheduler: `annotate CORPUS --out FOLDER/`, on one machine or a hundred, also on S3.

    annotation.json                              what is annotated how: each worker compares it with its own
    pool/TOOL-RECIPE/0000-CONTENT.parquet        the first texts, whose calls are the pool of placebos
    until/TOOL-RECIPE/0000-CONTENT.parquet       with `until_kept`: texts that were looked at for kept calls
    pools/TOOL-RECIPE.json                       the calls whose results are the placebos
    calls/TOOL-RECIPE/SHARD-CONTENT.parquet      the calls of some texts, final (`call_parts.py`)
    ledger/SHARD.json                            the files of a shard that is finished, and its counts
    claims/, tries/                              who has begun what; the texts that are computed now

Each file is put once, whole, under a name that its content decides. So a worker may be killed at any moment, be
started twice, or work beside any number of others, whatever their clocks say: header, calls and ledger are
those of an undisturbed run, byte for byte; a few parts of the pool may be more than are needed. A claim is a
hint and no lock: a worker takes what no other has begun, and at the end what is begun and not there, since who
began it may be dead.
"""

import hashlib
import itertools
import json
import os
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.on_a_file.annotate.annotation import Annotation, ToolPool, recipe_of
from toolformer_ops.on_a_file.annotate.annotation_counts import AnnotationCounts, ToolCounts
from toolformer_ops.on_a_file.annotate.annotator import distinct_documents
from toolformer_ops.on_a_file.annotate.call_parts import FORMAT, part_name, part_of
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.progress import Progress
from toolformer_ops.runs.run_tools import Shard
from toolformer_ops.storage.corpora.addresses import CorpusAddress
from toolformer_ops.storage.corpora.files import find_files
from toolformer_ops.storage.objects.parts import Parts, open_parts

HEADER = "annotation.json"
TEXTS_A_FILE = 256
POOL_TEXTS = 16
"""Texts of a part of a pool, whatever the device: all workers share them."""
PARAMETERS = "parameters"
"""The field of the header that is not compared: paths may differ from machine to machine, recipes do not."""


@dataclass
class Worker:
    """One process at work on a folder."""

    annotation: Annotation
    choices: RunChoices
    shards: int
    header: Mapping[str, Any]

    @classmethod
    def of(
        cls, settings: Settings, choices: RunChoices, address: str, shards: int, texts_a_file: int
    ) -> "Worker":
        """A worker on the folder or s3:// prefix, whose header it has compared or put; the model is loaded.

        Raises:
            UsageError: there are several shards beside `until_kept`; the folder holds something else, or
                calls of another corpus, model or choice.
            ConfigurationError, ObjectStoreError: S3 is another one, or does not answer.
        """
        if choices.until_kept and shards > 1:
            raise UsageError(
                f"--shards: expected 1 beside --until-kept, found {shards}. Leave it out: any number of workers "
                "share the texts."
            )
        parts = open_parts(settings, address)
        annotation = Annotation.of(settings, choices)
        annotation.annotator.require_tools()
        annotation.parts = parts
        annotation.texts_together, annotation.pool_texts = texts_a_file, POOL_TEXTS
        name = f"{socket.gethostname()} {os.getpid()}".encode()
        annotation.claim = lambda part: parts.put(f"claims/{part}", name)
        header = {
            "format": FORMAT,
            "recipes": {annotator.name: annotator.recipe_id for annotator in annotation.annotator.tools},
            "corpus_files": _files_of(settings, choices),
            "document_limit": choices.document_limit,
            "until_kept": choices.until_kept,
            "keep_thresholds": choices.kept_from(),
            "placebos": [choices.placebos, choices.placebo_sample],
            "shards": shards,
            "texts_a_file": texts_a_file,
            PARAMETERS: choices.model_dump(mode="json"),
        }
        _require_same(parts, header, address)
        return cls(annotation, choices, shards, header)

    def progress(self) -> Progress:
        """How far the shard at work is."""
        return self.annotation.counts.progress()

    def work(self, shard: int | None = None) -> None:
        """Work off a shard, or one after the other all that are not finished."""
        pools = self.annotation.pools()
        for tool, pool in pools.items():
            self.annotation.parts.put(pool_name(tool, pool.recipe_id), pool.as_json())
        numbers = list(range(self.shards)) if shard is None else [shard]
        random.shuffle(numbers)  # workers begin at different shards; no row depends on it
        for number in numbers:
            if self.annotation.parts.get(ledger_name(number)) is None:
                self._work_off(number, pools)
        self.annotation.counts.ended()

    def _work_off(self, shard: int, pools: Mapping[str, ToolPool]) -> None:
        annotation = self.annotation
        counts = annotation.counts = AnnotationCounts.of(self.choices.tools)
        counts.begins_anew({name: pool.pool.sample_share for name, pool in pools.items()})
        # 1. Its files.
        if self.choices.until_kept:
            self._put_first_texts(pools)
        else:
            self._put_texts_of(shard, pools)
        # 2. It is finished.
        files = []
        for annotator in annotation.annotator.tools:
            recipe_id = recipe_of(annotator, pools.get(annotator.name))
            files += annotation.parts.names(f"calls/{annotator.name}-{recipe_id}/{shard:04d}-")
        ledger = {
            "format": FORMAT,
            "shard": shard,
            "texts": counts.texts,
            "tools": {name: tool.as_json() for name, tool in counts.tools.items()},
            "files": files,
        }
        annotation.parts.put(ledger_name(shard), json.dumps(ledger, sort_keys=True).encode("ascii"))

    def _put_texts_of(self, shard: int, pools: Mapping[str, ToolPool]) -> None:
        """The texts of a shard."""
        annotation = self.annotation
        corpus, limit = self.choices.corpus_address, self.choices.document_limit
        documents = distinct_documents(
            annotation.annotator.settings, corpus, limit, Shard(shard, self.shards)
        )
        # 1. What no worker has begun.
        left = []
        items = (annotation.annotator.to_annotate(*named) for named in documents)
        for batch in annotation.batches(annotation.counted(items)):
            for annotator in annotation.annotator.tools:
                if annotation.finished(annotator, batch, pools.get(annotator.name), shard) is None:
                    left.append((annotator, batch))
        # 2. What is begun and not there: its worker may be dead. In any order, so that few do the same.
        random.shuffle(left)
        for annotator, batch in left:
            annotation.finished(annotator, batch, pools.get(annotator.name), shard, is_claimed=True)

    def _put_first_texts(self, pools: Mapping[str, ToolPool]) -> None:
        """With `until_kept`: the texts up to enough kept calls, which all workers find together."""
        annotation = self.annotation
        annotation.count_texts()
        first_texts = annotation.first_texts(pools)
        for annotator in annotation.annotator.tools:
            recipe_id = recipe_of(annotator, pools.get(annotator.name))
            texts = iter(first_texts[annotator.name])
            while part := list(itertools.islice(texts, annotation.texts_together)):
                name = part_name("calls", annotator.name, recipe_id, 0, part)
                annotation.parts.put(name, part_of(annotator.name, recipe_id, part))


def ledger_name(shard: int) -> str:
    """The name of the ledger of a shard, which exists once all of its files do."""
    return f"ledger/{shard:04d}.json"


def pool_name(tool: str, recipe_id: str) -> str:
    """The name of the file with a tool's pool of placebos."""
    return f"pools/{tool}-{recipe_id}.json"


def finished_shards(parts: Parts, tools: tuple[str, ...]) -> tuple[int, AnnotationCounts]:
    """How many shards are finished, and what they counted together."""
    total = AnnotationCounts.of(tools)
    total.phase = "done"
    names = parts.names("ledger/")
    for name in names:
        ledger = json.loads(parts.get(name) or b"{}")
        total.texts += ledger["texts"]
        for tool, counts in ledger["tools"].items():
            total.tools[tool].add_counts(ToolCounts.of_json(counts))
    return len(names), total


def _files_of(settings: Settings, choices: RunChoices) -> str:
    """A hash of the names and sizes of the corpus' files: each worker has to read the same ones."""
    address = CorpusAddress.parse(choices.corpus_address).normal()
    files = [(file.uri.rpartition("/")[2], file.size) for file in find_files(settings, address.files)]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def _require_same(parts: Parts, header: Mapping[str, Any], address: str) -> None:
    """Put the header of a new folder; refuse a folder whose header says something else."""
    stored = parts.get(HEADER)
    if stored is None:
        if (others := parts.names()) and parts.get(HEADER) is None:
            raise UsageError(
                f"--out: expected an empty folder or calls of `toolformer-ops annotate` in {address}, found "
                f"{others[0]}. Name another folder."
            )
        parts.put(HEADER, json.dumps(header, sort_keys=True, indent=1).encode("ascii"))
        stored = parts.get(HEADER) or b""
    other = _header_of(stored, address)
    for name, value in header.items():
        if name != PARAMETERS and other.get(name) != value:
            raise UsageError(
                f"--out: expected {name} {json.dumps(other.get(name))} as the other workers on {address}, found "
                f"{json.dumps(value)}. Start all with the same command, or name another folder."
            )


def read_header(parts: Parts, address: str) -> dict[str, Any]:
    """What is annotated how in a folder.

    Raises:
        UsageError: it holds no annotation, or one of another version.
    """
    stored = parts.get(HEADER)
    if stored is None:
        raise UsageError(
            f"expected calls of `toolformer-ops annotate --out` in {address}, found none. Name their folder or "
            "s3:// prefix."
        )
    return _header_of(stored, address)


def _header_of(content: bytes, address: str) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(content)
        written_as = header["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"expected {HEADER} of `toolformer-ops annotate` in {address}, found another file. Name another folder."
        ) from error
    if written_as != FORMAT:
        raise UsageError(
            f"expected calls of the format {FORMAT} in {address}, found {written_as!r:.60}. Use the version of "
            "toolformer-ops that wrote them, or name another folder."
        )
    return header
