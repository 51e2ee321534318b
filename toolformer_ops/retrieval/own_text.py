"""Tell whether a tool's result repeats the document that asks for it, so that it can be passed over.

A document that itself comes from Wikipedia finds its own next sentence in a Wikipedia index. Such a result makes the
following tokens easy to predict without helping anyone, so results that repeat the document are not offered to it
(the paper does not say how it handles this; there the language model's corpus is CCNet and the index is KILT's
Wikipedia).

The rule: of all runs of 8 words in the result (lower case, punctuation ignored), the share that also occurs in the
document reaches 0.2. In a result of 64 tokens that is about one sentence in three or four. Names and phrases of 7
words or fewer never count, so a short answer ("Scranton") that the text is about to give is not a repetition.

Does not look at meaning: a paraphrase passes.
"""

import re

RUN_WORDS = 8
SHARE = 0.2
RULE = f"runs-of-{RUN_WORDS}-words-share-{SHARE}"
"""Names the rule and its numbers, for recipes."""

_WORD = re.compile("[^\\W_]+(?:['\u2019][^\\W_]+)*")


def _runs(text: str) -> list[str]:
    """All runs of `RUN_WORDS` words of `text`, in order."""
    words = [word.replace("\u2019", "'") for word in _WORD.findall(text.lower())]
    return [" ".join(words[start : start + RUN_WORDS]) for start in range(len(words) - RUN_WORDS + 1)]


class OwnText:
    """One document, prepared for many questions: about 100 bytes a word while it is held."""

    def __init__(self, document_text: str) -> None:
        self._runs = frozenset(_runs(document_text))

    def share_repeated(self, result: str) -> float:
        """Share, in [0, 1], of the result's 8-word runs that the document holds; 0 for a result of 7 words or fewer."""
        runs = _runs(result)
        return sum(run in self._runs for run in runs) / len(runs) if runs else 0.0

    def repeated_by(self, result: str) -> bool:
        """Whether `result` repeats the document and must be passed over."""
        return self.share_repeated(result) >= SHARE


def repeats_text(result: str, document_text: str) -> bool:
    """`OwnText(document_text).repeated_by(result)`, for a single question."""
    return OwnText(document_text).repeated_by(result)
