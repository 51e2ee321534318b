"""Split English prose into sentences and cut it to a budget, by rules that fit in one screen.

A sentence ends at `.`, `!` or `?` (with closing quotes or brackets after it) that is followed by white space
and then by something that can open a sentence: an upper-case letter, a digit, an opening quote or bracket. A
full stop after a known abbreviation ("Dr.", "e.g.") or after a single capital letter ("J. R. R. Tolkien",
"U.S.") ends nothing. The rule errs towards long sentences: a missed end costs a few words of budget, a wrong
end tears a name apart.

Does not know other languages' rules, and needs no model or download.
"""

import re

_END = re.compile("[.!?]+[\"'\u201d\u2019)\\]]*(?=\\s+[\"'\u201c\u2018(\\[]*[^\\W_a-z\xdf-\xf6\xf8-\xff])")
_ABBREVIATIONS = re.compile(
    "mr|mrs|ms|dr|prof|st|sr|jr|rev|hon|gen|col|maj|capt|lt|sgt|adm|gov|sen|rep|pres|messrs|mt|ft|vs|est|etc|al|eg|ie|e.g|i.e|cf|ca|c|approx|no|nos|vol|vols|pp|p|fig|figs|ed|eds|ch|sec|dept|univ|inc|ltd|co|corp|bros|bc|ad|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|b|d|r|fl|lit|trans",
    re.IGNORECASE,
)
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_OPENING = "([\"'\u201c\u2018"
_LONGEST_ABBREVIATION = 20  # characters before a full stop that are looked at
_TOKEN = re.compile(r"\w+|[^\w\s]")


def split_sentences(text: str) -> list[str]:
    """The sentences of `text` in order, without white space around them.

    Joined by spaces they are the text's words again.
    """
    sentences = []
    start = 0
    for match in _END.finditer(text):
        before = text[start : match.start()][-_LONGEST_ABBREVIATION:]
        if match.group(0)[0] == "." and before and not before[-1].isspace():
            # A full stop after an initial or an abbreviation belongs to it, and ends nothing.
            word = before.rsplit(maxsplit=1)[-1].lstrip(_OPENING)
            if (_INITIALS.fullmatch(word) and word[-1].isupper()) or _ABBREVIATIONS.fullmatch(word):
                continue
        sentences.append(text[start : match.end()].strip())
        start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def count_tokens(text: str) -> int:
    """Words and punctuation marks in `text`: an estimate, without a model, of its tokens."""
    return sum(1 for _ in _TOKEN.finditer(text))


def cut_at_sentence_end(text: str, budget: int) -> str:
    """The longest run of whole sentences from the start of `text` with at most `budget` tokens.

    `count_tokens` counts them. If the first sentence alone is longer, it is cut after its last whole word
    within the budget. Empty if the budget is 0.
    """
    kept: list[str] = []
    left = budget
    for sentence in split_sentences(text):
        size = count_tokens(sentence)
        if size > left:
            break
        kept.append(sentence)
        left -= size
    if kept:
        return " ".join(kept)
    words: list[str] = []
    for word in text.split():
        left -= count_tokens(word)
        if left < 0:
            break
        words.append(word)
    return " ".join(words)
