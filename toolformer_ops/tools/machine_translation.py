"""MT: translate a phrase into English (Toolformer, section 3 and appendix A.1).

The filter is in `paragraphs.py` and `foreign_passages.py`: which paragraphs are worth asking for
translations. fastText finds the source language (`languages.py`), and a model of `translators.py` translates.
"""

import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from toolformer_ops.config import Settings
from toolformer_ops.records import Document
from toolformer_ops.tools import translators
from toolformer_ops.tools.base import (
    FilterDecision,
    ProposedCalls,
    Tool,
    ToolOutput,
    ToolRunner,
    ToolSpec,
    load_prompt,
)
from toolformer_ops.tools.foreign_passages import FOREIGN_BETWEEN_ENGLISH, judge_paragraph
from toolformer_ops.tools.languages import MODEL_NAME, candidates, is_english
from toolformer_ops.tools.paragraphs import on_one_line, paragraphs
from toolformer_ops.tools.proposed_translations import proposed_translations
from toolformer_ops.tools.translators import NllbTranslator, PromptedTranslator, Translatable
from toolformer_ops.writing_systems import is_unspaced

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

LANGUAGES_CONSIDERED = 5


class MachineTranslation(Tool):
    """The tool before it is opened."""

    spec = ToolSpec(
        name="MT",
        purpose="Translates a phrase from any language into English.",
        prompt_file="prompts/machine_translation.txt",
        filter_version="6",
        source="Toolformer, appendix A: tau_s 0.0, k 20, m 10, tau_f 0.5 for machine translation",
        sampling_threshold=0.0,
        max_positions=20,
        samples_per_position=10,
        keep_threshold=0.5,
        filter_unit="paragraph",
        needs_device=True,
    )

    def filter(self, document: Document) -> list[FilterDecision]:
        """One decision a paragraph, or one for a document that has none."""
        decisions = []
        for number, (start, end) in enumerate(paragraphs(document.text)):
            reason = judge_paragraph(document.text[start:end])
            decisions.append(FilterDecision(reason == FOREIGN_BETWEEN_ENGLISH, reason, number, start, end))
        return decisions or [FilterDecision(False, "no_paragraph", end_char=len(document.text))]

    def proposals(self, document: Document) -> ProposedCalls:
        """Each foreign phrase where its translation may begin (`proposed_translations.py`)."""
        return ProposedCalls(tuple(proposed_translations(document.text)))

    def input_only_after(self, call_input: str, text_before: str, text_after: str) -> bool:
        """Whether the phrase occurs in the text, but not before the call.

        It occurs after the call, or the call would cut it in two. It is looked for as whole words (in scripts
        without spaces, anywhere); upper and lower case and the kind of white space make no difference. A
        phrase that occurs nowhere does not count.
        """
        phrase = _one_spelling(call_input)
        if not phrase:
            return False
        edge_before = "" if is_unspaced(phrase[0]) else r"(?<!\w)"
        edge_after = "" if is_unspaced(phrase[-1]) else r"(?!\w)"
        pattern = re.compile(edge_before + re.escape(phrase) + edge_after)
        if pattern.search(_one_spelling(text_before)):
            return False
        return pattern.search(_one_spelling(text_before + text_after)) is not None

    def version(self, settings: Settings, model_identity: str) -> str:
        """The code, the prompt, the model that identifies languages, and the translator."""
        prompt = hashlib.sha256(load_prompt(translators.PROMPT).encode("utf-8")).hexdigest()[:8]
        translator = translators.translator_identity(settings, model_identity)
        return f"mt-{self.spec.code_version} {MODEL_NAME} prompt={prompt} {translator}"

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> ToolRunner:
        """Load the translator.

        A ToolError says that the NLLB checkpoint is not there, or does not fit.
        """
        if settings.translator_model:
            return TranslationRunner(NllbTranslator(settings))
        return TranslationRunner(PromptedTranslator(load_model()))


class TranslationRunner:
    """An open translator after language identification."""

    def __init__(self, translator: NllbTranslator | PromptedTranslator) -> None:
        self._translator = translator

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One English text a phrase, or the reason why it has none.

        The reason is `empty_input`, `no_words`, `already_english`, or the translator's own.
        """
        phrases = [self.translatable(phrase) for phrase in inputs]
        wanted = [item for item in phrases if isinstance(item, Translatable)]
        translated = iter(self._translator.translate(wanted) if wanted else [])
        return [
            next(translated) if isinstance(item, Translatable) else ToolOutput.none(item) for item in phrases
        ]

    @staticmethod
    def translatable(phrase: str) -> Translatable | str:
        """The phrase with its likely languages, or the reason not to translate it."""
        text = " ".join(phrase.split())
        if not text:
            return "empty_input"
        languages = candidates(text, count=LANGUAGES_CONSIDERED)
        if not languages:
            return "no_words"
        if is_english(languages[0]):
            return "already_english"
        return Translatable(text, tuple(languages))


TOOL = MachineTranslation()


@functools.lru_cache(maxsize=4)
def _one_spelling(text: str) -> str:
    """A text in small letters on one line; all calls of a position ask for that of the same two."""
    return on_one_line(text).casefold()
