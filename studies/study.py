"""One seed of a study, from sentences to models that call a tool: one process, one folder, no services.

    annotate, inform   every call of every text, once for all arms (`studies/calls.py`)
    choose             each arm's texts, with one call each (`studies/arms.py`); the release of each in
    `release-ARM` train              the finetuning of the factory, once an arm
    measure            fresh sentences and plain text: the model before training, and each arm
    (`written-ARM.jsonl`, `arm-ARM.json`)

The seed changes the sentences, what is sampled, what is chosen and the order of training together. The models
have no dropout and start from the same weights, so nothing else is left to chance. What is done is kept, and
a study that was killed continues there. Does not replace a run through Airflow: nothing is in Postgres.
"""

import functools
import itertools
import json
import logging
import math
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.arms import ARMS, RULES, ScoredCall, chosen_texts, rules_table
from studies.calls import Record, annotate, inform
from studies.sentences import DATES, FACTS, SUMS, Sentence, SentenceSource, WordProblems
from toolformer_ops.call_syntax import ARROW, parse_call
from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.errors import UsageError
from toolformer_ops.local.demo.corpus import WIKIPEDIA_DOCUMENTS, wikipedia_documents, write_kilt_records
from toolformer_ops.records import SampledContinuation
from toolformer_ops.release.format import ReleasedCall, ReleasedText, write_texts
from toolformer_ops.runs.choices import FinetuningChoices, RunChoices
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

logger = logging.getLogger(__name__)

SOURCES: Mapping[str, SentenceSource] = {"Calculator": SUMS, "Calendar": DATES, "WikiSearch": FACTS}
"""By tool."""
MAIN_ARMS = tuple(name for name in ARMS if name == "paper" or name not in RULES)
BEFORE = "before"
"""The model before training."""
DEVELOPMENT_SENTENCES = 64
WRITTEN_TOKENS = 24
"""Enough for a call's result and the answer behind it, and for a model that writes a sum out first."""
RELEASED_FIELDS = ("result", "position_char", "position_probability")
RELEASED_LOSSES = ("loss_without_call", "loss_without_result", "loss_with_result", "loss_reduction")
"""Fields of an annotated call that a released call has under the same name; a loss that was not computed is
nan there."""


@dataclass(frozen=True)
class StudyPlan:
    """The numbers of a study."""

    tool: str = "Calculator"
    texts: int = 160
    """Sentences that are annotated."""
    test: int = 100
    """Fresh sentences."""
    seed: int = 0
    max_positions: int = 3
    samples_per_position: int = 3
    steps: int = 48
    batch: int = 8
    learning_rate: float = 1e-4
    arms: tuple[str, ...] = MAIN_ARMS
    proposals: bool = False
    """Whether the trained models also propose calls (`proposed_calls`)."""
    word_problems: str = ""
    """A file of questions with solutions (`WordProblems`), in place of the tool's own sentences."""

    def __post_init__(self) -> None:
        for name, found, known in (("tool", (self.tool,), tuple(SOURCES)), ("arms", self.arms, tuple(ARMS))):
            if unknown := set(found) - set(known):
                raise UsageError(f"{name}: expected {', '.join(known)}, found {', '.join(sorted(unknown))}.")

    @property
    def source(self) -> SentenceSource:
        """Where its sentences come from."""
        return WordProblems(Path(self.word_problems)) if self.word_problems else SOURCES[self.tool]

    @functools.cached_property
    def training(self) -> list[Sentence]:
        """The sentences that are annotated."""
        return self.source.training(self.texts, self.seed)

    def choices(self, model: str, arm: str = "") -> RunChoices:
        """The choices of annotation and training.

        The tool's name is given and no place is too unlikely, as a small model needs.
        """
        return RunChoices(
            corpus="-",
            model=model,
            tools=(self.tool,),
            call_prefix="tool_name",
            max_positions=self.max_positions,
            samples_per_position=self.samples_per_position,
            sampling_threshold=0.0,
            prune_below=0.0,
            max_call_tokens=20,
            seed=self.seed,
            finetune_steps=self.steps,
            finetune_batch=self.batch,
            finetune_device_batch=8,
            finetune_length=256 if self.word_problems else 128,
            finetune_learning_rate=self.learning_rate,
        )


def run_seed(settings: Settings, model: str, plan: StudyPlan, folder: Path) -> dict[str, Any]:
    """Do what is not done yet, and return what was measured; it is also written to `study.json`.

    Raises:
        NoResultError: an arm has no text.
        ModelError: the model is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tool = get_tool(plan.tool)
    # 1. Every call, once for all arms.
    started = time.process_time()
    annotated = annotate(
        settings, tool, plan.choices(model), [item.document for item in plan.training], folder
    )
    records = inform(settings, plan.choices(model), annotated, folder)
    seconds = time.process_time() - started
    # 2. What each arm is trained on; then train it and let it write, one after the other.
    chosen, eligible = chosen_texts(plan.arms, records, tool, plan.seed)
    measured = [measure(settings, model, plan, BEFORE, folder)]
    for arm, texts in chosen.items():
        logger.info("seed %d, arm %s: %d texts", plan.seed, arm, len(texts))
        trained = train(settings, model, plan, arm, texts, folder)
        measured.append(measure(settings, str(trained), plan, arm, folder))
    found = {
        "plan": asdict(plan),
        "examples_an_arm": len(next(iter(chosen.values()))),
        "eligible_texts": eligible,
        "annotation_cpu_seconds": round(seconds, 1),
        "arms": measured,
        "rules": rules_table(records, tool),
    }
    (folder / "study.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def released_text(tool: str, record: Record, call: ScoredCall) -> ReleasedText:
    """A text with one of its calls, in the format of a release."""
    losses: dict[str, Any] = {
        name: math.nan if call[name] is None else call[name] for name in RELEASED_LOSSES
    }
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
    settings: Settings,
    model: str,
    plan: StudyPlan,
    arm: str,
    texts: Sequence[tuple[Record, ScoredCall]],
    folder: Path,
) -> Path:
    """Return the folder of the model that is trained on these texts; trained now unless it is there.

    An arm with the same texts and calls as another has the same model. The arm without calls has more steps,
    so that it sees as many tokens as the arm with them.
    """
    from toolformer_ops.finetuning.recipe import FinetuningRecipe, TrainingJob
    from toolformer_ops.finetuning.release_training import train_on_release
    from toolformer_ops.language_model.models import model_identity
    from toolformer_ops.language_model.models.identity import split_revision
    from toolformer_ops.runs.models import load_tokenization
    from toolformer_ops.storage.file_hashes import file_sha256

    release = folder / f"release-{arm}"
    release.mkdir(exist_ok=True)
    released = [released_text(plan.tool, record, call) for record, call in texts]
    write_texts(release, released)
    choices = plan.choices(model).part(FinetuningChoices)
    if ARMS[arm].masked:
        choices = choices.model_copy(update={"finetune_results": "mask"})
    without_calls = ARMS[arm].without_calls
    if without_calls:
        tokenization = load_tokenization(settings, model)
        with_them, without = (sum(len(tokenization.ids(text)) for text in kind) for kind in zip(
            *((text.text, text.plain_text) for text in released), strict=True
        ))  # fmt: skip
        choices = choices.model_copy(update={"finetune_steps": math.ceil(plan.steps * with_them / without)})
    recipe = FinetuningRecipe(
        release_id=file_sha256(release / "data" / "part-00000.parquet")[:16],
        base_model=model_identity(*split_revision(model), settings=settings),
        choices=choices,
        without_calls=without_calls,
    )
    place = folder / f"training-{recipe.model_id}"
    if not (place / "model" / "finetuning.json").exists():
        dev_texts = tuple(
            item.text for item in plan.source.fresh(DEVELOPMENT_SENTENCES, plan.seed + 1, plan.training)
        )
        train_on_release(settings, TrainingJob(recipe, model, release, dev_texts, place))
    (folder / f"tokens-{arm}.json").write_text(json.dumps(tokens_seen(place)), encoding="utf-8")
    return place / "model"


def tokens_seen(training: Path) -> int:
    """Tokens that a training has read, from the last line of its log."""
    lines = (training / "model" / "training_log.jsonl").read_text(encoding="utf-8").splitlines()
    return int(json.loads(lines[-1])["tokens"])


def measure(settings: Settings, model: str, plan: StudyPlan, arm: str, folder: Path) -> dict[str, Any]:
    """Let a model write behind the prompts of fresh sentences, with the tool if it was taught to call, and read plain text.

    Returns what `arm-ARM.json` then holds; `written-ARM.jsonl` has a line a sentence.
    """
    from toolformer_ops.decoding.model import WritingModel

    kept = folder / f"arm-{arm}.json"
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    calls = arm != BEFORE and not ARMS[arm].without_calls
    writing = WritingModel.load(settings, model, tools=(plan.tool,) if calls else ())
    sentences = plan.source.fresh(plan.test, plan.seed, plan.training)
    decoding = DecodingSettings(max_new_tokens=WRITTEN_TOKENS)
    if not calls:
        decoding = replace(decoding, call_start_rank=0)
    started = time.process_time()
    written = writing.write([Prompt(item.prompt, item.date) for item in sentences], decoding)
    seconds = time.process_time() - started
    losses = writing.language_model.text_losses(plain_texts())
    with (folder / f"written-{arm}.jsonl").open("w", encoding="utf-8") as out:
        out.writelines(
            json.dumps(line_of(item, text)) + "\n" for item, text in zip(sentences, written, strict=True)
        )
    tokens = folder / f"tokens-{arm}.json"
    found = {
        "arm": arm,
        **counted(sentences, written),
        "perplexity": math.exp(sum(loss.nats for loss in losses) / sum(loss.tokens for loss in losses)),
        "tokens_seen": json.loads(tokens.read_text(encoding="utf-8")) if tokens.exists() else 0,
        "writing_cpu_seconds": round(seconds, 2),
        **(
            {"proposed": proposed_calls(writing.language_model, plan, sentences)}
            if plan.proposals and calls
            else {}
        ),
    }
    unfinished = kept.with_suffix(".part")
    unfinished.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(kept)
    return found


def proposed_calls(model: "LanguageModel", plan: StudyPlan, sentences: Sequence[Sentence]) -> dict[str, Any]:
    """What a model samples for sentences, as the factory would with it: up to the bracket, and up to the arrow.

    By the end: samples, those in which the model writes a result itself, those that are calls, and CPU
    seconds.
    """
    from toolformer_ops.annotation.candidates import annotation_prompt, given_call_start, read_call
    from toolformer_ops.annotation.text_sampling import TextToSample, sample_texts

    tool = get_tool(plan.tool)
    texts = [TextToSample(item.text, f"{plan.seed}|{item.document.document_id}") for item in sentences]
    found: dict[str, Any] = {}
    model.find_positions(
        annotation_prompt(tool), [texts[0].text], at_most=1, threshold=0.0
    )  # reads the prompt once
    for until in ("bracket", "arrow"):
        model.forget_texts()
        choices = (
            plan.choices(model.identity)
            .model_copy(update={"sample_until": until})
            .for_tool(tool.spec, tool.prompt)
        )
        start = given_call_start(tool, choices.call_prefix)
        started = time.process_time()
        sampled = sample_texts(model, annotation_prompt(tool), start, choices, texts)
        seconds = time.process_time() - started
        samples: list[SampledContinuation] = []
        calls = 0
        for sentence, text in zip(sentences, sampled, strict=True):
            for sample in itertools.chain.from_iterable(text.samples):
                samples.append(sample)
                calls += not isinstance(read_call(tool, sample, sentence.text), str)
        found[until] = {
            "samples": len(samples),
            "own_results": sum(bool(sample.text.partition(ARROW)[2].strip()) for sample in samples),
            "calls": calls,
            "cpu_seconds": round(seconds, 2),
        }
    return found


def line_of(sentence: Sentence, text: WrittenText) -> dict[str, Any]:
    """What is kept of one sentence."""
    called = [call.input for call in text.calls if call.result is not None]
    return {
        "prompt": sentence.prompt,
        "date": sentence.date.isoformat() if sentence.date else None,
        "written": text.text,
        "answer": sentence.answer,
        "right": sentence.is_right(text.without_calls),
        "kind": sentence.kind,
        "called": called[0] if called else None,
        "held_out": sentence.held_out,
    }


def counted(sentences: Sequence[Sentence], written: Sequence[WrittenText]) -> dict[str, Any]:
    """How one model did: which sentences are right, how many have a result of a call; both also on held-out templates."""
    right = [item.is_right(text.without_calls) for item, text in zip(sentences, written, strict=True)]
    called = [any(call.result is not None for call in text.calls) for text in written]
    held_out = [item.held_out for item in sentences]
    all_of = Counter(item.kind for item in sentences)
    right_of = Counter(item.kind for item, hit in zip(sentences, right, strict=True) if hit)
    return {
        "right": right,
        "called": sum(called),
        "held_out": sum(held_out),
        "right_held_out": sum(hit and out for hit, out in zip(right, held_out, strict=True)),
        "called_held_out": sum(hit and out for hit, out in zip(called, held_out, strict=True)),
        "by_kind": {kind: [right_of[kind], count] for kind, count in sorted(all_of.items())},
    }


@functools.cache
def plain_texts() -> list[str]:
    """Summaries of the demo's Wikipedia, in which no arm is trained: how well a model still reads plain text."""
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "kilt.jsonl"
        write_kilt_records(records)
        return [document.text for document in wikipedia_documents(records, WIKIPEDIA_DOCUMENTS)]


def with_wiki_index(settings: Settings, folder: Path) -> Settings:
    """The settings with an index of the demo's Wikipedia in the folder, built unless it is there."""
    from toolformer_ops.tools.retrieval.index_build import build

    records = folder / "kilt.jsonl"
    if not records.exists():
        write_kilt_records(records)
    build(lambda: records.open("rb"), records.as_uri(), folder / "wiki_index", settings.search_threads)
    return settings.model_copy(update={"wiki_index": str(folder / "wiki_index")})
