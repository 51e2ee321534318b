"""Explain one call: run its tool, score it token by token, and say what comes of it; and the table that people see.

Nothing is pruned and nothing is kept. The numbers are those that a run would store (`one_process/annotator.py`).
"""

import dataclasses
import functools
from typing import Any

from toolformer_ops.call_syntax import Call, call_with_result, call_without_result, parse_call
from toolformer_ops.config import Settings
from toolformer_ops.errors import ParameterError
from toolformer_ops.losses import is_kept
from toolformer_ops.one_process.annotator import document_of, load, own_text_of
from toolformer_ops.records import PlacedCall
from toolformer_ops.stages.scoring import choose_result
from toolformer_ops.tools.base import run_tool
from toolformer_ops.tools.registry import get_tool


def token_at(starts: tuple[int, ...], text: str, at: int) -> int:
    """The token before which a call at character offset `at` stands: the one that starts there, or with the space before it.

    Raises:
        ParameterError: no token but the first starts there; the message names the nearest offsets that can be used.
    """
    for wanted in (at, at - 1):
        if wanted in starts[1:] and not text[wanted:at].strip():
            return starts.index(wanted, 1)
    usable = sorted(set(starts[1:]), key=lambda start: abs(start - at))[:3]
    raise ParameterError(
        f"--at: expected the start of a token after the first in a text of {len(text)} characters, found {at}. "
        f"The nearest are {', '.join(map(str, usable)) or 'none: the text is one token'}."
    )


def explain_call(
    settings: Settings,
    text: str,
    at: int,
    call_text: str,
    date: str | None,
    model_name: str,
    context_tokens: int | None = None,
) -> dict[str, Any]:
    """Run the call's tool and score the call at a character offset, token by token; nothing is pruned.

    `context_tokens` is how much text before the call it is scored with; None is all.

    Raises:
        ParameterError: the offset is outside the text or where no call can stand.
        CallSyntaxError: the call does not parse.
    """
    call = parse_call(call_text.strip().removeprefix("[").removesuffix("]"))
    tool = get_tool(call.tool)
    call = Call(tool.spec.name, call.input)  # as the tool spells its name
    document = document_of(text, date)
    model = functools.cache(lambda: load(settings, model_name))
    effective_input = tool.effective_input(call.input, document)
    explanation: dict[str, Any] = {"call": str(call), "at": at, "result": None, "reason": None}
    if effective_input is None:
        return {**explanation, "reason": "document_cannot_answer"}
    [output] = run_tool(tool.open(settings, model), [effective_input], settings.tool_time_limit_seconds)
    chosen = choose_result(output.results, output.reason, own_text_of(tool, document))
    if chosen.text is None:
        return {**explanation, "reason": chosen.reason}
    token = token_at(model().tokenize(text).starts, text, at)
    placed = PlacedCall(token, call_with_result(call, chosen.text), call_without_result(call))
    [losses] = model().score_calls(text, [placed], context_tokens=context_tokens)
    reduction = losses.reduction_bound  # the loss reduction itself, since no loss is missing
    details = model().score_details(text, placed, context_tokens=context_tokens)
    return {
        **explanation,
        "result": chosen.text,
        "position_token": token,
        "loss_without_call": losses.without_call,
        "loss_without_result": losses.without_result,
        "loss_with_result": losses.with_result,
        "loss_without_call_full_context": losses.without_call_full_context,
        "context_tokens": context_tokens,
        "loss_reduction": reduction,
        "keep_threshold": tool.spec.keep_threshold,
        "kept": is_kept(reduction, tool.spec.keep_threshold),
        "tokens": [dataclasses.asdict(scored) for scored in details],
    }


def explanation_table(explanation: dict[str, Any]) -> None:
    """Print an explanation as a table on stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if explanation["reason"] is not None:
        console.print(f"{explanation['call']}: no result ({explanation['reason']})", markup=False)
        return
    columns = ("token", "weight", "without call", "without result", "with result")
    table = Table(*columns, title="log p(token), natural logarithm", caption="losses in nats")
    for token in explanation["tokens"]:
        names = ("weight", "log_p_without_call", "log_p_without_result", "log_p_with_result")
        table.add_row(repr(token["text"]), *(f"{token[name]:.3f}" for name in names))
    losses = [f"{explanation[name]:.3f}" for name in ("loss_without_call", "loss_without_result", "loss_with_result")]
    table.add_section()
    table.add_row("loss", "", *losses)
    console.print(table)
    if explanation["context_tokens"] is not None:
        console.print(
            f"scored with the last {explanation['context_tokens']} tokens of text before the call; with the whole text and no "
            f"call the loss is {explanation['loss_without_call_full_context']:.3f}, which the call must beat too",
            markup=False,
        )
    verdict = "kept" if explanation["kept"] else "not kept"
    console.print(
        f"[{explanation['call']} -> {explanation['result']}] lowers the loss by {explanation['loss_reduction']:.3f} nats: "
        f"{verdict} at {explanation['keep_threshold']}",
        markup=False,
    )
