"""Translate texts into English: by an NLLB checkpoint, or by the run's own language model with a prompt.

The paper's translator is NLLB with 600M parameters (`facebook/nllb-200-distilled-600M`; section 3). Any
checkpoint of that shape serves, from a folder or a pinned revision of a hub model, if it holds safetensors.
The other translator needs nothing that a run does not have already; a small language model translates poorly,
and the losses then reject its calls.

Does not decide what is worth translating, and knows no call: `machine_translation.py` does.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError, ToolError
from toolformer_ops.tools.base import TEXT_SLOT, ToolOutput, load_prompt
from toolformer_ops.tools.languages import ENGLISH, ENGLISH_CODE, NLLB_CODE, Language
from toolformer_ops.tools.sequence_to_sequence import load_checkpoint, write_in_batches

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

PROMPT = Path(__file__).parent / "prompts" / "translate_with_language_model.txt"
MAX_NEW_TOKENS = 128
"""Longest translation, in tokens; calls ask for phrases."""
PROMPTED_MAX_INPUT_CHARACTERS = 600
NLLB_MAX_INPUT_TOKENS = 256
NLLB_BEAMS = 4
NLLB_BATCH = 16


@dataclass(frozen=True)
class Translatable:
    """A text that is worth translating, and the languages it may be in."""

    text: str
    languages: tuple[Language, ...]
    """The most likely first; never empty."""


class PromptedTranslator:
    """The run's own language model, shown four translations."""

    def __init__(self, model: "LanguageModel") -> None:
        self._model = model
        self._prompt = load_prompt(PROMPT)

    def translate(self, texts: Sequence[Translatable]) -> list[ToolOutput]:
        """The rest of the line that the model writes for each text, or a reason."""
        is_short = [len(item.text) <= PROMPTED_MAX_INPUT_CHARACTERS for item in texts]
        prompts = [self._prompt.replace(TEXT_SLOT, item.text) for item in itertools.compress(texts, is_short)]
        written = iter(
            self._model.generate_texts(prompts, max_new_tokens=MAX_NEW_TOKENS, stop="\n") if prompts else []
        )
        return [_output(next(written)) if short else ToolOutput.none("input_too_long") for short in is_short]


class NllbTranslator:
    """An NLLB checkpoint in memory."""

    def __init__(self, settings: Settings) -> None:
        """Load the checkpoint that `translator_model` names, on `device`.

        Raises:
            ToolError: it is not there, or is no sequence-to-sequence checkpoint with safetensors
            and NLLB's tokenizer.
        """
        from toolformer_ops.language_model.models.identity import split_revision

        name, revision = split_revision(settings.translator_model or "")
        self._model, self._tokenizer = load_checkpoint(
            "TOOLFORMER_TRANSLATOR_MODEL", name, revision, settings, settings.dtype
        )
        token_of, unknown = self._tokenizer.convert_tokens_to_ids, (None, self._tokenizer.unk_token_id)
        self._codes = {label: code for label, code in NLLB_CODE.items() if token_of(code) not in unknown}
        self._english_token = token_of(ENGLISH_CODE)
        if ENGLISH not in self._codes:
            raise ToolError(
                f"{self._tokenizer.name_or_path}: expected an NLLB checkpoint whose vocabulary holds "
                f"{ENGLISH_CODE}, found none. Set TOOLFORMER_TRANSLATOR_MODEL to a checkpoint such as "
                "facebook/nllb-200-distilled-600M."
            )

    def translate(self, texts: Sequence[Translatable]) -> list[ToolOutput]:
        """Beam search over batches of similar length.

        Texts in languages that the checkpoint lacks get a reason.
        """
        outputs: dict[int, ToolOutput] = {}
        encoded: dict[int, list[int]] = {}  # with the source language's token first and the end token last
        for index, item in enumerate(texts):
            # English here is a guess: a single rare word such as `tortuga` is all but unknown to fastText,
            # which then falls back on English. The likeliest other language that NLLB has is taken.
            labels = [language.label for language in item.languages]
            choices = labels[1:] if labels[0] == ENGLISH else labels[:1]
            code = next((self._codes[label] for label in choices if label in self._codes), None)
            if code is None:
                outputs[index] = ToolOutput.none("language_not_supported")
                continue
            self._tokenizer.src_lang = code
            token_ids = self._tokenizer(item.text)["input_ids"]
            if len(token_ids) > NLLB_MAX_INPUT_TOKENS:
                outputs[index] = ToolOutput.none("input_too_long")
            else:
                encoded[index] = token_ids
        options = {
            "forced_bos_token_id": self._english_token,
            "num_beams": NLLB_BEAMS,
            "max_new_tokens": MAX_NEW_TOKENS,
            "max_length": None,
        }
        written = write_in_batches(
            self._model, self._tokenizer, list(encoded.values()), NLLB_BATCH, **options
        )
        for index, (text, finished) in zip(encoded, written, strict=True):
            outputs[index] = _output(text) if finished else ToolOutput.none("translation_unfinished")
        return [outputs[index] for index in range(len(texts))]


def translator_identity(settings: Settings, model_identity: str) -> str:
    """Names the weights and numbers that decide a translation.

    Raises:
        ToolError: the checkpoint is not there.
    """
    if not settings.translator_model:
        return f"prompted_lm {model_identity} {settings.dtype} tokens={MAX_NEW_TOKENS}"
    from toolformer_ops.language_model.models.identity import model_identity as identity_of
    from toolformer_ops.language_model.models.identity import split_revision

    name, revision = split_revision(settings.translator_model)
    try:
        checkpoint = identity_of(name, revision, settings=settings)
    except ModelError as error:
        raise ToolError(f"TOOLFORMER_TRANSLATOR_MODEL: {error}") from error
    return f"nllb {checkpoint} {settings.dtype} beams={NLLB_BEAMS} tokens={MAX_NEW_TOKENS}"


def _output(written: str) -> ToolOutput:
    text = " ".join(written.split())
    return ToolOutput.of(text) if text else ToolOutput.none("empty_translation")
