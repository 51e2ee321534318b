"""What a tool is (`Tool`, `ToolSpec`), and how a batch of inputs is run through an open tool (`run_tool`).

A tool is a class derived from `Tool` in a module, with a prompt file in the same folder; docs/own_tools.md shows
a whole one. It writes its `spec`, and `run`, or `open` if an index or a model has to be loaded first. A tool
that can say which calls a text should hold overrides `proposals`, or `open_proposer`, too.
Importing a tool's module is cheap, since DAG files do it: torch, Java and models are loaded by `open`, in the
process that runs the tool.
"""

import functools
import itertools
import logging
import re
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from toolformer_ops.config import Settings
from toolformer_ops.errors import InfrastructureError, UsageError
from toolformer_ops.records import Document
from toolformer_ops.storage.corpora.record_rules import escape_control_characters

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

FilterRule = Literal["paper", "sharp"]
"""How a filter decides: as the paper says, or by a stricter rule of a tool that has one."""

TEXT_SLOT = "{text}"
MAX_INPUT_CHARACTERS = 4000
MOST_MESSAGE_CHARACTERS = 300
BEYOND_THE_LIMIT = "proposal_beyond_the_limit"
"""The reason of proposals that are cut off."""
TIMED_OUT = "timed_out"
TOOL_ERROR = "tool_error"
ARGUMENT = "input"
"""The one argument of a tool that says no more of its input, in function calling."""
_OPENING = re.compile(r"[\[({<\"'“‘«„‚¡¿*_~≈=+−–$€£¥-]*\Z")  # noqa: RUF001
LONGEST_OPENING = 8
"""Characters before a stretch that are looked at for signs that open it."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """Names, numbers and needs of one tool: the only home of its thresholds."""

    name: str
    """The name in a call: `Calculator`. Letters, digits and underscores, with a letter first."""
    purpose: str
    """One sentence for forms and help."""
    prompt_file: str
    """Path of the prompt file, relative to the folder of the tool's module."""
    filter_version: str = "1"
    """Raised when the heuristic filter decides differently; part of the filter recipe."""
    source: str = ""
    """Where the numbers below come from."""
    code_version: str = "1"
    """Raised when an input would get another answer; part of the execution recipe."""
    proposal_version: str = "1"
    """Raised when the tool would propose other calls for a text; part of the sampling recipe of runs whose
    proposer it is."""
    sampling_threshold: float = 0.05
    """tau_s: a position is taken where p(" [") is above it."""
    max_positions: int = 5
    """k: most positions a text."""
    samples_per_position: int = 5
    """m: calls sampled at each position."""
    keep_threshold: float = 1.0
    """tau_f in nats: a call is kept if its loss reduction is at least this."""
    filter_unit: Literal["document", "paragraph"] = "document"
    """What the heuristic filter judges."""
    has_sharp_filter: bool = False
    """Whether `filter_by` knows the rule `sharp`; only then is the rule part of the tool's filter recipe."""
    takes_input: bool = True
    """False for a tool that is called with empty brackets."""
    pass_over_own_text: bool = False
    """Whether results that repeat the document's own text are passed over, since they would leak it."""
    needs_device: bool = False
    """Whether running it loads a model, so that its execution counts as device time."""
    executes_apart: bool = False
    """Whether its execution needs another kind of machine than the language model: a shard then has three
    tasks instead of one, `sample`, `execute` and `score`, and `execute` is in the pool of the CPU unless it
    `needs_device`."""
    needs_index: bool = False
    """Whether it searches the index that the DAG `build_wiki_index` makes."""
    reads_record: bool = False
    """Whether `filter` or `effective_input` read the url or date of a record. Only then do they get them, and
    a corrected url or date makes the tool annotate the document again."""
    needs_date: bool = False
    """Whether it can answer only in a document whose date is known."""

    def as_read(self, document: Document) -> Document:
        """The document as the tool gets it: without url and date, unless it `reads_record`.

        So what another tool computes cannot depend on them, and a corrected url or date changes nothing of
        it.
        """
        return document if self.reads_record else replace(document, url=None, document_date=None)

    def id_of_read(self, document: Document) -> uuid.UUID:
        """The hash of what the tool reads of a document: of its text, or of its record if it `reads_record`."""
        return document.record_id if self.reads_record else document.text_id


@dataclass(frozen=True)
class FilterDecision:
    """Whether a paragraph (or the whole document) is worth asking for calls of a tool, and why."""

    kept: bool
    reason: str
    """In snake_case; counted in `yield_by_stage`."""
    paragraph: int = 0
    """Number of the paragraph in the document, from 0; 0 for a filter that judges whole documents."""
    start_char: int = 0
    """Offset of the annotated text's first character in the document's text."""
    end_char: int = 0
    """Offset of its end (exclusive)."""


@dataclass(frozen=True)
class ToolOutput:
    """What a tool answers to one input: results ranked best first, or a reason why there is none."""

    results: tuple[str, ...] = ()
    reason: str | None = None
    message: str = ""
    """What was said where there is no result, such as `no such column: prise`; empty if the reason says all."""

    def __post_init__(self) -> None:
        if bool(self.results) == bool(self.reason):
            raise ValueError(f"expected results or a reason, found {self.results!r} and {self.reason!r}")
        object.__setattr__(self, "results", tuple(map(_as_text, self.results)))
        object.__setattr__(self, "message", _as_text(self.message))

    @classmethod
    def of(cls, result: str) -> "ToolOutput":
        """One result."""
        return cls((result,))

    @classmethod
    def none(cls, reason: str, message: str = "") -> "ToolOutput":
        """No result, and why, in snake_case; `message` is what was said, on one line."""
        return cls((), reason, " ".join(message.split())[:MOST_MESSAGE_CHARACTERS])


@dataclass(frozen=True)
class ProposedCall:
    """A call that a tool proposes for a text by itself: no model is asked for it."""

    char: int
    """Offset in the document's text before which the call is inserted: that of a word, or of the white space
    before it. The token that starts there is looked for as for a sampled call (`TokenizedText.place_of`); a
    call inside a word, or outside the text, is refused and counted."""
    input: str
    """As a model would write it between the brackets."""


@dataclass(frozen=True)
class ProposedCalls:
    """What a tool proposes for a document."""

    calls: Sequence[ProposedCall] = ()
    """The best first: those beyond `MOST_PROPOSED_CALLS` are cut off and counted."""
    left_out: Counter[str] = field(default_factory=Counter)
    """What the tool itself left out, by reason, such as `proposal_of_ambiguous_key`; each begins with
    `proposal_` and is counted in `yield_by_stage`."""


def place_before(text: str, char: int) -> int:
    """Where to propose a call for what begins at `char`: before the signs that open it, of `($48` the bracket."""
    opening = _OPENING.search(text, max(0, char - LONGEST_OPENING), char)
    return char if opening is None else opening.start()


class Proposer(Protocol):
    """What proposes a tool's calls; it may hold an index or a process."""

    def proposals(self, document: Document) -> ProposedCalls:
        """The calls that belong into a document, as its text says.

        Pure: the same document has the same calls in the same order. The time is linear in the text.

        Raises:
            InfrastructureError: what knows the calls is not there now.
        """
        ...


class ToolRunner(Protocol):
    """An open tool; it may hold an index or a model."""

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One output an input, in order; an input without a result gets a reason.

        Raises:
            InfrastructureError: what answers is not there now, so that nothing may be said of the inputs.
        """
        ...


class Tool:
    """A tool before it is opened.

    Derived classes set `spec` and override `run` or `open`, and what else they do differently.
    """

    spec: ToolSpec
    connections: tuple[str, ...] = ()
    """Airflow Connections whose addresses `open` looks for in the environment, as AIRFLOW_CONN_ID."""

    @functools.cached_property
    def prompt(self) -> str:
        """The text of the prompt file in the folder of the tool's module.

        Raises:
            UsageError: the file is missing, does not hold `{text}` exactly once, or shows no call of this
            tool.
        """
        module = Path(str(sys.modules[type(self).__module__].__file__))
        return load_prompt(module.parent / self.spec.prompt_file, tool=self.spec.name)

    @property
    def prompt_to_send(self) -> str:
        """The prompt as a proposer behind an endpoint gets it; here: the same."""
        return self.prompt

    def filter(self, document: Document) -> list[FilterDecision]:
        """The heuristic of appendix A, one decision a paragraph or one for the whole document.

        Here every text is kept.
        """
        return [FilterDecision(kept=True, reason="every_text", end_char=len(document.text))]

    def filter_by(self, rule: FilterRule, document: Document) -> list[FilterDecision]:
        """The decisions of `filter` by a rule that the run chooses; here: the same by every rule."""
        return self.filter(document)

    def effective_input(self, call_input: str, document: Document) -> str | None:
        """What is asked and cached for this call in this document; here: the call's input with single spaces.

        None if the document cannot answer such a call (a Calendar call in a text without a date).
        """
        return " ".join(call_input.split())

    def input_only_after(self, call_input: str, text_before: str, text_after: str) -> bool:
        """Whether the input could only be known from what follows the call (appendix A.1).

        Such a call cannot be taught. Here: never.
        """
        return False

    @property
    def can_propose(self) -> bool:
        """Whether the tool proposes calls by itself, said without opening it; here: if it has `proposals`."""
        return type(self).proposals is not Tool.proposals

    def proposals(self, document: Document) -> ProposedCalls:
        """The calls that belong into a document, if nothing has to be open for them (`Proposer`); here: none."""
        return ProposedCalls()

    def proposer_version(self, settings: Settings) -> str:
        """Names everything that decides which calls are proposed, for the sampling recipe; here: the code's version.

        Asked of a tool that `can_propose`, when a run starts.

        Raises:
            ToolError: what the proposals are made from is not there.
        """
        return f"{self.spec.name.lower()}-{self.spec.proposal_version}"

    def open_proposer(self, settings: Settings) -> Proposer:
        """Load what the proposals are made from, once a process; here: nothing.

        A tool that overrides it overrides `can_propose` and `proposer_version`, too.

        Raises:
            ToolError: it is not there, or too large.
            InfrastructureError: what knows it is not there now.
        """
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments of a call, as function calling has it; here: one text, or none."""
        if not self.spec.takes_input:
            return {"type": "object", "properties": {}}
        properties = {ARGUMENT: {"type": "string", "description": "What the tool is given."}}
        return {"type": "object", "properties": properties, "required": [ARGUMENT]}

    def arguments(self, call_input: str) -> dict[str, Any]:
        """The arguments of a call with this input, by the names of `parameters`.

        Raises:
            RejectedInputError: the input does not say them.
        """
        return {ARGUMENT: call_input} if self.spec.takes_input else {}

    def version(self, settings: Settings, model_identity: str) -> str:
        """Names everything that decides the answers, for the execution recipe; here: the code's version.

        `model_identity` names the run's language model, for a tool that asks it.

        Raises:
            ToolformerError: an index or model that the tool needs is not there; the message names the
            setting.
        """
        return f"{self.spec.name.lower()}-{self.spec.code_version}"

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> ToolRunner:
        """Load what the tool needs to run; here: nothing.

        `load_model` returns the run's own language model to a tool that asks for it.

        Raises:
            ToolformerError: an index or model is not there; the message names the setting.
        """
        return self

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One output an input, in order; only of a tool that does not override `open`."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither `run` nor `open`")


def _as_text(said: str) -> str:
    """What a tool said without control characters and without halves of surrogate pairs, which Postgres cannot store."""
    whole = said.encode("utf-8", "replace").decode("utf-8")
    return escape_control_characters(whole)[0]


def load_prompt(path: Path, tool: str | None = None) -> str:
    """The text of a prompt file, without line breaks at its end.

    `tool` names the one whose calls it has to show.

    Raises:
        UsageError: the file is missing, does not hold `{text}` exactly once, or shows no call of the tool.
    """
    try:
        prompt = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: expected a prompt file in UTF-8, found none ({error}).") from error
    slots = prompt.count(TEXT_SLOT)
    if slots != 1:
        raise UsageError(
            f"{path}: expected '{TEXT_SLOT}' once, found {slots}. Put it after the last 'Input:'."
        )
    if tool is not None and f"[{tool}(" not in prompt:
        raise UsageError(f"{path}: expected examples with calls '[{tool}(...)]', found none.")
    return prompt.rstrip("\n")


def run_tool(runner: ToolRunner, inputs: Sequence[str], time_limit_seconds: float) -> list[ToolOutput]:
    """One output an input, in order; equal inputs are run once.

    An input that is too long, takes longer than `time_limit_seconds`, or makes the tool raise, has a reason
    instead of a result. A runner may have an attribute `time_limit_seconds` if it ends slow calls itself.

    Raises:
        InfrastructureError: what answers is not there now.
    """
    time_limit_seconds = getattr(runner, "time_limit_seconds", time_limit_seconds)
    outputs: dict[str, ToolOutput] = {
        item: ToolOutput.none("input_too_long") for item in inputs if len(item) > MAX_INPUT_CHARACTERS
    }
    wanted = [item for item in dict.fromkeys(inputs) if item not in outputs]
    outputs.update(zip(wanted, _run_batch(runner, wanted, time_limit_seconds), strict=True))
    return [outputs[item] for item in inputs]


def _run_batch(runner: ToolRunner, inputs: Sequence[str], time_limit_seconds: float) -> list[ToolOutput]:
    """The outputs of a batch.

    If it fails or takes longer than all its limits together, each input is run alone.
    """
    if not inputs:
        return []
    answer: Future[list[ToolOutput]] = Future()

    def work() -> None:
        try:
            outputs = runner.run(inputs)
            if len(outputs) != len(inputs):
                raise ValueError(f"expected {len(inputs)} outputs, found {len(outputs)}")  # noqa: TRY301
        except BaseException as error:  # handed to the waiting thread, which raises it
            answer.set_exception(error)
        else:
            answer.set_result(outputs)

    # Python cannot stop a thread: a call that hangs keeps this one until the process ends.
    threading.Thread(target=work, daemon=True, name="tool").start()
    try:
        return answer.result(timeout=time_limit_seconds * len(inputs))
    except FutureTimeoutError:
        reason = TIMED_OUT
        logger.warning(
            "%d inputs: no answer within %g s each, the first is %r",
            len(inputs),
            time_limit_seconds,
            inputs[0][:80],
        )
    except InfrastructureError:
        raise
    except Exception as error:
        reason = TOOL_ERROR
        logger.warning(
            "%d inputs failed: %s: %s", len(inputs), type(error).__name__, error, exc_info=len(inputs) == 1
        )
    if len(inputs) == 1:
        return [ToolOutput.none(reason)]
    alone = (_run_batch(runner, [item], time_limit_seconds) for item in inputs)
    return list(itertools.chain.from_iterable(alone))
