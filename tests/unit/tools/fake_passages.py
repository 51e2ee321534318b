"""An index in memory for tests of the tools: passages by the words they share with the question, without Java."""

from collections.abc import Sequence

from toolformer_ops.tools.retrieval.bm25_index import FoundPassage, SearchAnswer

STOP_WORDS = frozenset(
    ["a", "an", "the", "is", "was", "in", "of", "to", "it", "by", "who", "what", "when", "where", "how", "many"]
)


class FakeIndex:
    """Every word weighs 1; a passage's score is the number of the question's words in it."""

    def __init__(self, *passages: tuple[str, str]) -> None:
        self._passages = passages
        self.asked: list[str] = []

    def search(self, queries: Sequence[str], top: int) -> list[SearchAnswer]:
        self.asked.extend(queries)
        return [self._answer(query, top) for query in queries]

    def terms(self, text: str) -> tuple[str, ...]:
        words = "".join(character if character.isalnum() else " " for character in text.lower()).split()
        return tuple(word for word in words if word not in STOP_WORDS)

    def inverse_document_frequency(self, term: str) -> float:
        return 1.0

    def _answer(self, query: str, top: int) -> SearchAnswer:
        asked = set(self.terms(query))
        if not asked:
            return SearchAnswer(reason="empty_query")
        found = [
            FoundPassage(str(number), heading, text, float(len(asked.intersection(self.terms(f"{heading} {text}")))))
            for number, (heading, text) in enumerate(self._passages)
        ]
        ranked = sorted((passage for passage in found if passage.score), key=lambda passage: -passage.score)
        return SearchAnswer(tuple(ranked[:top])) if ranked else SearchAnswer(reason="no_match")
