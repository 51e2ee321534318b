"""The evaluation data that no release may hold, as `release/overlap.py` compares it: what each suite's own reader finds.

All data sets of all suites that are in the folder are read, as an evaluation would read them: of a data set with several splits
the first one. Records that cannot be asked are not compared. DATESET counts only as a file, since it can be made anew.
"""

import dataclasses
import logging

from toolformer_ops.config import ENV_PREFIX, Settings
from toolformer_ops.errors import EvaluationDataError, MissingDataSetError
from toolformer_ops.evaluation.data_files import DataFolder
from toolformer_ops.evaluation.session import data_sets_of
from toolformer_ops.evaluation.suites import SUITE_NAMES
from toolformer_ops.evaluation.suites.base import load_texts
from toolformer_ops.release.overlap import QuestionSet

logger = logging.getLogger(__name__)


def question_sets(settings: Settings, address: str) -> list[QuestionSet]:
    """All data sets in the folder or at the s3:// address, in the order of the suites.

    Raises:
        UsageError: this deployment lets nobody read there.
        EvaluationDataError: nothing is there, no data set is, or a file is of another format than its reader expects.
        ObjectStoreError: S3 fails.
    """
    folder = DataFolder(settings, address)
    found = []
    for suite in SUITE_NAMES:
        for data_set in data_sets_of(suite):
            try:
                texts, sha256 = load_texts(folder, dataclasses.replace(data_set, generate=None))
            except MissingDataSetError:
                continue
            found.append(QuestionSet(suite, data_set.name, sha256, texts))
    if not found:
        raise EvaluationDataError(
            f"decontaminate: expected at least one data set of a suite in {address}, found none. docs/evaluation.md says which "
            f"files belong there; {ENV_PREFIX}EVALUATION_DATA, or evaluation_data of the run, names the folder."
        )
    logger.info("evaluation data in %s: %s", address, ", ".join(f"{item.suite}:{item.data_set}" for item in found))
    return found
