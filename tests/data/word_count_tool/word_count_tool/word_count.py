"""WordCount: how many words a phrase has."""

import re
from collections.abc import Sequence

from toolformer_ops.records import Document
from toolformer_ops.tools.base import FilterDecision, Tool, ToolOutput, ToolSpec


class WordCount(Tool):
    """Counts the words of a phrase."""

    spec = ToolSpec(
        name="WordCount",
        purpose="Counts the words of a phrase.",
        prompt_file="word_count.txt",
        keep_threshold=0.5,
    )

    def filter(self, document: Document) -> list[FilterDecision]:
        """Texts that speak of words; without this method every text is asked for calls."""
        kept = re.search(r"\bwords?\b", document.text) is not None
        return [
            FilterDecision(kept, "speaks_of_words" if kept else "no_word_word", end_char=len(document.text))
        ]

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One number a phrase."""
        return [
            ToolOutput.of(str(len(phrase.split()))) if phrase.strip() else ToolOutput.none("empty_input")
            for phrase in inputs
        ]


TOOL = WordCount()
