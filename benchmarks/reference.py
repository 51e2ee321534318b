"""The paper's section 2 written plainly with transformers: the reference that the engine is measured against.

Positions are one forward pass over prompt and text, with all logits. Calls are sampled position by position: prompt and prefix
repeated once a sample, then token by token over the model's own cache, as `generate(num_return_sequences=m)` does; it stops when
every sample holds "]". Each loss is a forward pass over the whole text with its prefix. Nothing is shared between calls, positions
or texts, and nothing is left out.

It reads the same token ids as the engine and draws each token with the same random number, so that calls can be compared draw by
draw. Texts must fit into the model's window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model import AnnotationPrompt
from toolformer_ops.language_model.losses import SCORED_TOKENS, weighted_loss
from toolformer_ops.language_model.models.loading import load_network
from toolformer_ops.language_model.sampling import cumulative_probabilities, only
from toolformer_ops.language_model.sampling import uniforms as random_numbers
from toolformer_ops.language_model.tokenization import CallStart, Tokenization, TokenizedText
from toolformer_ops.records import CallLosses, CallPosition, PlacedCall, SampledContinuation


@dataclass(frozen=True)
class DrawnStep:
    """One token of a sample."""

    text: str
    """What the sample holds after it, from after "["."""
    border_distance: float
    """The distance of its random number from the nearest border between two tokens, as a probability."""


@dataclass(frozen=True)
class ReferenceSample:
    """One sampled call and how each of its tokens was drawn."""

    continuation: SampledContinuation
    steps: tuple[DrawnStep, ...]


class Reference:
    """A model as `from_pretrained` gives it, and the engine's tokenization."""

    def __init__(self, network: Any, tokenization: Tokenization) -> None:
        self.network = network.eval().requires_grad_(False)
        self.tokenization = tokenization
        if len(tokenization.marker_ids) != 1:
            raise ModelError(f"expected a vocabulary with ' [' as one token, found {tokenization.marker_ids}.")

    @classmethod
    def load(cls, folder: str, dtype: str = "float32", device: str = "cpu") -> "Reference":
        """The model of a folder, with one CPU thread."""
        network, tokenizer, _ = load_network(folder, None, dtype, device, threads=1)
        return cls(network, Tokenization(tokenizer))

    @torch.inference_mode()
    def find_positions(
        self, prompt: AnnotationPrompt, text: str, *, at_most: int, threshold: float
    ) -> list[CallPosition]:
        """The word starts with the largest p(" [") above `threshold`, in the order of the text."""
        tokenized = self.tokenization.tokenize(text)
        ids, first = self._annotation_ids(prompt, tokenized)
        log_probs = self._logits(ids).log_softmax(-1)  # (tokens, vocabulary)
        [marker] = self.tokenization.marker_ids
        found = [
            CallPosition(token, tokenized.starts[token], float(log_probs[first + token - 1, marker].exp()))
            for token in tokenized.word_starts
            if token >= 1
        ]
        above = [position for position in found if position.probability > threshold]
        best = sorted(above, key=lambda position: (-position.probability, position.token))[:at_most]
        return sorted(best, key=lambda position: position.token)

    @torch.inference_mode()
    def sample_position(
        self,
        prompt: AnnotationPrompt,
        text: str,
        position: CallPosition,
        *,
        samples: int,
        max_new_tokens: int,
        call_start: str,
        temperature: float,
        top_p: float,
        seed_key: str,
    ) -> list[ReferenceSample]:
        """`samples` continuations of `call_start` at one position."""
        ids, first = self._annotation_ids(prompt, self.tokenization.tokenize(text))
        start = self.tokenization.call_start(call_start)
        prefix = [*ids[: first + position.token], *start.ids]
        batch = torch.tensor([prefix] * samples, device=self.network.device)  # (samples, tokens)
        output = self.network(input_ids=batch, use_cache=True, logits_to_keep=1)
        growing = [_Growing(self.tokenization, start) for _ in range(samples)]
        for step in range(max_new_tokens):
            log_probs = output.logits[:, -1].float().log_softmax(-1)  # (samples, vocabulary)
            if step == 0 and start.first_tokens is not None:
                log_probs = only(log_probs, start.first_tokens)
            cumulative = cumulative_probabilities(log_probs, temperature, top_p)
            uniforms = torch.tensor(
                [random_numbers(seed_key, position.token, number, step + 1)[step] for number in range(samples)],
                dtype=torch.float64,
                device=batch.device,
            )
            at = uniforms * cumulative[:, -1]  # (samples,)
            drawn = torch.searchsorted(cumulative, at[:, None], right=True)[:, 0]  # (samples,)
            distances = border_distances(cumulative, uniforms, drawn)
            for row, (token, distance) in enumerate(zip(drawn.tolist(), distances, strict=True)):
                growing[row].append(token, distance)
            if all(sample.ended for sample in growing) or step + 1 == max_new_tokens:
                break
            output = self.network(input_ids=drawn[:, None], past_key_values=output.past_key_values, use_cache=True)
        return [sample.result() for sample in growing]

    @torch.inference_mode()
    def losses(self, text: str, call: PlacedCall) -> CallLosses:
        """The three losses of a call, three passes over the whole text."""
        tokenized = self.tokenization.tokenize(text)
        without_call, without_result, with_result = (
            self._loss(tokenized, z, call.token) for z in (None, call.without_result, call.with_result)
        )
        return CallLosses(without_call, without_result, with_result)

    def _loss(self, text: TokenizedText, z: str | None, token: int) -> float:
        prefix = list(self.tokenization.start_ids)
        if z is not None:
            prefix += [*self.tokenization.ids(z), *self.tokenization.newline_ids]
        log_probs = self._logits([*prefix, *text.ids]).log_softmax(-1)  # (tokens, vocabulary)
        scored = range(token, min(token + SCORED_TOKENS, len(text)))
        return weighted_loss([float(log_probs[len(prefix) + index - 1, text.ids[index]]) for index in scored])

    def _logits(self, ids: Sequence[int]) -> Tensor:
        """(tokens, vocabulary), float32."""
        batch = torch.tensor([list(ids)], device=self.network.device)
        logits: Tensor = self.network(input_ids=batch, use_cache=False).logits[0].float()
        return logits

    def _annotation_ids(self, prompt: AnnotationPrompt, text: TokenizedText) -> tuple[list[int], int]:
        """Ids of `P(x), x`, and the index of token 0 of the second x."""
        words = self.tokenization
        spelled, shift = words.spell_after(prompt.separator, text.text, text.ids, text.second_word())
        between = words.continuation(prompt.after_text, after=".")
        before = [*words.start_ids, *words.ids(prompt.before_text), *spelled, *between]
        return [*before, *spelled], len(before) + shift


class _Growing:
    """A sample while it grows. Tokens that are drawn after its end, while others of its batch continue, do not belong to it."""

    def __init__(self, tokenization: Tokenization, start: CallStart) -> None:
        self._tokenization = tokenization
        self._start = start
        self._ids: list[int] = []
        self._steps: list[DrawnStep] = []
        self.ended = False

    def append(self, token: int, border_distance: float) -> None:
        if self.ended:
            return
        if token in self._tokenization.end_ids:
            self.ended = True
        else:
            self._ids.append(token)
        text = self._text()
        self._steps.append(DrawnStep(text, border_distance))
        self.ended = self.ended or "]" in text

    def result(self) -> ReferenceSample:
        text = self._text()
        return ReferenceSample(SampledContinuation(text.partition("]")[0], "]" in text), tuple(self._steps))

    def _text(self) -> str:
        return self._tokenization.decode([*self._start.ids, *self._ids]).partition("[")[2]


def border_distances(cumulative: Tensor, uniforms: Tensor, drawn: Tensor) -> list[float]:
    """How far each draw is from drawing another token, as a probability; from (rows, vocabulary), (rows,) and (rows,).

    The ends of the whole range are no borders: there is no other token behind them.
    """
    found: list[float] = []
    for row, token in enumerate(drawn.tolist()):
        total = float(cumulative[row, -1])
        at = float(uniforms[row]) * total
        lower = float(cumulative[row, token - 1]) if token > 0 else 0.0
        upper = float(cumulative[row, token])
        to_lower = at - lower if lower > 0 else total
        to_upper = upper - at if upper < total else total
        found.append(min(to_lower, to_upper) / total if total > 0 else 0.0)
    return found
