"""The KV cache, and the one decode loop that grows it.

A cache has a prompt that all texts share, texts that sequences share, and each sequence's own tokens.
`KVCache` holds the sequences of a batch (prefill: `join`, `extend`; share, step, keep, cut), in the columns
of `columns.py`.

A sequence is a row. Either each text is one row, which grows in the text's columns (`join`), or many rows
share a text: each sees it up to one of its tokens and adds its own columns (`share`). Prompts, texts, sampled
calls, answers, translations and texts that are written with tools all use this one class.

A row's numbers depend on its own tokens alone: bit for bit on a CPU, where every operation but attention
treats rows one by one and attention is computed text by text (`attention.py`). This needs matrix products
that give a row the same bits for any number of rows; they do so for multiples of `packing.ROW_MULTIPLE`,
measured in float32 and bfloat16, to which a CPU's passes are padded. On other devices numbers differ by
rounding, and so do those of mixtures of experts, whose matrix products take the tokens of one expert
together.

`DecodeLoop` decodes: prefill, share, decode step, choose, end. Greedy continuation of prompts is its simplest
task. Sampling calls (`sampling.py`), continuing prompts (here, for tools whose answer a language model writes
or chooses) and writing with tools (`decoding/together.py`) differ in how they choose a token and in what they
do when a row ends; each is a `Task`. A step reads from the device once, however many rows there are.
"""

import functools
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.attention import GroupPass
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.columns import CachedPrompt, CachedText, Group
from toolformer_ops.language_model.packing import consecutive_parts
from toolformer_ops.language_model.tokenization import Tokenization

MAX_PROMPTS = 16
"""Prompts whose keys and values are kept."""
RESTS = -1
"""Instead of a token: the row stays in the cache and takes in nothing until `Task.admit` gives it a token."""
Placement = TypeVar("Placement")


def read_prompt(model: CausalModel, ids: Sequence[int]) -> CachedPrompt:
    """The keys and values of a prompt, computed."""
    if not ids:
        return CachedPrompt()
    cache = KVCache(model)
    cache.join([CachedText(CachedPrompt())])
    cache.extend([0], [ids])
    [text] = cache.texts()
    return CachedPrompt(tuple(ids), [(keys[:, 0], values[:, 0]) for keys, values in text.columns])


def read_prompts(model: CausalModel) -> "functools._lru_cache_wrapper[CachedPrompt]":
    """A function that returns the keys and values of a prompt's first tokens.

    They are computed once: the last `MAX_PROMPTS` prompts are kept, the tools' or heads that several texts
    share.
    """
    return functools.lru_cache(MAX_PROMPTS)(functools.partial(read_prompt, model))


class KVCache:
    """Rows of one network that grow side by side. Not for use by several threads at once."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._groups: list[Group] = []

    @property
    def labels(self) -> np.ndarray:
        """(rows,) the caller's numbers of the rows, in their order here.

        The order may change with `join`, `share` and `keep`.
        """
        return np.concatenate([np.zeros(0, dtype=np.int64), *(group.labels for group in self._groups)])

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) how many tokens each row holds, the prompt's included."""
        return np.concatenate(
            [np.zeros(0, dtype=np.int64), *(group.seen + group.steps for group in self._groups)]
        )

    def join(self, texts: Sequence[CachedText], labels: Sequence[int] | None = None) -> None:
        """Add texts, each a row that grows; one without tokens takes them in by `extend`."""
        numbers = range(len(texts)) if labels is None else labels
        self._add(
            [
                (text, [text.prompt.length + text.length], [label])
                for text, label in zip(texts, numbers, strict=True)
            ]
        )

    def share(self, rows: Sequence[tuple[CachedText, Sequence[int], Sequence[int]]]) -> None:
        """Add rows that share texts.

        For each text it takes how many tokens of prompt and text each row sees, and the rows' labels.
        """
        self._add(rows, branches=True)

    def step(self, tokens: np.ndarray, rows: np.ndarray | None = None) -> Tensor:
        """Append one token to each of these rows, ascending, or to all.

        Returns the last hidden states, (rows, hidden).
        """
        rows = np.arange(len(tokens)) if rows is None else rows
        one_pass = functools.partial(self._one_pass, rows, np.ones(len(rows), dtype=np.int64), tokens)
        return torch.cat(self._model.memory.halving(one_pass, range(len(rows)), "sequences"))

    def extend(self, labels: Sequence[int], tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        """Append all of `tokens[n]`, at least one, to the text labelled `labels[n]`.

        Returns their hidden states, (tokens, hidden) each.
        """
        row_of = {label: row for row, label in enumerate(self.labels.tolist())}
        states_by_number: dict[int, Tensor] = {}
        for part in consecutive_parts([len(ids) for ids in tokens], self._model.memory.pass_tokens):
            order = sorted(part, key=lambda number: row_of[labels[number]])
            counts = [len(tokens[number]) for number in order]
            rows = np.array([row_of[labels[number]] for number in order])
            ids = np.concatenate([tokens[number] for number in order])
            one_pass = functools.partial(self._one_pass, rows, np.array(counts), ids)
            states = torch.cat(self._model.memory.halving(one_pass, range(len(rows)), "sequences"))
            states_by_number.update(zip(order, states.split(counts), strict=True))  # type: ignore[no-untyped-call]
        return [states_by_number[number] for number in range(len(tokens))]

    def keep(self, parents: np.ndarray, labels: np.ndarray) -> None:
        """Continue with these rows, ascending, under these labels.

        A row that is taken several times becomes several rows.
        """
        first = 0
        for group in self._groups:
            begin, end = np.searchsorted(parents, (first, first + group.rows))
            rows, first = parents[begin:end] - first, first + group.rows
            if len(rows) == group.rows and (rows == np.arange(group.rows)).all():
                group.labels = labels[begin:end]
            elif len(rows):
                group.labels = labels[begin:end][group.keep(rows)]
            else:
                group.labels = group.labels[:0]
        self._groups = [group for group in self._groups if group.rows]

    def cut(self, label: int, length: int) -> None:
        """Forget all but the first `length` tokens of a text; those of the prompt stay."""
        for group in self._groups:
            for row in np.flatnonzero(group.labels == label):
                group.cut(int(row), length)

    def texts(self) -> list[CachedText]:
        """The texts as they are now, by label, to be kept and shared. The columns are views."""
        texts_by_label: dict[int, CachedText] = {}
        for group in self._groups:
            for text, label in zip(group.text_of, group.labels, strict=True):
                length = int(group.lengths[text])
                columns = [
                    (keys[:, text : text + 1, :length], values[:, text : text + 1, :length])
                    for keys, values in group.text
                ]
                texts_by_label[int(label)] = CachedText(group.prompt, length, columns)
        return [texts_by_label[label] for label in sorted(texts_by_label)]

    def _add(
        self, rows: Sequence[tuple[CachedText, Sequence[int], Sequence[int]]], *, branches: bool = False
    ) -> None:
        for text, seen, labels in rows:
            count = len(labels)
            self._groups.append(
                Group(
                    prompt=text.prompt,
                    branches=branches,
                    text=list(text.columns),
                    lengths=np.array([text.length]),
                    text_of=np.zeros(count, dtype=np.int64),
                    seen=np.array(seen, dtype=np.int64),
                    labels=np.array(labels, dtype=np.int64),
                    steps=np.zeros(count, dtype=np.int64),
                )
            )
        if self._model.texts_together:
            alike: dict[tuple[int, bool], list[Group]] = {}
            for group in self._groups:
                alike.setdefault((id(group.prompt), group.branches), []).append(group)
            self._groups = [Group.merged(groups) for groups in alike.values()]

    def _one_pass(
        self, rows: np.ndarray, counts: np.ndarray, ids: np.ndarray, part: Sequence[int]
    ) -> list[Tensor]:
        """One pass over the cached columns, for some of the rows; a pass that fails adds nothing.

        Appends the next `counts[n]` of the tokens to row `rows[n]`, ascending, for each n in `part`, numbers
        that follow each other. Returns the tokens' hidden states, (tokens, hidden).
        """
        ends = counts.cumsum()
        firsts = ends - counts
        passes: list[GroupPass] = []
        new: list[np.ndarray] = []  # the tokens of each pass
        first = 0
        for group in self._groups:
            begin, end = np.searchsorted(rows[part[0] : part[-1] + 1], (first, first + group.rows)) + part[0]
            if end > begin:
                own = rows[begin:end] - first
                passes.append(GroupPass(group, own, counts[begin:end], compiles=self._model.compiles))
                new.append(ids[firsts[begin] : ends[end - 1]])
            first += group.rows
        hidden = self._model.run(np.concatenate(new), passes)  # (tokens, hidden)
        for group_pass in passes:
            if group_pass.group.branches:
                group_pass.group.steps[group_pass.rows] += 1
            else:
                group_pass.group.seen[group_pass.rows] += group_pass.counts
                group_pass.group.lengths[group_pass.group.text_of[group_pass.rows]] += group_pass.counts
        return [hidden]


@dataclass(frozen=True)
class NextTokens:
    """The rows that continue after a step; arrays of one length."""

    parents: np.ndarray
    """Which row of the step each continues, ascending; the same several times if a row branches."""
    labels: np.ndarray
    """The task's numbers for them, distinct."""
    tokens: np.ndarray
    """What each takes in next, or `RESTS`."""


@dataclass(frozen=True)
class Chosen(Generic[Placement]):
    """What a task chose for the rows of one step."""

    tokens: Tensor | None
    """Integers on the device, in a shape of the task's own; None if nothing is chosen in this step."""
    placement: Placement
    """Which of the task's texts or samples the tokens belong to."""


class Task(Protocol[Placement]):
    """What differs from one use of the loop to another."""

    def admit(self, cache: KVCache) -> Mapping[int, int]:
        """Let texts join as far as there is room, with all their tokens but the last.

        Returns the next token of each row, by its label.
        """
        ...

    def choose(self, hidden: Tensor, labels: np.ndarray) -> Chosen[Placement]:
        """Choose on the device, given these rows' hidden states, (rows, hidden)."""
        ...

    def end(self, tokens: np.ndarray | None, placement: Placement, labels: np.ndarray) -> NextTokens:
        """Which of these rows continue, given the chosen tokens, read from the device, and their placement.

        The others have ended, and leave.
        """
        ...


class DecodeLoop:
    """Runs one task: its rows grow in a KV cache, by one token a step."""

    def __init__(self, cache: KVCache, task: Task[Any]) -> None:
        self._cache = cache
        self._task = task
        self._labels = self._tokens = np.zeros(0, dtype=np.int64)  # what each row takes in next

    def step(self) -> bool:
        """Decode one token for each row that grows; returns whether any row did."""
        # 1. Prefill the texts for which there is room. 2. Let their rows share them.
        admitted = self._task.admit(self._cache)
        if admitted:
            new = np.array([(label, token) for label, token in admitted.items()])
            old = ~np.isin(self._labels, new[:, 0])
            self._labels = np.concatenate([self._labels[old], new[:, 0]])
            self._tokens = np.concatenate([self._tokens[old], new[:, 1]])

        # 3. Decode step: one token more for each row, in one pass.
        labels = self._cache.labels
        by_label = np.argsort(self._labels)
        tokens = self._tokens[by_label[np.searchsorted(self._labels, labels, sorter=by_label)]]
        growing = np.flatnonzero(tokens != RESTS)
        if not len(growing):
            return False
        hidden = self._cache.step(tokens[growing], growing)  # (rows, hidden)

        # 4. Choose what follows, for all rows at once on the device; the step's one read.
        chosen = self._task.choose(hidden, labels[growing])
        on_host = None if chosen.tokens is None else chosen.tokens.cpu().numpy()

        # 5. End: some rows leave, some rest, the others continue, or branch where their samples differ.
        following = self._task.end(on_host, chosen.placement, labels[growing])
        resting = np.flatnonzero(tokens == RESTS)
        parents = np.concatenate([growing[following.parents], resting])
        self._labels = np.concatenate([following.labels, labels[resting]])
        self._tokens = np.concatenate([following.tokens, tokens[resting]])
        order = np.argsort(parents, kind="stable")
        self._cache.keep(parents[order], self._labels[order])
        return True


def generate_texts(
    model: CausalModel,
    tokenization: Tokenization,
    prompts: Sequence[str],
    max_new_tokens: int,
    stop: str | None,
) -> list[str]:
    """Continue the texts as `LanguageModel.generate_texts` says."""
    sequences = [(*tokenization.start_ids, *tokenization.ids(prompt)) for prompt in prompts]
    for number, sequence in enumerate(sequences):
        if len(sequence) + max_new_tokens > model.window_tokens or not sequence:
            raise ModelError(
                f"prompt {number}: expected 1 to {model.window_tokens - max_new_tokens} tokens before "
                f"{max_new_tokens} new ones, found {len(sequence)}. Shorten it, or choose a model with a "
                "longer window."
            )
    # 1. The tokens with which all prompts begin are read once; at least one token of each is left.
    alike = itertools.takewhile(lambda tokens: len(set(tokens)) == 1, zip(*sequences, strict=False))
    shared = min([sum(1 for _ in alike), *(len(sequence) - 1 for sequence in sequences)])
    prompt = read_prompt(model, sequences[0][:shared] if sequences else ())
    # 2. Continue each with its most likely tokens.
    task = _Continuations(
        model=model,
        tokenization=tokenization,
        prompt=prompt,
        queue=deque((number, ids[shared:]) for number, ids in enumerate(sequences)),
        written=[[] for _ in sequences],
        max_new_tokens=max_new_tokens,
        stop=stop,
    )
    loop = DecodeLoop(KVCache(model), task)
    while loop.step():
        model.pulse("texts begun", sum(map(bool, task.written)), len(prompts))
    texts = [tokenization.decode(ids) for ids in task.written]
    return texts if stop is None else [text.partition(stop)[0] for text in texts]


@dataclass
class _Continuations:
    """The most likely tokens after prompts; a `Task` whose labels are the prompts' numbers."""

    model: CausalModel
    tokenization: Tokenization
    prompt: CachedPrompt
    """What all prompts begin with."""
    queue: deque[tuple[int, Sequence[int]]]
    """Number and further tokens of each prompt that has not begun."""
    written: list[list[int]]
    max_new_tokens: int
    stop: str | None

    def admit(self, cache: KVCache) -> Mapping[int, int]:
        """Prefill prompts as far as there is room."""
        joining: dict[int, Sequence[int]] = {}
        lengths = cache.lengths - self.prompt.length
        tokens = int(lengths.sum())
        most, most_tokens = self.model.sizes.prompts, self.model.sizes.prompt_tokens
        while self.queue and len(lengths) + len(joining) < most and tokens < most_tokens:
            number, rest = self.queue.popleft()
            joining[number] = rest
            tokens += len(rest)
        cache.join([CachedText(self.prompt)] * len(joining), list(joining))
        beginnings, last_tokens = {}, {}
        for number, (*beginning, last) in joining.items():
            last_tokens[number] = last
            if beginning:
                beginnings[number] = beginning
        cache.extend(list(beginnings), list(beginnings.values()))
        return last_tokens

    def choose(self, hidden: Tensor, labels: np.ndarray) -> Chosen[None]:
        """The most likely token of each row, (rows,)."""
        return Chosen(self.model.log_probabilities(hidden).argmax(dim=-1), None)

    def end(self, tokens: np.ndarray | None, placement: None, labels: np.ndarray) -> NextTokens:
        """A continuation ends with the document, at the stop text, or after `max_new_tokens`."""
        going: list[tuple[int, int, int]] = []
        likeliest = [] if tokens is None else tokens.tolist()
        for row, (number, token) in enumerate(zip(labels.tolist(), likeliest, strict=True)):
            if token in self.tokenization.end_ids:
                continue
            ids = self.written[number]
            ids.append(token)
            stopped = self.stop is not None and self.stop in self.tokenization.decode(ids)
            if not stopped and len(ids) < self.max_new_tokens:
                going.append((row, number, token))
        parents, numbers, following = np.array(going, dtype=np.int64).reshape(-1, 3).T
        return NextTokens(parents, numbers, following)
