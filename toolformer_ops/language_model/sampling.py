"""Sample calls after `P(x), x[:i], " ["` (Toolformer, section 2): all positions and samples of several texts in one pass a token.

The samples of a text share its cache (`tree_decoding.py`; for networks that it cannot be used with, branch by branch and text by
text). Each sample draws with random numbers of its own, so that it does not depend on what grows beside it.

Samples of one position are one row for as long as they hold the same tokens: the distribution that follows is the same, bit for
bit, so it is computed once and each of them draws from it with its own number. Measured with SmolLM2-135M at the default numbers,
k 20 and m 10: 39 % fewer rows for the Calculator's calls, 7 % fewer for MT's.

A sample ends when its decoded text holds "]": the end is text, since `)]` and `")]` are single tokens in byte-pair
vocabularies. It also ends, unfinished, at the token budget or where the model ends the document.

Where the tool's name is given, as in " [QA(", its last token is only a condition on the first one drawn. Measured with
SmolLM2-135M-Instruct: after "[QA" the prompt's examples make `("` 98.7 % likely and `(` 0.3 %; made to go on from `(`, the model
writes `film` where it else writes a question, and `Calendar(Monday)` where it else writes `Calendar()`.
Does not parse calls: `call_syntax.py` does.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from toolformer_ops.call_syntax import CALL_END, CALL_START
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.branches import Branches
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.context import ContextBuilder
from toolformer_ops.language_model.draws import cumulative_probabilities, draw, only, uniform
from toolformer_ops.language_model.positions import owned_by
from toolformer_ops.language_model.prompts import AnnotationPrompt
from toolformer_ops.language_model.tokenization import CallStart, Tokenization
from toolformer_ops.language_model.trees import Tree
from toolformer_ops.records import SampledContinuation, TextToSample

GROWING_TOKENS = {"cpu": 12288, "cuda": 32768}
"""Most tokens whose keys and values are there together, by kind of device: those of the texts that grow together, both copies
counted, and of their samples' calls at their longest. With SmolLM2 in float32, 565 megabytes on a CPU at most."""


@dataclass(frozen=True)
class SamplingSettings:
    """How calls are sampled; part of the sampling recipe."""

    samples: int
    """Samples a position (the paper's m)."""
    max_new_tokens: int
    """Most tokens after `call_start`; the first of them may bring the end of `call_start` along (`tokenization.CallStart`)."""
    call_start: str
    """" [" or, where the tool's name is given, " [Calculator("."""
    temperature: float
    """Above 0; 1 is the model's own distribution."""
    top_p: float
    """In (0, 1]; 1 samples from the whole vocabulary."""

    def __post_init__(self) -> None:
        if not self.call_start.startswith(CALL_START):
            raise ModelError(f"expected a call start that begins with {CALL_START!r}, found {self.call_start!r}.")
        if CALL_END in self.call_start:
            raise ModelError(f"expected a call start without {CALL_END!r}, found {self.call_start!r}.")
        if min(self.samples, self.max_new_tokens) < 1 or self.temperature <= 0 or not 0 < self.top_p <= 1:
            raise ModelError(
                f"expected samples and max_new_tokens of at least 1, temperature above 0 and top_p in (0, 1], found "
                f"{self.samples}, {self.max_new_tokens}, {self.temperature} and {self.top_p}."
            )


@dataclass
class _Sample:
    """One sample while it grows."""

    position_token: int
    """The text's token before which the call stands."""
    number: int
    """Index among the samples of its position."""
    seed_key: str
    ids: list[int] = field(default_factory=list)
    finished: bool = False

    def next_uniform(self) -> float:
        """The random number of its next token."""
        return uniform(self.seed_key, self.position_token, self.number, len(self.ids))


@dataclass
class _Group:
    """Positions of one window of a text that grow in step, with their samples.

    First each row is a position, which takes the given start of the call; then each row is those samples of a position that are
    equal so far.
    """

    rows: Tree | Branches
    keys: list[tuple[int, int]]
    """Text and position, as asked for, of each position."""
    samples: list[list[_Sample]]
    """By position."""
    text_tokens: int
    """What the text's keys and values take, tokens."""
    open: list[list[_Sample]] = field(init=False)
    """By row, the samples that grow."""
    put_in: int = 0
    """How many tokens of the call's start the rows have."""

    def __post_init__(self) -> None:
        self.open = list(self.samples)

    def next_tokens(self, start: CallStart) -> list[int]:
        """What each row takes now."""
        if self.put_in < len(start.ids):
            return [start.ids[self.put_in]] * len(self.open)
        return [samples[0].ids[-1] for samples in self.open]

    def go_on(self, open_rows: Sequence[tuple[int, list[_Sample]]]) -> None:
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

    def most_tokens(self, settings: SamplingSettings) -> int:
        """How many tokens' keys and values it may come to have."""
        return self.text_tokens + sum(map(len, self.open)) * settings.max_new_tokens


def sample_texts(
    model: CausalModel,
    tokenization: Tokenization,
    contexts: ContextBuilder,
    prompt: AnnotationPrompt,
    texts: Iterable[TextToSample],
    settings: SamplingSettings,
) -> list[list[list[SampledContinuation]]]:
    """Continuations of each text's positions, `settings.samples` each, in order.

    The next text is asked for, and joins the others, as soon as there is room for its keys and values (`GROWING_TOKENS`).

    Raises:
        ModelError: context and call do not fit into the model's window.
    """
    start = tokenization.call_start(settings.call_start)
    grown: dict[tuple[int, int], list[SampledContinuation]] = {}
    positions: list[int] = []  # how many each text has
    growing: list[_Group] = []
    for group in _groups(model, tokenization, contexts, prompt, _counted(texts, positions), start, settings):
        while growing and sum(item.most_tokens(settings) for item in (*growing, group)) > _growing_tokens(model):
            growing = _step(model, tokenization, start, settings, growing, grown)
        growing.append(group)
    while growing:
        growing = _step(model, tokenization, start, settings, growing, grown)
    return [[grown[index, number] for number in range(count)] for index, count in enumerate(positions)]


def _growing_tokens(model: CausalModel) -> int:
    return GROWING_TOKENS["cpu" if model.device.type == "cpu" else "cuda"]


def _counted(texts: Iterable[TextToSample], positions: list[int]) -> Iterator[TextToSample]:
    for text in texts:
        positions.append(len(text.positions))
        yield text


def _groups(
    model: CausalModel,
    tokenization: Tokenization,
    contexts: ContextBuilder,
    prompt: AnnotationPrompt,
    texts: Iterable[TextToSample],
    start: CallStart,
    settings: SamplingSettings,
) -> Iterator[_Group]:
    """The texts' positions in groups; each text's context is computed when its first group is asked for."""
    for index, item in enumerate(texts):
        text = tokenization.tokenize(item.text)
        for window in contexts.windows(prompt, text):
            owned = owned_by(window, item.positions)
            room = _growing_tokens(model) - 2 * (window.end - window.start)
            at_once = max(1, room // (settings.samples * settings.max_new_tokens))
            for first in range(0, len(owned), at_once):
                numbers = owned[first : first + at_once]
                tokens = [item.positions[number].token for number in numbers]
                context = contexts.context(prompt, text, window)
                inside = [token - window.start for token in tokens]
                _require_room(model, context.text_start + max(inside) + len(start.ids) + settings.max_new_tokens)
                yield _Group(
                    context.branch(inside) if model.trees is None else context.tree(inside),
                    [(index, number) for number in numbers],
                    [[_Sample(token, number, item.seed_key) for number in range(settings.samples)] for token in tokens],
                    context.tokens,
                )


def _require_room(model: CausalModel, needed: int) -> None:
    if needed > model.max_positions:
        raise ModelError(
            f"expected prompt, text and call to fit into the model's window of {model.max_positions} tokens, found {needed}. "
            f"Lower the call length (max_call_tokens), or choose a model with a longer window."
        )


def _step(
    model: CausalModel,
    tokenization: Tokenization,
    start: CallStart,
    settings: SamplingSettings,
    growing: list[_Group],
    grown: dict[tuple[int, int], list[SampledContinuation]],
) -> list[_Group]:
    """One token more for every row; returns the groups that still grow and puts what the others hold into `grown`."""
    hidden = _extend(model, growing, [group.next_tokens(start) for group in growing])
    first, later = [], []
    for group, states in zip(growing, hidden, strict=True):
        if group.put_in == len(start.ids):
            later.append((group, states))
            continue
        group.put_in += 1
        if group.put_in == len(start.ids):
            first.append((group, states))
    _draw(model, tokenization, start, settings, first, start.first_tokens)
    _draw(model, tokenization, start, settings, later, None)
    for group in growing:
        if not group.open:
            for key, samples in zip(group.keys, group.samples, strict=True):
                grown[key] = [_continuation(tokenization, start, sample) for sample in samples]
    return [group for group in growing if group.open]


def _extend(model: CausalModel, groups: Sequence[_Group], tokens: Sequence[list[int]]) -> list[Tensor]:
    """Hidden states after one token more a row, (rows, hidden) a group."""
    if model.trees is not None:
        return model.trees.step([group.rows for group in groups if isinstance(group.rows, Tree)], tokens)
    return [
        torch.stack([states[-1] for states in group.rows.extend([[token] for token in row])])
        for group, row in zip(groups, tokens, strict=True)
        if not isinstance(group.rows, Tree)
    ]


def _draw(
    model: CausalModel,
    tokenization: Tokenization,
    start: CallStart,
    settings: SamplingSettings,
    groups: Sequence[tuple[_Group, Tensor]],
    only_tokens: Sequence[int] | None,
) -> None:
    """Draw the next token of every sample of these groups, and let those that do not end go on."""
    if not groups:
        return
    hidden = torch.cat([states for _, states in groups])  # (rows, hidden)
    drawn = iter(
        _drawn_tokens(model, hidden, [samples for group, _ in groups for samples in group.open], settings, only_tokens)
    )
    for group, _ in groups:
        open_rows: list[tuple[int, list[_Sample]]] = []
        for row, samples in enumerate(group.open):
            going_on: dict[int, list[_Sample]] = {}  # by the token that they drew
            for sample, token in zip(samples, next(drawn), strict=True):
                if _append(tokenization, start, sample, token) and len(sample.ids) < settings.max_new_tokens:
                    going_on.setdefault(token, []).append(sample)
            open_rows.extend((row, equal) for equal in going_on.values())
        group.go_on(open_rows)


def _drawn_tokens(
    model: CausalModel,
    hidden: Tensor,
    rows: Sequence[Sequence[_Sample]],
    settings: SamplingSettings,
    only_tokens: Sequence[int] | None,
) -> Iterator[list[int]]:
    """What the samples of each row draw after its hidden state, (rows, hidden)."""
    first = 0
    for log_probs in model.log_probability_blocks(hidden):  # (some rows, vocabulary)
        samples = rows[first : first + len(log_probs)]
        first += len(log_probs)
        most = max(map(len, samples))
        uniforms = [[one.next_uniform() for one in row] + [0.0] * (most - len(row)) for row in samples]
        allowed = log_probs if only_tokens is None else only(log_probs, only_tokens)
        cumulative = cumulative_probabilities(allowed, settings.temperature, settings.top_p)
        tokens = draw(cumulative, torch.tensor(uniforms, dtype=torch.float64, device=model.device)).tolist()
        yield from (row_tokens[: len(row)] for row_tokens, row in zip(tokens, samples, strict=True))


def _append(tokenization: Tokenization, start: CallStart, sample: _Sample, token: int) -> bool:
    """Add a drawn token; returns whether the sample goes on."""
    if token < 0 or token in tokenization.end_ids:  # no distribution, or the document ends
        return False
    sample.ids.append(token)
    sample.finished = CALL_END in _written(tokenization, start, sample.ids)
    return not sample.finished


def _written(tokenization: Tokenization, start: CallStart, ids: Sequence[int]) -> str:
    """The text after the opening bracket."""
    text = tokenization.decode([*start.ids, *ids])
    return text.partition(CALL_START.strip())[2]


def _continuation(tokenization: Tokenization, start: CallStart, sample: _Sample) -> SampledContinuation:
    text = _written(tokenization, start, sample.ids)
    return SampledContinuation(text.partition(CALL_END)[0], sample.finished)
