"""LAMA (section 4.2.1): complete a statement with one word. SQuAD, Google-RE and T-REx (Petroni et al., 2019).

SQuAD and Google-RE give each statement with `[MASK]` in place of the word; of T-REx the templates of `relations.jsonl` are filled
with the subjects in `TREx/P*.jsonl`, each pair of subject and object once, as LAMA's own evaluation does. Only statements in which
nothing but punctuation follows the mask are asked, since the model writes from left to right; the statement up to it is the prompt.
Of Google-RE, as in LAMA, statements that most raters found wrong are left out.
"""

from collections.abc import Iterator, Sequence

from toolformer_ops.errors import WrongFormatError
from toolformer_ops.evaluation.data_files import DataFile, Row, json_lines
from toolformer_ops.evaluation.suites.base import DataSet, Item, Metric, Suite

MASK = "[MASK]"
SOURCE = "https://dl.fbaipublicfiles.com/LAMA/data.zip (CC BY-NC 4.0, github.com/facebookresearch/LAMA)"
AMONG_FIRST_FIVE = Metric("right word among the first 5 words", words=5)


def text_before_mask(statement: str, mask: str = MASK) -> str | None:
    """The statement up to its mask, where the mask stands once and last but for punctuation; else None."""
    before, found, after = statement.partition(mask)
    if not found or mask in after or any(character.isalnum() for character in after) or not before.strip():
        return None
    return before.strip()


def _masked_statements(files: Sequence[DataFile]) -> Iterator[Item]:
    for file in files:
        for row in json_lines(file):
            before = text_before_mask(" ".join(row.texts("masked_sentences")))
            answer = row.text("obj_label")
            if before is not None and _was_judged_right(row):
                yield Item({"text": before}, (answer,))


def _was_judged_right(row: Row) -> bool:
    judgments = row.values.get("judgments", [])
    votes = [bool(one.get("judgment") == "yes") for one in judgments if isinstance(one, dict)]
    return 2 * votes.count(True) >= len(votes)


def _filled_templates(files: Sequence[DataFile]) -> Iterator[Item]:
    by_name = {file.name.rpartition("/")[2].removesuffix(".jsonl"): file for file in files}
    if "relations" not in by_name:
        raise WrongFormatError("no relations.jsonl beside the relations' files")
    for relation in json_lines(by_name["relations"]):
        template = text_before_mask(relation.text("template"), "[Y]")
        facts = by_name.get(relation.text("relation"))
        if template is None or "[X]" not in template or facts is None:
            continue
        seen: set[tuple[str, str]] = set()
        for row in json_lines(facts):
            fact = (row.text("sub_label"), row.text("obj_label"))
            if fact not in seen:
                seen.add(fact)
                yield Item({"text": template.replace("[X]", fact[0].strip())}, (fact[1],))


SUITE = Suite(
    name="lama",
    data_sets=(
        DataSet(
            "squad", ("lama",), ("Squad/test.jsonl",), "complete_text",
            'JSON Lines with "masked_sentences" (a list of texts with [MASK]) and "obj_label"', SOURCE, _masked_statements,
        ),
        DataSet(
            "google_re", ("lama",), ("Google_RE/*_test.jsonl",), "complete_text",
            'JSON Lines with "masked_sentences", "obj_label" and "judgments"', SOURCE, _masked_statements,
        ),
        DataSet(
            "trex", ("lama",), ("relations.jsonl", "TREx/*.jsonl"), "complete_text",
            'JSON Lines: relations.jsonl with "relation" and "template" ([X], [Y]), TREx/P*.jsonl with "sub_label" and "obj_label"',
            SOURCE, _filled_templates,
        ),
    ),
    metric=AMONG_FIRST_FIVE,
    answer_tokens=24,
    call_tokens=64,
    barred_tools=("WikiSearch",),
)  # fmt: skip
