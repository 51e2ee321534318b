"""Sample calls after `P(x), x[:i], " ["` (Toolformer, section 2).

All positions and samples of several texts take one pass a token. Samples of one position are one row for as
long as they hold the same tokens: the distribution that follows is the same, bit for bit, so it is computed
once and each of them draws from it with its own number. Measured with SmolLM2-135M at the default numbers, k
20 and m 10: 39 % fewer rows for the Calculator's calls, 7 % fewer for MT's.

Random numbers depend on what is drawn and on nothing else: the n-th of a sample is a hash of the key, the
position, the sample's index and n. So a sample does not depend on what it is computed with, nor on how often
a stage is started again. All numbers of a sample are made when its text is added.

A sample ends when its text holds "]": the end is text, since `)]` and `")]` are single tokens in byte-pair
vocabularies. A table says which tokens hold one. It also ends, unfinished, at the token budget or when the
model ends the document. A model that was finetuned on calls writes a result after the arrow, which is not
read: with `until_arrow` a sample ends there, as the same call.

If the tool's name is given, as in " [QA(", its last token is only a condition on the first one drawn.
Measured with SmolLM2-135M-Instruct: after "[QA" the prompt's examples make `("` 98.7 % likely and `(` 0.3 %;
made to continue from `(`, the model writes `film` instead of a question, and `Calendar(Monday)` instead of
`Calendar()`. Does not parse calls: `call_syntax.py` does.
"""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.call_syntax import ARROW, CALL_END, CALL_START
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.columns import CachedText
from toolformer_ops.language_model.context import ContextBuilder
from toolformer_ops.language_model.devices import give_back
from toolformer_ops.language_model.kv_cache import Chosen, DecodeLoop, KVCache, NextTokens
from toolformer_ops.language_model.tokenization import AnnotationPrompt, Tokenization
from toolformer_ops.records import SampledContinuation


@dataclass(frozen=True)
class SamplingSettings:
    """How calls are sampled; part of the sampling recipe."""

    samples: int
    """Samples a position (the paper's m)."""
    max_new_tokens: int
    """Most tokens after `call_start`; the first of them may bring the end of `call_start` along
    (`tokenization.CallStart`)."""
    call_start: str
    """" [" or, if the tool's name is given, " [Calculator("."""
    temperature: float
    """Above 0; 1 is the model's own distribution."""
    top_p: float
    """In (0, 1]; 1 samples from the whole vocabulary."""
    until_arrow: bool = False
    """Whether a sample ends at the arrow, too."""

    @property
    def ends(self) -> tuple[str, ...]:
        """The texts of which the first that is written ends a sample."""
        return (CALL_END, ARROW) if self.until_arrow else (CALL_END,)

    def __post_init__(self) -> None:
        if not self.call_start.startswith(CALL_START):
            raise ModelError(
                f"expected a call start that begins with {CALL_START!r}, found {self.call_start!r}."
            )
        if CALL_END in self.call_start:
            raise ModelError(f"expected a call start without {CALL_END!r}, found {self.call_start!r}.")
        if min(self.samples, self.max_new_tokens) < 1 or self.temperature <= 0 or not 0 < self.top_p <= 1:
            raise ModelError(
                "expected samples and max_new_tokens of at least 1, temperature above 0 and top_p in (0, 1], "
                f"found {self.samples}, {self.max_new_tokens}, {self.temperature} and {self.top_p}."
            )


@dataclass(frozen=True)
class _Step:
    """The samples that grow, as they stand in one decode step."""

    samples: np.ndarray
    """(growing,) their numbers."""
    at: np.ndarray
    """(growing,) the place of each one's row in the step."""
    nth: np.ndarray
    """(growing,) which of its row's samples each is."""


class Sampler:
    """Samples with one prompt and one set of numbers.

    Texts are added as their positions become known, and grow together.
    """

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
        """Most tokens whose keys and values are there together: those of the texts that grow together, both
        copies counted, and of their samples' calls at their longest."""
        self._loop = DecodeLoop(KVCache(model), self)
        size = max(int(model.config.vocab_size), tokenization.size)
        self._ends, self._closing = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        self._ends[list(tokenization.end_ids)] = True
        for end in settings.ends:
            self._closing[list(tokenization.ids_holding(end[-1]))] = True
        self._samples = np.zeros(
            0,
            dtype=[
                ("batch", "i8"),  # -1 until there is room for it
                ("row", "i8"),  # the label of its row in the cache; -1 unless it grows
                ("drawn", "i8"),  # how many tokens
                ("ids", "i4", settings.max_new_tokens),  # the tokens
                ("uniforms", "f8", settings.max_new_tokens),  # the random number of each
                ("finished", "?"),  # whether it has its end
            ],
        )
        """What is known of each sample that was added."""
        self._batches = np.zeros(0, dtype=[("text_tokens", "i8"), ("growing", "i8")])
        """For each batch that joined, the tokens of its text, and how many of its samples grow."""
        self._taken_in = np.zeros(0, dtype=np.int64)
        """For each row, by its label, the tokens of the call's start that it has or takes in."""
        self._added: list[np.ndarray] = []  # of each text, the numbers of its samples, (positions, samples)
        self._joining: list[tuple[CachedText, list[int], np.ndarray]] = []
        """Batches that join next: a text, how many tokens each position sees with the prompt's, numbers of
        the samples."""

    @torch.inference_mode()
    def add(self, text: str, tokens: Sequence[int], seed_key: str) -> None:
        """Take in a text, to be sampled before these tokens of it.

        Its random numbers are made from `seed_key`. The text joins those that grow as soon as there is room
        for its keys and values (`devices.py`); until then they take decode steps. Its KV cache is computed, or
        taken over if `find_positions` has just computed it.

        Raises:
            ModelError: context and call do not fit into the model's window.
        """
        settings = self._settings
        # 1. Its samples, with all their random numbers.
        new = np.zeros(len(tokens) * settings.samples, dtype=self._samples.dtype)
        new["batch"] = new["row"] = -1
        for number, (token, sample) in enumerate(itertools.product(tokens, range(settings.samples))):
            new["uniforms"][number] = uniforms(seed_key, token, sample, settings.max_new_tokens)
        numbers = len(self._samples) + np.arange(len(new)).reshape(len(tokens), settings.samples)
        self._samples = np.concatenate([self._samples, new])
        self._added.append(numbers)
        # 2. Positions in batches that there is room for; a text's context is computed when its first batch is
        #    asked for.
        tokenized = self._tokenization.tokenize(text)
        for window in self._contexts.windows(self._prompt, tokenized):
            owned = [at for at, token in enumerate(tokens) if window.owned_start <= token < window.owned_end]
            room = self._room - 2 * (window.end - window.start)
            at_once = max(1, room // (settings.samples * settings.max_new_tokens))
            for begin in range(0, len(owned), at_once):
                places = owned[begin : begin + at_once]
                [[context]] = self._contexts.contexts(self._prompt, [(tokenized, window)])
                seen = [context.text_start + tokens[at] - window.start for at in places]
                longest = max(seen) + len(self._start.ids) + settings.max_new_tokens
                if longest > self._model.window_tokens:
                    raise ModelError(
                        "expected prompt, text and call to fit into the model's window of "
                        f"{self._model.window_tokens} tokens, found {longest}. Lower the call length "
                        "(max_call_tokens), or choose a model with a longer window."
                    )
                # 3. The samples that grow take decode steps until there is room for the batch.
                while (growing := self._batches[self._batches["growing"] > 0]).size:
                    rows = int(growing["growing"].sum()) + len(places) * settings.samples
                    text_columns = self._text_columns([*growing["text_tokens"].tolist(), context.tokens])
                    if text_columns + rows * settings.max_new_tokens <= self._room:
                        break
                    self._step()
                samples = numbers[places].reshape(-1)
                self._samples["batch"][samples] = len(self._batches)
                joined = np.array([(context.tokens, len(samples))], dtype=self._batches.dtype)
                self._batches = np.concatenate([self._batches, joined])
                self._joining.append((context.text, seen, samples))

    def _text_columns(self, tokens: Sequence[int]) -> int:
        """Columns that texts of so many tokens take.

        They are padded to the longest where all are attended to together.
        """
        return len(tokens) * max(tokens) if self._model.texts_together else sum(tokens)

    @torch.inference_mode()
    def finish(self) -> list[list[list[SampledContinuation]]]:
        """Decode until every sample has ended.

        Returns for each text, for each position, its samples, all in the order they were added.
        """
        while self._batches["growing"].any():
            self._step()
        give_back()
        continuations = []
        for sample, finished in enumerate(self._samples["finished"]):
            text = self._written(sample)
            for end in self._settings.ends:
                text = text.partition(end)[0]
            continuations.append(SampledContinuation(text, bool(finished)))
        by_text: list[list[list[SampledContinuation]]] = []
        for numbers in self._added:  # (positions, samples)
            by_text.append([])
            for samples in numbers:
                by_text[-1].append([continuations[sample] for sample in samples])
        return by_text

    def admit(self, cache: KVCache) -> Mapping[int, int]:
        """The batches that have room join: one row a position, which takes in the call's start.

        See `kv_cache.Task`.
        """
        tokens: dict[int, int] = {}
        shares = []
        for text, seen, samples in self._joining:
            rows = range(len(self._taken_in), len(self._taken_in) + len(seen))
            shares.append((text, seen, rows))
            self._taken_in = np.concatenate([self._taken_in, np.ones(len(rows), dtype=np.int64)])
            self._samples["row"][samples] = np.repeat(np.array(rows), self._settings.samples)
            tokens.update(dict.fromkeys(rows, self._start.ids[0]))
        if shares:
            cache.share(shares)
        self._joining = []
        return tokens

    def choose(self, hidden: Tensor, labels: np.ndarray) -> Chosen[_Step]:
        """Draw the next token of every sample: (rows, most samples of a row). See `kv_cache.Task`."""
        # 1. Where the rows of the samples that grow are in this step, and which of its row's samples each is.
        samples = np.flatnonzero(self._samples["row"] >= 0)
        place_of = np.empty(len(labels), dtype=np.int64)
        place_of[labels] = np.arange(len(labels))
        at = place_of[self._samples["row"][samples]]
        by_row = np.argsort(at, kind="stable")
        counts = np.bincount(at, minlength=len(labels))
        nth = np.empty_like(at)
        nth[by_row] = np.arange(len(by_row)) - (counts.cumsum() - counts)[at[by_row]]
        step = _Step(samples, at, nth)
        drawing = np.flatnonzero(self._taken_in[labels] >= len(self._start.ids))
        if not len(drawing):
            return Chosen(None, step)
        # 2. The samples' random numbers, by row.
        numbers = np.zeros((len(labels), int(nth.max()) + 1))
        latest = self._settings.max_new_tokens - 1
        drawn = self._samples["drawn"][samples].clip(max=latest)
        numbers[at, nth] = self._samples["uniforms"][samples, drawn]
        first = self._taken_in[labels[drawing]] == len(self._start.ids)
        if len(drawing) < len(labels):
            hidden = hidden[torch.from_numpy(drawing).to(hidden.device)]
        device = self._model.output_device
        drawn_at = torch.from_numpy(numbers[drawing]).to(device)
        conditioned = torch.from_numpy(first).to(device) if first.any() and not first.all() else None
        chosen = torch.empty(
            drawn_at.shape, dtype=torch.int64, device=device
        )  # (rows, most samples of a row)

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
                cumulative = cumulative_probabilities(
                    allowed, self._settings.temperature, self._settings.top_p
                )
                chosen[block] = draw(cumulative, drawn_at[block])
            return list(rows)

        # 3. Where memory is short, for half of the rows and then for the others: a row's draws depend on no
        #    other row.
        self._model.memory.halving(choose_rows, range(len(drawing)), "rows of logits")
        return Chosen(chosen, step)

    def end(self, tokens: np.ndarray | None, placement: _Step, labels: np.ndarray) -> NextTokens:
        """Samples that have their end leave; those of a row that drew different tokens become rows.

        See `kv_cache.Task`.
        """
        state, step, settings = self._samples, placement, self._settings
        # 1. Rows that are still in the call's start take in its next token.
        drawing = self._taken_in[labels] >= len(self._start.ids)
        starting = np.flatnonzero(~drawing)
        parents, following = [starting], [np.array(self._start.ids)[self._taken_in[labels[starting]]]]
        taken_in = [self._taken_in[labels[starting]] + 1]
        rows = np.full(len(step.samples), -1)  # of each sample, its next row
        waits = ~drawing[step.at]
        rows[waits] = np.searchsorted(starting, step.at[waits])
        if tokens is not None:
            # 2. Append what was drawn; a sample that drew the end of the document, or nothing, leaves.
            place = np.cumsum(drawing) - 1
            drew = np.flatnonzero(~waits)
            token = tokens[place[step.at[drew]], step.nth[drew]]
            taken = (token >= 0) & ~self._ends[token]
            drew, token = drew[taken], token[taken]
            samples = step.samples[drew]
            state["ids"][samples, state["drawn"][samples]] = token
            state["drawn"][samples] += 1
            # 3. Look at the text of those whose token holds the last character of an end.
            for sample in samples[self._closing[token]]:
                state["finished"][sample] = any(end in self._written(sample) for end in settings.ends)
            left = ~(state["finished"][samples] | (state["drawn"][samples] >= settings.max_new_tokens))
            # 4. Those that drew the same token stay one row.
            keys = step.at[drew[left]] * len(self._ends) + token[left]
            distinct, row = np.unique(keys, return_inverse=True)
            rows[drew[left]] = len(starting) + row
            parents.append(distinct // len(self._ends))
            following.append(distinct % len(self._ends))
            taken_in.append(np.full(len(distinct), len(self._start.ids) + 1))
        # 5. The next step's rows, in the order of their parents.
        np.subtract.at(self._batches["growing"], state["batch"][step.samples[rows < 0]], 1)
        state["row"][step.samples] = rows
        self._taken_in = np.concatenate(taken_in)
        parent_rows, order = np.concatenate(parents), np.argsort(np.concatenate(parents), kind="stable")
        return NextTokens(parent_rows[order], order, np.concatenate(following)[order])

    def _step(self) -> None:
        self._loop.step()
        joined = int((self._samples["batch"] >= 0).sum())
        self._model.pulse("samples ended", joined - int(self._batches["growing"].sum()), len(self._samples))

    def _written(self, sample: int) -> str:
        """The text after the opening bracket."""
        state = self._samples[sample]
        text = self._tokenization.decode([*self._start.ids, *state["ids"][: state["drawn"]].tolist()])
        return text.partition(CALL_START.strip())[2]


def uniforms(seed_key: str, position_token: int, sample: int, count: int) -> np.ndarray:
    """(count,) numbers in [0, 1), float64: one for each token of one sample, 53 bits of a SHA-256 each."""
    start = hashlib.sha256(f"{seed_key}\x00{position_token}\x00{sample}\x00".encode())
    digests = []
    for step in range(count):
        step_hash = start.copy()
        step_hash.update(b"%d" % step)
        digests.append(step_hash.digest()[:8])
    return (np.frombuffer(b"".join(digests), dtype=">u8") >> 11) / 2.0**53


def only(log_probs: Tensor, tokens: Sequence[int]) -> Tensor:
    """Log probabilities, (rows, vocabulary), given that the token is one of `tokens`.

    They are computed from those of the same shape.
    """
    index = torch.tensor(tokens, device=log_probs.device)
    allowed = torch.full_like(log_probs, -math.inf)
    allowed[:, index] = log_probs[:, index]
    return allowed.log_softmax(dim=-1)


def cumulative_probabilities(log_probs: Tensor, temperature: float, top_p: float) -> Tensor:
    """Cumulative probabilities over the vocabulary, float64, (rows, vocabulary).

    They are made from log probabilities of the same shape. `temperature` divides the logits; of the result
    only the most likely tokens count that are needed to reach `top_p`. Computed in place if that is possible:
    `devices.py` counts what is held at once.
    """
    probabilities = (log_probs / temperature).softmax(dim=-1) if temperature != 1.0 else log_probs.exp()
    if top_p < 1.0:
        ordered, index = probabilities.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1).sub_(
            ordered
        )  # (rows, vocabulary): what the more likely tokens have together
        ordered.masked_fill_(before >= top_p, 0.0)
        del before
        probabilities.zero_().scatter_(-1, index, ordered)
        del ordered, index
    probabilities = probabilities.double()
    return probabilities.cumsum_(dim=-1)


def draw(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """Token ids, (rows, draws), by inversion of `cumulative`, (rows, vocabulary).

    `uniforms`, (rows, draws), are float64 in [0, 1). A token of probability zero is never drawn. Rows that
    hold no distribution (not finite) give -1.
    """
    total = cumulative[:, -1:]  # (rows, 1)
    tokens = torch.searchsorted(cumulative, uniforms * total, right=True)  # (rows, draws)
    usable = torch.isfinite(total) & (total > 0)
    return torch.where(usable, tokens.clamp(max=cumulative.shape[1] - 1), torch.full_like(tokens, -1))
