"""From sums in prose to a model that computes them with the calculator, and how well: one process, one folder, no services.

    annotate   the factory's method on one-sentence texts; done ones are kept in `annotated.jsonl`, where a killed study continues
    release    texts with kept calls, in the format of a release
    train      the finetuning of the factory
    measure    fresh sums: the model that it started from, the trained one without calls, and with them (`written.jsonl`)

Takes CPU minutes by the hundred texts. Does not replace a run through Airflow: nothing here is in Postgres.
"""

import functools
import itertools
import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolformer_ops.call_syntax import parse_call
from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.demo.calculator.sums import Sum, fresh_sums, training_sums
from toolformer_ops.errors import NothingToReleaseError
from toolformer_ops.evaluation.numbers import first_number_is_right
from toolformer_ops.records import Document
from toolformer_ops.release.format import ReleasedCall, ReleasedText, ReleaseWriter
from toolformer_ops.runs.choices import FinetuningChoices, RunChoices

logger = logging.getLogger(__name__)

TOOL = "Calculator"
TEXTS_TOGETHER = 16
WRITTEN_TOKENS = 24
"""Enough for a call's result and the number behind it, and for a model that writes the sum out first."""
ANNOTATED = "annotated.jsonl"
WRITTEN = "written.jsonl"
RELEASED_FIELDS = (
    "result", "position_char", "position_probability",
    "loss_without_call", "loss_without_result", "loss_with_result", "loss_reduction",
)  # fmt: skip
"""Fields of an annotated call that a released call has under the same name."""


@dataclass(frozen=True)
class StudyPlan:
    """The numbers of a study."""

    texts: int = 448
    """Sentences that are annotated."""
    test_sums: int = 200
    seed: int = 0
    max_positions: int = 3
    samples_per_position: int = 3
    steps: int = 160
    batch: int = 16
    learning_rate: float = 5e-5

    def choices(self, model: str) -> RunChoices:
        """The annotation's choices; the name of the tool is given, as a small model needs."""
        return RunChoices(
            corpus="-",
            model=model,
            tools=(TOOL,),
            call_prefix="tool_name",
            max_positions=self.max_positions,
            samples_per_position=self.samples_per_position,
            max_call_tokens=20,
            seed=self.seed,
            finetune_steps=self.steps,
            finetune_batch=self.batch,
            finetune_device_batch=8,
            finetune_length=128,
            finetune_learning_rate=self.learning_rate,
        )


def run_study(settings: Settings, model: str, plan: StudyPlan, folder: Path) -> dict[str, Any]:
    """Do what is not done yet, and return what was measured; it is also written to `study.json`.

    Raises:
        NothingToReleaseError: no call was kept.
        ModelError: the model is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    clock = [time.process_time()]
    # 1. annotate
    annotated = annotate(settings, model, plan, folder / ANNOTATED)
    texts = released_texts(annotated)
    if not texts:
        raise NothingToReleaseError("expected texts with kept calls, found none. Annotate more texts (--texts).")
    # 2. release
    (folder / "release").mkdir(exist_ok=True)
    with ReleaseWriter(folder / "release") as writer:
        for text in texts:
            writer.write(text)
    clock.append(time.process_time())
    # 3. train
    trained = train(settings, model, plan, folder)
    clock.append(time.process_time())
    # 4. measure
    measured = measure(settings, model, str(trained), plan, folder / WRITTEN)
    clock.append(time.process_time())
    steps = zip(("annotate", "train", "measure"), itertools.pairwise(clock), strict=True)
    found = {
        "plan": asdict(plan),
        "texts_with_kept_calls": len(texts),
        "cpu_seconds": {name: round(ended - began, 1) for name, (began, ended) in steps},
        "test_sums": plan.test_sums,
        "measured": measured,
    }
    (folder / "study.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def annotate(settings: Settings, model: str, plan: StudyPlan, file: Path) -> list[dict[str, Any]]:
    """Return one record a text, with its kept `calls`; what `file` holds already is not annotated again."""
    from toolformer_ops.annotation.candidates import filter_document, kept_paragraphs
    from toolformer_ops.one_process.annotator import Annotator
    from toolformer_ops.runs.models import load_model
    from toolformer_ops.tools.registry import get_tool

    done = read_whole_groups(file)
    documents = [Document.of(item.text) for item in training_sums(plan.texts, plan.seed)]
    tool = get_tool(TOOL)
    load = functools.cache(lambda: load_model(settings, model))
    annotator = Annotator(settings=settings, tool=tool, choices=plan.choices(model), model=load)
    left = documents[len(done) :]
    for first in range(0, len(left), TEXTS_TOGETHER):
        group = left[first : first + TEXTS_TOGETHER]
        kept: dict[str, list[dict[str, Any]]] = {str(document.document_id): [] for document in group}
        paragraphs = [one for item in group for one in kept_paragraphs(item, filter_document(tool, item))]
        for annotated in annotator.annotate(paragraphs):
            for line in annotated.lines:
                if line["kept"]:
                    kept[line["document_id"]].append(line)
        records = [
            {"document_id": str(item.document_id), "text": item.text, "calls": kept[str(item.document_id)]}
            for item in group
        ]
        with file.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(record) + "\n" for record in records)
        done += records
        logger.info(
            "annotated %d of %d texts, %d with kept calls", len(done), plan.texts, sum(bool(r["calls"]) for r in done)
        )
    return done


def read_whole_groups(file: Path) -> list[dict[str, Any]]:
    """Return what an earlier study left, cut to whole groups, so that the rest is annotated in the same batches."""
    if not file.exists():
        return []
    lines = [line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    lines = lines[: len(lines) - len(lines) % TEXTS_TOGETHER]
    file.write_text("".join(lines), encoding="utf-8")
    return [json.loads(line) for line in lines]


def released_texts(annotated: Sequence[dict[str, Any]]) -> list[ReleasedText]:
    """Return the texts with kept calls, each with its best call at each position."""
    texts = []
    for record in annotated:
        best: dict[int, dict[str, Any]] = {}
        for line in sorted(record["calls"], key=lambda line: (-line["loss_reduction"], line["call"])):
            best.setdefault(line["position_char"], line)
        calls = [
            ReleasedCall(
                call_id=f"{line['document_id']}-{line['position_char']}",
                tool=TOOL,
                input=parse_call(line["call"]).input,
                sampling_recipe_id="study",
                execution_recipe_id="study",
                scoring_recipe_id="study",
                **{name: line[name] for name in RELEASED_FIELDS},
            )
            for line in best.values()
        ]
        if calls:
            texts.append(ReleasedText.of(uuid.UUID(record["document_id"]), record["text"], calls, None))
    return texts


def train(settings: Settings, model: str, plan: StudyPlan, folder: Path) -> Path:
    """Return the folder of the model that is trained on the release in `folder`; trained now unless it is there."""
    from toolformer_ops.finetuning.recipe import FinetuningRecipe
    from toolformer_ops.finetuning.release_training import train_on_release
    from toolformer_ops.language_model import model_identity
    from toolformer_ops.runs.models import split_revision
    from toolformer_ops.storage.publication import file_sha256

    digest = file_sha256(folder / "release" / "part-00000.parquet")[:16]
    recipe = FinetuningRecipe(
        release_id=digest,
        base_model=model_identity(*split_revision(model), settings=settings),
        choices=plan.choices(model).part(FinetuningChoices),
    )
    place = folder / f"training-{recipe.model_id}"
    if (place / "model" / "finetuning.json").exists():
        return place / "model"
    dev_texts = [item.text for item in fresh_sums(64, plan.seed + 1, training_sums(plan.texts, plan.seed))]
    return train_on_release(settings, recipe, model, folder / "release", dev_texts, place).directory


def measure(settings: Settings, base: str, trained: str, plan: StudyPlan, file: Path) -> list[dict[str, Any]]:
    """Count fresh sums, written by the model before training, by the trained one without calls, and with them.

    What was written goes to `file`, one JSON line a text.
    """
    from toolformer_ops.decoding.model import WritingModel

    sums = fresh_sums(plan.test_sums, plan.seed, training_sums(plan.texts, plan.seed))
    prompts = [Prompt(item.prompt) for item in sums]
    plain = DecodingSettings(max_new_tokens=WRITTEN_TOKENS, call_start_rank=0)
    calling = DecodingSettings(max_new_tokens=WRITTEN_TOKENS)
    before = WritingModel.load(settings, base, tools=()).write(prompts, plain)
    after = WritingModel.load(settings, trained, tools=(TOOL,))
    ways = {
        "before training": before,
        "trained, calls disabled": after.write(prompts, plain),
        "trained, with the calculator": after.write(prompts, calling),
    }
    with file.open("w", encoding="utf-8") as out:
        for way, texts in ways.items():
            for item, text in zip(sums, texts, strict=True):
                called = [call.input for call in text.calls if call.result is not None]
                line = {
                    "way": way,
                    "prompt": item.prompt,
                    "written": text.text,
                    "right": is_right(item, text),
                    "sum": f"{item.left} {item.operator} {item.right}",
                    "called": called[0] if called else None,
                    "held_out": item.held_out,
                }
                out.write(json.dumps(line) + "\n")
    return [counted(way, sums, texts) for way, texts in ways.items()]


def is_right(asked: Sum, text: WrittenText) -> bool:
    """Whether the first number that the model wrote is the sum's result."""
    return first_number_is_right(text.without_calls, [str(asked.result)])


def counted(way: str, sums: Sequence[Sum], written: Sequence[WrittenText]) -> dict[str, Any]:
    """Return how one way of writing did: right ones, texts with a result of the calculator, both also on held-out templates."""
    right = [is_right(item, text) for item, text in zip(sums, written, strict=True)]
    called = [any(call.tool == TOOL and call.result is not None for call in text.calls) for text in written]
    held_out = [item.held_out for item in sums]
    all_of = Counter(item.operator for item in sums)
    right_of = Counter(item.operator for item, hit in zip(sums, right, strict=True) if hit)
    return {
        "way": way,
        "right": sum(right),
        "called": sum(called),
        "right_held_out": sum(hit and out for hit, out in zip(right, held_out, strict=True)),
        "called_held_out": sum(hit and out for hit, out in zip(called, held_out, strict=True)),
        "by_operator": {operator: f"{right_of[operator]} of {count}" for operator, count in sorted(all_of.items())},
    }


def study_table(found: dict[str, Any]) -> Any:
    """What was measured, as a table of rich."""
    from rich.table import Table

    table = Table(
        title=f"{found['test_sums']} fresh sums",
        caption=f"trained on {found['texts_with_kept_calls']} texts with kept calls",
    )
    for column in ("writes", "right", "calls", "right, new templates", "calls, new templates", "right by operator"):
        table.add_column(column)
    for item in found["measured"]:
        by_operator = ", ".join(f"{operator} {text}" for operator, text in item["by_operator"].items())
        numbers = (item["right"], item["called"], item["right_held_out"], item["called_held_out"])
        table.add_row(item["way"], *map(str, numbers), by_operator)
    return table
