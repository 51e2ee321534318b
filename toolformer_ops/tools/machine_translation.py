"""MT: translate a phrase into English (Toolformer, section 3 and appendix A.1).

In two parts: the tool, and the filter, which paragraphs are worth asking for translations. fastText finds the
source language (`languages.py`), and a model of `translators.py` translates.
"""

import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from toolformer_ops.config import Settings
from toolformer_ops.records import Document
from toolformer_ops.tools import translators
from toolformer_ops.tools.base import FilterDecision, Tool, ToolOutput, ToolRunner, ToolSpec, load_prompt
from toolformer_ops.tools.languages import ENGLISH, MODEL_NAME, Language, candidates, has_letters, identify
from toolformer_ops.tools.paragraphs import paragraphs
from toolformer_ops.tools.translators import NllbTranslator, PromptedTranslator, Translatable
from toolformer_ops.writing_systems import UNSPACED_SCRIPTS

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

ENGLISH_CONFIDENCE = 0.5
"""A text is taken for English above this; below it fastText is only guessing (`tortuga` is English to it with
0.08)."""
LANGUAGES_CONSIDERED = 5

_UNSPACED = re.compile(f"[{UNSPACED_SCRIPTS}]")


class MachineTranslation(Tool):
    """The tool before it is opened."""

    spec = ToolSpec(
        name="MT",
        purpose="Translates a phrase from any language into English.",
        prompt_file="prompts/machine_translation.txt",
        filter_version="3",
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

    def input_only_after(self, call_input: str, text_before: str, text_after: str) -> bool:
        """Whether the phrase occurs in the text, but not before the call: after it, or the call would cut it in two.

        It is looked for as whole words (in scripts without spaces, anywhere); upper and lower case and the
        kind of white space make no difference. A phrase that occurs nowhere does not count.
        """
        phrase = _one_spelling(call_input)
        if not phrase:
            return False
        edge_before = "" if _UNSPACED.match(phrase[0]) else r"(?<!\w)"
        edge_after = "" if _UNSPACED.match(phrase[-1]) else r"(?!\w)"
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
        """Load the translator; a ToolError says that the NLLB checkpoint is not set, not there, or does not fit."""
        if settings.translator == "nllb":
            return TranslationRunner(NllbTranslator(settings))
        return TranslationRunner(PromptedTranslator(load_model()))


class TranslationRunner:
    """An open translator behind language identification."""

    def __init__(self, translator: NllbTranslator | PromptedTranslator) -> None:
        self._translator = translator

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One English text a phrase, or `empty_input`, `no_words`, `already_english`, or the translator's own reason."""
        found = [self.translatable(phrase) for phrase in inputs]
        wanted = [item for item in found if isinstance(item, Translatable)]
        translated = iter(self._translator.translate(wanted) if wanted else [])
        return [
            next(translated) if isinstance(item, Translatable) else ToolOutput.none(item) for item in found
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
        if _is_english(languages[0]):
            return "already_english"
        return Translatable(text, tuple(languages))


TOOL = MachineTranslation()


@functools.lru_cache(maxsize=4)
def _one_spelling(text: str) -> str:
    """A text in small letters with single spaces; all calls of a position ask for that of the same two."""
    return " ".join(text.casefold().split())


def _is_english(language: Language | None) -> bool:
    return language is not None and language.label == ENGLISH and language.confidence > ENGLISH_CONFIDENCE


# The filter

CHUNK_TOKENS = 10
REST_WORDS = 5
"""Fewest words by which a rest shorter than a chunk is judged: on one to three words fastText only guesses."""
FOREIGN_CONFIDENCE = 0.8

FOREIGN_BETWEEN_ENGLISH = "foreign_between_english"

_TOKEN = re.compile(rf"[{UNSPACED_SCRIPTS}]|[^\s{UNSPACED_SCRIPTS}]+")


def judge_paragraph(text: str) -> str:
    """The reason to keep a paragraph (`foreign_between_english`) or to leave it out (appendix A.1).

    It is kept if it holds a chunk of ten tokens that fastText finds to be in another language than English
    with a confidence above 0.8, with English text before it and after it. English text is a chunk of ten
    tokens, or the whole rest between the foreign chunk and the paragraph's start or end if that is shorter
    but has at least five words, whose likeliest language is English with a confidence above 0.5. Chunks of
    only numbers or special signs are neither.

    The paper does not say where chunks begin. Here one begins at every token, since chunks laid at fixed
    multiples of ten cut most foreign phrases in two. A token is what white space separates; in scripts that
    are written without spaces each character is one.
    """
    if not has_letters(text):
        return "only_numbers_or_symbols"
    spans = [match.span() for match in _TOKEN.finditer(text)]
    if len(spans) < CHUNK_TOKENS + 2:
        return "too_short_for_a_chunk_between_others"

    def language(first: int, last: int) -> Language | None:
        """Of the tokens from `first` to before `last`; None for only numbers or special signs."""
        return identify(text[spans[first][0] : spans[last - 1][1]])

    def is_english_rest(first: int, last: int) -> bool:
        words = sum(has_letters(text[start:end]) for start, end in spans[first:last])
        return last - first < CHUNK_TOKENS and words >= REST_WORDS and _is_english(language(first, last))

    chunks = [language(first, first + CHUNK_TOKENS) for first in range(len(spans) - CHUNK_TOKENS + 1)]
    foreign = [
        first
        for first, chunk in enumerate(chunks)
        if chunk is not None and chunk.label != ENGLISH and chunk.confidence > FOREIGN_CONFIDENCE
    ]
    if not foreign:
        return "no_foreign_chunk"
    english = [first for first, chunk in enumerate(chunks) if _is_english(chunk)]
    for first in foreign:
        last = first + CHUNK_TOKENS
        before = bool(english) and english[0] + CHUNK_TOKENS <= first
        after = bool(english) and english[-1] >= last
        if (before or is_english_rest(0, first)) and (after or is_english_rest(last, len(spans))):
            return FOREIGN_BETWEEN_ENGLISH
    return "foreign_not_between_english"
