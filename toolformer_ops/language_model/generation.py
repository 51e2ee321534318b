"""Greedy continuation of prompts, and how likely given ones are: for tools whose answer a language model writes or chooses.

What all prompts have in common is computed once, and so is a prompt that several given continuations follow.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.decode_loop import DecodeLoop, NextTokens
from toolformer_ops.language_model.kv_cache import CachedPrompt, CachedText, KVCache
from toolformer_ops.language_model.tokenization import Tokenization

MAX_PROMPTS_TOGETHER = 32
MAX_PROMPT_TOKENS_TOGETHER = 4096
"""Most prompts that grow together, and most tokens of them from which on no further one joins."""


def generate_texts(
    model: CausalModel, tokenization: Tokenization, prompts: Sequence[str], max_new_tokens: int, stop: str | None
) -> list[str]:
    """What the model most likely writes after each prompt, in order, up to (without) `stop` or the end of the document.

    Raises:
        ModelError: a prompt with its continuation does not fit into the model's window.
    """
    sequences = [(*tokenization.start_ids, *tokenization.ids(prompt)) for prompt in prompts]
    for number, sequence in enumerate(sequences):
        if len(sequence) + max_new_tokens > model.max_positions or not sequence:
            raise ModelError(
                f"prompt {number}: expected 1 to {model.max_positions - max_new_tokens} tokens before {max_new_tokens} new "
                f"ones, found {len(sequence)}. Shorten it, or choose a model with a longer window."
            )
    shared = _shared_length(sequences)
    prompt = CachedPrompt.read(model, sequences[0][:shared] if sequences else ())
    own = [ids[shared:] for ids in sequences]
    task = _Continuations(model, tokenization, prompt, own, max_new_tokens=max_new_tokens, stop=stop)
    loop = DecodeLoop(KVCache(model), task)
    while loop.step():
        pass
    texts = [tokenization.decode(ids) for ids in task.written]
    return texts if stop is None else [text.partition(stop)[0] for text in texts]


def continuation_log_probabilities(
    model: CausalModel, tokenization: Tokenization, prompt: str, continuations: Sequence[str]
) -> list[float]:
    """Natural log probability of each continuation after the prompt, in order; the prompt is computed once.

    Raises:
        ModelError: the prompt with its longest continuation does not fit into the model's window, or one of them has no token.
    """
    ids = [*tokenization.start_ids, *tokenization.ids(prompt)]
    rows = [tokenization.ids(continuation) for continuation in continuations]
    longest = max(map(len, rows), default=0)
    if not ids or not all(rows) or len(ids) + longest > model.max_positions:
        raise ModelError(
            f"expected a prompt and continuations of at least one token that together take at most {model.max_positions}, found "
            f"{len(ids)} tokens and {longest}. Shorten the prompt, or choose a model with a longer window."
        )
    if not rows:
        return []
    prompt_part = CachedPrompt.read(model, ids[:-1])
    cache = KVCache(model)
    cache.join([CachedText(prompt_part)] * len(rows))
    hidden = torch.cat(
        cache.extend(range(len(rows)), [(ids[-1], *row[:-1]) for row in rows])
    )  # what predicts each token
    found = iter(model.token_log_probabilities(hidden, [token for row in rows for token in row]))
    return [sum(next(found) for _ in row) for row in rows]


class _Continuations:
    """The most likely tokens after prompts; a `decode_loop.Task` whose labels are the prompts' numbers."""

    def __init__(
        self,
        model: CausalModel,
        tokenization: Tokenization,
        prompt: CachedPrompt,
        rests: Sequence[Sequence[int]],
        max_new_tokens: int,
        stop: str | None,
    ) -> None:
        self.written: list[list[int]] = [[] for _ in rests]
        self._model = model
        self._tokenization = tokenization
        self._prompt = prompt
        self._queue = deque(enumerate(rests))
        self._max_new_tokens = max_new_tokens
        self._stop = stop

    def admit(self, cache: KVCache) -> Mapping[int, int]:
        """Prefill prompts as far as there is room."""
        joining: dict[int, Sequence[int]] = {}
        lengths = cache.lengths - self._prompt.length
        tokens = int(lengths.sum())
        while (
            self._queue and len(lengths) + len(joining) < MAX_PROMPTS_TOGETHER and tokens < MAX_PROMPT_TOKENS_TOGETHER
        ):
            number, rest = self._queue.popleft()
            joining[number] = rest
            tokens += len(rest)
        cache.join([CachedText(self._prompt)] * len(joining), list(joining))
        longer = {number: rest[:-1] for number, rest in joining.items() if len(rest) > 1}
        cache.extend(list(longer), list(longer.values()))
        return {number: rest[-1] for number, rest in joining.items()}

    def choose(self, hidden: Tensor, labels: np.ndarray) -> Tensor | None:
        """The most likely token of each row, (rows, 1)."""
        return self._model.log_probabilities(hidden).argmax(dim=-1, keepdim=True)

    def end(self, chosen: np.ndarray | None, labels: np.ndarray) -> NextTokens:
        """A continuation ends with the document, at the stop text, or at its most tokens."""
        going: list[tuple[int, int, int]] = []
        for row, (number, [token]) in enumerate(
            zip(labels.tolist(), [] if chosen is None else chosen.tolist(), strict=True)
        ):
            if token in self._tokenization.end_ids:
                continue
            ids = self.written[number]
            ids.append(token)
            stopped = self._stop is not None and self._stop in self._tokenization.decode(ids)
            if not stopped and len(ids) < self._max_new_tokens:
                going.append((row, number, token))
        parents, numbers, tokens = np.array(going, dtype=np.int64).reshape(-1, 3).T
        return NextTokens(parents, numbers, tokens)


def _shared_length(sequences: Sequence[Sequence[int]]) -> int:
    """How many tokens all sequences begin with, leaving at least one of each."""
    if not sequences:
        return 0
    longest = min(len(sequence) for sequence in sequences) - 1
    first = sequences[0]
    return next(
        (length for length in range(longest) if any(sequence[length] != first[length] for sequence in sequences)),
        max(longest, 0),
    )
