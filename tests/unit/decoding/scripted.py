"""A language model that follows a script, and tools that answer as they are told: decoding can be followed token by token.

For each prompt there are texts that the model likes to write, the best first. After the tokens that are there, the most likely
token is the next one of the first text that begins with them, the second most likely that of the second such text, and so on.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.tiny_models import train_tokenizer
from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.decoding.together import Together, ToolRuns
from toolformer_ops.language_model.rows import Row
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.tools.base import ToolOutput, ToolSpec

END = "<|endoftext|>"
WINDOW = 400


@dataclass
class ScriptedRows:
    """Rows whose logits follow the script; keeps an account of what each row was fed."""

    tokenization: Tokenization
    scripts: Mapping[str, Sequence[str]]
    held: dict[int, list[int]] = field(default_factory=dict)
    begun: dict[int, str] = field(default_factory=dict)
    passes: list[int] = field(default_factory=list)
    """Rows of each step."""

    def begin(self, prompts: Sequence[tuple[Sequence[int], int]]) -> list[tuple[Row, Tensor]]:
        return [self._begin(ids) for ids, _ in prompts]

    def _begin(self, ids: Sequence[int]) -> tuple[Row, Tensor]:
        row = Row(state=None, length=len(ids))  # type: ignore[arg-type]
        prompt = self.tokenization.decode(ids[len(self.tokenization.start_ids) :])
        self.begun[id(row)], self.held[id(row)] = prompt, []
        self._rows = [*getattr(self, "_rows", []), row]  # kept, so that no id is given twice
        return row, self._logits(row)

    def step(self, rows: Sequence[Row], tokens: Sequence[int]) -> Tensor:
        self.passes.append(len(rows))
        return self.insert(rows, [[token] for token in tokens])

    def insert(self, rows: Sequence[Row], tokens: Sequence[Sequence[int]]) -> Tensor:
        for row, added in zip(rows, tokens, strict=True):
            assert added
            self.held[id(row)].extend(added)
            row.length += len(added)
        return torch.stack([self._logits(row) for row in rows])

    def cut(self, row: Row, length: int) -> None:
        assert length < row.length
        del self.held[id(row)][len(self.held[id(row)]) - (row.length - length) :]
        row.length = length

    def _logits(self, row: Row) -> Tensor:
        held = tuple(self.held[id(row)])
        ranked: list[int] = []
        for text in self.scripts[self.begun[id(row)]]:
            ids = (*self.tokenization.continuation(text.removesuffix(END)), *self.tokenization.end_ids)
            if ids[: len(held)] == held and len(ids) > len(held) and ids[len(held)] not in ranked:
                ranked.append(ids[len(held)])
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


def tokenization() -> Tokenization:
    return Tokenization(train_tokenizer())


def write(
    scripts: Mapping[str, Sequence[str]],
    decoding: DecodingSettings,
    tools: ToolRuns,
    prompts: Sequence[Prompt] | None = None,
    window: int = WINDOW,
) -> list[WrittenText]:
    """The continuations that follow from the scripts, one for each prompt."""
    words = tokenization()
    asked = prompts or [Prompt(text) for text in scripts]
    encoded = [(*words.start_ids, *words.ids(prompt.text)) for prompt in asked]
    return Together(ScriptedRows(words, scripts), words, window, tools, None).write(asked, encoded, decoding)
