"""Tell whether a tool's result repeats the document that asks for it, so that it can be passed over.

A document that itself comes from Wikipedia finds its next sentence in a Wikipedia index. Such a result makes
the following tokens easy to predict without helping anyone, so results that repeat the document are not
offered to it (the paper does not say how it handles this; there the language model's corpus is CCNet and the
index is KILT's Wikipedia).

The rule: of all runs of 8 words in the result (lower case, punctuation ignored), the share that also occurs
in the document reaches 0.2. In a result of 64 tokens that is about one sentence in three or four. A result of
7 words or fewer repeats the document only if it is a sentence of 4 words or more that occurs there ("A ball
is a round object."); a short answer ("Scranton", "the Coca-Cola Company"), which the text may be about to
give, is not a repetition.

Measured with 500 of 10,033 Wikipedia summaries as documents and their titles as terms: all 611 results from
the document's own article were found out, and none of 1,581 from other articles was taken for a repetition.

Does not look at meaning: a paraphrase passes.
"""

import re

RUN_WORDS = 8
SHARE = 0.2
SENTENCE_WORDS = 4
RULE = f"runs-of-{RUN_WORDS}-words-share-{SHARE}-sentences-of-{SENTENCE_WORDS}"
"""Names the rule and its numbers, for recipes."""

_WORD = re.compile("[^\\W_]+(?:['\u2019][^\\W_]+)*")
_SENTENCE_END = re.compile("[.!?][\"'\u201d\u2019)]*\\s*\\Z")


def _words(text: str) -> list[str]:
    return [word.replace("\u2019", "'") for word in _WORD.findall(text.lower())]


def _runs(words: list[str]) -> list[str]:
    """All runs of `RUN_WORDS` words, in order."""
    return [" ".join(words[start : start + RUN_WORDS]) for start in range(len(words) - RUN_WORDS + 1)]


class OwnText:
    """One document, prepared for many questions: about 100 bytes a word while it is held."""

    def __init__(self, document_text: str) -> None:
        words = _words(document_text)
        self._text = f" {' '.join(words)} "
        self._runs = frozenset(_runs(words))

    def repeated_by(self, result: str) -> bool:
        """Whether `result` repeats the document and must be passed over."""
        words = _words(result)
        if runs := _runs(words):  # the result has at least 8 words
            return sum(run in self._runs for run in runs) / len(runs) >= SHARE
        is_sentence = len(words) >= SENTENCE_WORDS and _SENTENCE_END.search(result) is not None
        return is_sentence and f" {' '.join(words)} " in self._text
