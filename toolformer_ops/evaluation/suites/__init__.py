"""The suites of the paper's section 4.2, one module each; `texts.py` names the texts of its section 4.3."""

from collections.abc import Mapping

from toolformer_ops.evaluation.suites import lama, mlqa, open_questions, temporal, word_problems
from toolformer_ops.evaluation.suites.base import DataSet, Suite
from toolformer_ops.evaluation.suites.texts import TEXTS

SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (lama.SUITE, word_problems.SUITE, open_questions.SUITE, mlqa.SUITE, temporal.SUITE)
}
PERPLEXITY = "perplexity"
DATA_SETS: Mapping[str, tuple[DataSet, ...]] = {
    **{name: suite.data_sets for name, suite in SUITES.items()},
    PERPLEXITY: TEXTS,
}
"""What can be evaluated, by the names of the suites in the order of the paper."""
