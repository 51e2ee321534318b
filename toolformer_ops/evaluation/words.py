"""Whether a right answer is among the first words of a text (sections 4.2.1, 4.2.3 and 4.2.4 of the paper).

What counts as a word among the first 5, 10 or 20: a run of characters without white space that holds a letter or a digit,
as `don't`, `U.S.`, `twenty-one` or `1,461`. Scripts that are written without spaces (Chinese, Japanese, Thai, Lao, Burmese, Khmer)
have no such runs: there each letter is a word, so that ten words of Chinese are ten characters.

How words are compared: an answer is right if its pieces follow one another among the pieces of those first words. Pieces
are what is left of a text when

- compatible forms are made equal (NFKC: full-width digits, ligatures), accents are taken off Latin, Greek and Cyrillic letters,
  and case is folded: `Beyoncé` is `beyonce`;
- separators of thousands are taken out of a number (`1,461` is `1461`), its decimal point is kept, and so is a minus sign right
  before it (`-5` is not `5`; `1914-1918` is two numbers);
- `%` is the word percent, and an `'s` at the end of a word is a separate piece, as if written `s`;
- other apostrophes and the dots of abbreviations are taken out (`don't` is `dont`, `U.S.` is `us`), and all else that is no
  letter, digit or combining mark parts two pieces: `twenty-one` is two.

An article at the start of an answer need not be written (`The Beatles`). A piece is matched whole: `art` is not in `party`, nor
`1920` in `1920s`.
"""

import re
import unicodedata
from collections.abc import Sequence

_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Japanese
    (0x3400, 0x9FFF),  # Chinese
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
_ACCENTS = re.compile("[\u0300-\u036f]")
_APOSTROPHES = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'", "\u2212": "-", "%": " percent "})
_POSSESSIVE = re.compile(r"'s\b")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_ABBREVIATION = re.compile(r"(?<!\w)(?:[^\W\d_]\.){2,}")
_ARTICLES = {"a", "an", "the"}


def first_words(text: str, count: int) -> str:
    """The text up to the end of its first `count` words, without white space around it."""
    found = 0
    within = False  # a run that was counted
    for index, character in enumerate(text):
        if character.isspace():
            within = False
        elif character.isalnum() and (not within or _is_unspaced(character)):
            if found == count:
                return text[:index].strip()
            found += 1
            within = not _is_unspaced(character)
    return text.strip()


def pieces(text: str) -> tuple[str, ...]:
    """The text as compared: see the module's description."""
    plain = unicodedata.normalize("NFKC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text))).casefold()
    plain = _POSSESSIVE.sub(" s", plain.translate(_APOSTROPHES)).replace("'", "")
    plain = _THOUSANDS.sub(lambda number: number.group().replace(",", ""), plain)
    plain = _ABBREVIATION.sub(lambda letters: letters.group().replace(".", ""), plain)
    return tuple(_marked(plain).split())


def stands_among_first_words(text: str, answers: Sequence[str], count: int) -> bool:
    """Whether one of `answers` is within the first `count` words of `text`; an answer without pieces never is."""
    written = pieces(first_words(text, count))
    for answer in map(pieces, answers):
        named = answer[1:] if len(answer) > 1 and answer[0] in _ARTICLES else answer
        size = len(named)
        if size > 0 and any(written[start : start + size] == named for start in range(len(written) - size + 1)):
            return True
    return False


def _marked(text: str) -> str:
    """The text with a space wherever two pieces part."""
    marked: list[str] = []
    for index, character in enumerate(text):
        before, after = text[index - 1 : index], text[index + 1 : index + 2]
        if _is_unspaced(character) and character.isalnum():
            marked += [" ", character]
        elif character.isalnum() or unicodedata.category(character).startswith("M"):
            marked += [" ", character] if before and _is_unspaced(before) and character.isalnum() else [character]
        elif character == "." and before.isdigit() and after.isdigit():
            marked.append(character)
        elif character == "-" and after.isdigit() and not before.isalnum() and before not in {".", ")", "-"}:
            marked += [" ", character]
        else:
            marked.append(" ")
    return "".join(marked)


def _is_unspaced(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _UNSPACED)
