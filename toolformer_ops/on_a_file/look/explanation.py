"""Explain one call: run its tool, score it token by token, and say whether it is kept.

Its table is what people see. Nothing is pruned and nothing is stored. The numbers are those that a run would
store (`on_a_file/annotate/annotator.py`), by both keep rules; there is no placebo, which takes other texts.
"""

import functools
from typing import Any

from toolformer_ops.annotation.scoring import ExecutedCall, ExecutedText, own_text_of, score_texts
from toolformer_ops.call_syntax import Call, marked_calls, parse_call
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.language_model.losses import PROBABILITY_THRESHOLD, TOKEN_WEIGHTS
from toolformer_ops.on_a_file.annotate.annotator import PRINTED, document_of
from toolformer_ops.records import TokenLogProbabilities
from toolformer_ops.runs.choices import ScoringChoices
from toolformer_ops.runs.explaining import explained_tokens
from toolformer_ops.runs.models import load_scoring_model, load_tokenization
from toolformer_ops.runs.presets import ON_ONE_MACHINE, PRESETS
from toolformer_ops.shown_text import at_most_gained, gained, needed, visible
from toolformer_ops.tools.base import run_tool
from toolformer_ops.tools.registry import get_tool, tool_names

CONTEXT_TOKENS: int = PRESETS[ON_ONE_MACHINE]["scoring_context_tokens"]
"""How much text before a call `annotate`, `preview` and `judge` score it with by default."""


def token_at(starts: tuple[int, ...], text: str, at: int) -> int:
    """The token before which a call at character offset `at` is put: the token that starts there, or with the space before it.

    `UsageError` if only the first token or none starts there; it names the nearest offsets that can be used.
    """
    for wanted in (at, at - 1):
        if wanted in starts[1:] and not text[wanted:at].strip():
            return starts.index(wanted, 1)
    usable = sorted(set(starts[1:]), key=lambda start: abs(start - at))[:3]
    raise UsageError(
        f"--at: expected the start of a token after the first in a text of {len(text)} characters, found "
        f"{at}. The nearest are {', '.join(map(str, usable)) or 'none: the text is one token'}."
    )


def call_in_text(marked_text: str) -> tuple[str, int, str]:
    """Return the plain text, the offset of its call, and the call, of a text such as `It is [Calculator(1 + 1)] 2.` with one call.

    The result after an arrow, if there is one, is not read.

    Raises:
        UsageError: the text does not hold one call in brackets.
    """
    plain, calls = marked_calls(marked_text, tool_names())
    if len(calls) != 1:
        raise UsageError(
            f"TEXT: expected one call in brackets, such as [Calculator(400 / 1400)], found {len(calls)} in "
            f"{marked_text[:80]!r}. The tools are {', '.join(tool_names())}."
        )
    return plain, calls[0].position_char, str(calls[0].call)


def explain_call(
    settings: Settings,
    text: str,
    at: int,
    call_text: str,
    date: str | None,
    model_name: str,
    context_tokens: int | None = CONTEXT_TOKENS,
) -> dict[str, Any]:
    """Run the call's tool and score the call at a character offset, token by token; nothing is pruned.

    `context_tokens` is how much text before the call it is scored with, by default as much as `annotate`,
    `preview` and `judge` give it; None is all.

    Raises:
        UsageError: the offset is outside the text or where no call can be put.
        CallSyntaxError: the call does not parse.
    """
    # 1. What can be checked without the model, whose tokenizer loads in a second: call, date, offset.
    parsed = parse_call(call_text.strip().removeprefix("[").removesuffix("]"))
    tool = get_tool(parsed.tool)
    call = Call(tool.spec.name, parsed.input)
    document = document_of(text, date)
    token = token_at(load_tokenization(settings, model_name).tokenize(text).starts, text, at)
    explanation: dict[str, Any] = {"call": str(call), "at": at, "result": None, "reason": None}
    # 2. The tool's answer.
    effective_input = tool.effective_input(call.input, tool.spec.as_read(document))
    if effective_input is None:
        return {**explanation, "reason": "document_cannot_answer"}
    model = functools.cache(lambda: load_scoring_model(settings, model_name, keep_rule="probability"))
    [output] = run_tool(tool.open(settings, model), [effective_input], settings.tool_time_limit_seconds)
    # 3. The losses, and the same token by token.
    executed = ExecutedCall(token=token, call=call, results=output.results, reason=output.reason)
    choices = ScoringChoices(keep_rule="probability", prune_below=0.0, scoring_context_tokens=context_tokens)
    [[scored]] = score_texts(
        model,
        choices,
        PROBABILITY_THRESHOLD,
        [ExecutedText(text, [executed], own_text_of(tool, document))],
    )
    explanation |= {"result": scored.result, "reason": scored.reason, "message": output.message}
    if scored.result is None or scored.reason is not None:
        return explanation
    terms = scored.token_log_probabilities or TokenLogProbabilities((), (), ())
    return {
        **explanation,
        "position_token": token,
        **{name: getattr(scored, name) for name in PRINTED},
        "context_tokens": context_tokens,
        "loss_reduction": scored.loss_reduction,
        "keep_rule": "probability",
        "gain": scored.gain_bound,
        "keep_threshold": PROBABILITY_THRESHOLD,
        "kept": scored.reaches(PROBABILITY_THRESHOLD),
        "tokens": explained_tokens(terms.tokens, TOKEN_WEIGHTS, terms.as_array()),
    }


def explanation_table(explanation: dict[str, Any]) -> None:
    """Print an explanation as a table on stdout.

    That of a stored call (`runs/explaining.py`) comes with the text around it.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if "call_id" in explanation:
        place = f"{explanation['run_id']} {explanation['document_id']} at {explanation['at']}, call {explanation['call_id']}"
        console.print(place, markup=False, highlight=False)
        around = visible(f"{explanation['text_before']}[{explanation['call']}]{explanation['text_after']}")
        console.print(f"  ...{around}...".replace("\n", " "), markup=False, highlight=False)
    if explanation["reason"] is not None and not explanation.get("tokens"):
        what = "no result" if explanation["result"] is None else "no losses"
        console.print(f"{explanation['call']}: {what} ({explanation['reason']})", markup=False)
        return
    columns = ("token", "weight", "without call", "without result", "with result")
    table = Table(*columns, title="log p(token), natural logarithm", caption="losses in nats")
    for number, token in enumerate(explanation["tokens"], 1):
        names = ("weight", "log_p_without_call", "log_p_without_result", "log_p_with_result")
        label = str(number) if token["text"] is None else repr(token["text"])
        table.add_row(label, *(_number(token[name]) for name in names))
    losses = [
        _number(explanation[name])
        for name in ("loss_without_call", "loss_without_result", "loss_with_result")
    ]
    table.add_section()
    table.add_row("loss", "", *losses)
    console.print(table)
    by_probability = explanation["probability_without"] is not None
    if explanation["reason"] is not None:
        bound = at_most_gained(explanation["gain_bound"], by_probability, explanation["keep_threshold"])
        console.print(f"not scored to the end ({explanation['reason']}): it {bound}", markup=False)
        return
    if explanation["loss_without_call_full_context"] is not None:
        tokens = explanation["context_tokens"]
        context = "as much text as fits" if tokens is None else f"the last {tokens} tokens of text"
        console.print(
            f"scored with {context} before the call; with the whole text and no call the loss is "
            f"{explanation['loss_without_call_full_context']:.3f}, which the call must beat too",
            markup=False,
        )
    result = visible(str(explanation["result"]))
    gain, threshold = explanation["gain"], explanation["keep_threshold"]
    verdict = "kept" if explanation["kept"] else "not kept"
    why = needed(threshold, by_probability)
    if gain is None:
        gain, why = explanation["gain_bound"], "there is no placebo to compare it with"
    words = gained(gain, explanation["probability_with"], threshold)
    console.print(f"[{explanation['call']} -> {result}] {words}: {verdict}, {why}", markup=False)
    if explanation["probability_with"] is not None:
        console.print(f"it saves {explanation['loss_reduction']:.3f} nats by the paper's rule", markup=False)
    if explanation.get("information") is not None:
        placebos = []
        for placebo in explanation["placebos"]:
            shown = "(forgotten)" if placebo["result"] is None else visible(placebo["result"])
            placebos.append(f"{shown} {placebo['loss_with_result']:.3f}")
        console.print(
            f"information of the result: {explanation['information']:.3f} nats beyond other calls' results "
            f"(losses: {', '.join(placebos)})",
            markup=False,
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
