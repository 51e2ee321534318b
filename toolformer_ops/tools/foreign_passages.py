"""Which paragraphs MT is asked about: those with a foreign passage between English text.

See Toolformer, appendix A.1. The paper keeps a paragraph with a chunk of ten tokens that fastText finds to be
in another language than English with a confidence above 0.8, with English text before and after it; chunks of
only numbers or special symbols do not count. It does not say what a token is, nor where chunks begin. By this
rule with words for tokens three of eight kept paragraphs of novels hold no foreign phrase, and most of plain
English are names, numbers and units: on a few words fastText is sure of whatever they resemble. So this
departs from it:

- A foreign chunk is five words within ten tokens, which are some ten tokens of a language model. Names
  (Latin capitals in mid-sentence, and fewer than five words in a row all in capitals), words with digits,
  addresses and signs are no words.
- A chunk has at most one word that English uses all the time (`COMMON_WORDS`, `it's`), and none of which
  alone fastText is sure that it is English.
- The two halves of a chunk agree that it is not English.

Confidences, English text before and after, and that fastText decides are the paper's. docs/measurements.md
has precision and recall of both rules; `python -m benchmarks.foreign_passages` computes those of this one.

Time is in proportion to the text: a chunk and a word are bounded, and each is asked for a bounded number of
times.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from toolformer_ops.tools.languages import ENGLISH, has_letters, identify, is_english
from toolformer_ops.writing_systems import UNSPACED_SCRIPTS, is_unspaced

FOREIGN_BETWEEN_ENGLISH = "foreign_between_english"

CHUNK_TOKENS = 10
"""Tokens of an English chunk, and the most of a foreign one. White space and dashes separate tokens; in
scripts that are written without spaces each character is one."""
CHUNK_WORDS = 5
"""Words of a foreign chunk; a character of a script without spaces is half a word."""
REST_WORDS = 5
"""Fewest words by which a rest shorter than a chunk is judged: on one to three words fastText only
guesses."""
FOREIGN_CONFIDENCE = 0.8
ENGLISH_WORD_CONFIDENCE = 0.8
"""Above this a single word is English."""
COMMON_WORDS_IN_CHUNK = 1
"""French and Italian have `a`, `on`, `no` and `in`, too, but seldom two of them in five words."""
MOST_CHUNKS = 2_000
"""So many chunks of a paragraph are looked at for phrases: no sentence translates a longer passage."""
LONGEST_WORD = 100
"""Characters; what is longer is data."""

_COMMON_WORDS = """
a about after all also am an and any are as at be because been but by can could do due each every for from had
has have he her him his how i if in into is it its me more most my no not of off on one only or other our
out over per said she should so some such than that the their there these they this those through to two up us was
we were what when where which while who will with would you your
"""
COMMON_WORDS = frozenset(_COMMON_WORDS.split())
"""Words that are frequent in English; some are words of other languages as well."""

_TOKEN = re.compile(rf"[{UNSPACED_SCRIPTS}]|[^\s{UNSPACED_SCRIPTS}\u2014]+")
_PUNCTUATION = "'\"()[]*_.,;:!?-\u2013\u2026\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb\u00bf\u00a1"
_QUOTATION_MARKS = "'\"([*_-\u2013\u201c\u201e\u2018\u201a\u00ab\u00bf\u00a1"
"""A capital after one of these may be that of a sentence."""
_CLOSING = "'\")]*_\u201d\u2019\u00bb"
_SENTENCE_END = (".", "!", "?", ":", ";", "\u2026")
_UNDIVIDED = re.compile(r"[^:;.!?()\[\]\"“”„«»—–…]+")  # noqa: RUF001
_AROUND = f"{_PUNCTUATION} \n\t"
_ADDRESS = re.compile(r"[@/\\_#=<>|{}~^&]|\w\.\w")
_BEHIND_LATIN = "\u0370"
"""Letters from here on are no Latin ones: a name that is written in them is no English name."""
_ENGLISH_ENDING = re.compile(r"['\u2019](?:s|t|re|ve|ll|d|m)\Z")


@dataclass(frozen=True)
class _Token:
    """A token of a paragraph."""

    start: int
    end: int
    """Offset after it."""
    text: str
    is_word: bool
    """Whether it says something of the language: it is no name, number, address or sign."""
    is_common: bool
    """Whether it is a common English word."""
    is_unspaced: bool
    """Whether it is a character of a script without spaces."""


def judge_paragraph(text: str) -> str:
    """The reason to keep a paragraph (`foreign_between_english`) or to leave it out.

    English text before or after a foreign chunk is a chunk of ten tokens, or the whole rest between it and
    the paragraph's start or end if that is shorter but has at least five words, whose likeliest language is
    English with a confidence above 0.5.
    """
    if not has_letters(text):
        return "only_numbers_or_symbols"
    tokens = _tokens(text)
    if len(tokens) < CHUNK_WORDS + 2 * REST_WORDS:
        return "too_short_for_a_chunk_between_others"
    english = _EnglishText(text, tokens)
    holds_foreign_chunk = False
    for chunk in _chunks(tokens):
        is_between = english.stands_before(chunk[0]) and english.stands_after(chunk[-1] + 1)
        # A chunk that is not between English text is asked for only until one is foreign: the reason needs
        # it.
        if (is_between or not holds_foreign_chunk) and _is_foreign([tokens[number] for number in chunk]):
            if is_between:
                return FOREIGN_BETWEEN_ENGLISH
            holds_foreign_chunk = True
    return "foreign_not_between_english" if holds_foreign_chunk else "no_foreign_chunk"


def foreign_phrases(text: str) -> list[tuple[int, int]]:
    """The foreign phrases between English text in a paragraph: first character and end, without punctuation.

    A phrase is what foreign chunks that touch hold together. It ends at a sign that divides sentences or
    opens a quotation, and reaches to it over words that are not English.
    """
    tokens = _tokens(text)
    english = _EnglishText(text, tokens)
    # 1. What chunks hold together: the numbers of the first and the last token.
    passages: list[tuple[int, int]] = []
    for chunk in itertools.islice(_chunks(tokens), MOST_CHUNKS):
        is_between = english.stands_before(chunk[0]) and english.stands_after(chunk[-1] + 1)
        if is_between and _is_foreign([tokens[number] for number in chunk]):
            touches = bool(passages) and chunk[0] <= passages[-1][1] + 1
            first = passages.pop()[0] if touches else chunk[0]
            passages.append((first, chunk[-1]))
    # 2. The phrase in each; two passages may reach the same one.
    phrases = [_phrase_in(text, tokens, first, last) for first, last in passages]
    return list(dict.fromkeys(phrases))


def _phrase_in(text: str, tokens: list[_Token], first: int, last: int) -> tuple[int, int]:
    """The longest part between two dividing signs of some tokens and the words beside them."""
    while last + 1 < len(tokens) and _continues(text, tokens, last, last + 1):
        last += 1
    while first and _continues(text, tokens, first, first - 1):
        first -= 1
    start, end = tokens[first].start, tokens[last].end
    parts = [match.span() for match in _UNDIVIDED.finditer(text, start, end)]
    start, end = max(parts, key=lambda part: part[1] - part[0], default=(start, start))
    written = text[start:end]
    start += len(written) - len(written.lstrip(_AROUND))
    end -= len(written) - len(written.rstrip(_AROUND))
    return start, end


def _continues(text: str, tokens: list[_Token], inner: int, outer: int) -> bool:
    """Whether a phrase that ends with a token continues with its neighbour: a word that is not English."""
    left, right = sorted((tokens[inner], tokens[outer]), key=lambda token: token.start)
    token = tokens[outer]
    is_undivided = _UNDIVIDED.fullmatch(text, left.start, right.end) is not None
    return is_undivided and token.is_word and not token.is_common and not _is_english_word(token.text)


def _tokens(text: str) -> list[_Token]:
    matches = list(_TOKEN.finditer(text))
    texts = [match.group() for match in matches]
    cores = [token.strip(_PUNCTUATION) if len(token) <= LONGEST_WORD else "" for token in texts]
    in_capitals = _passages_in_capitals(texts, cores)
    tokens: list[_Token] = []
    begins_sentence = True
    for number, (match, token, core) in enumerate(zip(matches, texts, cores, strict=True)):
        is_of_unspaced_script = is_unspaced(token)
        has_sound = has_letters(core) or (is_of_unspaced_script and unicodedata.category(token)[0] == "M")
        is_word = has_sound and not any(map(str.isdigit, core)) and not _ADDRESS.search(core)
        may_be_name = number not in in_capitals and core[:1].isupper() and core[:1] < _BEHIND_LATIN
        begins_speech = begins_sentence or token[0] in _QUOTATION_MARKS
        is_name = may_be_name and (not begins_speech or _is_in_capitals(core))
        tokens.append(
            _Token(
                start=match.start(),
                end=match.end(),
                text=token,
                is_word=is_word and not is_name,
                is_common=core.lower() in COMMON_WORDS or _ENGLISH_ENDING.search(core) is not None,
                is_unspaced=is_of_unspaced_script,
            )
        )
        begins_sentence = token.rstrip(_CLOSING).endswith(_SENTENCE_END)
    return tokens


def _is_in_capitals(core: str) -> bool:
    return len(core) > 1 and core.isupper()


def _passages_in_capitals(texts: list[str], cores: list[str]) -> set[int]:
    """The numbers of the tokens in rows of five or more words in capitals, such as headings.

    A list of names has commas.
    """
    numbers: set[int] = set()
    rows = itertools.groupby(range(len(cores)), key=lambda number: _is_in_capitals(cores[number]))
    for are_capitals, row in rows:
        row_numbers = list(row)
        commas = sum(texts[number].endswith(",") for number in row_numbers)
        if are_capitals and len(row_numbers) >= CHUNK_WORDS and 2 * commas < len(row_numbers):
            numbers.update(row_numbers)
    return numbers


def _chunks(tokens: list[_Token]) -> Iterator[list[int]]:
    """The numbers of the words of each chunk that may be foreign, in order.

    Hardly a word of it is a common English word.
    """
    words = [number for number, token in enumerate(tokens) if token.is_word]
    common_before = [0]
    for token in tokens:
        common_before.append(common_before[-1] + token.is_common)
    for place in range(len(words)):
        chunk = _words_of_chunk(tokens, words, place)
        if not chunk or chunk[-1] - chunk[0] >= CHUNK_TOKENS:
            continue
        if common_before[chunk[-1] + 1] - common_before[chunk[0]] <= COMMON_WORDS_IN_CHUNK:
            yield chunk


def _words_of_chunk(tokens: list[_Token], words: list[int], place: int) -> list[int]:
    """The numbers of the five words from `words[place]` on; none if there are fewer."""
    halves = 0
    for last in range(place, min(place + 2 * CHUNK_WORDS, len(words))):
        halves += 1 if tokens[words[last]].is_unspaced else 2
        if halves >= 2 * CHUNK_WORDS:
            return words[place : last + 1]
    return []


def _is_foreign(chunk: list[_Token]) -> bool:
    """Whether fastText says that words are in another language than English.

    They are asked together, in halves, and one by one.
    """
    language = identify(_joined(chunk))
    if language is None or language.label == ENGLISH or language.confidence <= FOREIGN_CONFIDENCE:
        return False
    middle = len(chunk) // 2
    for half in (chunk[:middle], chunk[middle:]):
        language = identify(_joined(half))
        if language is None or language.label == ENGLISH:
            return False
    return not any(_is_english_word(token.text) for token in chunk)


def _joined(tokens: list[_Token]) -> str:
    """The tokens with a space between two that do not touch."""
    pieces: list[str] = []
    for number, token in enumerate(tokens):
        if number and tokens[number - 1].end != token.start:
            pieces.append(" ")
        pieces.append(token.text)
    return "".join(pieces)


@functools.lru_cache(maxsize=100_000)
def _is_english_word(word: str) -> bool:
    language = identify(word)
    return (
        language is not None and language.label == ENGLISH and language.confidence > ENGLISH_WORD_CONFIDENCE
    )


class _EnglishText:
    """Where the English text of a paragraph is.

    Its chunks are asked for from both ends until one is English.
    """

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self._text = text
        self._tokens = tokens

    def stands_before(self, first: int) -> bool:
        """Whether English text is before a token: a chunk, or the rest."""
        return self._first_end <= first or self._is_english_rest(0, first)

    def stands_after(self, end: int) -> bool:
        """Whether English text begins with a token or after it."""
        return self._last_start >= end or self._is_english_rest(end, len(self._tokens))

    @functools.cached_property
    def _first_end(self) -> int:
        """The end of the first English chunk; beyond the text if there is none."""
        last = len(self._tokens) - CHUNK_TOKENS
        first = next((number for number in range(last + 1) if self._is_english_chunk(number)), last + 1)
        return first + CHUNK_TOKENS

    @functools.cached_property
    def _last_start(self) -> int:
        """The start of the last English chunk; -1 if there is none."""
        last = len(self._tokens) - CHUNK_TOKENS
        return next((number for number in range(last, -1, -1) if self._is_english_chunk(number)), -1)

    def _is_english_chunk(self, first: int) -> bool:
        if self._tokens[first].is_unspaced and self._tokens[first + CHUNK_TOKENS - 1].is_unspaced:
            return False
        return self._is_english(first, first + CHUNK_TOKENS)

    def _is_english_rest(self, first: int, end: int) -> bool:
        if not REST_WORDS <= end - first < CHUNK_TOKENS:
            return False
        words = sum(has_letters(token.text) for token in self._tokens[first:end])
        return words >= REST_WORDS and self._is_english(first, end)

    def _is_english(self, first: int, end: int) -> bool:
        return is_english(identify(self._text[self._tokens[first].start : self._tokens[end - 1].end]))
