"""`WritingModel`: a language model with its tools, which writes texts and calls tools meanwhile.

See Toolformer, section 2 ("Inference"). `write` takes prompts as text. `generate` has the interface of
transformers' `generate`: token ids in, token ids out. Decoding is greedy but for the start of calls; a
model's own generation_config.json, which may ask for sampling, is not read.
"""

import datetime
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from toolformer_ops.config import Settings
from toolformer_ops.decoding.continuation import Continuation
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.decoding.together import Listener, Together, ToolRuns
from toolformer_ops.errors import UsageError
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.comparison import compared_model
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.models.identity import split_revision
from toolformer_ops.language_model.models.loading import load_network
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.tools.registry import get_tool, tool_names

GREEDY = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1}
"""Fields of a generation config that can have only this value, or None."""
UNUSED = (
    "repetition_penalty",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "force_words_ids",
    "suppress_tokens",
    "prefix_allowed_tokens_fn",
)
"""Fields that would change which token is the most likely; none may be set."""


@dataclass(frozen=True)
class GeneratedSequences:
    """What `generate` returns with `return_dict_in_generate`."""

    sequences: Tensor
    """(batch, tokens) prompts and continuations, padded at the right."""
    written: tuple[WrittenText, ...]
    """The rows as texts with their calls, one each."""


class WritingModel:
    """A language model and its tools. Not for use by several threads at once."""

    def __init__(
        self,
        model: CausalModel,
        tokenizer: Any,
        identity: str,
        settings: Settings,
        tools: Sequence[str],
    ) -> None:
        self.identity = identity
        """`name@content hash` or `hub id@revision`."""
        self.tokenizer = tokenizer
        """transformers' tokenizer of this model."""
        self._model = model
        self._tokenization = Tokenization(tokenizer)
        self.language_model = LanguageModel(model, self._tokenization, identity)
        """The engine over the same weights."""
        self._tools = ToolRuns(settings, tools, lambda: self.language_model)
        self._texts = Together(model, self._tokenization, self._tools)

    @classmethod
    def load(cls, settings: Settings, model: str, *, tools: Sequence[str] | None = None) -> "WritingModel":
        """Load a model: a folder, a hub id with its commit as id@revision, or s3://bucket/models/ID.

        `tools`, named in any capitals, may be called, all that are registered if None; each is opened when it
        is first called. Device, number format and threads are those of the settings.

        Raises:
            ModelError: there is no such model, nothing is published at that address, or the vocabulary cannot
            write a call.
            ToolError: a tool of `tools` is not registered.
        """
        names = (
            tool_names() if tools is None else [get_tool(name).spec.name for name in tools]
        )  # before a long load
        network, tokenizer, identity = load_network(
            *split_revision(model), settings.dtype, settings.device, settings.threads, settings
        )
        causal = compared_model(network, tokenizer.model_max_length, settings)
        return cls(causal, tokenizer, identity, settings, names)

    @property
    def window(self) -> int:
        """The model's window, tokens."""
        return self._model.window_tokens

    def require_tools(self, barred: Sequence[str] = ()) -> None:
        """Open every tool that is not barred.

        Raises:
            UsageError: a tool cannot be opened; the message names the setting.
        """
        self._tools.require(barred)

    @torch.inference_mode()
    def write(
        self, prompts: Sequence[Prompt], decoding: DecodingSettings, listener: Listener | None = None
    ) -> list[WrittenText]:
        """The continuation of each prompt, in order. What is written for one does not depend on the others.

        An empty prompt is continued from the model's start token.
        `listener` is told which tokens have been added for good, as they come.

        Raises:
            ModelError: a prompt is longer than the model's window, or empty and the model has no start token.
        """
        encoded = [
            (*self._tokenization.start_ids, *self._tokenization.ids(prompt.text)) for prompt in prompts
        ]
        return self._texts.write(prompts, encoded, decoding, listener)

    def write_aloud(
        self, prompts: Sequence[Prompt], decoding: DecodingSettings, tell: Callable[[int, str], None]
    ) -> list[WrittenText]:
        """Write, and tell each part of a text, with the prompt's number, once it cannot be taken back.

        The parts of a text join to its text. What may be the beginning of a stop text, or is half a
        character, waits for what follows.
        """
        longest = max(map(len, decoding.stops), default=1)
        continuations = [
            Continuation(tuple(self._tokenization.ids(prompt.text)), self._tokenization, self.window)
            for prompt in prompts
        ]
        told = ["" for _ in prompts]

        def listen(number: int, tokens: tuple[int, ...]) -> None:
            continuations[number].ids.extend(tokens)
            text = continuations[number].text()
            ends = [text.find(stop, len(told[number])) for stop in decoding.stops]
            end = min((end for end in ends if end >= 0), default=len(text) - longest + 1)
            part = text[len(told[number]) : end].removesuffix("\ufffd")
            if part:
                told[number] += part
                tell(number, part)

        texts = self.write(prompts, decoding, listen)
        for number, written in enumerate(texts):
            if rest := written.text.removeprefix(told[number]):
                tell(number, rest)
        return texts

    def token_count(self, text: str) -> int:
        """How many tokens a text has for this model, without a start token."""
        return len(self._tokenization.ids(text))

    def encode(self, prompts: Sequence[str]) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` for `generate`, (batch, tokens), padded at the left.

        They have the start token as trained.
        """
        rows = [[*self._tokenization.start_ids, *self._tokenization.ids(prompt)] for prompt in prompts]
        width = max(map(len, rows), default=0)
        ids = [[self._padding_id] * (width - len(row)) + row for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}

    @torch.inference_mode()
    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: Any = None,
        streamer: Any = None,
        *,
        decoding: DecodingSettings | None = None,
        dates: Sequence[datetime.date | None] | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor | GeneratedSequences:
        """Continue token ids as transformers' `generate` does, and call tools meanwhile.

        Args:
            inputs: (batch, tokens) ids, also by the name `input_ids`; they are taken as they are, start token
            included.
            generation_config: a GenerationConfig for greedy decoding; `kwargs` such as max_new_tokens
            override it.
            streamer: transformers' BaseStreamer, for a batch of one; the tokens of a call come when it has
            its result.
            decoding: when and how often calls are made; its token limit and stops give way to those of the
            configuration.
            dates: current date of each row, for the Calendar.
            attention_mask: (batch, tokens), 0 if a row is padded.
            kwargs: fields of the configuration.

        Returns:
            (batch, tokens) ids of prompts and continuations, results of calls included, padded at the right;
            with `return_dict_in_generate` also the texts and calls.

        Raises:
            UsageError: something is asked for that is not greedy decoding.
        """
        ids = kwargs.pop("input_ids", inputs)
        if ids is None or ids.dim() != 2:
            raise UsageError("expected input_ids of shape (batch, tokens), found none of that shape.")
        if streamer is not None and len(ids) != 1:
            raise UsageError(f"streamer: expected a batch of one, found {len(ids)} rows.")
        # 1. What is continued, and how far.
        config = self._configuration(generation_config, kwargs, ids.shape[1])
        limits = replace(
            decoding or DecodingSettings(),
            max_new_tokens=config.max_new_tokens,
            stops=tuple(config.stop_strings),
        )
        mask = torch.ones_like(ids) if attention_mask is None else attention_mask
        encoded = [tuple(row[attended.bool()].tolist()) for row, attended in zip(ids, mask, strict=True)]
        days = dates or [None] * len(encoded)
        prompts = [
            Prompt(self._tokenization.decode(row), day) for row, day in zip(encoded, days, strict=True)
        ]
        # 2. The continuations; a streamer is told of each token.
        if streamer is None:
            written = self._texts.write(prompts, encoded, limits)
        else:

            def put(_: int, tokens: tuple[int, ...]) -> None:
                for token in tokens:
                    streamer.put(torch.tensor([token]))

            streamer.put(ids.cpu())
            written = self._texts.write(prompts, encoded, limits, put)
            streamer.end()
        # 3. Prompts and continuations in one tensor, with the end-of-text token if the model wrote it.
        end = self.tokenizer.eos_token_id
        rows = []
        for text in written:
            ended = text.end == "end_of_text" and end is not None
            rows.append([*text.token_ids, end] if ended else [*text.token_ids])
        width = max(map(len, rows), default=0)
        padded = [row + [config.pad_token_id] * (width - len(row)) for row in rows]
        new = torch.tensor(padded, dtype=ids.dtype, device=ids.device)
        sequences = torch.cat([ids, new.reshape(len(rows), width)], dim=1)
        return GeneratedSequences(sequences, tuple(written)) if config.return_dict_in_generate else sequences

    @functools.cached_property
    def _padding_id(self) -> int:
        token_ids = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
        return next((int(value) for value in token_ids if value is not None), 0)

    def _configuration(self, base_config: Any, changes: dict[str, Any], prompt_tokens: int) -> Any:
        """A GenerationConfig for greedy decoding.

        It has a number of new tokens, a list of stop texts and a padding token.
        """
        import copy

        from transformers import GenerationConfig

        config = copy.deepcopy(base_config) if base_config is not None else GenerationConfig()
        if unknown := config.update(**changes):
            raise UsageError(
                f"expected fields of transformers' GenerationConfig, found {', '.join(sorted(unknown))}."
            )
        for name, value in GREEDY.items():
            if getattr(config, name, None) not in {None, value}:
                raise UsageError(
                    f"{name}: expected {value}, since decoding with tools is greedy, found "
                    f"{getattr(config, name)}."
                )
        if unsupported := [name for name in UNUSED if getattr(config, name, None) not in {None, 1.0, 0}]:
            raise UsageError(
                f"expected plain greedy decoding, found {', '.join(unsupported)} in the generation config."
            )
        if config.max_new_tokens is None:
            longest = getattr(config, "max_length", None)
            config.max_new_tokens = (
                max(1, longest - prompt_tokens) if longest else DecodingSettings.max_new_tokens
            )
        if config.pad_token_id is None:
            config.pad_token_id = self._padding_id
        stops = config.stop_strings or []
        config.stop_strings = [stops] if isinstance(stops, str) else stops
        return config
