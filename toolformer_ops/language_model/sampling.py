"""Sample calls after `P(x), x[:i], " ["` (Toolformer, section 2): all positions and samples of several texts in one pass a token.

The samples of a text share its cache (`tree_decoding.py`; for networks that it cannot be used with, branch by branch and text by
text). Each sample draws with random numbers of its own, so that it does not depend on what grows beside it.

Samples of one position are one row for as long as they hold the same tokens: the distribution that follows is the same, bit for
bit, so it is computed once and each of them draws from it with its own number. Measured with SmolLM2-135M at the default numbers,
k 20 and m 10: 39 % fewer rows for the Calculator's calls, 7 % fewer for MT's.

Where the tool's name is given, as in " [QA(", its last token is only a condition on the first one drawn. Measured with
SmolLM2-135M-Instruct: after "[QA" the prompt's examples make `("` 98.7 % likely and `(` 0.3 %; made to go on from `(`, the model
writes `film` where it else writes a question, and `Calendar(Monday)` where it else writes `Calendar()`.
Does not parse calls: `call_syntax.py` does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.branches import Branches
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.context import ContextBuilder
from toolformer_ops.language_model.draws import cumulative_probabilities, draw, only
from toolformer_ops.language_model.memory import give_back
from toolformer_ops.language_model.prompts import AnnotationPrompt
from toolformer_ops.language_model.samples import Sample, SamplingSettings
from toolformer_ops.language_model.tokenization import Tokenization, TokenizedText
from toolformer_ops.language_model.trees import Tree
from toolformer_ops.records import SampledContinuation

GROWING_TOKENS = {"cpu": 12288, "cuda": 32768}
"""Most tokens whose keys and values are there together, by kind of device: those of the texts that grow together, both copies
counted, and of their samples' calls at their longest. With SmolLM2 in float32, 565 megabytes on a CPU at most."""


@dataclass
class _Group:
    """Positions of one window of a text that grow in step, with their samples.

    First each row is a position, which takes the given start of the call; then each row is those samples of a position that are
    equal so far.
    """

    rows: Tree | Branches
    keys: list[tuple[int, int]]
    """Of each position: number of its text, and of the position in the text, as they were added."""
    samples: list[list[Sample]]
    """By position."""
    text_tokens: int
    """What the text's keys and values take, tokens."""
    open: list[list[Sample]] = field(init=False)
    """By row, the samples that grow."""
    put_in: int = 0
    """How many tokens of the call's start the rows have."""

    def __post_init__(self) -> None:
        self.open = list(self.samples)

    def next_tokens(self, start: Sequence[int]) -> list[int]:
        """What each row takes now."""
        if self.put_in < len(start):
            return [start[self.put_in]] * len(self.open)
        return [samples[0].ids[-1] for samples in self.open]

    def go_on(self, open_rows: Sequence[tuple[int, list[Sample]]]) -> None:
        """Keep the samples that grow, each row of them with the row that it continues."""
        if not open_rows:
            self.open = []
            return
        rows = [row for row, _ in open_rows]
        order = list(range(len(rows)))
        if isinstance(self.rows, Tree):
            order = self.rows.keep(rows)
        else:
            self.rows = self.rows.kept(rows)
        self.open = [open_rows[index][1] for index in order]

    def most_tokens(self, max_new_tokens: int) -> int:
        """How many tokens' keys and values it may come to have."""
        return self.text_tokens + sum(map(len, self.open)) * max_new_tokens


class Sampler:
    """Samples with one prompt and one set of numbers: texts are added as their positions become known, and grow together."""

    def __init__(
        self,
        model: CausalModel,
        tokenization: Tokenization,
        contexts: ContextBuilder,
        prompt: AnnotationPrompt,
        settings: SamplingSettings,
    ) -> None:
        self._model = model
        self._tokenization = tokenization
        self._contexts = contexts
        self._prompt = prompt
        self._settings = settings
        self._start = tokenization.call_start(settings.call_start)
        self._room = GROWING_TOKENS["cpu" if model.device.type == "cpu" else "cuda"]
        self._positions: list[int] = []  # how many each added text has
        self._growing: list[_Group] = []
        self._grown: dict[tuple[int, int], list[SampledContinuation]] = {}  # by text and position

    @torch.inference_mode()
    def add(self, text: str, tokens: Sequence[int], seed_key: str) -> None:
        """Take in a text, to be sampled before these tokens of it; its random numbers are made from `seed_key`.

        The text joins those that grow as soon as there is room for its keys and values (`GROWING_TOKENS`); until then they take
        decode steps. Its KV cache is computed, or taken over where `find_positions` has just computed it.

        Raises:
            ModelError: context and call do not fit into the model's window.
        """
        number = len(self._positions)
        self._positions.append(len(tokens))
        for group in self._groups(number, self._tokenization.tokenize(text), tokens, seed_key):
            while self._growing and self._most_tokens([*self._growing, group]) > self._room:
                self._step()
            self._growing.append(group)

    @torch.inference_mode()
    def finish(self) -> list[list[list[SampledContinuation]]]:
        """Decode until every sample has ended; for each text, for each position, its samples, all in the order they were added."""
        while self._growing:
            self._step()
        give_back()
        return [[self._grown[text, at] for at in range(count)] for text, count in enumerate(self._positions)]

    def _most_tokens(self, groups: Sequence[_Group]) -> int:
        return sum(group.most_tokens(self._settings.max_new_tokens) for group in groups)

    def _groups(self, number: int, text: TokenizedText, tokens: Sequence[int], seed_key: str) -> Iterator[_Group]:
        """A text's positions in groups that there is room for; its context is computed when its first group is asked for."""
        settings = self._settings
        for window in self._contexts.windows(self._prompt, text):
            owned = [at for at, token in enumerate(tokens) if window.owned_start <= token < window.owned_end]
            room = self._room - 2 * (window.end - window.start)
            at_once = max(1, room // (settings.samples * settings.max_new_tokens))
            for first in range(0, len(owned), at_once):
                places = owned[first : first + at_once]
                context = self._contexts.context(self._prompt, text, window)
                inside = [tokens[at] - window.start for at in places]
                self._require_room(context.text_start + max(inside) + len(self._start.ids) + settings.max_new_tokens)
                yield _Group(
                    rows=context.branch(inside) if self._model.trees is None else context.tree(inside),
                    keys=[(number, at) for at in places],
                    samples=[
                        [
                            Sample(self._tokenization, self._start, tokens[at], sample, seed_key)
                            for sample in range(settings.samples)
                        ]
                        for at in places
                    ],
                    text_tokens=context.tokens,
                )

    def _require_room(self, needed: int) -> None:
        if needed > self._model.max_positions:
            raise ModelError(
                f"expected prompt, text and call to fit into the model's window of {self._model.max_positions} tokens, found "
                f"{needed}. Lower the call length (max_call_tokens), or choose a model with a longer window."
            )

    def _step(self) -> None:
        """One token more for every row; groups whose samples have all ended leave."""
        start = self._start.ids
        hidden = self._extend(self._growing, [group.next_tokens(start) for group in self._growing])
        first, later = [], []
        for group, states in zip(self._growing, hidden, strict=True):
            if group.put_in == len(start):
                later.append((group, states))
                continue
            group.put_in += 1
            if group.put_in == len(start):
                first.append((group, states))
        self._draw(first, self._start.first_tokens)
        self._draw(later, None)
        for group in self._growing:
            if not group.open:
                for key, samples in zip(group.keys, group.samples, strict=True):
                    self._grown[key] = [sample.continuation() for sample in samples]
        self._growing = [group for group in self._growing if group.open]

    def _extend(self, groups: Sequence[_Group], tokens: Sequence[list[int]]) -> list[Tensor]:
        """Hidden states after one token more a row, (rows, hidden) a group."""
        trees = self._model.trees
        if trees is not None:
            return trees.step([group.rows for group in groups if isinstance(group.rows, Tree)], tokens)
        return [
            torch.stack([states[-1] for states in group.rows.extend([[token] for token in row])])
            for group, row in zip(groups, tokens, strict=True)
            if not isinstance(group.rows, Tree)
        ]

    def _draw(self, groups: Sequence[tuple[_Group, Tensor]], only_tokens: Sequence[int] | None) -> None:
        """Draw the next token of every sample of these groups, and let those that do not end go on."""
        if not groups:
            return
        hidden = torch.cat([states for _, states in groups])  # (rows, hidden)
        drawn = self._drawn_tokens(hidden, [samples for group, _ in groups for samples in group.open], only_tokens)
        for group, _ in groups:
            open_rows: list[tuple[int, list[Sample]]] = []
            for row, samples in enumerate(group.open):
                going_on: dict[int, list[Sample]] = {}  # by the token that they drew
                for sample, token in zip(samples, next(drawn), strict=True):
                    if sample.append(token, self._settings.max_new_tokens):
                        going_on.setdefault(token, []).append(sample)
                open_rows.extend((row, equal) for equal in going_on.values())
            group.go_on(open_rows)

    def _drawn_tokens(
        self, hidden: Tensor, rows: Sequence[Sequence[Sample]], only_tokens: Sequence[int] | None
    ) -> Iterator[list[int]]:
        """What the samples of each row draw after its hidden state, (rows, hidden)."""
        first = 0
        for log_probs in self._model.log_probability_blocks(hidden):  # (some rows, vocabulary)
            samples = rows[first : first + len(log_probs)]
            first += len(log_probs)
            most = max(map(len, samples))
            uniforms = [[one.next_uniform() for one in row] + [0.0] * (most - len(row)) for row in samples]
            allowed = log_probs if only_tokens is None else only(log_probs, only_tokens)
            cumulative = cumulative_probabilities(allowed, self._settings.temperature, self._settings.top_p)
            tokens = draw(cumulative, torch.tensor(uniforms, dtype=torch.float64, device=self._model.device)).tolist()
            yield from (row_tokens[: len(row)] for row_tokens, row in zip(tokens, samples, strict=True))
