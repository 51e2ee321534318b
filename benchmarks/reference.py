"""The paper's section 2 written plainly with transformers: the engine has to agree with it, and is measured against it.

Shares no code with the engine but the records, and with it only the random number of each draw. The tests read one sequence at a
time, the whole of it for each token, without cache, batch or padding. The benchmarks read positions in one pass with all logits,
and sample position by position: prompt and prefix repeated once a sample, then token by token over the model's own cache, as
`generate(num_return_sequences=m)` does, until every sample holds "]". Nothing is shared between calls, positions or texts.
Texts must fit into the model's window.
"""

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from toolformer_ops.records import CallLosses, CallPosition, PlacedCall, SampledContinuation

WEIGHTS = (5 / 15, 4 / 15, 3 / 15, 2 / 15, 1 / 15)


@dataclass(frozen=True)
class DrawnStep:
    """One token of a sample."""

    text: str
    """What the sample holds after it, from after " [" on."""
    border_distance: float
    """The distance of its random number from the nearest border between two tokens, as a probability."""


@dataclass(frozen=True)
class DrawnSample:
    """One sampled call, and how each of its tokens was drawn."""

    continuation: SampledContinuation
    steps: tuple[DrawnStep, ...]


class PlainReference:
    """A model as `from_pretrained` gives it, in float32 on the CPU."""

    def __init__(self, folder: Path, start_ids: Sequence[int]) -> None:
        self.network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.start = list(start_ids)
        self.spelled = [self.tokenizer.decode([token]) for token in range(self.network.config.vocab_size)]
        self._end_ids = {self.tokenizer.eos_token_id} | {
            token for token, spelled in enumerate(self.spelled) if spelled == "<|endoftext|>"
        }
        self._begins_with = functools.cache(
            lambda begins: torch.tensor([spelled.startswith(begins) for spelled in self.spelled])
        )
        """(vocabulary,): the tokens whose text begins so."""

    def encode(self, text: str) -> list[int]:
        """Token ids without special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """(tokens, vocabulary) float32."""
        found: Tensor = self.network(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].float()
        return found

    def annotation_prefix(self, template: str, text: str, token: int) -> list[int]:
        """Ids of P(x), x[:token]; for prompts that have `{text}` after "Input: " and end in "Output:"."""
        before, _, after = template.partition("{text}")
        ids, spelled = self.encode(text), self.encode(" " + text)
        shift = len(spelled) - len(ids)
        if spelled[shift + token :] != ids[token:]:
            raise ValueError(f"expected that only the first word changes behind a space, found others in {text!r}")
        instructions = self.encode(before.removesuffix(" "))
        return [*self.start, *instructions, *spelled, *self.encode(after.rstrip()), *spelled[: shift + token]]

    def probability(self, template: str, text: str, token: int) -> float:
        """p(" [" | P(x), x[:token])."""
        (marker,) = self.encode(" [")
        return float(self.logits(self.annotation_prefix(template, text, token))[-1].softmax(-1)[marker])

    def find_positions(
        self, template: str, text: str, tokens: Sequence[int], *, at_most: int, threshold: float
    ) -> list[CallPosition]:
        """Those of `tokens` with the largest p(" [") above `threshold`, in the order of the text, by one pass over P(x), x."""
        (marker,) = self.encode(" [")
        starts = [
            start
            for start, _ in self.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)[
                "offset_mapping"
            ]
        ]
        last = len(starts)
        log_probs = self.logits(self.annotation_prefix(template, text, last)).log_softmax(-1)  # (tokens, vocabulary)
        found = [
            CallPosition(token, starts[token], float(log_probs[token - last - 1, marker].exp())) for token in tokens
        ]
        above = [position for position in found if position.probability > threshold]
        best = sorted(above, key=lambda position: (-position.probability, position.token))[:at_most]
        return sorted(best, key=lambda position: position.token)

    def sample(
        self,
        template: str,
        text: str,
        position: CallPosition,
        number: int,
        *,
        call_start: str,
        max_new_tokens: int,
        temperature: float,
        seed_key: str,
    ) -> SampledContinuation:
        """One sample, the whole sequence anew for each token."""
        fixed, begins = self._given(call_start)
        prefix = [*self.annotation_prefix(template, text, position.token), *fixed]
        new: list[int] = []
        for step in range(max_new_tokens):
            key = f"{seed_key}\0{position.token}\0{number}\0{step}"
            drawn, _ = self._draw(self.logits([*prefix, *new])[-1] / temperature, key, begins if step == 0 else "")
            if drawn in self._end_ids:
                break
            new.append(drawn)
            if "]" in self.tokenizer.decode(new):
                break
        return _continuation(self._written(fixed, new))

    @torch.no_grad()
    def sample_position(
        self,
        template: str,
        text: str,
        position: CallPosition,
        *,
        samples: int,
        call_start: str,
        max_new_tokens: int,
        seed_key: str,
    ) -> list[DrawnSample]:
        """`samples` samples in a batch over the model's own cache. What is drawn after a sample's end does not belong to it."""
        fixed, begins = self._given(call_start)
        prefix = [*self.annotation_prefix(template, text, position.token), *fixed]
        new: list[list[int]] = [[] for _ in range(samples)]
        steps: list[list[DrawnStep]] = [[] for _ in range(samples)]
        ended = [False] * samples
        output = self.network(input_ids=torch.tensor([prefix] * samples), use_cache=True, logits_to_keep=1)
        for step in range(max_new_tokens):
            tokens = []
            for number, logits in enumerate(output.logits[:, -1].float()):  # (vocabulary,)
                key = f"{seed_key}\0{position.token}\0{number}\0{step}"
                drawn, distance = self._draw(logits, key, begins if step == 0 else "")
                tokens.append(drawn)
                if ended[number]:
                    continue
                if drawn not in self._end_ids:
                    new[number].append(drawn)
                written = self._written(fixed, new[number])
                steps[number].append(DrawnStep(written, distance))
                ended[number] = drawn in self._end_ids or "]" in written
            if all(ended) or step + 1 == max_new_tokens:
                break
            output = self.network(
                input_ids=torch.tensor(tokens)[:, None], past_key_values=output.past_key_values, use_cache=True
            )
        return [DrawnSample(_continuation(of_sample[-1].text), tuple(of_sample)) for of_sample in steps]

    def _given(self, call_start: str) -> tuple[list[int], str]:
        """The ids that are fixed, and what the first new token begins with: the text of the last one given, if a name is given."""
        given = self.encode(call_start)
        return (given, "") if call_start == " [" else (given[:-1], self.tokenizer.decode(given[-1:]))

    def _written(self, fixed: list[int], new: list[int]) -> str:
        return str(self.tokenizer.decode([*fixed, *new])).removeprefix(" [")

    def _draw(self, logits: Tensor, key: str, begins: str) -> tuple[int, float]:
        """A token whose text begins so, and the distance of its random number from a border; logits are (vocabulary,)."""
        digest = hashlib.sha256(key.encode()).digest()
        uniform = (int.from_bytes(digest[:8], "big") >> 11) / 2**53
        probabilities = logits.softmax(-1).double()
        cumulative = (probabilities * self._begins_with(begins) if begins else probabilities).cumsum(0)
        at = uniform * float(cumulative[-1])
        drawn = int((cumulative <= at).sum())
        return drawn, border_distance(cumulative, at, drawn)

    def losses(self, text: str, call: PlacedCall, start: int = 0, end: int | None = None) -> CallLosses:
        """The three losses of a call that sees these tokens of the text, by three passes."""
        without_call, without_result, with_result = (
            self.loss(text, z, call.token, start, end) for z in (None, call.without_result, call.with_result)
        )
        return CallLosses(without_call, without_result, with_result)

    def log_probabilities(self, ids: tuple[int, ...]) -> Tensor:
        """(tokens, vocabulary) float32."""
        return self.logits(ids).log_softmax(-1)

    def loss(self, text: str, z: str | None, token: int, start: int = 0, end: int | None = None) -> float:
        """L_i(z), summed over these tokens of the text with its weights."""
        prefix = list(self.start) if z is None else [*self.start, *self.encode(z), *self.encode("\n")]
        ids = self.encode(text)[start:end]
        log_probs = self.log_probabilities((*prefix, *ids))
        terms = [
            WEIGHTS[start + index - token] * float(log_probs[len(prefix) + index - 1, ids[index]])
            for index in range(token - start, len(ids))
            if start + index - token < len(WEIGHTS)
        ]
        return -math.fsum(terms)


def _continuation(written: str) -> SampledContinuation:
    return SampledContinuation(written.partition("]")[0], "]" in written)


def border_distance(cumulative: Tensor, at: float, drawn: int) -> float:
    """How far a draw is from drawing another token, as a probability; `cumulative` is (vocabulary,), `at` a point of its range.

    The ends of the whole range are no borders: there is no other token behind them.
    """
    total, upper = float(cumulative[-1]), float(cumulative[drawn])
    lower = float(cumulative[drawn - 1]) if drawn else 0.0
    return min(at - lower if lower > 0 else total, upper - at if upper < total else total) / total
