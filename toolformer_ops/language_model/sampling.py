"""Sample calls after `P(x), x[:i], " ["` (Toolformer, section 2): all positions and samples of several texts in one pass a token.

Samples of one position are one row for as long as they hold the same tokens: the distribution that follows is the same, bit for
bit, so it is computed once and each of them draws from it with its own number. Measured with SmolLM2-135M at the default numbers,
k 20 and m 10: 39 % fewer rows for the Calculator's calls, 7 % fewer for MT's.

Random numbers depend on what is drawn and on nothing else: the n-th of a sample is a hash of the key, the position, the sample's
index and n. So a sample does not depend on what it is computed with, nor on how often a stage is started again. All numbers of a
sample are made when its text is added.

A sample ends when its text holds "]": the end is text, since `)]` and `")]` are single tokens in byte-pair vocabularies. A table
says which tokens hold one. It also ends, unfinished, at the token budget or where the model ends the document.

Where the tool's name is given, as in " [QA(", its last token is only a condition on the first one drawn. Measured with
SmolLM2-135M-Instruct: after "[QA" the prompt's examples make `("` 98.7 % likely and `(` 0.3 %; made to continue from `(`, the model
writes `film` where it else writes a question, and `Calendar(Monday)` where it else writes `Calendar()`.
Does not parse calls: `call_syntax.py` does.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.call_syntax import CALL_END, CALL_START
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.context import AnnotationContext, ContextBuilder
from toolformer_ops.language_model.decode_loop import DecodeLoop, NextTokens
from toolformer_ops.language_model.kv_cache import KVCache
from toolformer_ops.language_model.memory import give_back
from toolformer_ops.language_model.tokenization import AnnotationPrompt, Tokenization, TokenizedText
from toolformer_ops.records import SampledContinuation


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


@dataclass(frozen=True)
class _Batch:
    """Positions of one window of a text that join together, with their samples."""

    context: AnnotationContext
    in_window: list[int]
    """The positions, counted from the window's start."""
    samples: np.ndarray
    """Numbers of the samples, one position after the other."""


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
        self._room = model.memory.cached_tokens
        """Most tokens whose keys and values are there together: those of the texts that grow together, both copies counted, and of
        their samples' calls at their longest."""
        self._loop = DecodeLoop(KVCache(model), self)
        self._added: list[np.ndarray] = []  # of each text, the numbers of its samples, (positions, samples)
        self._joining: list[_Batch] = []
        size = max(int(model.config.vocab_size), tokenization.size)
        self._ends, self._brackets = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        self._ends[list(tokenization.end_ids)] = True
        self._brackets[list(tokenization.call_end_ids)] = True
        self._joined = 0  # samples of batches that have room
        # Of each batch: tokens of its text, how many of its samples grow.
        self._text_tokens = np.zeros(0, dtype=np.int64)
        self._open = np.zeros(0, dtype=np.int64)
        # Of each sample: batch, random numbers, tokens drawn and how many, whether it has its end.
        self._batch_of = np.zeros(0, dtype=np.int64)
        self._uniforms = np.zeros((0, settings.max_new_tokens))
        self._ids = np.zeros((0, settings.max_new_tokens), dtype=np.int32)
        self._drawn = np.zeros(0, dtype=np.int64)
        self._finished = np.zeros(0, dtype=bool)
        # The samples that grow and the row of each; of each row, how many tokens of the call's start it has or will take in.
        self._growing = self._row_of = np.zeros(0, dtype=np.int64)
        self._given = np.zeros(0, dtype=np.int64)

    @torch.inference_mode()
    def add(self, text: str, tokens: Sequence[int], seed_key: str) -> None:
        """Take in a text, to be sampled before these tokens of it; its random numbers are made from `seed_key`.

        The text joins those that grow as soon as there is room for its keys and values (`memory.py`); until then they take
        decode steps. Its KV cache is computed, or taken over where `find_positions` has just computed it.

        Raises:
            ModelError: context and call do not fit into the model's window.
        """
        first, count = len(self._drawn), len(tokens) * self._settings.samples
        numbers = [
            uniforms(seed_key, token, sample, self._settings.max_new_tokens)
            for token in tokens
            for sample in range(self._settings.samples)
        ]
        self._added.append(first + np.arange(count).reshape(len(tokens), self._settings.samples))
        self._uniforms = np.concatenate([self._uniforms, *(one[None] for one in numbers)])
        self._ids = np.pad(self._ids, ((0, count), (0, 0)))
        self._drawn, self._finished = np.pad(self._drawn, (0, count)), np.pad(self._finished, (0, count))
        self._batch_of = np.pad(self._batch_of, (0, count))
        # Positions in batches that there is room for; a text's context is computed when its first batch is asked for.
        most = self._settings.samples * self._settings.max_new_tokens
        for batch in self._batches(self._tokenization.tokenize(text), tokens, self._added[-1]):
            needed = batch.context.tokens + len(batch.in_window) * most
            while self._open.any():
                growing = self._text_tokens * (self._open > 0) + self._open * self._settings.max_new_tokens
                if growing.sum() + needed <= self._room:
                    break
                self._step()
            self._joined += len(batch.samples)
            self._batch_of[batch.samples] = len(self._open)
            self._open = np.append(self._open, len(batch.samples))
            self._text_tokens = np.append(self._text_tokens, batch.context.tokens)
            self._joining.append(batch)

    @torch.inference_mode()
    def finish(self) -> list[list[list[SampledContinuation]]]:
        """Decode until every sample has ended; for each text, for each position, its samples, all in the order they were added."""
        while self._open.any():
            self._step()
        give_back()
        continuations = [
            SampledContinuation(self._written(sample).partition(CALL_END)[0], bool(finished))
            for sample, finished in enumerate(self._finished)
        ]
        return [[[continuations[sample] for sample in samples] for samples in text] for text in self._added]

    def admit(self, cache: KVCache) -> Mapping[int, int]:
        """The batches that have room join: one row a position, which takes in the call's start. See `decode_loop.Task`."""
        tokens: dict[int, int] = {}
        shares = []
        samples = self._settings.samples
        for batch in self._joining:
            rows = range(len(self._given), len(self._given) + len(batch.in_window))
            shares.append((batch.context.text, [batch.context.text_start + token for token in batch.in_window], rows))
            self._given = np.concatenate([self._given, np.ones(len(rows), dtype=np.int64)])
            self._growing = np.concatenate([self._growing, batch.samples])
            self._row_of = np.concatenate([self._row_of, np.repeat(np.array(rows), samples)])
            tokens.update(dict.fromkeys(rows, self._start.ids[0]))
        if shares:
            cache.share(shares)
        self._joining = []
        return tokens

    def choose(self, hidden: Tensor, labels: np.ndarray) -> Tensor | None:
        """Draw the next token of every sample: (rows, most samples of a row). See `decode_loop.Task`."""
        self._place(labels)
        drawing = np.flatnonzero(self._given[labels] >= len(self._start.ids))
        if not len(drawing):
            return None
        # 1. The samples' random numbers, by row.
        numbers = np.zeros((len(labels), int(self._nth.max()) + 1))
        latest = self._settings.max_new_tokens - 1
        numbers[self._at, self._nth] = self._uniforms[self._growing, self._drawn[self._growing].clip(max=latest)]
        first = self._given[labels[drawing]] == len(self._start.ids)
        if len(drawing) < len(labels):
            hidden = hidden[torch.from_numpy(drawing).to(hidden.device)]
        device = self._model.output_device
        at = torch.from_numpy(numbers[drawing]).to(device)
        conditioned = torch.from_numpy(first).to(device) if first.any() and not first.all() else None
        chosen = torch.empty(at.shape, dtype=torch.int64, device=device)  # (rows, most samples of a row)

        def choose_rows(rows: Sequence[int]) -> list[int]:
            """Draw by inversion into `chosen`, block by block of the vocabulary's projection."""
            done = rows[0]
            for log_probs in self._model.log_probability_blocks(
                hidden[rows[0] : rows[-1] + 1]
            ):  # (some rows, vocabulary)
                block = slice(done, done + len(log_probs))
                done = block.stop
                allowed = log_probs
                if self._start.first_tokens is not None and first[block].any():
                    allowed = only(log_probs, self._start.first_tokens)
                    if conditioned is not None:
                        allowed = torch.where(conditioned[block, None], allowed, log_probs)
                cumulative = cumulative_probabilities(allowed, self._settings.temperature, self._settings.top_p)
                chosen[block] = draw(cumulative, at[block])
            return list(rows)

        # 2. Where memory is short, for half of the rows and then for the others: a row's draws depend on no other row.
        self._model.memory.halving(choose_rows, range(len(drawing)), "rows of logits")
        return chosen

    def end(self, chosen: np.ndarray | None, labels: np.ndarray) -> NextTokens:
        """Samples that have their end leave; those of a row that drew different tokens become rows. See `decode_loop.Task`."""
        drawing = self._given[labels] >= len(self._start.ids)
        position = np.flatnonzero(~drawing)
        parents, tokens = [position], [np.array(self._start.ids)[self._given[labels[position]]]]
        given = [self._given[labels[position]] + 1]
        going, rows = ~drawing[self._at], np.zeros(len(self._growing), dtype=np.int64)
        if len(position):
            rows[going] = np.searchsorted(position, self._at[going])
        if chosen is not None:
            # 1. Append what was drawn.
            place = np.cumsum(drawing) - 1
            mine = np.flatnonzero(~going)
            token = chosen[place[self._at[mine]], self._nth[mine]]
            taken = (token >= 0) & ~self._ends[token]
            samples = self._growing[mine[taken]]
            self._ids[samples, self._drawn[samples]] = token[taken]
            self._drawn[samples] += 1
            # 2. Look at the text of those whose token holds the end of a call.
            for sample in samples[self._brackets[token[taken]]]:
                self._finished[sample] = CALL_END in self._written(sample)
            ended = self._finished[samples] | (self._drawn[samples] >= self._settings.max_new_tokens)
            left = mine[taken][~ended]
            # 3. Those that drew the same token stay one row.
            keys = self._at[left] * len(self._ends) + token[taken][~ended]
            distinct, row = np.unique(keys, return_inverse=True)
            going[left], rows[left] = True, len(position) + row
            parents.append(distinct // len(self._ends))
            tokens.append(distinct % len(self._ends))
            given.append(np.full(len(distinct), len(self._start.ids) + 1))
        np.subtract.at(self._open, self._batch_of[self._growing[~going]], 1)
        self._growing, self._row_of = self._growing[going], rows[going]
        self._given = np.concatenate(given)
        found, order = np.concatenate(parents), np.argsort(np.concatenate(parents), kind="stable")
        return NextTokens(found[order], order, np.concatenate(tokens)[order])

    def _step(self) -> None:
        self._loop.step()
        self._model.pulse("samples ended", self._joined - int(self._open.sum()), len(self._drawn))

    def _place(self, labels: np.ndarray) -> None:
        """Where in the step each sample that grows has its row, and which of the row's samples it is."""
        place_of = np.empty(len(labels), dtype=np.int64)
        place_of[labels] = np.arange(len(labels))
        self._at = place_of[self._row_of]
        by_row = np.argsort(self._at, kind="stable")
        counts = np.bincount(self._at, minlength=len(labels))
        self._nth = np.empty_like(self._at)
        self._nth[by_row] = np.arange(len(by_row)) - (counts.cumsum() - counts)[self._at[by_row]]

    def _batches(self, text: TokenizedText, tokens: Sequence[int], samples: np.ndarray) -> Iterator[_Batch]:
        """The positions of a text in batches that there is room for; `samples`, (positions, samples), are their numbers."""
        settings = self._settings
        for window in self._contexts.windows(self._prompt, text):
            owned = [at for at, token in enumerate(tokens) if window.owned_start <= token < window.owned_end]
            room = self._room - 2 * (window.end - window.start)
            at_once = max(1, room // (settings.samples * settings.max_new_tokens))
            for begin in range(0, len(owned), at_once):
                places = owned[begin : begin + at_once]
                context = self._contexts.context(self._prompt, text, window)
                inside = [tokens[at] - window.start for at in places]
                needed = context.text_start + max(inside) + len(self._start.ids) + settings.max_new_tokens
                if needed > self._model.max_positions:
                    raise ModelError(
                        f"expected prompt, text and call to fit into the model's window of {self._model.max_positions} tokens, "
                        f"found {needed}. Lower the call length (max_call_tokens), or choose a model with a longer window."
                    )
                yield _Batch(context, inside, samples[places].reshape(-1))

    def _written(self, sample: int) -> str:
        """The text after the opening bracket."""
        text = self._tokenization.decode([*self._start.ids, *self._ids[sample, : self._drawn[sample]].tolist()])
        return text.partition(CALL_START.strip())[2]


def uniforms(seed_key: str, position_token: int, sample: int, count: int) -> np.ndarray:
    """(count,) numbers in [0, 1), float64: one for each token of one sample, 53 bits of a SHA-256 each."""
    start = hashlib.sha256(f"{seed_key}\x00{position_token}\x00{sample}\x00".encode())
    digests = []
    for step in range(count):
        one = start.copy()
        one.update(b"%d" % step)
        digests.append(one.digest()[:8])
    return (np.frombuffer(b"".join(digests), dtype=">u8") >> 11) / 2.0**53


def only(log_probs: Tensor, tokens: Sequence[int]) -> Tensor:
    """Log probabilities, (rows, vocabulary), given that the token is one of `tokens`; from those of the same shape."""
    index = torch.tensor(tokens, device=log_probs.device)
    allowed = torch.full_like(log_probs, -math.inf)
    allowed[:, index] = log_probs[:, index]
    return allowed.log_softmax(dim=-1)


def cumulative_probabilities(log_probs: Tensor, temperature: float, top_p: float) -> Tensor:
    """Cumulative probabilities over the vocabulary, float64, (rows, vocabulary), from log probabilities of the same shape.

    `temperature` divides the logits; of the result only the most likely tokens count that are needed to reach `top_p`.
    Computed in place where that is possible: `memory.py` counts what is held at once.
    """
    probabilities = (log_probs / temperature).softmax(dim=-1) if temperature != 1.0 else log_probs.exp()
    if top_p < 1.0:
        ordered, index = probabilities.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1).sub_(ordered)  # (rows, vocabulary): what the more likely tokens have together
        ordered.masked_fill_(before >= top_p, 0.0)
        del before
        probabilities.zero_().scatter_(-1, index, ordered)
        del ordered, index
    probabilities = probabilities.double()
    return probabilities.cumsum_(dim=-1)


def draw(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """Token ids, (rows, draws), by inversion of `cumulative`, (rows, vocabulary), at `uniforms`, (rows, draws), float64 in [0, 1).

    A token of probability zero is never drawn. Rows that hold no distribution (not finite) give -1.
    """
    total = cumulative[:, -1:]  # (rows, 1)
    tokens = torch.searchsorted(cumulative, uniforms * total, right=True)  # (rows, draws)
    usable = torch.isfinite(total) & (total > 0)
    return torch.where(usable, tokens.clamp(max=cumulative.shape[1] - 1), torch.full_like(tokens, -1))
