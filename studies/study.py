"""From sentences to a model that calls a tool, by four ways to choose what it is trained on: one process, one folder, no services.

    annotate   the factory's method on one-sentence texts: all calls that have a result, with their losses (`annotated.jsonl`)
    placebos   the information of the calls that the paper's rule keeps: how much less their own result loses than other calls'
               results in its place (`informed.jsonl`)
    choose     the arms below, equally many texts in each, one call a text; the release of each in `release-ARM`
    train      the finetuning of the factory, once an arm
    measure    fresh sentences: the model that it started from, and each arm (`written.jsonl`)

    arm             trained on
    paper           calls that the paper's rule keeps
    information     of these, calls whose information is at least `INFORMATION_NATS`
    random          any call that has a result, by chance
    without_calls   the texts of `paper`, without their calls

As in a release, no arm has a call whose input stands in the text only after it: who writes the text could not know it.

What is done is kept, and a study that was killed continues there. Does not replace a run through Airflow: nothing is in Postgres.
"""

import functools
import itertools
import json
import logging
import math
import random
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from studies.sentences import DATES, SUMS, Sentence, SentenceSource
from toolformer_ops.call_syntax import parse_call
from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.errors import NoResultError, UsageError
from toolformer_ops.evaluation.statistics import paired_difference, wilson_interval
from toolformer_ops.release.format import ReleasedCall, ReleasedText, ReleaseWriter
from toolformer_ops.runs.choices import FinetuningChoices, PlaceboChoices, RunChoices

logger = logging.getLogger(__name__)

SOURCES: Mapping[str, SentenceSource] = {"Calculator": SUMS, "Calendar": DATES}
"""By tool."""
ARMS = ("paper", "information", "random", "without_calls")
INFORMATION_NATS = 0.2
PLACEBOS = 3
TEXTS_TOGETHER = 16
WRITTEN_TOKENS = 24
"""Enough for a call's result and the answer behind it, and for a model that writes a sum out first."""
ANNOTATED = "annotated.jsonl"
INFORMED = "informed.jsonl"
WRITTEN = "written.jsonl"
RELEASED_FIELDS = ("result", "position_char", "position_probability")
RELEASED_LOSSES = ("loss_without_call", "loss_without_result", "loss_with_result", "loss_reduction")
"""Fields of an annotated call that a released call has under the same name; a loss that was not computed is nan there."""

Record = dict[str, Any]
"""A text with its `calls`, as `annotated.jsonl` holds it."""


@dataclass(frozen=True)
class StudyPlan:
    """The numbers of a study."""

    tool: str = "Calculator"
    texts: int = 448
    """Sentences that are annotated."""
    test: int = 200
    """Fresh sentences."""
    seed: int = 0
    max_positions: int = 3
    samples_per_position: int = 3
    steps: int = 160
    batch: int = 16
    learning_rate: float = 5e-5
    arms: tuple[str, ...] = ARMS

    def __post_init__(self) -> None:
        for name, found, known in (("tool", (self.tool,), tuple(SOURCES)), ("arms", self.arms, ARMS)):
            if unknown := set(found) - set(known):
                raise UsageError(f"{name}: expected {', '.join(known)}, found {', '.join(sorted(unknown))}.")

    @property
    def source(self) -> SentenceSource:
        """Where its sentences come from."""
        return SOURCES[self.tool]

    def choices(self, model: str) -> RunChoices:
        """The choices of annotation and training. The tool's name is given and no place is too unlikely, as a small model needs."""
        return RunChoices(
            corpus="-",
            model=model,
            tools=(self.tool,),
            call_prefix="tool_name",
            max_positions=self.max_positions,
            samples_per_position=self.samples_per_position,
            sampling_threshold=0.0,
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
        NoResultError: an arm has no text.
        ModelError: the model is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    clock = [time.process_time()]
    # 1. annotate, with placebos
    informed = inform(settings, model, plan, annotate(settings, model, plan, folder / ANNOTATED), folder / INFORMED)
    clock.append(time.process_time())
    # 2. choose and train
    arms = chosen_texts(plan, informed)
    trained = {arm: train(settings, model, plan, arm, texts, folder) for arm, texts in arms.items()}
    clock.append(time.process_time())
    # 3. measure
    measured, differences = measure(settings, model, trained, plan, folder / WRITTEN)
    clock.append(time.process_time())
    steps = zip(("annotate", "train", "measure"), itertools.pairwise(clock), strict=True)
    found = {
        "plan": asdict(plan),
        "examples_an_arm": len(next(iter(arms.values()))),
        "eligible_texts": {arm: len(texts) for arm, texts in eligible_texts(plan, informed).items()},
        "cpu_seconds": {name: round(ended - began, 1) for name, (began, ended) in steps},
        "measured": measured,
        "differences": differences,
    }
    (folder / "study.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def annotate(settings: Settings, model: str, plan: StudyPlan, file: Path) -> list[Record]:
    """Return one record a text, with all its `calls` that have a result; what `file` holds already is not annotated again."""
    from toolformer_ops.annotation.candidates import filter_document, kept_paragraphs
    from toolformer_ops.on_a_file.annotator import Annotator
    from toolformer_ops.runs.models import load_scoring_model
    from toolformer_ops.tools.registry import get_tool

    done = read_whole_groups(file)
    documents = [item.document for item in plan.source.training(plan.texts, plan.seed)]
    tool = get_tool(plan.tool)
    load = functools.cache(lambda: load_scoring_model(settings, model))
    choices = plan.choices(model)
    annotator = Annotator(settings=settings, tool=tool, choices=choices, model=load)
    left = documents[len(done) :]
    for first in range(0, len(left), TEXTS_TOGETHER):
        group = left[first : first + TEXTS_TOGETHER]
        calls: dict[str, list[dict[str, Any]]] = {str(document.document_id): [] for document in group}
        paragraphs = [one for item in group for one in kept_paragraphs(item, filter_document(tool, item, choices))]
        for annotated in annotator.annotate(paragraphs):
            for line in annotated.lines:
                calls[line["document_id"]].append(line)
        records = [
            {"document_id": str(item.document_id), "text": item.text, "calls": calls[str(item.document_id)]}
            for item in group
        ]
        with file.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(record) + "\n" for record in records)
        done += records
        kept = sum(any(call["kept"] for call in record["calls"]) for record in done)
        logger.info("annotated %d of %d texts, %d with kept calls", len(done), plan.texts, kept)
    return done


def inform(settings: Settings, model: str, plan: StudyPlan, annotated: Sequence[Record], file: Path) -> list[Record]:
    """Return the records with `information`, nats, in each kept call (None if no other call has another result)."""
    from toolformer_ops.annotation.placebo import PlaceboDraw, information, score_placebos
    from toolformer_ops.on_a_file.annotator import judged_call_of
    from toolformer_ops.runs.models import load_scoring_model
    from toolformer_ops.runs.placebo_pools import Pool

    done = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    if len(done) == len(annotated):
        return done
    # 1. All calls are the pool; those that are kept are compared with it.
    every = [judged_call_of(call) for record in annotated for call in record["calls"]]
    pool = Pool.of_calls(
        ((call.call_id, call.document_id, str(call.scored.result)) for call in every if call.has_losses),
        PlaceboChoices(placebos=PLACEBOS, placebo_sample=0),
    )
    draw, choices = PlaceboDraw(pool), plan.choices(model)
    # 2. As many texts at once as were annotated together.
    load = functools.cache(lambda: load_scoring_model(settings, model))
    for first in range(0, len(annotated), TEXTS_TOGETHER):
        kept = [
            (record["text"], [call for call in record["calls"] if call["kept"]])
            for record in annotated[first : first + TEXTS_TOGETHER]
        ]
        judged = [(text, [judged_call_of(call) for call in calls]) for text, calls in kept]
        for (_, calls), of_text in zip(kept, score_placebos(load, choices, judged, draw), strict=True):
            for call, placebos in zip(calls, of_text, strict=True):
                call["information"] = information(placebos)
    unfinished = file.with_name(file.name + ".part")
    unfinished.write_text("".join(json.dumps(record) + "\n" for record in annotated), encoding="utf-8")
    unfinished.replace(file)
    return list(annotated)


def read_whole_groups(file: Path) -> list[Record]:
    """Return what an earlier study left, cut to whole groups, so that the rest is annotated in the same batches."""
    if not file.exists():
        return []
    lines = [line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    lines = lines[: len(lines) - len(lines) % TEXTS_TOGETHER]
    file.write_text("".join(lines), encoding="utf-8")
    return [json.loads(line) for line in lines]


def eligible_texts(plan: StudyPlan, informed: Sequence[Record]) -> dict[str, list[ReleasedText]]:
    """The texts that each arm can be trained on, each with one call: the one that saves most, in `random` any."""
    found: dict[str, list[ReleasedText]] = {arm: [] for arm in plan.arms}
    for record in informed:
        calls = [call for call in record["calls"] if not call["input_only_after"]]
        kept = sorted(
            (call for call in calls if call["kept"]), key=lambda call: (-call["loss_reduction"], call["call"])
        )
        draw = random.Random(f"{plan.seed}|{record['document_id']}")  # noqa: S311 - not for secrets
        of_arm = {
            "paper": kept,
            "information": [call for call in kept if (call["information"] or 0.0) >= INFORMATION_NATS],
            "random": draw.sample(calls, 1) if calls else [],
            "without_calls": kept,
        }
        for arm, texts in found.items():
            if of_arm[arm]:
                texts.append(released_text(plan.tool, record, of_arm[arm][0]))
    return found


def chosen_texts(plan: StudyPlan, informed: Sequence[Record]) -> dict[str, list[ReleasedText]]:
    """The texts of each arm: equally many, the first in the order of their ids.

    Raises:
        NoResultError: an arm has none.
    """
    eligible = eligible_texts(plan, informed)
    examples = min(map(len, eligible.values()))
    if not examples:
        none = ", ".join(arm for arm, texts in eligible.items() if not texts)
        raise NoResultError(f"expected texts with calls for each arm, found none for {none}. Raise --texts.")
    return {arm: sorted(texts, key=lambda text: str(text.document_id))[:examples] for arm, texts in eligible.items()}


def released_text(tool: str, record: Record, call: Mapping[str, Any]) -> ReleasedText:
    """A text with one of its calls, in the format of a release."""
    losses: dict[str, Any] = {name: math.nan if call[name] is None else call[name] for name in RELEASED_LOSSES}
    released = ReleasedCall(
        call_id=f"{record['document_id']}-{call['position_char']}",
        tool=tool,
        input=parse_call(call["call"]).input,
        sampling_recipe_id="study",
        execution_recipe_id="study",
        scoring_recipe_id="study",
        **{name: call[name] for name in RELEASED_FIELDS},
        **losses,
    )
    return ReleasedText.of(uuid.UUID(record["document_id"]), record["text"], [released], None)


def train(
    settings: Settings, model: str, plan: StudyPlan, arm: str, texts: Sequence[ReleasedText], folder: Path
) -> Path:
    """Return the folder of the model that is trained on these texts; trained now unless it is there."""
    from toolformer_ops.finetuning.recipe import FinetuningRecipe
    from toolformer_ops.finetuning.release_training import train_on_release
    from toolformer_ops.language_model.models import model_identity
    from toolformer_ops.runs.models import split_revision
    from toolformer_ops.storage.file_hashes import file_sha256

    release = folder / f"release-{arm}"
    release.mkdir(exist_ok=True)
    with ReleaseWriter(release) as writer:
        for text in texts:
            writer.write(text)
    recipe = FinetuningRecipe(
        release_id=file_sha256(release / "part-00000.parquet")[:16],
        base_model=model_identity(*split_revision(model), settings=settings),
        choices=plan.choices(model).part(FinetuningChoices),
        without_calls=arm == "without_calls",
    )
    place = folder / f"training-{recipe.model_id}"
    if (place / "model" / "finetuning.json").exists():
        return place / "model"
    training = plan.source.training(plan.texts, plan.seed)
    dev_texts = [item.text for item in plan.source.fresh(64, plan.seed + 1, training)]
    return train_on_release(settings, recipe, model, release, dev_texts, place).directory


def measure(
    settings: Settings, base: str, trained: Mapping[str, Path], plan: StudyPlan, file: Path
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Count fresh sentences, written by the model before training and by each arm, with calls; and compare each pair of arms.

    What was written goes to `file`, one JSON line a text.
    """
    from toolformer_ops.decoding.model import WritingModel

    sentences = plan.source.fresh(plan.test, plan.seed, plan.source.training(plan.texts, plan.seed))
    prompts = [Prompt(item.prompt, item.date) for item in sentences]
    plain = DecodingSettings(max_new_tokens=WRITTEN_TOKENS, call_start_rank=0)
    calling = DecodingSettings(max_new_tokens=WRITTEN_TOKENS)
    ways = {"before training": WritingModel.load(settings, base, tools=()).write(prompts, plain)}
    for arm, model in trained.items():
        if arm == "without_calls":
            ways[arm] = WritingModel.load(settings, str(model), tools=()).write(prompts, plain)
        else:
            ways[arm] = WritingModel.load(settings, str(model), tools=(plan.tool,)).write(prompts, calling)
    right = {way: [item.is_right(text.without_calls) for item, text in zip(sentences, texts, strict=True)]
             for way, texts in ways.items()}  # fmt: skip
    with file.open("w", encoding="utf-8") as out:
        for way, texts in ways.items():
            for item, text, hit in zip(sentences, texts, right[way], strict=True):
                called = [call.input for call in text.calls if call.result is not None]
                line = {
                    "way": way,
                    "prompt": item.prompt,
                    "date": item.date.isoformat() if item.date else None,
                    "written": text.text,
                    "answer": item.answer,
                    "right": hit,
                    "kind": item.kind,
                    "called": called[0] if called else None,
                    "held_out": item.held_out,
                }
                out.write(json.dumps(line) + "\n")
    measured = [counted(way, sentences, texts) for way, texts in ways.items()]
    differences = [compared(right, *pair) for pair in itertools.combinations(trained, 2)]
    return measured, differences


def counted(way: str, sentences: Sequence[Sentence], written: Sequence[WrittenText]) -> dict[str, Any]:
    """How one way of writing did: right ones with their 95 % interval, texts with a result; both also on held-out templates."""
    right = [item.is_right(text.without_calls) for item, text in zip(sentences, written, strict=True)]
    called = [any(call.result is not None for call in text.calls) for text in written]
    held_out = [item.held_out for item in sentences]
    all_of = Counter(item.kind for item in sentences)
    right_of = Counter(item.kind for item, hit in zip(sentences, right, strict=True) if hit)
    interval = wilson_interval(sum(right), len(right))
    return {
        "way": way,
        "right": sum(right),
        "of": len(right),
        "interval": [interval.low, interval.high],
        "called": sum(called),
        "right_held_out": sum(hit and out for hit, out in zip(right, held_out, strict=True)),
        "called_held_out": sum(hit and out for hit, out in zip(called, held_out, strict=True)),
        "by_kind": {kind: f"{right_of[kind]} of {count}" for kind, count in sorted(all_of.items())},
    }


def compared(right: Mapping[str, Sequence[bool]], first: str, second: str) -> dict[str, Any]:
    """The difference of two arms' shares of right answers on the same sentences, with its 95 % interval."""
    found = paired_difference(right[first], right[second])
    return {
        "first": first,
        "second": second,
        "difference": found.difference,
        "interval": [found.interval.low, found.interval.high],
        "p_value": found.p_value,
    }


def study_tables(found: dict[str, Any]) -> list[Any]:
    """What was measured, as tables of rich."""
    from rich.table import Table

    arms = Table(
        title=f"{found['plan']['tool']}: {found['plan']['test']} fresh sentences",
        caption=f"each arm trained on {found['examples_an_arm']} texts",
    )
    for column in ("writes", "right", "95 %", "calls", "right, new templates", "calls, new templates", "right by kind"):
        arms.add_column(column)
    for item in found["measured"]:
        low, high = item["interval"]
        by_kind = ", ".join(f"{kind} {text}" for kind, text in item["by_kind"].items())
        numbers = (item["right"], f"{low:.2f} to {high:.2f}", item["called"])
        arms.add_row(item["way"], *map(str, (*numbers, item["right_held_out"], item["called_held_out"])), by_kind)
    pairs = Table(title="Differences of shares, paired")
    for column in ("first", "second", "first minus second", "95 %", "McNemar's p"):
        pairs.add_column(column)
    for item in found["differences"]:
        low, high = item["interval"]
        cells = (f"{item['difference']:+.3f}", f"{low:+.3f} to {high:+.3f}", f"{item['p_value']:.3f}")
        pairs.add_row(item["first"], item["second"], *cells)
    return [arms, pairs]
