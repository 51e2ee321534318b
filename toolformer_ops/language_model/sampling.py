"""Sample calls after `P(x), x[:i], " ["` (Toolformer, section 2), all positions and samples of a text in one branching cache.

A sample ends when its decoded text holds "]": the end is text, since `)]` and `")]` are single tokens in byte-pair
vocabularies. It also ends, unfinished, at the token budget or where the model ends the document.

Where the tool's name is given, as in " [QA(", its last token is only a condition on the first one drawn. Measured with
SmolLM2-135M-Instruct: after "[QA" the prompt's examples make `("` 98.7 % likely and `(` 0.3 %; made to go on from `(`, the model
writes `film` where it else writes a question, and `Calendar(Monday)` where it else writes `Calendar()`.
Does not parse calls: `call_syntax.py` does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from toolformer_ops.call_syntax import CALL_END, CALL_START
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.causal_model import Branches, CausalModel
from toolformer_ops.language_model.context import AnnotationContext, ContextBuilder
from toolformer_ops.language_model.draws import cumulative_probabilities, draw, only, uniform
from toolformer_ops.language_model.positions import owned_by
from toolformer_ops.language_model.prompts import AnnotationPrompt
from toolformer_ops.language_model.tokenization import CallStart, Tokenization
from toolformer_ops.records import SampledContinuation, TextToSample

MAX_BRANCHES = 256
"""Most samples that grow together."""


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

    position: int
    """Index of its position among those asked for."""
    number: int
    """Index among the samples of its position."""
    uniform: Callable[[int], float]
    """The random number of its n-th token."""
    ids: list[int] = field(default_factory=list)
    finished: bool = False


def sample_texts(
    model: CausalModel,
    tokenization: Tokenization,
    contexts: ContextBuilder,
    prompt: AnnotationPrompt,
    texts: Sequence[TextToSample],
    settings: SamplingSettings,
) -> list[list[list[SampledContinuation]]]:
    """Continuations of each text's positions, `settings.samples` each, in order.

    Raises:
        ModelError: context and call do not fit into the model's window.
    """
    grown: list[list[list[SampledContinuation]]] = []
    for item in texts:
        tokenized = tokenization.tokenize(item.text)
        found: dict[int, list[SampledContinuation]] = {}
        for window in contexts.windows(prompt, tokenized):
            owned = owned_by(window, item.positions)
            if owned:
                context = contexts.context(prompt, tokenized, window)
                tokens = [item.positions[index].token for index in owned]
                sampled = _sample(model, tokenization, context, tokens, window.start, settings, item.seed_key)
                found.update(zip(owned, sampled, strict=True))
        grown.append([found[index] for index in range(len(item.positions))])
    return grown


def _sample(
    model: CausalModel,
    tokenization: Tokenization,
    context: AnnotationContext,
    tokens: Sequence[int],
    window_start: int,
    settings: SamplingSettings,
    seed_key: str,
) -> list[list[SampledContinuation]]:
    """`settings.samples` continuations for each of `tokens` (token indices in the text, at least 1), in order.

    Raises:
        ModelError: context and call do not fit into the model's window.
    """
    start = tokenization.call_start(settings.call_start)
    needed = context.text_start + max(tokens) - window_start + len(start.ids) + settings.max_new_tokens
    if needed > model.max_positions:
        raise ModelError(
            f"expected prompt, text and call to fit into the model's window of {model.max_positions} tokens, found {needed}. "
            f"Lower the call length (max_call_tokens), or choose a model with a longer window."
        )
    grown: list[list[SampledContinuation]] = []
    at_once = max(1, MAX_BRANCHES // settings.samples)
    for first in range(0, len(tokens), at_once):
        chunk = tokens[first : first + at_once]
        branches = context.branch([token - window_start for token in chunk])
        samples = _grow(model, tokenization, branches, start, chunk, settings, seed_key)
        texts = [_continuation(tokenization, start, sample) for sample in samples]
        grown.extend(texts[row : row + settings.samples] for row in range(0, len(texts), settings.samples))
    return grown


def _grow(
    model: CausalModel,
    tokenization: Tokenization,
    branches: Branches,
    start: CallStart,
    tokens: Sequence[int],
    settings: SamplingSettings,
    seed_key: str,
) -> list[_Sample]:
    """All samples of all positions, position by position; `branches` has one row a position."""
    started = branches.extend([start.ids] * len(tokens))
    hidden = torch.stack([states[-1] for states in started])  # (positions, hidden)
    samples = [
        _Sample(row, number, _stream(seed_key, token, number))
        for row, token in enumerate(tokens)
        for number in range(settings.samples)
    ]
    growing = samples
    rows = [sample.position for sample in growing]  # row of `hidden` and of `branches` that each continues
    for step in range(settings.max_new_tokens):
        log_probs = model.log_probabilities(hidden)  # (rows, vocabulary)
        if step == 0 and start.first_tokens is not None:
            log_probs = only(log_probs, start.first_tokens)
        cumulative = cumulative_probabilities(log_probs, settings.temperature, settings.top_p)
        uniforms = torch.tensor([item.uniform(step) for item in growing], dtype=torch.float64, device=model.device)
        drawn = draw(cumulative[torch.tensor(rows, device=model.device)], uniforms).tolist()
        going_on = [
            index
            for index, (sample, token) in enumerate(zip(growing, drawn, strict=True))
            if _append(tokenization, start, sample, token)
        ]
        if not going_on or step + 1 == settings.max_new_tokens:
            break
        branches = branches.kept([rows[index] for index in going_on])
        growing = [growing[index] for index in going_on]
        rows = list(range(len(growing)))
        hidden = torch.stack([states[-1] for states in branches.extend([[sample.ids[-1]] for sample in growing])])
    return samples


def _stream(seed_key: str, token: int, number: int) -> Callable[[int], float]:
    return lambda step: uniform(seed_key, token, number, step)


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
