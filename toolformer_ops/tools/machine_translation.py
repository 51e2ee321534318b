"""MT: translate a phrase into English (Toolformer, section 3 and appendix A.1).

The source language is found by fastText (`language_identification.py`), the translation comes from one of
`translators.py`, and which paragraphs are asked for calls is decided by `translation_filter.py`.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from toolformer_ops.config import Settings
from toolformer_ops.records import Document
from toolformer_ops.tools import translation_filter
from toolformer_ops.tools.base import FilterDecision, ToolOutput, ToolRunner, ToolSpec, load_prompt
from toolformer_ops.tools.language_identification import ENGLISH, MODEL_NAME, candidates
from toolformer_ops.tools.translators import (
    PROMPT_FILE,
    NllbTranslator,
    PromptedTranslator,
    Translatable,
    Translator,
    translator_identity,
)

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

CODE_VERSION = "1"
"""Raised when a text would be translated differently."""
ENGLISH_CONFIDENCE = 0.5
"""An input is taken for English above this; below it fastText is only guessing (`tortuga` is English to it with 0.08)."""
LANGUAGES_CONSIDERED = 5

_UNSPACED = re.compile(f"[{translation_filter.UNSPACED_SCRIPTS}]")


class MachineTranslation:
    """The tool before it is opened."""

    spec = ToolSpec(
        name="MT",
        purpose="Translates a phrase from any language into English.",
        prompt_file="machine_translation.txt",
        filter_version="1",
        source="Toolformer, appendix A: tau_s 0.0, k 20, m 10, tau_f 0.5 for machine translation",
        sampling_threshold=0.0,
        max_positions=20,
        samples_per_position=10,
        keep_threshold=0.5,
        needs_device=True,
    )

    def filter(self, document: Document) -> list[FilterDecision]:
        """One decision a paragraph."""
        return translation_filter.judge(document.text)

    def effective_input(self, call_input: str, document: Document) -> str:
        """The phrase with single spaces."""
        return " ".join(call_input.split())

    def input_only_after(self, call_input: str, text_before: str, text_after: str) -> bool:
        """Whether the phrase stands in the text, but not before the call: after it, or the call would cut it in two.

        Upper and lower case and the kind of white space make no difference. A phrase that stands nowhere does not count.
        """
        phrase = _one_spelling(call_input)
        if not phrase or _stands_in(phrase, _one_spelling(text_before)):
            return False
        return _stands_in(phrase, _one_spelling(text_before + text_after))

    def version(self, settings: Settings, model_identity: str) -> str:
        """The code, the prompt, the model that identifies languages, and the translator."""
        prompt = hashlib.sha256(load_prompt(PROMPT_FILE).encode("utf-8")).hexdigest()[:8]
        return f"mt-{CODE_VERSION} {MODEL_NAME} prompt={prompt} {translator_identity(settings, model_identity)}"

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> ToolRunner:
        """Load the translator.

        Raises:
            ToolError: the NLLB checkpoint is not set, not there, or does not fit.
        """
        if settings.translator == "nllb":
            return TranslationRunner(NllbTranslator.load(settings))
        return TranslationRunner(PromptedTranslator(load_model()))


class TranslationRunner:
    """An open translator behind language identification."""

    def __init__(self, translator: Translator) -> None:
        self._translator = translator

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One English text a phrase, or `empty_input`, `no_words`, `already_english`, or the translator's own reason."""
        found = [_translatable(phrase) for phrase in inputs]
        wanted = [item for item in found if isinstance(item, Translatable)]
        translated = iter(self._translator.translate(wanted) if wanted else [])
        return [next(translated) if isinstance(item, Translatable) else ToolOutput.none(item) for item in found]


def _translatable(phrase: str) -> Translatable | str:
    """The phrase with its likely languages, or the reason not to translate it."""
    text = " ".join(phrase.split())
    if not text:
        return "empty_input"
    languages = candidates(text, count=LANGUAGES_CONSIDERED)
    if not languages:
        return "no_words"
    if languages[0].label == ENGLISH and languages[0].confidence > ENGLISH_CONFIDENCE:
        return "already_english"
    return Translatable(text, tuple(languages))


def _one_spelling(text: str) -> str:
    return " ".join(text.casefold().split())


def _stands_in(phrase: str, text: str) -> bool:
    """Whether `phrase` stands in `text` as whole words; in scripts without spaces, anywhere."""
    edge_before = "" if _UNSPACED.match(phrase[0]) else r"(?<!\w)"
    edge_after = "" if _UNSPACED.match(phrase[-1]) else r"(?!\w)"
    return re.search(edge_before + re.escape(phrase) + edge_after, text) is not None


TOOL = MachineTranslation()
