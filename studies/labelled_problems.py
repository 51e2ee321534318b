"""Word problems with labelled calls as texts that arms are trained on: their calls are scored already (`labelled_scores.py`).

Each text has the call that the Calculator itself proposes and calls that differ from it in one thing. Chance decides for
no call whether it is tried, so that arms differ in what they choose alone. Tests take other problems.
"""

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.calls import PREFIXES
from studies.labelled_calls import MOST_WORDS, in_hash_order, problems
from studies.real_texts import in_order, read_records, word_problem
from studies.sentences import Sentence, distinct
from toolformer_ops.call_syntax import parse_call
from toolformer_ops.language_model.losses import weighted_loss
from toolformer_ops.storage.machine.shared_files import replace_file

if TYPE_CHECKING:
    from studies.plan import StudyPlan

SCORED = Path(__file__).with_name("answers") / "labelled-problems.jsonl.bz2"
TEXTS = 160
"""Problems in the order of their hashes among which the scored ones are; no test has one of them."""


@dataclass(frozen=True)
class LabelledProblems:
    """A source of sentences."""

    file: Path
    """JSON Lines of `question` and `answer` as GSM8K has them, also with gzip."""

    def training(self, count: int, seed: int) -> list[Sentence]:
        """The first problems in the order of their hashes, the same for each seed."""
        texts = in_hash_order(problems(read_records(self.file)))[: min(count, TEXTS)]
        return [
            Sentence(item.text, item.right.result, item.name, answer_place=item.right.place) for item in texts
        ]

    def fresh(self, count: int, seed: int, known: Sequence[Sentence]) -> list[Sentence]:
        """Other problems with the first step of their solution."""
        trained = {item.fact for item in self.training(TEXTS, seed)}
        others = []
        for record in read_records(self.file):
            problem = word_problem(record["question"], record["answer"].partition("\n")[0])
            if problem is not None and len(problem.text.split()) <= MOST_WORDS:
                others.append(problem)
        return distinct(iter(in_order(others, seed)), count, trained)


def write_labelled_records(plan: "StudyPlan", out: Path) -> None:
    """Write the plan's texts with their scored calls as `calls.inform` does; a text that was not scored has none.

    `other_result` of a call is the result of another text's right call.
    """
    from studies.answers import Line, read_answers
    from studies.labelled_scores import digest_of
    from toolformer_ops.tools.registry import get_tool

    tool = get_tool(plan.tool)
    lines_of_text: dict[str, list[Line]] = defaultdict(list)
    for line in read_answers(SCORED):
        lines_of_text[line["text"]].append(line)
    results = sorted({item.answer for item in plan.training})
    records = []
    for item in plan.training:
        document_id = str(item.document.document_id)
        calls = []
        for line in lines_of_text[digest_of(str(item.fact))]:
            before, after = item.text[: line["place"]], item.text[line["place"] :]
            draw = random.Random(f"{item.text}|{line['call']}")  # noqa: S311 - not for secrets
            calls.append(
                {
                    **_stored_call(line),
                    "document_id": document_id,
                    "input_only_after": tool.input_only_after(parse_call(line["call"]).input, before, after),
                    "other_result": draw.choice([result for result in results if result != line["result"]]),
                }
            )
        records.append({"document_id": document_id, "text": item.text, "calls": calls})
    replace_file(out, "".join(json.dumps(record) + "\n" for record in records))


def _stored_call(line: Mapping[str, Any]) -> dict[str, Any]:
    """A call of raw answers with the paper's losses, computed from its log probabilities in hundredths of a nat."""
    terms = {name: weighted_loss(line["log_p"][name]) for name in PREFIXES}
    return {
        "position_char": line["place"],
        "call": line["call"],
        "result": line["result"],
        **{f"loss_{name}": loss for name, loss in terms.items()},
        "loss_reduction": min(terms["without_call"], terms["without_result"]) - terms["with_result"],
        "log_p": line["log_p"],
    }
