"""Greedy continuation of prompts, and how likely given ones are: for tools whose answer a language model writes or chooses.

What all prompts have in common is computed once, and so is a prompt that several given continuations follow. Prompts share one
branching cache, none is padded.
"""

from collections.abc import Sequence

import torch

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.branches import Branches
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.tokenization import Tokenization

MAX_PROMPTS_TOGETHER = 32
MAX_PROMPT_TOKENS_TOGETHER = 4096


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
    trunk = model.branches()
    if shared:
        trunk.extend([sequences[0][:shared]])
    found: list[str] = []
    for group in _groups(sequences, shared):
        found.extend(
            _continue(model, tokenization, trunk, [sequence[shared:] for sequence in group], max_new_tokens, stop)
        )
    return found


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
    trunk = model.branches()
    last = trunk.extend([ids])[0][-1:]  # (1, hidden)
    hidden = trunk.fork([0] * len(rows)).extend(rows)  # (tokens, hidden) a continuation
    before = torch.cat(
        [states for row in hidden for states in (last, row[:-1])]
    )  # (all tokens, hidden): what predicts each
    found = iter(model.token_log_probabilities(before, [token for row in rows for token in row]))
    return [sum(next(found) for _ in row) for row in rows]


def _continue(
    model: CausalModel,
    tokenization: Tokenization,
    trunk: Branches,
    rests: list[tuple[int, ...]],
    max_new_tokens: int,
    stop: str | None,
) -> list[str]:
    branches = trunk.fork([0] * len(rests))
    hidden = torch.stack([states[-1] for states in branches.extend(rests)])  # (prompts, hidden)
    written: list[list[int]] = [[] for _ in rests]
    growing = list(range(len(rests)))
    for step in range(max_new_tokens):
        best = model.log_probabilities(hidden).argmax(dim=-1).tolist()  # (growing,)
        going_on: list[int] = []
        for row, (prompt, token) in enumerate(zip(growing, best, strict=True)):
            if token in tokenization.end_ids:
                continue
            written[prompt].append(token)
            if stop is None or stop not in tokenization.decode(written[prompt]):
                going_on.append(row)
        if not going_on or step + 1 == max_new_tokens:
            break
        branches = branches.kept(going_on)
        growing = [growing[row] for row in going_on]
        hidden = torch.stack([states[-1] for states in branches.extend([[written[prompt][-1]] for prompt in growing])])
    texts = [tokenization.decode(ids) for ids in written]
    return texts if stop is None else [text.partition(stop)[0] for text in texts]


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


def _groups(sequences: Sequence[tuple[int, ...]], shared: int) -> list[list[tuple[int, ...]]]:
    groups: list[list[tuple[int, ...]]] = []
    tokens = 0
    for sequence in sequences:
        own = len(sequence) - shared
        full = groups and (len(groups[-1]) == MAX_PROMPTS_TOGETHER or tokens + own > MAX_PROMPT_TOKENS_TOGETHER)
        if not groups or full:
            groups.append([])
            tokens = 0
        groups[-1].append(sequence)
        tokens += own
    return groups
