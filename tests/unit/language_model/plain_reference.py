"""The paper's section 2 written plainly: one sequence at a time, no cache, no batch, no padding, the whole text each time.

Shares no code with the engine but the records. Slow; the engine has to agree with it. `ContinuedReference` is for a model of real
size: it reads with transformers' own cache.
"""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from toolformer_ops.records import CallLosses, CallPosition, PlacedCall, SampledContinuation

WEIGHTS = (5 / 15, 4 / 15, 3 / 15, 2 / 15, 1 / 15)


class PlainReference:
    """A model as `from_pretrained` gives it."""

    def __init__(self, folder: Path, start_ids: Sequence[int]) -> None:
        self.network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.start = list(start_ids)
        self.spelled = [self.tokenizer.decode([token]) for token in range(self.network.config.vocab_size)]

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """(tokens, vocabulary) float32."""
        return self.network(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].float()

    def annotation_prefix(self, template: str, text: str, token: int) -> list[int]:
        """Ids of P(x), x[:token]; for prompts that have `{text}` after "Input: " and end in "Output:"."""
        before, _, after = template.partition("{text}")
        ids, spelled = self.encode(text), self.encode(" " + text)
        shift = len(spelled) - len(ids)
        assert spelled[shift + token :] == ids[token:], "only the first word may change behind a space"
        instructions = self.encode(before.removesuffix(" "))
        return [*self.start, *instructions, *spelled, *self.encode(after.rstrip()), *spelled[: shift + token]]

    def probability(self, template: str, text: str, token: int) -> float:
        """p(" [" | P(x), x[:token])."""
        (marker,) = self.encode(" [")
        return float(self.logits(self.annotation_prefix(template, text, token))[-1].softmax(-1)[marker])

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
        given = self.encode(call_start)
        fixed = given if call_start == " [" else given[:-1]
        begins = "" if call_start == " [" else self.tokenizer.decode(given[-1:])
        prefix = [*self.annotation_prefix(template, text, position.token), *fixed]
        new: list[int] = []
        for step in range(max_new_tokens):
            digest = hashlib.sha256(f"{seed_key}\0{position.token}\0{number}\0{step}".encode()).digest()
            uniform = (int.from_bytes(digest[:8], "big") >> 11) / 2**53
            probabilities = (self.logits([*prefix, *new])[-1] / temperature).softmax(-1).double()
            if step == 0:  # the first token may be any that begins with the last one given
                for token, spelled in enumerate(self.spelled):
                    if not spelled.startswith(begins):
                        probabilities[token] = 0.0
            drawn = int((probabilities.cumsum(0) <= uniform * probabilities.sum()).sum())
            if drawn == self.tokenizer.eos_token_id or self.spelled[drawn] == "<|endoftext|>":
                break
            new.append(drawn)
            if "]" in self.tokenizer.decode(new):
                break
        written = self.tokenizer.decode([*fixed, *new]).removeprefix(" [")
        return SampledContinuation(written.partition("]")[0], "]" in written)

    def losses(self, text: str, call: PlacedCall, start: int = 0, end: int | None = None) -> CallLosses:
        """The three losses of a call that sees these tokens of the text."""
        prefixes = (None, call.without_result, call.with_result)
        return CallLosses(*(self.loss(text, z, call.token, start, end) for z in prefixes))

    def log_probabilities(self, ids: tuple[int, ...]) -> torch.Tensor:
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


class ContinuedReference(PlainReference):
    """Reads a sequence from where it differs from the last one, and keeps the logits of what both share.

    The log probabilities of a scored sequence are kept too: the calls of a text share most of theirs.
    """

    def __init__(self, folder: Path, start_ids: Sequence[int]) -> None:
        super().__init__(folder, start_ids)
        self.read: list[int] = []
        self.cache = DynamicCache()
        self.rows = torch.empty(0)
        self.scored: dict[tuple[int, ...], torch.Tensor] = {}

    def log_probabilities(self, ids: tuple[int, ...]) -> torch.Tensor:
        """(tokens, vocabulary) float32."""
        if ids not in self.scored:
            self.scored[ids] = super().log_probabilities(ids)
        return self.scored[ids]

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """(tokens, vocabulary) float32."""
        shared = 0
        while shared < min(len(self.read), len(ids) - 1) and self.read[shared] == ids[shared]:
            shared += 1
        if shared:
            self.cache.crop(shared - len(self.read))
        else:
            self.cache = DynamicCache()
        new = torch.tensor([list(ids[shared:])])
        found = self.network(input_ids=new, past_key_values=self.cache, use_cache=True).logits[0].float()
        self.rows = torch.cat([self.rows[:shared], found]) if shared else found
        self.read = list(ids)
        return self.rows
