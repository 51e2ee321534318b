"""What the engine and the tools know of writing systems: which put no spaces between words, how many tokens a character is.

Both are tables by code point, so that they need no tokenizer and no model. Does not tell languages apart:
`tools/languages.py` does.
"""

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

UNSPACED_SCRIPTS = (
    "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Tibetan, Burmese, Khmer, Japanese kana and Chinese characters, as the inside of a character
class."""
CASED_LETTERS = r"A-Za-z\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u058f\u1e00-\u1fff"
"""Letters of scripts with capitals, Latin to Armenian, as the inside of a character class."""

COMBINING_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f"
    "\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0900-\u0963\u0971-\u0a75\u0a81-\u0aef\u0af9-\u0b6f\u0b82-\u0bef"
    "\u0c00-\u0c6f\u0c80-\u0cf3\u0d00-\u0d6f\u0d7a-\u0df3\u1ab0-\u1aff\u1dc0-\u1dff\u200c\u200d\u20d0-\u20f0\ufe20-\ufe2f"
)
"""Accents, vowel signs of Hebrew and Arabic, and the scripts of India but their punctuation, as the inside of a
character class: Python's `\\w` takes no mark for a part of a word."""

_UNSPACED = re.compile(f"[{UNSPACED_SCRIPTS}]")
_SPACED = rf"[^\W_{UNSPACED_SCRIPTS}\u3005-\u3007]"
"""A letter or digit of any other script; the marks that repeat or replace a Chinese character are not among
them."""
_MARKS = "\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
"""Punctuation of Chinese and Japanese, as the inside of a character class."""
_OPENING = "「『《〈（【〔“‘"  # noqa: RUF001 (brackets of full width are meant)
_HAN_NUMBER = "〇零一二三四五六七八九十百千万亿億兆两兩"
_DIGITS = "\u0e50-\u0e59\u0ed0-\u0ed9\u0f20-\u0f29\u1040-\u1049\u1090-\u1099\u17e0-\u17e9"
_WORD_MAY_START = re.compile(
    rf"(?<!{_SPACED})(?<![{_OPENING}])(?<!\s)(?:"
    rf"(?![{_HAN_NUMBER}])[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
    rf"|(?<![{_HAN_NUMBER}])[{_HAN_NUMBER}]"
    r"|(?<!っ)(?![ぁぃぅぇぉっゃゅょゎゕゖん])[\u3041-\u3096]"  # no small kana, and none after a small tsu
    r"|(?<![\u30a1-\u30ff])(?![ァィゥェォッャュョヮヵヶ])[\u30a1-\u30fa]"  # a foreign word in katakana is whole
    r"|(?<![\u0e40-\u0e44])[\u0e01-\u0e2e\u0e40-\u0e44](?!\u0e4c)"  # Thai: consonants, vowels before a consonant
    r"|(?<![\u0ec0-\u0ec4])[\u0e81-\u0eae\u0ec0-\u0ec4\u0edc-\u0edf]"  # Lao: the same
    r"|(?<!\u17d2)[\u1780-\u17b3]"  # Khmer: no consonant that is written below another
    r"|(?<!\u1039)[\u1000-\u102a\u103f](?!\u1037?[\u1039\u103a])"  # Burmese: nor a letter that ends a syllable
    r"|(?<=[\u0f0b-\u0f14])[\u0f40-\u0f6c]"  # Tibetan: after the mark that divides syllables
    rf"|(?<!\d)[{_DIGITS}]"
    rf"|(?<=[{UNSPACED_SCRIPTS}{_MARKS}])(?:{_SPACED}|[{_OPENING}])"
    r")"
)
"""Where a word may start though no white space is before it: at each syllable, since only a dictionary knows
the words.

Numbers, Latin words and those in katakana are not divided.
"""

_QUARTERS_OF_A_TOKEN = (
    (0x0000, 1),  # ASCII and the signs of Latin-1: a token is four characters of English prose
    (0x00C0, 4),  # Latin letters with accents, Greek 0.9, Cyrillic 0.8
    (0x0530, 8),  # Armenian 2.1
    (0x0590, 5),  # Hebrew 1.3, Arabic 1.1
    (0x0700, 8),  # at most the two bytes that such a character has
    (0x0800, 12),  # at most three bytes
    (0x0900, 5),  # Devanagari 1.2
    (0x0980, 9),  # Bengali 2.1, Tamil 1.9
    (0x0D80, 12),  # Sinhala 3.1
    (0x0E00, 8),  # Thai 1.9
    (0x0E80, 12),  # Lao 3.1
    (0x0F00, 10),  # Tibetan 2.3
    (0x1000, 12),  # Burmese 3.0
    (0x10A0, 9),  # Georgian 2.1
    (0x1100, 12),  # Ethiopic 2.9
    (0x1780, 9),  # Khmer 2.2
    (0x1800, 12),
    (0x1E00, 8),  # Vietnamese letters, Greek with accents
    (0x2000, 1),  # dashes and quotation marks of English prose
    (0x2070, 8),  # currencies, arrows, mathematics 2.0, boxes 1.5
    (0x2800, 12),
    (0x2E80, 8),  # Chinese characters 1.8, kana 1.8
    (0xA000, 12),
    (0xAC00, 12),  # Korean 2.8
    (0xF900, 8),  # Chinese characters and letters of full width 1.7
    (0x10000, 12),  # emoji 2.7, letters of mathematics 2.6
    (0x20000, 16),  # rare Chinese characters: their four bytes
)
"""From each code point to the next line's: what a character counts for, in quarters of a token.

The comments have tokens a character, measured with SmolLM2's vocabulary of 49,152 tokens, which is nearly all
English, on the first articles of the Universal Declaration of Human Rights, without spaces. A vocabulary of
more languages has fewer: a piece that is cut by this table then holds fewer tokens than its limit.
"""


MOST_TOKENS_A_CHARACTER = max(count for _, count in _QUARTERS_OF_A_TOKEN) // 4
"""No character counts for more."""


def is_unspaced(character: str) -> bool:
    """Whether a character belongs to a script that puts no white space between words."""
    return _UNSPACED.match(character) is not None


def unspaced_word_starts(text: str) -> frozenset[int]:
    """Offsets of the characters before which a word may start without white space.

    The set is empty for a text of scripts with spaces.
    """
    if _UNSPACED.search(text) is None:
        return frozenset()
    return frozenset(match.start() for match in _WORD_MAY_START.finditer(text) if match.start() > 0)


def tokens_before(text: str) -> "npt.NDArray[np.float64]":
    """About how many tokens precede each character of `text`, and at the end how many the whole text has.

    Entry i minus entry j is about the number of tokens of `text[j:i]`, in exact quarters: four characters of
    English prose are one token. No tokenizer is asked, so another model has the same numbers. The array has
    one entry more than the text has characters; a million characters take some 10 ms.
    """
    import numpy as np

    code_points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    quarters = np.zeros(len(text) + 1, dtype=np.int64)
    np.cumsum(_quarters()[code_points], out=quarters[1:])
    return quarters / 4


@functools.cache
def _quarters() -> "npt.NDArray[np.uint8]":
    """What each code point counts for, in quarters of a token."""
    import numpy as np

    quarters = np.zeros(0x110000, dtype=np.uint8)
    for first, count in _QUARTERS_OF_A_TOKEN:
        quarters[first:] = count
    return quarters
