"""The row study: whether a trained model's answers are in the database or in its weights, and follow when rows change.

A table has 600 invented mountains, so that no model knows one. Texts state a fact of 300 of them. Two models are trained on the
texts, for as many tokens: one with the calls that the table proposes and the rule `probability` keeps, one on the texts alone.
They are asked for facts by the beginnings of sentences, and the table is changed between the questions:

    full      the table as the texts were written from it
    changed   100 rows have another value
    del_on    50 rows that texts state are gone, and calls are allowed
    del_off   the same, and calls are disabled

FULL, DEL-ON and DEL-OFF are those of arXiv 2607.00605. `answers/rows.jsonl.bz2` has a line a question. The tool is the demo's,
with other rows; nothing is in Postgres.
"""

import hashlib
import importlib.resources
import itertools
import json
import logging
import random
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from studies.answers import Line, write_lines
from studies.devices import load_to_write
from studies.measuring import BEFORE
from studies.tool_folder import with_tools
from studies.training import equal_steps, let_go, released_text, tokens_seen, train_texts, training_seconds
from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.errors import NoResultError, UsageError
from toolformer_ops.evaluation.answers import first_number
from toolformer_ops.local.demo.mountains import DATABASE, MOUNTAINS, write_mountains
from toolformer_ops.release.format import ReleasedText
from toolformer_ops.runs.choices import FinetuningChoices
from toolformer_ops.storage.machine.shared_files import replace_file

if TYPE_CHECKING:
    from toolformer_ops.decoding.model import WritingModel

logger = logging.getLogger(__name__)

CALLS = "calls"
"""The arm that is trained on texts with calls."""
PLAIN = "plain"
"""The arm that is trained on the same texts without them, and keeps facts in its weights."""
ARMS = (CALLS, PLAIN)
FEWEST_TEXTS = 30
"""Fewer texts with a kept call train no arm."""
ANSWERS = "rows.jsonl.bz2"
NEW_TOKENS = 12
"""Enough for the value; calls do not count."""
SYLLABLES = (
    "ka", "ve", "mo", "ru", "ti", "sha", "lo", "ben", "dar", "ni", "gor", "el", "pa", "sen", "vi", "tul",
)  # fmt: skip

Table = Literal["full", "changed", "del_on", "del_off"]


@dataclass(frozen=True)
class RowPlan:
    """The numbers of a seed."""

    seed: int = 0
    rows: int = 600
    texts: int = 300
    """Rows of which a text states a fact."""
    asked: int = 200
    """Rows that are asked for and of which no text says anything."""
    asked_of_texts: int = 100
    """Rows that are asked for in the words of their texts."""
    changed: int = 100
    """Rows that are changed: half of them rows of texts."""
    deleted: int = 50
    """Rows of texts that are deleted; none of them is changed."""
    steps: int = 76
    """Of the arm with calls; the other one reads as many tokens."""
    batch: int = 8
    learning_rate: float = 2e-4


@dataclass(frozen=True)
class Fact:
    """A row of the table, and the value of it that a sentence states."""

    name: str
    column: str
    value: int
    other_value: int
    """What the row says when it is changed."""
    template: str
    """Of the sentence."""
    held_out: bool
    """Whether no text has this template."""

    @property
    def text(self) -> str:
        """The sentence."""
        return self.template.format(name=self.name, value=self.value)

    @property
    def prompt(self) -> str:
        """The sentence up to the space before the value."""
        return self.template.partition(" {value}")[0].format(name=self.name)


@dataclass(frozen=True)
class Facts:
    """The rows of a seed by what becomes of them."""

    every: tuple[Fact, ...]
    of_texts: tuple[Fact, ...]
    fresh: tuple[Fact, ...]
    """Asked for, without a text."""

    @classmethod
    def drawn(cls, plan: RowPlan) -> "Facts":
        """The rows of a seed; same plan, same rows."""
        draw = random.Random(f"rows|{plan.seed}")  # noqa: S311 - not for secrets
        names = ["".join(syllables).capitalize() for syllables in itertools.product(SYLLABLES, repeat=3)]
        lines = importlib.resources.files(__package__).joinpath("row_templates.jsonl").read_text("utf-8")
        templates = [json.loads(line) for line in lines.splitlines()]
        every = []
        for number, name in enumerate(draw.sample(names, plan.rows)):
            # Of the rows without a text every second one is asked for in a sentence of a new form.
            held_out = number >= plan.texts and number % 2 == 1
            template = draw.choice([item for item in templates if item.get("held_out", False) is held_out])
            values = range(1500, 8900) if template["column"] == "height" else range(1780, 1980)
            value, other_value = draw.sample(values, 2)
            every.append(
                Fact(
                    name=name,
                    column=template["column"],
                    value=value,
                    other_value=other_value,
                    template=template["text"],
                    held_out=held_out,
                )
            )
        fresh = every[plan.texts : plan.texts + plan.asked]
        return cls(tuple(every), tuple(every[: plan.texts]), tuple(fresh))


def write_table(folder: Path, facts: Iterable[Fact]) -> None:
    """Give the demo's database in the folder these rows and no other; the column that no sentence states is drawn."""
    write_mountains(folder)
    with sqlite3.connect(folder / DATABASE) as database:
        database.execute("delete from mountains")
        for fact in facts:
            other = int(hashlib.sha256(fact.name.encode()).hexdigest(), 16)
            row = {
                "height": 1500 + other % 7400,
                "first_climbed": 1780 + other % 200,
                fact.column: fact.value,
            }
            values = (fact.name, row["height"], "Nepal", row["first_climbed"])
            database.execute("insert into mountains values (?, ?, ?, ?)", values)
    database.close()


def run_rows(settings: Settings, model: str, plan: RowPlan, folder: Path) -> None:
    """Do a seed: write `answers.jsonl` into its folder, unless it is there. For a process of its own, whose tools become others.

    Raises:
        NoResultError: too few texts have a kept call; no arm was trained.
        UsageError: the folder holds another plan.
    """
    answers = folder / "answers.jsonl"
    require_plan(plan, folder)
    if answers.exists():
        return
    # 1. The table, as the one tool there is.
    tools = folder / "tools"
    facts = Facts.drawn(plan)
    write_table(tools, facts.every)
    settings = with_tools(settings, tools)
    # 2. The texts with the calls that are kept.
    released = annotated_texts(model, [fact.text for fact in facts.of_texts])
    if len(released) < FEWEST_TEXTS:
        raise NoResultError(
            f"{folder}: expected {FEWEST_TEXTS} texts with a kept call, found {len(released)} of {plan.texts}. No arm was trained; "
            "name a model that keeps more (--model)."
        )
    stated = {text.plain_text for text in released}
    of_texts = [fact for fact in facts.of_texts if fact.text in stated][: plan.asked_of_texts]
    logger.info("seed %d: %d of %d texts have a kept call", plan.seed, len(released), plan.texts)
    # 3. The model before training, then each arm.
    lines: list[Line] = [{"line": "seed", **asdict(plan), "texts_with_calls": len(released)}]
    lines += questions(load_to_write(settings, model, (MOUNTAINS,)), plan, BEFORE, facts, of_texts, tools)
    steps = row_steps(settings, model, plan, released)
    places: list[Path] = []
    for arm in ARMS:
        started = time.monotonic()
        choices = FinetuningChoices(
            seed=plan.seed,
            finetune_steps=steps[arm],
            finetune_batch=plan.batch,
            finetune_length=128,
            finetune_learning_rate=plan.learning_rate,
        )
        place = train_texts(settings, model, choices, released, arm == PLAIN, folder / f"release-{arm}")
        trained = {"line": "arm", "seed": plan.seed, "arm": arm, "steps": steps[arm]}
        trained |= {"tokens_seen": tokens_seen(place), "training_seconds": training_seconds(place)}
        lines.append(trained)
        writer = load_to_write(settings, str(place / "model"), (MOUNTAINS,))
        lines += questions(writer, plan, arm, facts, of_texts, tools)
        places.append(place)
        logger.info("seed %d, arm %s: %.0f s", plan.seed, arm, time.monotonic() - started)
    replace_file(answers, "".join(json.dumps(line) + "\n" for line in lines))
    for place in places:
        let_go(place)


def require_plan(plan: RowPlan, folder: Path) -> None:
    """Write the plan into the folder of its seed.

    Raises:
        UsageError: it holds another one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "plan.json"
    content = json.dumps(asdict(plan), indent=2) + "\n"
    if file.exists() and file.read_text(encoding="utf-8") != content:
        raise UsageError(
            f"{folder}: expected a folder of this plan, found another plan in {file}. Nothing in it was changed. Give the same "
            "numbers to continue it, or another --out."
        )
    replace_file(file, content)


def annotated_texts(model: str, texts: Sequence[str]) -> list[ReleasedText]:
    """The texts that have a kept call, with their kept calls, as a release has them; the table proposes, `probability` keeps."""
    from toolformer_ops.notebook import annotate

    kept: dict[int, list[Mapping[Any, Any]]] = {}
    for row in annotate(texts, MOUNTAINS, model=model, proposer="tool").to_dict("records"):
        if row["kept"]:
            kept.setdefault(int(row["id"]), []).append(row)
    return [
        released_text(MOUNTAINS, kept[number][0]["document_id"], texts[number], kept[number])
        for number in sorted(kept)
    ]


def row_steps(
    settings: Settings, model: str, plan: RowPlan, released: Sequence[ReleasedText]
) -> dict[str, int]:
    """By arm its steps: the arm without calls reads as many tokens."""
    from toolformer_ops.runs.models import load_tokenization

    tokenization = load_tokenization(settings, model)
    tokens = {
        CALLS: sum(len(tokenization.ids(text.text)) for text in released),
        PLAIN: sum(len(tokenization.ids(text.plain_text)) for text in released),
    }
    return equal_steps(tokens, plan.steps, tokens[CALLS])


def questions(
    writer: "WritingModel", plan: RowPlan, arm: str, facts: Facts, of_texts: Sequence[Fact], tools: Path
) -> list[Line]:
    """What a model writes behind all prompts, the table changed between them; the table is whole again afterwards.

    Only the arm with calls is asked again after a change: the others ask no table.
    """

    def asked(table: Table, about: Sequence[Fact]) -> list[Line]:
        rank = 0 if arm == PLAIN or table == "del_off" else DecodingSettings.call_start_rank
        decoding = DecodingSettings(max_new_tokens=NEW_TOKENS, call_start_rank=rank)
        written = writer.write([Prompt(fact.prompt) for fact in about], decoding)
        return [
            {
                "line": "answer",
                "seed": plan.seed,
                "arm": arm,
                "table": table,
                **answer_line(fact, text, of_texts),
            }
            for fact, text in zip(about, written, strict=True)
        ]

    # 1. The full table.
    lines = asked("full", [*facts.fresh, *of_texts])
    if arm != CALLS:
        return lines
    # 2. Other values in half of the rows that texts state and in as many of the others.
    half = plan.changed // 2
    changed = [*facts.fresh[: plan.changed - half], *of_texts[:half]]
    values = {fact.name: fact.other_value for fact in changed}
    rows = [replace(fact, value=values.get(fact.name, fact.value)) for fact in facts.every]
    write_table(tools, rows)
    lines += asked("changed", changed)
    # 3. Rows of other texts are gone.
    deleted = of_texts[half : half + plan.deleted]
    gone = {fact.name for fact in deleted}
    write_table(tools, [fact for fact in facts.every if fact.name not in gone])
    lines += asked("del_on", deleted)
    lines += asked("del_off", deleted)
    write_table(tools, facts.every)
    return lines


def answer_line(fact: Fact, written: WrittenText, of_texts: Sequence[Fact]) -> Line:
    """What is kept of one question."""
    number = first_number(written.without_calls)
    results = [call.result for call in written.calls]
    return {
        "name": fact.name,
        "column": fact.column,
        "in_texts": fact in of_texts,
        "held_out": fact.held_out,
        "value": fact.value,
        "other_value": fact.other_value,
        "number": None if number is None else float(number),
        "calls": len(results),
        "result": results[0] if results else None,
        "written": written.text,
    }


def gather_rows(folder: Path, out: Path) -> Path:
    """Write the answers of all seeds that are done into the folder `out`; returns the file.

    Raises:
        NoResultError: no seed is done.
    """
    seeds = sorted(folder.glob("seed-*/answers.jsonl"), key=lambda file: int(file.parent.name[5:]))
    if not seeds:
        raise NoResultError(f"{folder}: expected seeds with answers, found none. Run the study first.")
    lines = [json.loads(line) for file in seeds for line in file.read_text("utf-8").splitlines()]
    out.mkdir(parents=True, exist_ok=True)
    write_lines(out / ANSWERS, lines)
    return out / ANSWERS
