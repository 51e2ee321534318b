"""What a model of a study does: it writes behind the prompts of fresh sentences, reads these sentences, and reads plain text.

    written   the first number behind a prompt is right, or it is not
    read      the loss of each sentence, and its loss behind a call that the model makes while it reads
    plain     the perplexity of 32 summaries of the demo's Wikipedia, in which no arm is trained (Toolformer, section 4.3),
              and in how many the model makes a call while it reads them

A call while reading stands where the model is the likeliest to begin one, if " [" is among its ten likeliest tokens
there (k of section 4.2); the model writes it, the tool answers, and the words behind are read with it. Neither the
call nor the result counts as text, so that the loss with a call is one of the same tokens. Calls are disabled else,
as in section 4.3: the probability of " [" goes to the other tokens.
"""

import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from studies.arms import ARMS
from studies.devices import load_to_write
from studies.plan import StudyPlan
from studies.sentences import Sentence
from toolformer_ops.call_syntax import CALL_START
from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.evaluation.answers import first_number_is_right
from toolformer_ops.local.demo.corpus import WIKIPEDIA_DOCUMENTS, wikipedia_documents, write_kilt_records
from toolformer_ops.storage.machine.shared_files import replace_file

if TYPE_CHECKING:
    from toolformer_ops.decoding.model import WritingModel
    from toolformer_ops.language_model.perplexity import TextLoss

BEFORE = "before"
"""The model before training."""
WRITTEN_TOKENS = 24
"""Enough for a call's result and the answer behind it, and for a model that writes a sum out first."""


@dataclass(frozen=True)
class ReadText:
    """What a model makes of one sentence while it reads it."""

    tokens: int
    """Of the text."""
    nats: float
    """Their loss, calls disabled."""
    nats_with_call: float | None = None
    """Their loss with a call in its place, the words before it as they are; None if the model makes none."""
    read_call: str = ""
    """The call with its result."""
    call_place: int | None = None
    """Where it stands, in characters of the text."""


@dataclass(frozen=True)
class ReadCall:
    """A call that a model makes while it reads a sentence."""

    sentence: int
    """Its number."""
    place: int
    """Where the call is written, in characters of the sentence."""
    call: str
    """With its result and the space before it."""

    def read_in(self, text: str) -> str:
        """The text with the call in it."""
        return f"{text[: self.place]}{self.call}{text[self.place :]}"

    def nats_of_the_text(self, starts: Sequence[int], loss: "TextLoss") -> list[float]:
        """The losses of those tokens of `read_in` that are the text's and not the call's; none if a token crosses a border.

        `starts` says where its tokens begin, in characters; the loss may lack the first token's.
        """
        end = self.place + len(self.call)
        if self.place not in starts or end not in starts:
            return []
        scored_starts = starts[len(starts) - loss.tokens :]
        return [
            nats
            for start, nats in zip(scored_starts, loss.token_nats, strict=True)
            if not self.place <= start < end
        ]


def measure(
    settings: Settings, model: str, plan: StudyPlan, arm: str, folder: Path, training: dict[str, Any]
) -> None:
    """Measure a model as an arm's, unless that was done.

    Writes `answers-ARM.jsonl`, a line a sentence, and `arm-ARM.json`, which also has the numbers of `training`.
    """
    done = folder / f"arm-{arm}.json"
    if done.exists():
        return
    calls = arm != BEFORE and not ARMS[arm].without_calls
    writing = load_to_write(settings, model, (plan.tool,) if calls else ())
    started = time.process_time()
    decoding = DecodingSettings(max_new_tokens=WRITTEN_TOKENS)
    if not calls:
        decoding = replace(decoding, call_start_rank=0)
    written = writing.write([Prompt(item.prompt) for item in plan.fresh], decoding)
    seconds = time.process_time() - started
    # A call is written at once or not at all while a text is read.
    reading = DecodingSettings(max_new_tokens=1, max_call_tokens=plan.read_call_tokens) if calls else None
    read = read_texts(writing, [item.text for item in plan.fresh], reading)
    plain = read_texts(writing, plain_texts(), reading)
    lines = [
        json.dumps({"arm": arm, "sentence": number, **answer_line(*one)}) + "\n"
        for number, one in enumerate(zip(plan.fresh, written, read, strict=True))
    ]
    replace_file(folder / f"answers-{arm}.jsonl", "".join(lines))
    summary = {
        "arm": arm,
        "perplexity": math.exp(sum(text.nats for text in plain) / sum(text.tokens for text in plain)),
        "plain_texts": len(plain),
        "plain_texts_with_call": sum(text.nats_with_call is not None for text in plain),
        "writing_cpu_seconds": round(seconds, 2),
        **training,
    }
    replace_file(done, json.dumps(summary) + "\n")


def read_texts(
    writing: "WritingModel", texts: Sequence[str], reading: DecodingSettings | None
) -> list[ReadText]:
    """The loss of each text, and that behind a call which the model makes in it; `reading` is None where it makes none."""
    model = writing.language_model
    read = [ReadText(loss.tokens, loss.nats) for loss in model.text_losses(texts)]
    if reading is None:
        return read
    # 1. The place in each text, and the call that the model writes there.
    places: list[tuple[int, int]] = []  # number of the sentence, characters before the call
    for number, starts in enumerate(model.call_starts(texts)):
        likeliest = max(starts, key=lambda start: start.probability, default=None)
        if likeliest is not None and likeliest.rank <= reading.call_start_rank:
            places.append((number, likeliest.position_char))
    prompts = [Prompt(texts[number][:place]) for number, place in places]
    # 2. The text with the call in it.
    called: list[ReadCall] = []
    for (number, place), written in zip(places, writing.write(prompts, reading), strict=True):
        if written.calls and written.calls[0].result is not None and written.text.startswith(CALL_START):
            called.append(ReadCall(number, place, written.text[: written.calls[0].end_char]))
    losses = model.text_losses([call.read_in(texts[call.sentence]) for call in called])
    # 3. The loss of the text is that of all tokens but the call's.
    for call, loss in zip(called, losses, strict=True):
        token_starts = model.tokenize(call.read_in(texts[call.sentence])).starts
        nats = call.nats_of_the_text(token_starts, loss)
        if len(nats) == read[call.sentence].tokens:  # else a token crosses a border of the call
            read[call.sentence] = replace(
                read[call.sentence],
                nats_with_call=math.fsum(nats),
                read_call=call.call.strip(),
                call_place=call.place,
            )
    return read


def plain_texts() -> list[str]:
    """The summaries in which no arm is trained."""
    with TemporaryDirectory() as folder:
        records = Path(folder) / "kilt.jsonl"
        write_kilt_records(records)
        return [document.text for document in wikipedia_documents(records, WIKIPEDIA_DOCUMENTS)]


def writes_answer(written: str, answer: str) -> bool:
    """Whether the first number is the answer, or the text begins with it if the answer has other characters than digits."""
    if re.fullmatch(r"-?[\d.,]+", answer):
        return first_number_is_right(written, [answer])
    return re.match(rf"\s*{re.escape(answer)}(?!\w)", written) is not None


def answer_line(sentence: Sentence, written: WrittenText, read: ReadText) -> dict[str, Any]:
    """What is kept of one sentence."""
    called = [call.input for call in written.calls if call.result is not None]
    numbers = {
        name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(read).items()
    }
    return {
        "held_out": sentence.held_out,
        "answer": sentence.answer,
        "right": writes_answer(written.without_calls, sentence.answer),
        "called": called[0] if called else None,
        "written": written.text,
        **numbers,
    }
