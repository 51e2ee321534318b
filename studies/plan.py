"""The numbers of a study, and where its texts come from (`STUDIES`)."""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from studies.arms import ARMS
from studies.labelled_calls import ARTICLES
from studies.labelled_texts import LabelledFacts, LabelledProblems, LabelledTexts
from studies.real_texts import SOURCES_OF_FILES, Posts, WordProblems
from studies.sentences import SUMS, Sentence, Sums
from toolformer_ops.errors import UsageError
from toolformer_ops.runs.choices import RunChoices

MAIN_ARMS = ("paper", "foretold", "any_call", "right_call", "without_calls", "surprising_fact")
PLAN = "plan.json"
SUMMARY = "seed.json"
"""File of a seed with the texts and steps of its arms."""


@dataclass(frozen=True)
class Study:
    """What a study is about."""

    tool: str
    source: Callable[[Path], Sums | LabelledTexts | WordProblems | Posts]
    """Reads its file; the calls of the last two are annotated, and no arm is trained on them."""
    texts: int
    """How many are annotated of each seed, unless it is said."""
    max_positions: int = 3
    samples_per_position: int = 3
    option: str = ""
    """That names its file, a key of `SOURCES_OF_FILES`; empty if its sentences are made by rules."""
    read_call_tokens: int = 24
    """The most tokens of a call that a model writes while it reads."""


STUDIES: Mapping[str, Study] = {
    "calculator": Study("Calculator", lambda _: SUMS, 512),
    # A small model proposes few right calls for real texts: more texts and more places.
    "gsm8k": Study("Calculator", WordProblems, 1024, max_positions=4, samples_per_position=4, option="gsm8k"),
    # Of 1,318 paragraphs of digital.gov's training half; a call of the Calendar has no input to sample.
    "posts": Study("Calendar", Posts, 800, max_positions=5, samples_per_position=1, option="posts"),
    # Their calls are labelled and scored already; all seeds have the same texts.
    "problems": Study("Calculator", LabelledProblems, LabelledProblems.texts, option="gsm8k"),
    "facts": Study(ARTICLES, LabelledFacts, LabelledFacts.texts, option="passages", read_call_tokens=64),
}
TRAINED = ("calculator", "problems", "facts")
"""Studies whose arms are trained."""
TRAINING_NUMBERS = ("steps", "batch", "learning_rate", "arms", "test")
"""Fields of a plan that decide nothing before the first training."""


def study_of(name: str) -> Study:
    """The study of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in STUDIES:
        raise UsageError(f"study: expected {', '.join(STUDIES)}, found {name}.")
    return STUDIES[name]


@dataclass(frozen=True)
class StudyPlan:
    """The numbers of one seed of a study."""

    study: str = "calculator"
    file: str = ""
    """The file of its texts; empty if they are made."""
    texts: int = 512
    """Sentences that are annotated."""
    test: int = 100
    """Fresh sentences."""
    seed: int = 0
    steps: int = 64
    """Of the arm whose texts with their calls are the shortest; arms with more tokens a text have fewer."""
    batch: int = 16
    learning_rate: float = 2e-5
    arms: tuple[str, ...] = MAIN_ARMS
    """If there is none, calls are annotated and nothing is trained."""
    model: str = ""
    """Name of the model that annotates and is trained."""

    def __post_init__(self) -> None:
        if unknown := set(self.arms) - set(ARMS):
            raise UsageError(f"arms: expected {', '.join(ARMS)}, found {', '.join(sorted(unknown))}.")
        option = study_of(self.study).option
        if option and not Path(self.file).is_file():
            raise UsageError(
                f"--{option}: expected {SOURCES_OF_FILES[option]}, found no file at {self.file!r}. Fetch it, and name its path."
            )

    @property
    def tool(self) -> str:
        """The tool that is taught."""
        return STUDIES[self.study].tool

    @property
    def read_call_tokens(self) -> int:
        """The most tokens of a call that a model writes while it reads."""
        return STUDIES[self.study].read_call_tokens

    @property
    def source(self) -> Sums | LabelledTexts | WordProblems | Posts:
        """Where its sentences come from."""
        return STUDIES[self.study].source(Path(self.file))

    @functools.cached_property
    def training(self) -> list[Sentence]:
        """The sentences that are annotated."""
        return self.source.training(self.texts, self.seed)

    @functools.cached_property
    def fresh(self) -> list[Sentence]:
        """The sentences that the models are tested with, of a study whose arms are trained."""
        source = self.source
        assert isinstance(source, Sums | LabelledTexts)  # noqa: S101 - of `TRAINED`
        return source.fresh(self.test, self.seed, self.training)

    @classmethod
    def read(cls, file: Path) -> "StudyPlan":
        """The plan that `write` wrote."""
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return cls(**{**values, "arms": tuple(values["arms"])})

    def write(self, folder: Path) -> Path:
        """Write the plan into the folder of its seed; returns the file.

        The folder may have the same plan with other arms, and before the first measurement with other numbers of training.

        Raises:
            UsageError: what the folder holds was computed by another plan.
        """
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / PLAN
        plan = asdict(self)
        if file.exists():
            before = json.loads(file.read_text(encoding="utf-8"))
            may_differ = ("arms",) if any(folder.glob("arm-*.json")) else TRAINING_NUMBERS
            differing = [
                f"{name} {value!r} and not {plan.get(name)!r}"
                for name, value in before.items()
                if name not in may_differ and value != plan.get(name)
            ]
            if differing:
                raise UsageError(
                    f"{folder}: expected a folder of this plan, found one with {', '.join(differing)}. Nothing in it was changed. "
                    "Give the same numbers to continue it, or another --out."
                )
        file.write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
        return file

    def choices(self, model: str) -> RunChoices:
        """The choices of annotation and training.

        The tool's name is given and no place is too unlikely, as a small model needs.
        """
        study = STUDIES[self.study]
        return RunChoices(
            corpus="-",
            model=model,
            tools=(study.tool,),
            call_prefix="tool_name",
            max_positions=study.max_positions,
            samples_per_position=study.samples_per_position,
            sampling_threshold=0.0,
            prune_below=0.0,
            max_call_tokens=20,
            seed=self.seed,
            finetune_steps=self.steps,
            finetune_batch=self.batch,
            finetune_length=256 if study.option else 128,
            finetune_learning_rate=self.learning_rate,
        )
