"""Calls that a model behind an endpoint proposes for texts, at positions that the run's own model finds.

A model that continues text (`completions`) gets what the run's own model would read: the tool's prompt with
the text in its slot, the text again up to a position, and the call's opening. A model that chats gets the prompt
as a message and answers with the text and calls in it. Its answer is taken only if it is the text, byte for
byte, once the calls are out of it; white space around it does not count. Its calls are then the samples of
their positions. Of these the run's own model chooses, as of any word starts, the likeliest.

The text of a request decides it, and the number of the sample: so a request, and its answer, is the same in
every batch. Texts are whole: there is no window.
"""

import hashlib
import json
import logging
import re
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from toolformer_ops.call_syntax import ARROW, CALL_END, CALL_START
from toolformer_ops.language_model.endpoint.answers import AnswerStore, KeptReply
from toolformer_ops.language_model.endpoint.client import Client, Reply
from toolformer_ops.language_model.endpoint.endpoint_file import Endpoint
from toolformer_ops.language_model.tokenization import TEXT_SLOT, AnnotationPrompt, word_at
from toolformer_ops.records import CallPosition, SampledContinuation, content_uuid

if TYPE_CHECKING:
    from toolformer_ops.language_model.tokenization import TokenizedText

logger = logging.getLogger(__name__)

THOUGHT_END = "</think>"
"""After it some models write their answer."""
CHANGES_TEXT = "answer_changes_text"
WITHOUT_END = "answer_without_end"
ELSEWHERE = "proposed_where_not_sampled"
KEPT_EVERY_SECONDS = 1.0
"""A process that is killed loses the answers of so many seconds."""
REPORTED_EVERY_SECONDS = 10.0
_CHAT_INSTRUCTIONS = Path(__file__).with_name("chat_instructions.txt")


@dataclass(frozen=True)
class TextOfDocument:
    """A text, or a part of one, that calls are proposed for."""

    text: str
    document_id: uuid.UUID


@dataclass(frozen=True)
class ProposalNumbers:
    """How calls are sampled, as `SamplingSettings` has it."""

    samples: int
    max_new_tokens: int
    call_start: str
    temperature: float
    top_p: float
    until_arrow: bool
    seed: int

    @property
    def ends(self) -> tuple[str, ...]:
        """The texts of which the first that is written ends a sample."""
        return (CALL_END, ARROW) if self.until_arrow else (CALL_END,)


@dataclass(frozen=True)
class Request:
    """One request for some samples."""

    document_id: uuid.UUID
    body: Mapping[str, Any]
    """Without the model's name."""
    first_sample: int
    """The number of its first sample, from 0: requests without a seed differ by it."""


class Proposals(Protocol):
    """What a model behind an endpoint writes into some texts; takes the place of the engine's `Sampler`."""

    refused: list[Counter[str]]
    """For each text, how many answers it lacks, by reason."""

    def allows(self, number: int, position: CallPosition) -> bool:
        """Whether a position of the text of that number may be sampled."""
        ...

    def add(self, text: str, tokens: Sequence[int], seed_key: str) -> None:
        """Take in the next text, to be sampled before these tokens of it."""
        ...

    def finish(self) -> list[list[list[SampledContinuation]]]:
        """For each text, for each position, its samples, all in the order they were added."""
        ...


class EndpointProposer:
    """A model behind an endpoint, whose answers are kept."""

    def __init__(self, endpoint: Endpoint, client: Client, answers: AnswerStore) -> None:
        self.endpoint = endpoint
        self._client = client
        self._answers = answers

    def check(self) -> None:
        """Raise a ModelError if address, model or key are wrong, before any text is asked."""
        self._client.check()

    def start(
        self,
        prompt: AnnotationPrompt,
        texts: Sequence[TextOfDocument],
        numbers: ProposalNumbers,
        tokenize: "Callable[[str], TokenizedText]",
    ) -> Proposals:
        """What it proposes for these texts; `tokenize` is that of the run's own model.

        A model that chats is asked at once.

        Raises:
            ModelError: the server is wrong, not there for longer than the budget, or answers nonsense.
        """
        kind = _Chat if self.endpoint.api == "chat" else _Completions
        return kind(self, prompt, texts, numbers, tokenize)

    def replies(self, requests: Sequence[Request]) -> list[Reply]:
        """The reply to each request, in order: a kept reply, or else a new one, which is kept.

        It raises what `start` raises.
        """
        keys = []
        for request in requests:
            body = json.dumps(request.body, sort_keys=True)
            keys.append(content_uuid(self.endpoint.identity, body, str(request.first_sample)))
        missing = dict(zip(keys, requests, strict=True))
        for key in self._answers.stored(keys):
            del missing[key]
        if missing:
            self._ask(missing)
        # As they are kept: another process may have been first.
        kept = self._answers.stored(keys)
        return [kept[key] for key in keys]

    def _ask(self, missing: Mapping[uuid.UUID, Request]) -> None:
        requests = list(missing.items())
        unkept: list[KeptReply] = []
        kept_at = reported_at = time.monotonic()
        done = 0
        try:
            for number, reply in self._client.ask([request.body for _, request in requests]):
                key, request = requests[number]
                unkept.append(KeptReply(key, request.document_id, reply))
                done += 1
                now = time.monotonic()
                if now - kept_at >= KEPT_EVERY_SECONDS:
                    self._answers.keep(unkept)
                    unkept, kept_at = [], now
                if now - reported_at >= REPORTED_EVERY_SECONDS:
                    logger.info("%s has answered %d of %d requests", self.endpoint.model, done, len(requests))
                    reported_at = now
        finally:
            if unkept:
                self._answers.keep(unkept)


@dataclass
class _Completions:
    """Proposals of a model that continues text: each position of a text is asked by itself."""

    proposer: EndpointProposer
    prompt: AnnotationPrompt
    texts: Sequence[TextOfDocument]
    numbers: ProposalNumbers
    tokenize: "Callable[[str], TokenizedText]"
    refused: list[Counter[str]] = field(default_factory=list)
    _chars: list[list[int]] = field(default_factory=list)
    """For each text that was added, the offsets before which calls are sampled."""

    def allows(self, number: int, position: CallPosition) -> bool:
        """Every position."""
        return True

    def add(self, text: str, tokens: Sequence[int], seed_key: str) -> None:
        """See `Proposals`."""
        starts = self.tokenize(text).starts
        self._chars.append([starts[token] for token in tokens])
        self.refused.append(Counter())

    def finish(self) -> list[list[list[SampledContinuation]]]:
        """See `Proposals`."""
        numbers, endpoint = self.numbers, self.proposer.endpoint
        requests: list[Request] = []
        asked_at: list[tuple[int, int]] = []  # number of the text, and of its position
        for number, (text, chars) in enumerate(zip(self.texts, self._chars, strict=True)):
            for position, char in enumerate(chars):
                body = self._body(text.text, char)
                for request in _requests(endpoint, text.document_id, body, numbers):
                    requests.append(request)
                    asked_at.append((number, position))
        samples: list[list[list[SampledContinuation]]] = []
        for chars in self._chars:
            samples.append([[] for _ in chars])
        replies = self.proposer.replies(requests)
        for (number, position), reply in zip(asked_at, replies, strict=True):
            if reply.reason:
                self.refused[number][reply.reason] += 1
            for writing in reply.writings:
                samples[number][position].append(self._sample(writing.text, writing.is_finished))
        return samples

    def _body(self, text: str, char: int) -> dict[str, Any]:
        prompt, numbers = self.prompt, self.numbers
        read = (
            f"{prompt.before_text}{prompt.separator}{text}{prompt.after_text}{prompt.separator}{text[:char]}"
        )
        return {
            "prompt": f"{read}{numbers.call_start}",
            "max_tokens": numbers.max_new_tokens,
            "stop": list(numbers.ends),
        }

    def _sample(self, written: str, is_finished: bool) -> SampledContinuation:
        """All between the brackets, with what was given of it."""
        text = f"{self.numbers.call_start}{written}".partition(CALL_START.strip())[2]
        for end in self.numbers.ends:  # of a server that goes on after an end, or returns it
            is_finished = is_finished or end in text
            text = text.partition(end)[0]
        return SampledContinuation(text, is_finished)


class _Chat:
    """Proposals of a model that chats: each text is answered as a whole, as often as there are samples."""

    def __init__(
        self,
        proposer: EndpointProposer,
        prompt: AnnotationPrompt,
        texts: Sequence[TextOfDocument],
        numbers: ProposalNumbers,
        tokenize: "Callable[[str], TokenizedText]",
    ) -> None:
        self._texts = texts
        self._tokenize = tokenize
        self._call = re.compile(rf"\[(\s*{re.escape(prompt.name)}\s*\([^\[\]\n\r]*)\]")
        self._samples: list[list[list[SampledContinuation]]] = []
        self.refused = [Counter[str]() for _ in texts]
        self._calls: list[dict[int, list[str]]] = [defaultdict(list) for _ in texts]
        """For each text, by the offset of a word, what was written between brackets before it."""
        # 1. Ask.
        instructions = _CHAT_INSTRUCTIONS.read_text(encoding="utf-8").strip()
        requests: list[Request] = []
        number_of: list[int] = []
        for number, text in enumerate(texts):
            body = {
                "messages": [
                    {"role": "system", "content": instructions},
                    {"role": "user", "content": prompt.template.replace(TEXT_SLOT, text.text).rstrip()},
                ],
                # Two bytes a token are less than any language has; and calls of the length that a run allows.
                "max_tokens": len(text.text.encode()) // 2 + 8 * numbers.max_new_tokens,
            }
            for request in _requests(proposer.endpoint, text.document_id, body, numbers):
                requests.append(request)
                number_of.append(number)
        replies = proposer.replies(requests)
        # 2. Read the calls out of the answers.
        for number, reply in zip(number_of, replies, strict=True):
            if reply.reason:
                self.refused[number][reply.reason] += 1
            for writing in reply.writings:
                self._read(number, texts[number].text, writing.text, writing.is_finished)

    def allows(self, number: int, position: CallPosition) -> bool:
        """Positions before which an answer has a call."""
        return word_at(self._texts[number].text, position.char) in self._calls[number]

    def add(self, text: str, tokens: Sequence[int], seed_key: str) -> None:
        """See `Proposals`."""
        number = len(self._samples)
        calls, starts = self._calls[number], self._tokenize(text).starts
        words = [word_at(text, starts[token]) for token in tokens]
        samples = []
        for word in words:
            samples.append([SampledContinuation(written, True) for written in calls[word]])
        self._samples.append(samples)
        sampled = sum(map(len, self._samples[-1]))
        if left := sum(map(len, calls.values())) - sampled:
            self.refused[number][ELSEWHERE] += left

    def finish(self) -> list[list[list[SampledContinuation]]]:
        """See `Proposals`."""
        return self._samples

    def _read(self, number: int, text: str, answer: str, is_finished: bool) -> None:
        """Take the calls of an answer, if it is the text without them."""
        if not is_finished:
            self.refused[number][WITHOUT_END] += 1
            return
        if THOUGHT_END not in text:
            answer = answer.rpartition(THOUGHT_END)[2]
        before = len(text) - len(text.lstrip())
        rest, calls = self._read_out(answer.strip())
        if rest.strip() != text.strip():
            self.refused[number][CHANGES_TEXT] += 1
            return
        shift = before - (len(rest) - len(rest.lstrip()))
        for char, written in calls:
            self._calls[number][word_at(text, char + shift)].append(written)

    def _read_out(self, answer: str) -> tuple[str, list[tuple[int, str]]]:
        """The answer without its calls, and these, each with its offset there.

        It takes spaces as `call_syntax.read_out` does.
        """
        pieces: list[str] = []
        calls: list[tuple[int, str]] = []
        end = length = 0
        for match in self._call.finditer(answer):
            piece = answer[end : match.start()]
            end = match.end()
            if piece.endswith(" "):
                piece = piece[:-1]
            elif answer[end : end + 1] == " ":
                end += 1
            pieces.append(piece)
            length += len(piece)
            calls.append((length, match[1].strip()))
        return "".join([*pieces, answer[end:]]), calls


def _requests(
    endpoint: Endpoint, document_id: uuid.UUID, body: Mapping[str, Any], numbers: ProposalNumbers
) -> list[Request]:
    """The requests for all samples of a position or a text."""
    requests: list[Request] = []
    for first in range(0, numbers.samples, endpoint.answers_per_request):
        count = min(endpoint.answers_per_request, numbers.samples - first)
        several = {"n": count} if count > 1 else {}
        # The seed has 31 bits, and is another one for each sample.
        digest = hashlib.sha256(f"{numbers.seed}|{first}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big") >> 1
        sampling = {"temperature": numbers.temperature, "top_p": numbers.top_p, "seed": seed}
        requests.append(Request(document_id, {**body, **several, **sampling}, first))
    return requests
