"""Texts with labelled calls that arms are trained on: their calls are scored already (`labelled_scores.py`).

    LabelledProblems    word problems; the Calculator's own proposal, and calls that differ from it in one thing
    LabelledFacts       passages of Wikipedia that name their article before they state a fact of it; a SELECT from the table
                        of all such facts, and calls that differ from it in one thing

Chance decides for no call whether it is tried, so that arms differ in what they choose alone. Tests take other texts: other
problems, facts of other articles.
"""

import json
import random
import sqlite3
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from studies.calls import PREFIXES
from studies.labelled_calls import MOST_WORDS, SETS, LabelledText, in_hash_order, read_facts
from studies.real_texts import in_order, read_records, word_problem
from studies.sentences import Sentence, distinct
from toolformer_ops.call_syntax import parse_call
from toolformer_ops.language_model.losses import weighted_loss
from toolformer_ops.storage.machine.shared_files import replace_file
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from studies.answers import Line
    from studies.plan import StudyPlan

ANSWERS = Path(__file__).with_name("answers")


@dataclass(frozen=True)
class LabelledTexts:
    """A source of sentences: a set of `labelled_calls.SETS`."""

    file: Path
    set_name: ClassVar[str]
    texts: ClassVar[int]
    """Those in the order of their hashes among which the scored ones are; no test has the fact of one."""

    def labelled(self) -> list[LabelledText]:
        """The texts that arms may be trained on, the same for each seed."""
        return self._every()[: self.texts]

    def training(self, count: int, seed: int) -> list[Sentence]:
        """The first of them."""
        return [_sentence(item) for item in self.labelled()[:count]]

    def fresh(self, count: int, seed: int, known: Sequence[Sentence]) -> list[Sentence]:
        """Sentences of other facts, in an order that follows from the seed."""
        trained: set[Hashable] = {item.name for item in self.labelled()}
        return distinct(iter(in_order(self._others(), seed)), count, trained)

    def _every(self) -> list[LabelledText]:
        return in_hash_order(SETS[self.set_name](self.file))

    def _others(self) -> list[Sentence]:
        """What tests are drawn from; those of the training may be among them."""
        raise NotImplementedError

    def scored_calls(self) -> "Iterator[tuple[Sentence, list[Line]]]":
        """Each text with the raw answers of its calls; none of a text that was not scored."""
        from studies.answers import read_answers
        from studies.labelled_scores import LABELLED, digest_of

        lines = {
            (line["text"], line["place"], line["call"], line["result"]): line
            for line in read_answers(ANSWERS / LABELLED.format(name=self.set_name))
        }
        for item in self.labelled():
            calls = [(digest_of(item.name), call.place, str(call.call), call.result) for call in item.calls]
            yield _sentence(item), [lines[call] for call in calls if call in lines]


def _sentence(item: LabelledText) -> Sentence:
    return Sentence(item.text, item.right.result, item.name, answer_place=item.right.place)


class LabelledProblems(LabelledTexts):
    """Of a file of `question` and `answer` as GSM8K has them, also with gzip; a test ends with the first step."""

    set_name = "problems"
    texts = 160

    def _others(self) -> list[Sentence]:
        others = []
        for record in read_records(self.file):
            problem = word_problem(record["question"], record["answer"].partition("\n")[0])
            if problem is not None and len(problem.text.split()) <= MOST_WORDS:
                others.append(problem)
        return others


class LabelledFacts(LabelledTexts):
    """Of a file of Wikipedia's articles in KILT's format, also with gzip."""

    set_name = "facts"
    texts = 78

    def _every(self) -> list[LabelledText]:
        """Passages that name their article before the fact: without its name no row can be asked for."""
        return [item for item in super()._every() if item.name in item.text[: item.right.place]]

    def _others(self) -> list[Sentence]:
        return [_sentence(item) for item in self._every()]

    def write_tool(self, folder: Path) -> None:
        """Write the table of all facts, a row an article, with its tool file into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        facts = read_facts(read_records(self.file))
        columns = {"title": "TEXT"} | dict.fromkeys(sorted({fact.column for fact in facts}), "TEXT")
        with sqlite3.connect(folder / "articles.db") as database:
            database.execute("drop table if exists articles")
            # Columns are words of `labelled_calls.py`.
            declared = ", ".join(" ".join(column) for column in columns.items())
            database.execute(f"create table articles ({declared}, unique (title))")
            for fact in facts:
                database.execute("insert or ignore into articles (title) values (?)", [fact.title])
                database.execute(
                    f"update articles set {fact.column} = ? where title = ?",  # noqa: S608 - such a word
                    [fact.value, fact.title],
                )
        database.close()
        (folder / "articles.txt").write_text(_PROMPT, encoding="utf-8")
        tool_file = _TOOL_FILE.format(tables=json.dumps({"articles": columns}))
        (folder / "articles.toml").write_text(tool_file, encoding="utf-8")


_PROMPT = """Your task is to add calls of the table of articles to a text: [Articles(SELECT ...)].

Input: {text}
Output:"""
"""A tool file names a prompt; nothing is sampled with it."""
_TOOL_FILE = """name = "Articles"
purpose = "Answers a SELECT on what articles state of their subjects."
prompt = "articles.txt"

[database]
url = "sqlite:///articles.db"

[recorded]
engine = "SQLite"
tables = '{tables}'
"""


def write_labelled_records(source: LabelledTexts, plan: "StudyPlan", out: Path) -> None:
    """Write the plan's texts with their scored calls as `calls.inform` does.

    `other_result` of a call is the result of another text's right call.
    """
    tool = get_tool(plan.tool)
    results = sorted({item.answer for item in plan.training})
    records = []
    for item, lines in list(source.scored_calls())[: plan.texts]:
        document_id = str(item.document.document_id)
        calls = []
        for line in lines:
            before, after = item.text[: line["place"]], item.text[line["place"] :]
            draw = random.Random(f"{item.text}|{line['call']}")  # noqa: S311 - not for secrets
            other_results = [result for result in results if result != line["result"]]
            calls.append(
                {
                    **_stored_call(line),
                    "document_id": document_id,
                    "input_only_after": tool.input_only_after(parse_call(line["call"]).input, before, after),
                    "other_result": draw.choice(other_results),
                }
            )
        records.append({"document_id": document_id, "text": item.text, "calls": calls})
    replace_file(out, "".join(json.dumps(record) + "\n" for record in records))


def _stored_call(line: "Line") -> dict[str, Any]:
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
