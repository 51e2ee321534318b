"""The numbers of a study, and where its texts come from.

A study has a name: `calculator`, `calendar` and `wikisearch` are made sentences for the tool of that name;
`gsm8k` are word problems for the Calculator, `posts` dated posts for the Calendar, each from a file; `problems` are
word problems with labelled calls, which are scored already.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from studies.arms import ARMS
from studies.labelled_problems import LabelledProblems
from studies.real_texts import Posts, WordProblems
from studies.sentences import DATES, FACTS, SUMS, Sentence
from toolformer_ops.errors import UsageError
from toolformer_ops.runs.choices import RunChoices

MAIN_ARMS = ("paper", "foretold", "any_call", "right_call", "without_calls", "surprising_fact")
PLAN = "plan.json"
SUMMARY = "seed.json"
"""File of a seed with the texts and steps of its arms."""


class SentenceSource(Protocol):
    """Where the sentences of a study come from."""

    def training(self, count: int, seed: int) -> list[Sentence]:
        """`count` sentences to annotate."""
        ...

    def fresh(self, count: int, seed: int, known: Sequence[Sentence]) -> list[Sentence]:
        """`count` sentences to test with, of other facts than those of `known`."""
        ...


TOOLS: Mapping[str, str] = {
    "calculator": "Calculator",
    "calendar": "Calendar",
    "wikisearch": "WikiSearch",
    "gsm8k": "Calculator",
    "posts": "Calendar",
    "problems": "Calculator",
}
"""By study, its tool."""
MADE: Mapping[str, SentenceSource] = {"calculator": SUMS, "calendar": DATES, "wikisearch": FACTS}
"""By study, where sentences that are made by rules come from."""
OF_A_FILE: Mapping[str, type[WordProblems] | type[Posts] | type[LabelledProblems]] = {
    "gsm8k": WordProblems,
    "posts": Posts,
    "problems": LabelledProblems,
}
"""By study, what reads its file."""
LABELLED_PROBLEMS = "problems"
"""The study whose calls are labelled and scored already; all its seeds have the same texts."""


@dataclass(frozen=True)
class Annotation:
    """How much of a study's texts is annotated, unless it is said."""

    texts: int
    """Of each seed."""
    max_positions: int = 3
    samples_per_position: int = 3


ANNOTATIONS: Mapping[str, Annotation] = {
    "calculator": Annotation(512),
    "calendar": Annotation(512),
    # Of 84 atomic numbers and 42 years that Wikipedia states the test needs some, too.
    "wikisearch": Annotation(160),
    # A small model proposes few right calls for real texts: more texts and more places.
    "gsm8k": Annotation(1024, max_positions=4, samples_per_position=4),
    # Of 1,318 paragraphs of digital.gov's training half; a call of the Calendar has no input to sample.
    "problems": Annotation(160),
    "posts": Annotation(800, max_positions=5, samples_per_position=1),
}
TRAINING_NUMBERS = ("steps", "batch", "learning_rate", "method", "arms", "test")
"""Fields of a plan that decide nothing before the first training."""


@dataclass(frozen=True)
class StudyPlan:
    """The numbers of one seed of a study."""

    study: str = "calculator"
    file: str = ""
    """The file of a study whose texts are real."""
    texts: int = 512
    """Sentences that are annotated."""
    test: int = 100
    """Fresh sentences."""
    seed: int = 0
    max_positions: int = 3
    samples_per_position: int = 3
    steps: int = 64
    """Of the arm whose texts with their calls are the shortest; arms with more tokens a text have fewer."""
    batch: int = 16
    learning_rate: float = 2e-5
    arms: tuple[str, ...] = MAIN_ARMS
    method: Literal["full", "lora"] = "full"
    """What is trained: all weights, or adapters."""
    model: str = ""
    """Name of the model that annotates and is trained."""

    def __post_init__(self) -> None:
        for name, values, known in (
            ("study", (self.study,), tuple(TOOLS)),
            ("arms", self.arms, tuple(ARMS)),
        ):
            if unknown := set(values) - set(known):
                raise UsageError(f"{name}: expected {', '.join(known)}, found {', '.join(sorted(unknown))}.")
        if self.study in OF_A_FILE:
            self.source.training(1, 0)  # refuses a file that is not there before anything is computed

    @property
    def tool(self) -> str:
        """The tool that is taught."""
        return TOOLS[self.study]

    @property
    def is_real(self) -> bool:
        """Whether nobody wrote its texts for a tool."""
        return self.study in OF_A_FILE

    @property
    def source(self) -> SentenceSource:
        """Where its sentences come from."""
        if self.study in MADE:
            return MADE[self.study]
        return OF_A_FILE[self.study](Path(self.file))

    @functools.cached_property
    def training(self) -> list[Sentence]:
        """The sentences that are annotated."""
        return self.source.training(self.texts, self.seed)

    @functools.cached_property
    def fresh(self) -> list[Sentence]:
        """The sentences that the models are tested with."""
        return self.source.fresh(self.test, self.seed, self.training)

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
                name for name, value in before.items() if name not in may_differ and value != plan.get(name)
            ]
            if differing:
                values = ", ".join(
                    f"{name} {before[name]!r} and not {plan.get(name)!r}" for name in differing
                )
                raise UsageError(
                    f"{folder}: expected a folder of this plan, found one with {values}. Nothing in it was changed. "
                    "Give the same numbers to continue it, or another --out."
                )
        file.write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
        return file

    def choices(self, model: str) -> RunChoices:
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
            finetune_length=256 if self.is_real else 128,
            finetune_learning_rate=self.learning_rate,
            finetune_method=self.method,
        )
