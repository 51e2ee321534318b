"""The one decode loop (prefill, share, decode step, choose, end).

Greedy continuation of prompts is its simplest task. Sampling calls (`sampling.py`), continuing prompts (here,
for tools whose answer a language model writes or chooses) and writing with tools (`decoding/together.py`)
differ in how they choose a token and in what they do when a row ends; each is a `Task`. A step reads from the
device once, however many rows there are.
"""

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from torch import Tensor

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.columns import CachedPrompt, CachedText
from toolformer_ops.language_model.kv_cache import KVCache, read_prompt
from toolformer_ops.language_model.tokenization import Tokenization

RESTS = -1
"""Instead of a token: the row stays in the cache and takes in nothing until `Task.admit` gives it a token."""
Placement = TypeVar("Placement")


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
    """The most likely tokens after prompts; a `decode_loop.Task` whose labels are the prompts' numbers."""

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
