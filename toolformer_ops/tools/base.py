"""What a tool is: its numbers (`ToolSpec`), its heuristic filter, and how a batch of inputs is run.

A tool is one module in this folder and one prompt file in `prompts/`; `registry.py` knows them by name. Importing a tool's
module is cheap: torch, Java and models are loaded by `Tool.open`, in the process that runs the tool.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from toolformer_ops.config import Settings
from toolformer_ops.errors import PromptError
from toolformer_ops.records import Document

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

PROMPT_DIR = Path(__file__).parent / "prompts"
TEXT_SLOT = "{text}"


@dataclass(frozen=True)
class ToolSpec:
    """The numbers and names of one tool; the only home of its thresholds."""

    name: str
    """As it stands in a call: `Calculator`."""
    purpose: str
    """One sentence for forms and help."""
    prompt_file: str
    """File name in `prompts/`."""
    filter_version: str
    """Raised when the heuristic filter decides differently."""
    source: str
    """Where the numbers below come from."""
    sampling_threshold: float = 0.05
    """tau_s: a position is taken where p(" [") is above it."""
    max_positions: int = 5
    """k: most positions a text."""
    samples_per_position: int = 5
    """m: calls sampled at each position."""
    keep_threshold: float = 1.0
    """tau_f in nats: a call is kept where its loss reduction is at least this."""
    filter_unit: Literal["document", "paragraph"] = "document"
    """What the heuristic filter judges."""
    takes_input: bool = True
    """False for a tool that is called with empty brackets."""
    pass_over_own_text: bool = False
    """Whether results that repeat the document's own text are passed over, since they would leak it."""
    needs_device: bool = False
    """Whether running it loads a model, so that its execution belongs where models run."""


@dataclass(frozen=True)
class FilterDecision:
    """Whether a paragraph (or the whole document) is worth asking for calls of a tool, and why."""

    kept: bool
    reason: str
    """In snake_case; counted in `yield_by_stage`."""
    paragraph: int = 0
    """Number of the paragraph in the document, from 0; 0 for a filter that judges whole documents."""
    start_char: int = 0
    """Where the annotated text starts in the document's text."""
    end_char: int = 0
    """Where it ends (exclusive)."""


@dataclass(frozen=True)
class ToolOutput:
    """What a tool answers to one input: results ranked best first, or a reason why there is none."""

    results: tuple[str, ...] = ()
    reason: str | None = None

    def __post_init__(self) -> None:
        if bool(self.results) == bool(self.reason):
            raise ValueError(f"expected results or a reason, found {self.results!r} and {self.reason!r}")

    @classmethod
    def of(cls, result: str) -> "ToolOutput":
        """One result."""
        return cls((result,))

    @classmethod
    def none(cls, reason: str) -> "ToolOutput":
        """No result, and why, in snake_case."""
        return cls((), reason)


class ToolRunner(Protocol):
    """A tool that is open and can be run; it may hold an index or a model."""

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One output an input, in order. An error in one input becomes that input's reason, never an exception."""
        ...


class Tool(Protocol):
    """A tool before it is opened: cheap to hold, safe to import where DAGs are parsed."""

    @property
    def spec(self) -> ToolSpec:
        """Names and numbers."""
        ...

    def filter(self, document: Document) -> list[FilterDecision]:
        """The heuristic of appendix A: one decision a paragraph, or one for the whole document."""
        ...

    def effective_input(self, call_input: str, document: Document) -> str | None:
        """What is asked and cached for this call in this document: for most tools the call's input itself.

        None where the document cannot answer such a call (a Calendar call in a text without a date).
        """
        ...

    def input_only_after(self, call_input: str, text_before: str, text_after: str) -> bool:
        """Whether the input could only be known from what follows the call, so that the call cannot be taught (appendix A.1)."""
        ...

    def version(self, settings: Settings, model_identity: str) -> str:
        """Names all that decides the answers: the code's version, index, models.

        `model_identity` names the run's language model, for a tool that asks it.

        Raises:
            ToolError: an index or model that the tool needs is not there; the message names the setting.
        """
        ...

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> ToolRunner:
        """Load what the tool needs. `load_model` gives the run's own language model to a tool that asks for it.

        Raises:
            ToolError: an index or model is not there; the message names the setting.
        """
        ...


def load_prompt(file_name: str) -> str:
    """The text of a prompt file.

    Raises:
        PromptError: the file is missing, or does not hold `{text}` exactly once.
    """
    path = PROMPT_DIR / file_name if not Path(file_name).is_absolute() else Path(file_name)
    try:
        prompt = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptError(f"{path}: expected a prompt file, found none ({error.strerror}).") from error
    found = prompt.count(TEXT_SLOT)
    if found != 1:
        raise PromptError(f"{path}: expected '{TEXT_SLOT}' once, found {found}. Put it after the last 'Input:'.")
    return prompt.rstrip("\n")
