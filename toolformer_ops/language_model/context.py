"""What the model sees when it annotates: start token, prompt with the text in its slot, and the text again, as one branching cache.

The prompt's own part is the same for all texts and is computed once a prompt; a text's part serves all its positions and
all its samples. Prompts and the last texts are kept, which changes no number: they are always computed in the same pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.branches import Branches, CachedBranches
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.prompts import AnnotationPrompt
from toolformer_ops.language_model.tokenization import Tokenization, TokenizedText
from toolformer_ops.language_model.trees import Columns, Tree
from toolformer_ops.language_model.windows import MIN_WINDOW, Window, plan_windows

LARGEST_CALL_RESERVE = 272
"""Tokens kept free for a sampled call: the longest that a run may ask for (256) and its given start."""
MAX_PROMPTS = 8
"""Prompts whose computed part is kept: one a tool."""


KEPT_TEXT_TOKENS = 4096
"""Of the texts met last, contexts are kept up to this many tokens in all, both copies counted; the newest always."""


@dataclass(frozen=True)
class AnnotationContext:
    """The computed context of one window of a text."""

    prompt: Branches
    """One row: start token and prompt."""
    rest: Columns | Branches
    """What follows, the text in its slot and the text again, as cached columns; where a cache cannot be shared, all as one row."""
    text_hidden: Tensor
    """Hidden states of the second copy of the text, (tokens, hidden)."""
    text_start: int
    """How many tokens come before token 0 of the window (its second copy)."""
    hidden_shift: int
    """Token i of the window stands in row i + hidden_shift of `text_hidden`."""
    tokens: int
    """Tokens of `rest`."""

    def before(self, token: int) -> Tensor:
        """Hidden state after everything up to token `token` - 1 of the window, (hidden,); `token` at least 1."""
        return self.text_hidden[token - 1 + self.hidden_shift]

    def branch(self, tokens: Sequence[int]) -> Branches:
        """One branch a token: each continues after the tokens before it."""
        trunk = self.rest
        if isinstance(trunk, list):
            trunk = self._shared_prompt().continued(trunk)
        return trunk.fork([0] * len(tokens), [self.text_start + token for token in tokens])

    def tree(self, tokens: Sequence[int]) -> Tree:
        """One row a token: each continues after the tokens before it. Only for a model that decodes in trees."""
        if not isinstance(self.rest, list):
            raise TypeError("expected a context with cached columns")
        lengths = torch.tensor([self.text_start + token for token in tokens], device=self.text_hidden.device)
        return Tree(self._shared_prompt().views(), self.rest, lengths)

    def _shared_prompt(self) -> CachedBranches:
        if not isinstance(self.prompt, CachedBranches):
            raise TypeError(f"expected a prompt with a shared cache, found {type(self.prompt).__name__}")
        return self.prompt


class ContextBuilder:
    """Builds contexts and keeps the last texts' and the last prompts'."""

    def __init__(self, model: CausalModel, tokenization: Tokenization) -> None:
        self._model = model
        self._tokenization = tokenization
        self._prompts: dict[AnnotationPrompt, tuple[Branches, int]] = {}
        self._kept: dict[tuple[AnnotationPrompt, str, Window], AnnotationContext] = {}  # oldest first

    def windows(self, prompt: AnnotationPrompt, text: TokenizedText) -> list[Window]:
        """The windows of `text` under `prompt`, which holds it twice.

        Raises:
            ModelError: the prompt leaves too little of the model's window.
        """
        room = self._room(prompt)
        if len(text) > room and room < MIN_WINDOW:
            raise ModelError(
                f"prompt of {prompt.name}: expected it to leave room for {MIN_WINDOW} tokens of text, twice, in the "
                f"model's window of {self._model.max_positions} tokens, found room for {max(room, 0)}. Choose a model "
                f"with a longer window, or shorten the prompt."
            )
        return plan_windows(len(text), room)

    def context(self, prompt: AnnotationPrompt, text: TokenizedText, window: Window) -> AnnotationContext:
        """The context of one window: a kept one, or computed, text by text, always in the same pieces."""
        key = (prompt, text.text, window)
        if key in self._kept:
            self._kept[key] = self._kept.pop(key)
            return self._kept[key]
        start, start_length = self._prompt_part(prompt)
        ids = text.ids[window.start : window.end]
        spelled, shift = self._tokenization.spell_after(prompt.separator, text.char_span(window.start, window.end), ids)
        between = self._tokenization.continuation(prompt.after_text, after=".")
        added = [*spelled, *between, *spelled]
        self._make_room(len(added))
        trunk = start.fork([0])
        hidden = trunk.extend([added])[0]  # (tokens, hidden)
        context = AnnotationContext(
            prompt=start,
            rest=trunk.columns(start_length) if isinstance(trunk, CachedBranches) else trunk,
            text_hidden=hidden[len(spelled) + len(between) :],
            text_start=start_length + len(spelled) + len(between) + shift,
            hidden_shift=shift,
            tokens=len(added),
        )
        self._kept[key] = context
        return context

    def _make_room(self, tokens: int) -> None:
        while self._kept and tokens + sum(context.tokens for context in self._kept.values()) > KEPT_TEXT_TOKENS:
            self._kept.pop(next(iter(self._kept)))

    def _prompt_part(self, prompt: AnnotationPrompt) -> tuple[Branches, int]:
        if prompt not in self._prompts:
            if len(self._prompts) >= MAX_PROMPTS:
                self._prompts.pop(next(iter(self._prompts)))
            ids = self._prompt_ids(prompt)
            part = self._model.branches()
            if ids:
                part.extend([ids])
            self._prompts[prompt] = (part, len(ids))
        return self._prompts[prompt]

    def _prompt_ids(self, prompt: AnnotationPrompt) -> tuple[int, ...]:
        return (*self._tokenization.start_ids, *self._tokenization.ids(prompt.before_text))

    def _room(self, prompt: AnnotationPrompt) -> int:
        """Most tokens of text that fit twice, with the separators and a sampled call."""
        reserve = min(LARGEST_CALL_RESERVE, self._model.max_positions // 8)
        separators = 2 * len(self._tokenization.continuation(prompt.separator, after=":"))
        between = len(self._tokenization.continuation(prompt.after_text, after="."))
        used = len(self._prompt_ids(prompt)) + between + separators + reserve
        return (self._model.max_positions - used) // 2
