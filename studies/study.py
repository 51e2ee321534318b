"""One seed of a study, from sentences to models that call a tool: one process, one folder, no services.

    annotate, inform   every call of every text, once for all arms (`calls.py`)
    choose             each arm's texts, with one call each (`arms.py`); the release of each in `release-ARM`
    train              the finetuning of the factory, once a model (`training.py`)
    measure            the model before training, and each arm (`measuring.py`)

The seed changes the sentences, what is sampled, what is chosen and the order of training together. The models
have no dropout and start from the same weights, so nothing else is left to chance. What is done is kept, and
a study that was killed continues there. Does not replace a run through Airflow: nothing is in Postgres.
"""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from studies.arms import ChosenTexts, chosen_texts
from studies.calls import CALLS, Record, annotate, inform, stored_records
from studies.devices import free_device
from studies.labelled_texts import LabelledFacts, LabelledTexts, write_labelled_records
from studies.measuring import BEFORE, measure
from studies.plan import SUMMARY, StudyPlan
from studies.tool_folder import with_tools
from studies.training import arm_steps, let_go, tokens_seen, train, training_seconds
from toolformer_ops.config import ENV_PREFIX, Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.storage.corpora.local_paths import refusal
from toolformer_ops.storage.machine.shared_files import replace_file
from toolformer_ops.tools.registry import get_tool

logger = logging.getLogger(__name__)


def run_seed(settings: Settings, model: str, plan: StudyPlan, folder: Path) -> None:
    """Do what is not done yet; `answers.py` gathers what the folder then holds. For a process of its own, whose tools may change.

    Raises:
        NoResultError: too few texts have a call for any arm.
        ModelError: the model is not there.
        UsageError: the folder holds another plan, or its models could not be read.
    """
    refuse_unreadable(settings, folder)
    plan.write(folder)
    source = plan.source
    if isinstance(source, LabelledFacts):
        source.write_tool(folder / "tools")
        settings = with_tools(settings, folder / "tools")
    # 1. Every call, once for all arms.
    records, seconds = annotated_records(settings, model, plan, folder)
    free_device(settings)
    if not plan.arms:
        return
    # 2. What each arm is trained on, for how many steps.
    chosen, eligible = chosen_texts(plan.arms, records, get_tool(plan.tool), plan.seed)
    steps = arm_steps(settings, model, plan, chosen)
    texts = {arm: len(of_arm) for arm, of_arm in chosen.items()}
    _refuse_other_numbers(folder, texts, steps)
    summary = {"eligible_texts": eligible, "texts": texts, "steps": steps, "annotation_seconds": seconds}
    replace_file(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
    logger.info("seed %d: %d texts an arm of %s", plan.seed, min(texts.values()), eligible)
    # 3. Each arm in turn: train it, measure it, and let its weights go.
    for arm in (BEFORE, *chosen):
        started = time.monotonic()
        if arm == BEFORE:
            measure(settings, model, plan, BEFORE, folder, {"texts": 0, "steps": 0, "tokens_seen": 0})
        else:
            _train_and_measure(settings, model, plan, arm, chosen[arm], steps[arm], folder)
        free_device(settings)
        logger.info("seed %d, arm %s: %.1f s", plan.seed, arm, time.monotonic() - started)


def refuse_unreadable(settings: Settings, folder: Path) -> None:
    """Refuse a folder from which the study could not read the models that it will train there.

    Raises:
        UsageError: it is one.
    """
    if reason := refusal(settings, folder.resolve() / "model"):
        raise UsageError(
            f"{folder}: expected a folder whose models may be read, found one that {reason}. "
            f"Give another --out, such as {settings.state_dir / 'models' / 'studies'}, or allow it with "
            f"{ENV_PREFIX}CORPUS_ROOTS."
        )


def annotated_records(
    settings: Settings, model: str, plan: StudyPlan, folder: Path
) -> tuple[list[Record], float | None]:
    """The texts of a seed with every call, its losses and its sentence's answer; and the seconds that it took.

    The seconds are those of the process that ended the annotation; None if the folder had all calls and no seconds.
    """
    summary = folder / SUMMARY
    seconds = (
        json.loads(summary.read_text(encoding="utf-8"))["annotation_seconds"] if summary.exists() else None
    )
    source = plan.source
    if isinstance(source, LabelledTexts) and not (folder / CALLS).exists():
        write_labelled_records(source, plan, folder / CALLS)
    records = stored_records(folder)
    if len(records) != plan.texts:
        started = time.monotonic()
        tool, choices = get_tool(plan.tool), plan.choices(model)
        documents = [item.document for item in plan.training]
        annotated = annotate(settings, tool, choices, documents, folder)
        records = inform(settings, choices, annotated, folder)
        seconds = round(time.monotonic() - started, 1)
    answers = {str(item.document.document_id): item.answer for item in plan.training}
    return [{**record, "answer": answers[record["document_id"]]} for record in records], seconds


def _refuse_other_numbers(folder: Path, texts: Mapping[str, int], steps: Mapping[str, int]) -> None:
    """Refuse arms with which those that are measured would have other texts or steps: an arm with few texts shortens all.

    Raises:
        UsageError: they are such arms.
    """
    for arm in texts:
        done = folder / f"arm-{arm}.json"
        if not done.exists():
            continue
        measured = json.loads(done.read_text(encoding="utf-8"))
        if (measured["texts"], measured["steps"]) != (texts[arm], steps[arm]):
            raise UsageError(
                f"{folder}: expected arms that leave {arm} its {measured['texts']} texts and {measured['steps']} steps, found "
                f"ones with which it has {texts[arm]} and {steps[arm]}. Give the arms with which it began, or another --out."
            )


def _train_and_measure(
    settings: Settings,
    model: str,
    plan: StudyPlan,
    arm: str,
    texts: ChosenTexts,
    steps: int,
    folder: Path,
) -> None:
    done = folder / f"arm-{arm}.json"
    if done.exists():
        trained = json.loads(done.read_text(encoding="utf-8")).get("training")
        if trained is not None:  # a process that was killed behind the measurement left its weights
            let_go(folder / trained)
        return
    place = train(settings, model, plan, arm, texts, steps, folder)
    free_device(settings)
    training = {
        "training": place.name,
        "texts": len(texts),
        "steps": steps,
        "tokens_seen": tokens_seen(place),
        "training_seconds": training_seconds(place),
    }
    measure(settings, str(place / "model"), plan, arm, folder, training)
    let_go(place)
