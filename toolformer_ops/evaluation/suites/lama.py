"""LAMA (section 4.2.1): complete a statement with one word.

SQuAD, Google-RE and T-REx (Petroni et al., 2019).

SQuAD has `[MASK]` instead of the word. Of Google-RE and T-REx, as in LAMA's own evaluation
(scripts/run_experiments.py), templates are filled with the subjects, each pair of subject and object once,
and the sentences of the evidence are not read; statements of Google-RE that most raters found wrong are left
out. Only statements in which nothing but punctuation follows the mask are asked, since the model writes from
left to right; the statement up to it is the prompt.
"""

from collections.abc import Iterable, Iterator, Sequence

from toolformer_ops.errors import WrongFormatError
from toolformer_ops.evaluation.answers import Metric
from toolformer_ops.evaluation.data_files import DataFile, Record, json_lines
from toolformer_ops.evaluation.suites.base import DataSet, Item, LeftOut, Suite

MASK = "[MASK]"
SUBJECT, OBJECT = "[X]", "[Y]"
GOOGLE_RE_TEMPLATES = {
    "place_of_birth": "[X] was born in [Y] .",
    "date_of_birth": "[X] (born [Y]).",
    "place_of_death": "[X] died in [Y] .",
}
"""By relation, as in LAMA's `get_GoogleRE_parameters`."""
SOURCE = "https://dl.fbaipublicfiles.com/LAMA/data.zip (CC BY-NC 4.0, github.com/facebookresearch/LAMA)"
AMONG_FIRST_FIVE = Metric("right word among the first 5 words", words=5)


def text_before_mask(statement: str, mask: str = MASK) -> str | None:
    """The statement up to its mask, if the mask occurs once and last but for punctuation; else None."""
    before, separator, after = statement.partition(mask)
    if (
        not separator
        or mask in after
        or any(character.isalnum() for character in after)
        or not before.strip()
    ):
        return None
    return before.strip()


def read_squad(files: Sequence[DataFile]) -> Iterator[Item | LeftOut]:
    """Statements with a mask."""
    for record in json_lines(*files):
        before = text_before_mask(" ".join(record.texts("masked_sentences")))
        answer = record.text("obj_label")
        yield LeftOut("mask_not_last") if before is None else Item({"text": before}, (answer,))


def read_google_re(files: Sequence[DataFile]) -> Iterator[Item | LeftOut]:
    """Facts of three relations, one file each."""
    by_relation = {file.name.rpartition("/")[2].removesuffix("_test.jsonl"): file for file in files}
    if unknown := by_relation.keys() - GOOGLE_RE_TEMPLATES.keys():
        raise WrongFormatError(f"the unknown relation {min(unknown)}")
    for relation, template in GOOGLE_RE_TEMPLATES.items():
        if relation in by_relation:
            yield from fill_template(relation, template, json_lines(by_relation[relation]))


def read_trex(files: Sequence[DataFile]) -> Iterator[Item | LeftOut]:
    """Facts of the relations that `relations.jsonl` lists with their templates."""
    by_relation = {file.name.rpartition("/")[2].removesuffix(".jsonl"): file for file in files}
    if "relations" not in by_relation:
        raise WrongFormatError("no relations.jsonl in the folder of the relations' files")
    for relation in json_lines(by_relation.pop("relations")):
        template = relation.text("template")
        name = relation.text("relation")
        facts = by_relation.pop(name, None)
        if facts is not None:
            yield from fill_template(name, template, json_lines(facts))
    for facts in by_relation.values():
        yield from (LeftOut("relation_without_template") for _ in json_lines(facts))


def fill_template(relation: str, template: str, facts: Iterable[Record]) -> Iterator[Item | LeftOut]:
    """The template of a relation with each subject in its place, once for each pair of subject and object."""
    before = text_before_mask(template, OBJECT)
    earlier_facts: set[tuple[str, str]] = set()
    for record in facts:
        fact = (record.text("sub_label"), record.text("obj_label"))
        judgments = record.values.get("judgments", [])  # only Google-RE has them
        votes = [vote.get("judgment") == "yes" for vote in judgments if isinstance(vote, dict)]
        if before is None or SUBJECT not in before:
            yield LeftOut("mask_not_last")
        elif 2 * votes.count(True) < len(votes):
            yield LeftOut("judged_wrong")
        elif fact in earlier_facts:
            yield LeftOut("repeated_fact")
        else:
            earlier_facts.add(fact)
            yield Item({"text": before.replace(SUBJECT, fact[0].strip())}, (fact[1],), part=relation)


SUITE = Suite(
    name="lama",
    data_sets=(
        DataSet(
            name="squad",
            folders=("lama",),
            files=("Squad/test.jsonl",),
            prompt="complete_text",
            format='JSON Lines with "masked_sentences" (a list of texts with [MASK]) and "obj_label"',
            source=SOURCE,
            read=read_squad,
        ),
        DataSet(
            name="google_re",
            folders=("lama",),
            files=("Google_RE/*_test.jsonl",),
            prompt="complete_text",
            format='JSON Lines with "sub_label", "obj_label" and "judgments"',
            source=SOURCE,
            read=read_google_re,
        ),
        DataSet(
            name="trex",
            folders=("lama",),
            files=("relations.jsonl", "TREx/*.jsonl"),
            prompt="complete_text",
            format='JSON Lines: relations.jsonl with "relation" and "template" ([X], [Y]), TREx/P*.jsonl with "sub_label" and '
            '"obj_label"',
            source=SOURCE,
            read=read_trex,
        ),
    ),
    metric=AMONG_FIRST_FIVE,
    answer_tokens=24,
    call_tokens=64,
    barred_tools=("WikiSearch",),
)
