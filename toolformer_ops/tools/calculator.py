"""The Calculator: `27 + 4 * 2` gives `35`, `400 / 1400` gives `0.29` (Toolformer, section 3 and appendix A.1).

Exact rational arithmetic by `arithmetic.py`; which documents are worth asking is decided by `calculator_filter.py`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from toolformer_ops.config import Settings
from toolformer_ops.errors import NoValueError
from toolformer_ops.records import Document
from toolformer_ops.tools import calculator_filter
from toolformer_ops.tools.arithmetic import NUMBER_IN_TEXT, evaluate, write_number
from toolformer_ops.tools.base import FilterDecision, ToolOutput, ToolSpec

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

CODE_VERSION = "1"
"""Raised when an expression would get another answer."""


class Calculator:
    """The tool before and after it is opened: it needs nothing to run."""

    spec = ToolSpec(
        name="Calculator",
        purpose="Computes a sum with + - * / and brackets, exactly, rounded to two decimals.",
        prompt_file="calculator.txt",
        filter_version="1",
        source="Toolformer, appendix A: tau_s 0.0, k 20, m 10, tau_f 0.5 for the calculator",
        sampling_threshold=0.0,
        max_positions=20,
        samples_per_position=10,
        keep_threshold=0.5,
    )

    def filter(self, document: Document) -> list[FilterDecision]:
        """One decision for the whole document, by the rules (i) to (iii)."""
        kept, reason = calculator_filter.judge(document.text)
        return [FilterDecision(kept, reason, end_char=len(document.text))]

    def effective_input(self, call_input: str, document: Document) -> str:
        """The expression without white space around it."""
        return call_input.strip()

    def input_only_after(self, call_input: str, text_before: str, text_after: str) -> bool:
        """Whether a number of the expression stands in the text after the call and not before it.

        Numbers are compared by value (`1,400` is `1400`). One that stands nowhere in the text, such as the 100 of a
        percentage, is common knowledge and does not count.
        """
        needed = _numbers_in(call_input) - _numbers_in(text_before)
        return not needed.isdisjoint(_numbers_in(text_after)) if needed else False

    def version(self, settings: Settings, model_identity: str) -> str:
        """Version of the code that computes."""
        return f"calculator-{CODE_VERSION}"

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> "Calculator":
        """The calculator itself."""
        return self

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One result or reason an expression."""
        return [_answer(expression) for expression in inputs]


def _answer(expression: str) -> ToolOutput:
    try:
        return ToolOutput.of(write_number(evaluate(expression)))
    except NoValueError as error:
        return ToolOutput.none(error.reason)


def _numbers_in(text: str) -> set[str]:
    """The numbers of a text in one spelling each, so that equal values are equal strings."""
    return {_one_spelling(written) for written in NUMBER_IN_TEXT.findall(text)}


def _one_spelling(written: str) -> str:
    whole, _, decimals = written.replace(",", "").partition(".")
    return f"{whole.lstrip('0') or '0'}.{decimals.rstrip('0')}"


TOOL = Calculator()
