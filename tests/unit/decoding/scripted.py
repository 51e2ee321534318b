"""A language model that follows a script, and tools that answer as they are told: decoding can be followed token by token.

For each prompt there are texts that the model likes to write, the best first. After the tokens that are
there, the most likely token is the next one of the first text that begins with them, the second most likely
that of the second such text, and so on.
"""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from tests.tiny_models import train_tokenizer
from toolformer_ops.config import Settings
from toolformer_ops.decoding import together
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.decoding.together import Together, ToolRuns
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES, BatchSizes
from toolformer_ops.language_model.columns import CachedPrompt, CachedText
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.tools.base import ToolOutput, ToolSpec

END = "<|endoftext|>"
WINDOW = 400


class HeldTokens:
    """A cache that holds its rows' tokens and nothing else; a row's hidden state is what its network makes of its tokens."""

    def __init__(self, hidden: Callable[[Sequence[Sequence[int]]], Tensor]) -> None:
        self._hidden = hidden
        self._rows: list[tuple[int, list[int]]] = []  # label, tokens

    @property
    def labels(self) -> np.ndarray:
        return np.array([label for label, _ in self._rows], dtype=np.int64)

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(held) for _, held in self._rows], dtype=np.int64)

    def join(self, texts: Sequence[CachedText], labels: Sequence[int]) -> None:
        self._rows += [(label, list(text.prompt.ids)) for text, label in zip(texts, labels, strict=True)]

    def extend(self, labels: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        for label, added in zip(labels, tokens, strict=True):
            assert added
            dict(self._rows)[label].extend(added)

    def step(self, tokens: np.ndarray, rows: np.ndarray) -> Tensor:
        for row, token in zip(rows, tokens, strict=True):
            self._rows[row][1].append(int(token))
        return self._hidden([self._rows[row][1] for row in rows])

    def cut(self, label: int, length: int) -> None:
        held = dict(self._rows)[label]
        assert length <= len(held)
        del held[length:]

    def keep(self, parents: np.ndarray, labels: np.ndarray) -> None:
        self._rows = [(int(label), self._rows[row][1]) for row, label in zip(parents, labels, strict=True)]


@dataclass
class ScriptedNetwork:
    """A network whose logits follow the script."""

    tokenization: Tokenization
    scripts: Mapping[str, Sequence[str]]
    window_tokens: int = WINDOW

    @property
    def sizes(self) -> BatchSizes:
        return BATCH_SIZES["cpu"]

    def new_cache(self) -> HeldTokens:
        return HeldTokens(lambda sequences: torch.stack([self._logits(tuple(held)) for held in sequences]))

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        return hidden

    def _logits(self, held: tuple[int, ...]) -> Tensor:
        ranked: list[int] = []
        for prompt, texts in self.scripts.items():
            before = (*self.tokenization.start_ids, *self.tokenization.ids(prompt))
            for text in texts:
                ids = (
                    *before,
                    *self.tokenization.continuation(text.removesuffix(END)),
                    *self.tokenization.end_ids,
                )
                if len(held) >= len(before) and ids[: len(held)] == held and ids[len(held) : len(held) + 1]:
                    ranked += [] if ids[len(held)] in ranked else [ids[len(held)]]
        logits = torch.zeros(vocabulary_size(self.tokenization))
        for rank, token in enumerate(ranked):
            logits[token] = 100.0 - rank
        if not ranked:
            logits[list(self.tokenization.end_ids)] = 100.0
        return logits


def vocabulary_size(tokenization: Tokenization) -> int:
    return int(tokenization._backend.get_vocab_size(with_added_tokens=True))


@dataclass
class TellingTool:
    """A tool that answers as it is told, and remembers the batches it was asked."""

    name: str
    answers: Callable[[str], ToolOutput]
    batches: list[list[str]] = field(default_factory=list)
    hangs: bool = False
    opening_error: Exception | None = None

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, purpose="", prompt_file="")

    def effective_input(self, call_input: str, document: Any) -> str | None:
        return call_input

    def open(self, settings: Settings, load_model: Any) -> "TellingTool":
        if self.opening_error:
            raise self.opening_error
        return self

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        self.batches.append(list(inputs))
        if self.hangs:
            threading.Event().wait(5.0)
        return [self.answers(item) for item in inputs]


@functools.cache
def tokenization() -> Tokenization:
    return Tokenization(train_tokenizer())


def write(
    scripts: Mapping[str, Sequence[str]],
    decoding: DecodingSettings,
    tools: ToolRuns,
    prompts: Sequence[Prompt] | None = None,
    *,
    window: int = WINDOW,
    told: Callable[[int, Sequence[int]], None] | None = None,
) -> list[WrittenText]:
    """The continuations that follow from the scripts, one for each prompt; `told` gets settled tokens."""
    network = ScriptedNetwork(tokenization(), scripts, window)
    return written_by(network, decoding, tools, prompts or [Prompt(text) for text in scripts], told)


def written_by(
    network: ScriptedNetwork,
    decoding: DecodingSettings,
    tools: ToolRuns,
    prompts: Sequence[Prompt],
    told: Callable[[int, Sequence[int]], None] | None = None,
) -> list[WrittenText]:
    """The continuations of a network without keys and values."""
    words = network.tokenization
    encoded = [(*words.start_ids, *words.ids(prompt.text)) for prompt in prompts]
    with mock.patch.multiple(
        together, KVCache=ScriptedNetwork.new_cache, read_prompts=lambda _model: CachedPrompt
    ):
        return Together(network, words, tools).write(prompts, encoded, decoding, told)
