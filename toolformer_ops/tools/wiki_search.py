"""WikiSearch: look a term up in Wikipedia and get a short piece of the best passages.

The paper searches KILT's Wikipedia with BM25 (section 3); `retrieval/` holds the index. A result reads `Title
> text`, with section headings between the two as in the paper's Table 10, and its text is cut to a budget of
tokens at a sentence end. Up to five results are returned, best first, so that those that repeat the asking
document can be passed over (`tools/retrieval/own_text.py`).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from toolformer_ops.config import Settings
from toolformer_ops.records import Document
from toolformer_ops.tools.base import FilterDecision, FilterRule, Tool, ToolOutput, ToolRunner, ToolSpec
from toolformer_ops.tools.retrieval.bm25_index import K1, B, Bm25Index
from toolformer_ops.tools.retrieval.definitions import judge_definitions
from toolformer_ops.tools.retrieval.java_runtime import SEARCH_THREADS
from toolformer_ops.tools.retrieval.sentences import cut_at_sentence_end
from toolformer_ops.tools.retrieval.wiki_index import index_folder, index_version

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

RESULTS = 5
RESULT_TOKENS = 64
"""Budget for a result's text without its heading, in words and punctuation marks
(`retrieval.sentences.count_tokens`)."""


class WikiSearch(Tool):
    """The tool; see the module's docstring."""

    spec = ToolSpec(
        name="WikiSearch",
        purpose="Looks a term up in Wikipedia and returns a short piece of the best passage.",
        prompt_file="prompts/wiki_search.txt",
        source="Toolformer, section 3 and appendix A: the defaults tau_s 0.05, k 5, m 5, tau_f 1.0; no heuristic filter",
        has_sharp_filter=True,
        pass_over_own_text=True,
        needs_index=True,
    )

    def filter_by(self, rule: FilterRule, document: Document) -> list[FilterDecision]:
        """Every text, or by the rule `sharp` those that say what something is."""
        return self.filter(document) if rule == "paper" else judge_definitions(document)

    def version(self, settings: Settings, model_identity: str) -> str:
        """The code's version, BM25's numbers, the budget and the index."""
        code, index = self.spec.code_version, index_version(settings)
        return f"wiki_search-{code} bm25(k1={K1}, b={B}) top={RESULTS} tokens={RESULT_TOKENS} {index}"

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> ToolRunner:
        """Start Java and open the index (about 1 s)."""
        return WikiSearchRunner(Bm25Index(index_folder(settings), SEARCH_THREADS))


class WikiSearchRunner:
    """An open index."""

    def __init__(self, index: Bm25Index) -> None:
        self._index = index

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """Up to `RESULTS` pieces of passages for each term, best first."""
        outputs = []
        for answer in self._index.search(inputs, RESULTS):
            results = (
                f"{passage.heading} > {cut_at_sentence_end(passage.text, RESULT_TOKENS)}"
                for passage in answer.passages
            )
            outputs.append(ToolOutput(tuple(dict.fromkeys(results)), answer.reason))
        return outputs


TOOL = WikiSearch()
