"""The paper's section 2 written plainly with transformers: the engine has to agree with it, and is measured against it.

It shares no code with the engine but the records, and only the random number of each draw. Positions are read
in one pass with all logits. Samples are drawn position by position: prompt and prefix repeated once a sample,
then token by token over the model's cache, as `generate(num_return_sequences=m)` does, until every sample
holds "]". A loss is a pass over its whole sequence, without cache, batch or padding. Nothing is shared
between calls, positions or texts. Texts must fit into the model's window.
"""

import functools
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from toolformer_ops.records import CallLosses, CallPosition, PlacedCall, SampledContinuation

WEIGHTS = (5 / 15, 4 / 15, 3 / 15, 2 / 15, 1 / 15)


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
            raise ValueError(
                f"expected that only the first word changes behind a space, found others in {text!r}"
            )
        instructions = self.encode(before.removesuffix(" "))
        return [*self.start, *instructions, *spelled, *self.encode(after.rstrip()), *spelled[: shift + token]]

    def find_positions(
        self, template: str, text: str, tokens: Sequence[int], *, at_most: int, threshold: float
    ) -> list[CallPosition]:
        """Those of `tokens` with the largest p(" [" | P(x), x[:token]) above `threshold`, in the order of the text."""
        (marker,) = self.encode(" [")
        encoded = self.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        starts = [start for start, _ in encoded["offset_mapping"]]
        last = len(starts)
        log_probs = self.logits(self.annotation_prefix(template, text, last)).log_softmax(
            -1
        )  # (tokens, vocabulary)
        probabilities = {token: float(log_probs[token - last - 1, marker].exp()) for token in tokens}
        above = [token for token in tokens if probabilities[token] > threshold]
        best = sorted(above, key=lambda token: (-probabilities[token], token))[:at_most]
        return [CallPosition(token, starts[token], probabilities[token]) for token in sorted(best)]

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
        temperature: float = 1.0,
    ) -> list[SampledContinuation]:
        """`samples` samples in a batch over the model's own cache.

        Tokens that are drawn after a sample's end are dropped.
        """
        # The ids that are fixed. A name that is given ends in a token whose text the first new token only has
        # to begin with.
        given = self.encode(call_start)
        fixed, begins = (given, "") if call_start == " [" else (given[:-1], self.tokenizer.decode(given[-1:]))
        prefix = [*self.annotation_prefix(template, text, position.token), *fixed]
        new: list[list[int]] = [[] for _ in range(samples)]
        ended = [False] * samples
        output = self.network(input_ids=torch.tensor([prefix] * samples), use_cache=True, logits_to_keep=1)
        for step in range(max_new_tokens):
            tokens = []
            for number, logits in enumerate(output.logits[:, -1].float()):  # (vocabulary,)
                key = f"{seed_key}\0{position.token}\0{number}\0{step}"
                tokens.append(self._draw(logits / temperature, key, "" if step else begins))
                if not ended[number] and tokens[-1] not in self._end_ids:
                    new[number].append(tokens[-1])
                ended[number] |= tokens[-1] in self._end_ids or "]" in self.tokenizer.decode(new[number])
            if all(ended) or step + 1 == max_new_tokens:
                break
            output = self.network(
                input_ids=torch.tensor(tokens)[:, None],
                past_key_values=output.past_key_values,
                use_cache=True,
            )
        written = [str(self.tokenizer.decode([*fixed, *ids])).removeprefix(" [") for ids in new]
        return [SampledContinuation(sample.partition("]")[0], "]" in sample) for sample in written]

    def _draw(self, logits: Tensor, key: str, begins: str) -> int:
        """A token whose text begins so; logits are (vocabulary,)."""
        uniform = (int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 11) / 2**53
        probabilities = logits.softmax(-1).double()
        cumulative = (probabilities * self._begins_with(begins) if begins else probabilities).cumsum(0)
        return int((cumulative <= uniform * float(cumulative[-1])).sum())

    def losses(self, text: str, call: PlacedCall, start: int = 0, end: int | None = None) -> CallLosses:
        """The three losses of a call that sees these tokens of the text, by three passes."""
        without_call, without_result, with_result = (
            self.loss(text, z, call.token, start, end) for z in (None, call.without_result, call.with_result)
        )
        return CallLosses(without_call, without_result, with_result)

    def loss(self, text: str, z: str | None, token: int, start: int = 0, end: int | None = None) -> float:
        """L_i(z), summed over these tokens of the text with its weights."""
        prefix = list(self.start) if z is None else [*self.start, *self.encode(z), *self.encode("\n")]
        ids = self.encode(text)[start:end]
        log_probs = self.logits([*prefix, *ids]).log_softmax(-1)
        terms = [
            WEIGHTS[start + index - token] * float(log_probs[len(prefix) + index - 1, ids[index]])
            for index in range(token - start, len(ids))
            if start + index - token < len(WEIGHTS)
        ]
        return -math.fsum(terms)
