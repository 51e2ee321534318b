"""From sums in prose to a model that computes them with the calculator, and how well: one process, one folder, no services.

    annotate   the factory's method on one-sentence texts; done ones are kept in `annotated.jsonl`, so that a killed study goes on
    release    texts with kept calls, in the format of a release
    train      the finetuning of the factory
    measure    fresh sums: the model that it started from, the trained one without calls, and with them (`written.jsonl`)

Takes CPU minutes by the hundred texts. Does not replace a run through Airflow: nothing here is in Postgres.
"""

import functools
import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True)
class Answered:
    """How one way of writing did on the test."""

    way: str
    right: int
    called: int
    """Texts with a result of the calculator."""
    right_held_out: int
    """Right ones on templates that training never saw."""
    called_held_out: int
    by_operator: dict[str, str]
    """Right of all, by operator."""


def run_study(settings: Settings, model: str, plan: StudyPlan, folder: Path) -> dict[str, Any]:
    """Do what is not done yet, and return what was measured; it is also written to `study.json`.

    Raises:
        NothingToReleaseError: no call was kept.
        ModelError: the model is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    started = time.process_time()
    annotated = _annotate(settings, model, plan, folder / ANNOTATED)
    texts = _release(annotated, plan, folder / "release")
    seconds["annotate"] = time.process_time() - started
    trained = _train(settings, model, plan, folder)
    seconds["train"] = time.process_time() - started - seconds["annotate"]
    measured = measure(settings, model, str(trained), plan, folder / WRITTEN)
    seconds["measure"] = time.process_time() - started - sum(seconds.values())
    found = {
        "plan": asdict(plan),
        "texts_with_kept_calls": texts,
        "cpu_seconds": {name: round(value, 1) for name, value in seconds.items()},
        "test_sums": plan.test_sums,
        "measured": [asdict(item) for item in measured],
    }
    (folder / "study.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def _annotate(settings: Settings, model: str, plan: StudyPlan, file: Path) -> list[dict[str, Any]]:
    """One record a text, `calls` being those that are kept."""
    from toolformer_ops.annotation.candidates import filter_document, kept_paragraphs
    from toolformer_ops.one_process.annotator import Annotator
    from toolformer_ops.runs.models import load_model
    from toolformer_ops.tools.registry import get_tool

    done = _read_whole_lines(file)
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


def _read_whole_lines(file: Path) -> list[dict[str, Any]]:
    """What an earlier study left, cut to whole groups, so that the rest is annotated in the same company."""
    if not file.exists():
        return []
    lines = [line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    lines = lines[: len(lines) - len(lines) % TEXTS_TOGETHER]
    file.write_text("".join(lines), encoding="utf-8")
    return [json.loads(line) for line in lines]


def _release(annotated: Sequence[dict[str, Any]], plan: StudyPlan, folder: Path) -> int:
    folder.mkdir(exist_ok=True)
    texts = list(_released(annotated))
    if not texts:
        raise NothingToReleaseError("expected texts with kept calls, found none. Annotate more texts (--texts).")
    with ReleaseWriter(folder) as writer:
        for text in texts:
            writer.write(text)
    return len(texts)


def _released(annotated: Sequence[dict[str, Any]]) -> Iterator[ReleasedText]:
    """Texts with their best call at each position."""
    for record in annotated:
        best: dict[int, dict[str, Any]] = {}
        for line in sorted(record["calls"], key=lambda line: (-line["loss_reduction"], line["call"])):
            best.setdefault(line["position_char"], line)
        if best:
            calls = [_released_call(line) for line in best.values()]
            yield ReleasedText.of(uuid.UUID(record["document_id"]), record["text"], calls, None)


def _released_call(line: dict[str, Any]) -> ReleasedCall:
    losses = {
        name: line[name] for name in ("loss_without_call", "loss_without_result", "loss_with_result", "loss_reduction")
    }
    return ReleasedCall(
        call_id=f"{line['document_id']}-{line['position_char']}",
        tool=TOOL,
        input=parse_call(line["call"]).input,
        result=line["result"],
        position_char=line["position_char"],
        position_probability=line["position_probability"],
        sampling_recipe_id="study",
        execution_recipe_id="study",
        scoring_recipe_id="study",
        **losses,
    )


def _train(settings: Settings, model: str, plan: StudyPlan, folder: Path) -> Path:
    from toolformer_ops.finetuning.recipe import FinetuningRecipe
    from toolformer_ops.finetuning.release_training import train_on_release
    from toolformer_ops.language_model import model_identity
    from toolformer_ops.runs.models import split_revision
    from toolformer_ops.storage.publication import file_sha256

    digest = file_sha256(folder / "release" / "part-00000.parquet")[:16]
    recipe = FinetuningRecipe(
        release_id=digest,
        base_model=model_identity(*split_revision(model)),
        choices=plan.choices(model).part(FinetuningChoices),
    )
    place = folder / f"training-{recipe.model_id}"
    if (place / "model" / "finetuning.json").exists():
        return place / "model"
    dev_texts = [item.text for item in fresh_sums(64, plan.seed + 1, training_sums(plan.texts, plan.seed))]
    return train_on_release(settings, recipe, model, folder / "release", dev_texts, place).directory


def measure(settings: Settings, base: str, trained: str, plan: StudyPlan, file: Path) -> list[Answered]:
    """Fresh sums, written by the model before training, by the trained one without calls, and with them.

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
    lines = [_written_line(way, *pair) for way, texts in ways.items() for pair in zip(sums, texts, strict=True)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return [_counted(way, sums, texts) for way, texts in ways.items()]


def _written_line(way: str, asked: Sum, text: WrittenText) -> dict[str, Any]:
    call = next((call for call in text.calls if call.result is not None), None)
    return {
        "way": way,
        "prompt": asked.prompt,
        "written": text.text,
        "right": _is_right(asked, text),
        "sum": f"{asked.left} {asked.operator} {asked.right}",
        "called": call and call.input,
        "held_out": asked.held_out,
    }


def _is_right(asked: Sum, text: WrittenText) -> bool:
    return first_number_is_right(text.without_calls, [str(asked.result)])


def _counted(way: str, sums: Sequence[Sum], written: Sequence[WrittenText]) -> Answered:
    right = [_is_right(item, text) for item, text in zip(sums, written, strict=True)]
    called = [any(call.tool == TOOL and call.result is not None for call in text.calls) for text in written]
    held_out = [item.held_out for item in sums]
    all_of = Counter(item.operator for item in sums)
    right_of = Counter(item.operator for item, hit in zip(sums, right, strict=True) if hit)
    return Answered(
        way,
        sum(right),
        sum(called),
        sum(hit and out for hit, out in zip(right, held_out, strict=True)),
        sum(hit and out for hit, out in zip(called, held_out, strict=True)),
        {operator: f"{right_of[operator]} of {count}" for operator, count in sorted(all_of.items())},
    )


def study_table(found: dict[str, Any]) -> Any:
    """What was measured, as a table of rich."""
    from rich.table import Table

    count = found["test_sums"]
    table = Table(
        "writes", "right", "calls", "right, new templates", "calls, new templates", "right by operator",
        title=f"{count} fresh sums", caption=f"trained on {found['texts_with_kept_calls']} texts with kept calls",
    )  # fmt: skip
    for item in found["measured"]:
        by_operator = ", ".join(f"{operator} {text}" for operator, text in item["by_operator"].items())
        numbers = (item["right"], item["called"], item["right_held_out"], item["called_held_out"])
        table.add_row(item["way"], *map(str, numbers), by_operator)
    return table
