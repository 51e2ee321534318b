"""Ask a model in one of the paper's variants the questions of a data set, and judge what it writes.

It also measures texts' perplexity. Sections 4.2 and 5 of the paper; perplexity: section 4.3.

Variants are decoding: M, M finetuned without calls and Toolformer (disabled) are asked with calls disabled (k
= 0), Toolformer with its k, and at most one call an input. What is judged is the continuation without its
calls. Questions whose prompts begin alike are asked one after another, so that their beginning is computed
once; what is written for one does not depend on the others.

A tool that is down would make its model look worse than it is, so there is no score then: `ToolError` names
suite and tool. A tool is down if it cannot be opened, or if all of its calls (at least `FAILED_CALLS`) ended
in an error or a time-out. A prompt that is longer than the model's window is not asked, and is wrong.

Perplexity by token is exp(nats / tokens) over all texts together, by byte exp(nats / bytes of UTF-8), which
compares vocabularies (Table 8). Calls are disabled for every variant, also for models that never learned any,
so that all rows are of one kind. Each text is read by itself (`language_model/perplexity.py` says how). The
interval is a bootstrap over texts.
"""

import itertools
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from toolformer_ops.decoding.records import DecodingSettings, MadeCall, Prompt
from toolformer_ops.errors import InfrastructureError, ToolError, ToolformerError
from toolformer_ops.evaluation.records import (
    EvaluatedInput,
    SuiteScore,
    Variant,
    variant_title,
)
from toolformer_ops.evaluation.statistics import bootstrap_perplexity, wilson_interval
from toolformer_ops.evaluation.suites import PERPLEXITY
from toolformer_ops.evaluation.suites.base import LoadedDataSet, Suite
from toolformer_ops.tools.base import TIMED_OUT, TOOL_ERROR

if TYPE_CHECKING:
    from toolformer_ops.decoding.model import WritingModel

logger = logging.getLogger(__name__)

QUESTIONS_AT_ONCE = 512
"""Questions handed to the model together; after each such batch a line of progress is written."""
FAILED_CALLS = 3
"""A tool with at least so many calls, all of them failed, counts as down."""
NOT_AVAILABLE = "tool_not_available"
SHARE_CORRECT = "share_correct"
TEXTS_AT_ONCE = 16
PROGRESS_SECONDS = 15.0


@dataclass(frozen=True)
class ModelVariant:
    """A model in a variant."""

    model: "WritingModel"
    name: str
    """What the scores call it: its identity, or the id of a finetuned model."""
    variant: Variant
    call_start_rank: int
    """k; 0 for every variant but with_tools."""

    @property
    def title(self) -> str:
        """As a table or a log names it."""
        return variant_title(self.variant, self.call_start_rank)


@dataclass(frozen=True)
class ShareCorrect:
    """What follows from the evaluated inputs of a data set: fields of `SuiteScore`."""

    inputs: int
    score: float
    low: float
    high: float
    call_shares: dict[str, float]
    inputs_with_call: int
    score_with_call: float | None
    score_without_call: float | None

    @classmethod
    def of(cls, inputs: Sequence[EvaluatedInput]) -> Self:
        """The numbers of these inputs, at least one."""
        right = sum(answer.correct for answer in inputs)
        interval = wilson_interval(right, len(inputs))
        with_call = [answer.correct for answer in inputs if answer.has_call]
        without_call = [answer.correct for answer in inputs if not answer.has_call]
        calls_by_tool: Counter[str] = Counter()
        for answer in inputs:
            calls_by_tool.update({call.tool for call in answer.calls if call.result is not None})
        return cls(
            inputs=len(inputs),
            score=right / len(inputs),
            low=interval.low,
            high=interval.high,
            call_shares={tool: count / len(inputs) for tool, count in sorted(calls_by_tool.items())},
            inputs_with_call=len(with_call),
            score_with_call=sum(with_call) / len(with_call) if with_call else None,
            score_without_call=sum(without_call) / len(without_call) if without_call else None,
        )


@dataclass(frozen=True)
class Evaluation:
    """The result of a model in a variant on one data set."""

    score: SuiteScore
    inputs: tuple[EvaluatedInput, ...]
    """In the order of the data set."""


def evaluate_data_set(in_variant: ModelVariant, suite: Suite, loaded: LoadedDataSet) -> Evaluation:
    """Ask all questions of a data set.

    Raises:
        ToolError: a tool is down; names the suite.
    """
    # 1. Open every tool that the suite allows, before anything is written.
    if in_variant.call_start_rank > 0:
        try:
            in_variant.model.require_tools(suite.barred_tools)
        except InfrastructureError:
            raise
        except ToolformerError as error:
            raise ToolError(f"suite {suite.name} is not evaluated, since a tool is down: {error}") from error

    # 2. Write, and score unless a tool was down.
    started = time.monotonic()
    inputs = _judged_inputs(in_variant, suite, loaded)
    calls = itertools.chain.from_iterable(answer.calls for answer in inputs)
    require_working_tools(f"suite {suite.name}", calls)
    score = SuiteScore(
        suite=suite.name,
        subset=loaded.data_set.name,
        model=in_variant.name,
        variant=in_variant.variant,
        call_start_rank=in_variant.call_start_rank,
        metric=SHARE_CORRECT,
        **vars(ShareCorrect.of(inputs)),
        seconds=round(time.monotonic() - started, 3),
        data_sha256=loaded.sha256,
    )
    return Evaluation(score, inputs)


def _judged_inputs(
    in_variant: ModelVariant, suite: Suite, loaded: LoadedDataSet
) -> tuple[EvaluatedInput, ...]:
    """All questions, in batches with alike prompts; no variant has more room for its text than another."""
    started = time.monotonic()
    decoding = DecodingSettings(
        max_new_tokens=suite.answer_tokens,
        call_start_rank=in_variant.call_start_rank,
        calls_per_input=1,
        max_call_tokens=suite.call_tokens,
        barred_tools=suite.barred_tools,
    )
    alike = sorted(
        loaded.questions, key=lambda question: (question.shared_head, question.prompt, question.number)
    )
    judged: dict[int, EvaluatedInput] = {}
    for first in range(0, len(alike), QUESTIONS_AT_ONCE):
        questions = alike[first : first + QUESTIONS_AT_ONCE]
        fitting = [question for question in questions if fits(in_variant.model, question.prompt)]
        if len(fitting) < len(questions):
            logger.warning(
                "%s: %d prompts are longer than the model's window of %d tokens and count as wrong",
                suite.name, len(questions) - len(fitting), in_variant.model.window,
            )  # fmt: skip
        prompts = [Prompt(question.prompt, question.date, question.shared_head) for question in fitting]
        texts = in_variant.model.write(prompts, decoding)
        written = {question.number: text for question, text in zip(fitting, texts, strict=True)}
        for question in questions:
            text = written.get(question.number)
            predicted, correct = (
                suite.metric.judge(text.without_calls, question.answers) if text else ("", False)
            )
            judged[question.number] = EvaluatedInput(
                suite=suite.name,
                subset=question.subset,
                model=in_variant.name,
                variant=in_variant.variant,
                call_start_rank=in_variant.call_start_rank,
                number=question.number,
                prompt=question.prompt,
                answers=question.answers,
                written=text.text if text else "",
                predicted=predicted,
                correct=correct,
                calls=text.calls if text else (),
                date=question.date,
            )
        right = sum(answer.correct for answer in judged.values())
        logger.info(
            "%s %s, %s: %d of %d asked, %.1f %% right, %.0f s",
            suite.name, loaded.data_set.name, in_variant.title, len(judged), len(alike), 100 * right / len(judged),
            time.monotonic() - started,
        )  # fmt: skip
    return tuple(judged[question.number] for question in loaded.questions)


def fits(model: "WritingModel", prompt: str) -> bool:
    """Whether the model's window has room for a prompt with a start token, and for one token to write."""
    room = model.window - 2
    # A token has at least one byte, so most prompts need not be tokenized to see that they fit.
    return len(prompt.encode()) <= room or len(model.language_model.tokenize(prompt)) <= room


def require_working_tools(scored: str, calls: Iterable[MadeCall]) -> None:
    """Do nothing if every tool that was called worked.

    `scored` says what the calls were made for, such as "suite math".

    Raises:
        ToolError: a tool was down; names what is not scored.
    """
    by_tool: dict[str, list[MadeCall]] = defaultdict(list)
    for call in calls:
        by_tool[call.tool].append(call)
    for tool, tool_calls in by_tool.items():
        failed = sum(call.reason in {TOOL_ERROR, TIMED_OUT} for call in tool_calls)
        if any(call.reason == NOT_AVAILABLE for call in tool_calls) or (
            failed == len(tool_calls) and failed >= FAILED_CALLS
        ):
            counts = Counter(call.reason for call in tool_calls)
            reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items())
            raise ToolError(
                f"{scored} is not scored, since {tool} is down: of {len(tool_calls)} calls {reasons}. The "
                f"log has the reasons; `toolformer-ops call {tool} ...` tries it alone."
            )


def evaluate_texts(read: ModelVariant, loaded: LoadedDataSet) -> list[SuiteScore]:
    """Two scores: perplexity by token and by byte. Texts without a token that could be scored do not count.

    Raises:
        ValueError: no text has a token.
    """
    started = last_line = time.monotonic()
    texts = [question.prompt for question in loaded.questions]
    losses = []
    for first in range(0, len(texts), TEXTS_AT_ONCE):
        batch_losses = read.model.language_model.text_losses(texts[first : first + TEXTS_AT_ONCE])
        losses += [loss for loss in batch_losses if loss.tokens > 0]
        done = min(first + TEXTS_AT_ONCE, len(texts))
        if time.monotonic() - last_line > PROGRESS_SECONDS or done == len(texts):
            last_line = time.monotonic()
            logger.info(
                "%s %s, %s: %d of %d texts read, %d tokens, %.0f s; %d left out: no_scored_token",
                PERPLEXITY, loaded.data_set.name, read.title, done, len(texts),
                sum(loss.tokens for loss in losses), last_line - started, done - len(losses),
            )  # fmt: skip
    if not losses:
        raise ValueError(f"{loaded.data_set.name}: expected texts of at least one token, found none")
    seconds = round(time.monotonic() - started, 3)
    nats = [loss.nats for loss in losses]
    units = {
        "perplexity_by_token": [loss.tokens for loss in losses],
        "perplexity_by_byte": [loss.utf8_bytes for loss in losses],
    }
    scores = []
    for metric, sizes in units.items():
        interval = bootstrap_perplexity(nats, sizes)
        scores.append(
            SuiteScore(
                suite=PERPLEXITY,
                subset=loaded.data_set.name,
                model=read.name,
                variant=read.variant,
                call_start_rank=0,
                inputs=len(nats),
                metric=metric,
                score=math.exp(math.fsum(nats) / sum(sizes)),
                low=interval.low,
                high=interval.high,
                call_shares={},
                inputs_with_call=0,
                score_with_call=None,
                score_without_call=None,
                seconds=seconds,
                data_sha256=loaded.sha256,
            )
        )
    return scores
