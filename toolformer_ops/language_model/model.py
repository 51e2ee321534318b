"""`LanguageModel`: the engine's one door. Loads a causal language model and finds, samples and scores calls with it.

The unit of work is one text. All its positions, samples or calls are computed together, and nothing of another text is, so that
the same text gives the same numbers, bit for bit, whatever was processed before it.
"""

from collections.abc import Sequence

import torch

from toolformer_ops.language_model import generation, positions, sampling, scoring
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.context import ContextBuilder
from toolformer_ops.language_model.loading import load_network
from toolformer_ops.language_model.prompts import AnnotationPrompt
from toolformer_ops.language_model.scoring import ScoredToken
from toolformer_ops.language_model.tokenization import Tokenization, TokenizedText
from toolformer_ops.records import CallLosses, CallPosition, PlacedCall, SampledContinuation


class LanguageModel:
    """A causal language model M, as the annotation stages use it. Not for use by several threads at once."""

    def __init__(self, model: CausalModel, tokenization: Tokenization, identity: str) -> None:
        self.identity = identity
        """`name@content hash` or `hub id@revision`: what goes into recipes."""
        self._model = model
        self._tokenization = tokenization
        self._contexts = ContextBuilder(model, tokenization)

    @classmethod
    def load(
        cls,
        path_or_hub_id: str,
        revision: str | None = None,
        dtype: str = "float32",
        device: str = "cpu",
        threads: int = 1,
    ) -> "LanguageModel":
        """Load safetensors from a folder, or from the hub at a pinned revision; no code from the model's repository is run.

        `dtype` is float32, bfloat16 or float16; `device` cpu, cuda or cuda:N; `threads` CPU threads of this process.

        Raises:
            ModelError: there is no such model, or it cannot be used here.
        """
        network, tokenizer, identity = load_network(path_or_hub_id, revision, dtype, device, threads)
        return cls(CausalModel(network, tokenizer.model_max_length), Tokenization(tokenizer), identity)

    @property
    def max_positions(self) -> int:
        """The model's window, in tokens."""
        return self._model.max_positions

    def tokenize(self, text: str) -> TokenizedText:
        """The one encoding of `text` that positions refer to."""
        return self._tokenization.tokenize(text)

    @torch.inference_mode()
    def find_positions(
        self, prompt: AnnotationPrompt, text: str, *, at_most: int, threshold: float
    ) -> list[CallPosition]:
        """The `at_most` word starts with the largest p(" [") above `threshold`, in the order of the text.

        Raises:
            ModelError: the prompt leaves no room for text in the model's window.
        """
        found = positions.find_positions(
            self._model, self._contexts, self._tokenization.marker_ids, prompt, self.tokenize(text)
        )
        return positions.best_positions(found, at_most, threshold)

    @torch.inference_mode()
    def sample_calls(
        self,
        prompt: AnnotationPrompt,
        text: str,
        call_positions: Sequence[CallPosition],
        *,
        samples: int,
        max_new_tokens: int,
        call_start: str,
        temperature: float,
        top_p: float,
        seed_key: str,
    ) -> list[list[SampledContinuation]]:
        """For each position `samples` continuations of `call_start`, in order; equal ones are not merged.

        A continuation's text is all between "[" and "]", what `call_start` gave included. The same `seed_key`, position and sample
        index draw with the same random numbers.

        Raises:
            ModelError: prompt, text and call do not fit into the model's window.
        """
        settings = sampling.SamplingSettings(samples, max_new_tokens, call_start, temperature, top_p, seed_key)
        tokenized = self.tokenize(text)
        found: dict[int, list[SampledContinuation]] = {}
        for window in self._contexts.windows(prompt, tokenized):
            owned = positions.owned_by(window, call_positions)
            if owned:
                context = self._contexts.context(prompt, tokenized, window)
                tokens = [call_positions[index].token for index in owned]
                sampled = sampling.sample_calls(
                    self._model, self._tokenization, context, tokens, window.start, settings
                )
                found.update(zip(owned, sampled, strict=True))
        return [found[index] for index in range(len(call_positions))]

    @torch.inference_mode()
    def score_calls(self, text: str, calls: Sequence[PlacedCall]) -> list[CallLosses]:
        """The three losses of each call, in nats, in order; what is not finite is returned as it is.

        All three are nan where a call is so long that the model's window has no room for text behind it.

        Raises:
            ValueError: a call's position is not in 1..tokens - 1.
        """
        return scoring.score_calls(self._model, self._tokenization, self.tokenize(text), calls)

    @torch.inference_mode()
    def score_details(self, text: str, call: PlacedCall) -> list[ScoredToken]:
        """Token by token what `score_calls` adds up for one call."""
        return scoring.score_details(self._model, self._tokenization, self.tokenize(text), call)

    @torch.inference_mode()
    def generate_texts(self, prompts: Sequence[str], max_new_tokens: int, stop: str | None = None) -> list[str]:
        """The most likely continuation of each prompt, up to (without) `stop`, the end of the document, or `max_new_tokens`.

        Raises:
            ModelError: a prompt with its continuation does not fit into the model's window (`max_positions`).
        """
        return generation.generate_texts(self._model, self._tokenization, prompts, max_new_tokens, stop)
