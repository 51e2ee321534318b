"""The one decode loop: prefill, share, decode step, choose, end.

Sampling calls (`sampling.py`), continuing prompts (`generation.py`) and writing with tools (`decoding/together.py`) differ in how
they choose a token and in what they do at an end; each is a `Task`. A step reads from the device once, however many rows there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from toolformer_ops.language_model.kv_cache import KVCache

RESTS = -1
"""In place of a token: the row stays in the cache and takes in nothing until `Task.admit` gives it a token."""


@dataclass(frozen=True)
class NextTokens:
    """The rows that continue after a step; arrays of one length."""

    parents: np.ndarray
    """Which row of the step each continues, ascending; the same several times where a row branches."""
    labels: np.ndarray
    """The task's numbers for them, distinct."""
    tokens: np.ndarray
    """What each takes in next, or `RESTS`."""


class Task(Protocol):
    """What differs from one use of the loop to another."""

    def admit(self, cache: KVCache) -> Mapping[int, int]:
        """Let texts join as far as there is room, with all their tokens but the last; the next token of each row, by its label."""
        ...

    def choose(self, hidden: Tensor, labels: np.ndarray) -> Tensor | None:
        """Choose on the device, given these rows' hidden states, (rows, hidden): integers; None where nothing is chosen."""
        ...

    def end(self, chosen: np.ndarray | None, labels: np.ndarray) -> NextTokens:
        """Which of these rows continue, given what was chosen; the others have ended, and leave."""
        ...


class DecodeLoop:
    """The rows of one task."""

    def __init__(self, cache: KVCache, task: Task) -> None:
        self._cache = cache
        self._task = task
        self._labels = self._tokens = np.zeros(0, dtype=np.int64)  # what each row takes in next

    def step(self) -> bool:
        """One token more for each row that grows; returns whether there was one."""
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
        found = None if chosen is None else chosen.cpu().numpy()

        # 5. End: some rows leave, some rest, the others continue, or branch where their samples differ.
        following = self._task.end(found, labels[growing])
        resting = np.flatnonzero(tokens == RESTS)
        parents = np.concatenate([growing[following.parents], resting])
        self._labels = np.concatenate([following.labels, labels[resting]])
        self._tokens = np.concatenate([following.tokens, tokens[resting]])
        order = np.argsort(parents, kind="stable")
        self._cache.keep(parents[order], self._labels[order])
        return True
