"""A model with its tools behind an OpenAI-compatible completions endpoint, for one process and one device.

Three parts, from the network inwards:

    `completions_app`   FastAPI: the key, the limits, OpenAI's format of requests, answers and streams
    `Desk`              takes prompts from requests and hands their texts back, part by part
    the writer          the one thread that uses the model: it takes all prompts that wait with the
                        same settings, and writes them together

Decoding is greedy, so a request that asks for chance is refused. A call is part of the text, with its result,
as the model reads it; `calls_in_text: false` leaves calls out. Beside the fields of OpenAI a choice has
`calls`. No text is logged.
"""

import asyncio
import contextlib
import datetime
import hmac
import json
import logging
import queue
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from toolformer_ops.decoding.model import WritingModel
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.errors import (
    ConfigurationError,
    ModelError,
    ToolformerError,
    UsageError,
    expectation,
)

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

MOST_BYTES = 4 * 2**20
"""Most bytes of a request."""
MOST_PROMPTS = 128
"""Most prompts of a request."""
MOST_WAITING = 256
"""Most prompts that wait to be written."""
RETRY_SECONDS = 5
"""What a client is told to wait if more than these would wait."""
FINISH_REASONS = {"end_of_text": "stop", "stop": "stop", "length": "length"}
"""OpenAI's word for why a text ends."""


class RefusedRequestError(Exception):
    """A request that is not answered, with the HTTP status that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @classmethod
    def of(cls, error: ToolformerError) -> "RefusedRequestError":
        """Why a text cannot be written: 400 if its prompt is to blame."""
        return cls(400 if isinstance(error, ModelError) else 500, str(error))

    def as_json(self) -> dict[str, Any]:
        """As OpenAI's clients read it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "code": self.status}}


class CompletionRequest(BaseModel):
    """The body of a request: the fields of OpenAI's completions that greedy decoding has, and ours."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    prompt: str | list[str]
    max_tokens: int = Field(default=64, ge=1, le=100_000)
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    echo: bool = False
    # Nothing depends on these.
    seed: int | None = None
    user: str | None = None
    # What greedy decoding cannot do otherwise.
    temperature: Literal[0] | None = None
    top_p: Literal[1] | None = None
    n: Literal[1] | None = None
    best_of: Literal[1] | None = None
    presence_penalty: Literal[0] | None = None
    frequency_penalty: Literal[0] | None = None
    logit_bias: dict[str, float] | None = Field(default=None, max_length=0)
    logprobs: None = None
    suffix: None = None

    k: int = Field(default=10, ge=0)
    """A call starts where " [" is among the k most likely tokens; 0: no calls."""
    calls: int = Field(default=1, ge=0, le=100)
    """Most calls a text."""
    calls_in_text: bool = True
    date: datetime.date | None = None
    """What the Calendar takes for today."""

    @model_validator(mode="after")
    def _can_be_answered(self) -> Self:
        if self.stream and not self.calls_in_text:
            raise ValueError("calls_in_text must be true in a stream, whose parts cannot be taken back")
        if not 0 < len(self.prompts) <= MOST_PROMPTS:
            raise ValueError(f"prompt must be 1 to {MOST_PROMPTS} texts, found {len(self.prompts)}")
        try:
            self.decoding  # noqa: B018 - it has limits of its own
        except UsageError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def prompts(self) -> list[Prompt]:
        """The texts to continue."""
        texts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        return [Prompt(text, self.date) for text in texts]

    @property
    def decoding(self) -> DecodingSettings:
        """How they are continued."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return DecodingSettings(
            max_new_tokens=self.max_tokens,
            call_start_rank=self.k,
            calls_per_input=self.calls,
            stops=tuple(stops),
        )


async def read_request(chunks: AsyncIterator[bytes], name: str) -> CompletionRequest:
    """A request's body, for the model of this name.

    Raises:
        RefusedRequestError: it is too large, not valid, or for another model.
    """
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > MOST_BYTES:
            raise RefusedRequestError(413, f"expected at most {MOST_BYTES} bytes, found more.")
    try:
        request = CompletionRequest.model_validate_json(bytes(body))
    except ValidationError as error:
        problems = []
        for item in error.errors():
            field = ".".join(map(str, item["loc"]))
            problems.append(f"{field}: {expectation(item)}" if field else expectation(item))
        raise RefusedRequestError(400, f"the request is not valid: {'; '.join(problems)}.") from error
    if request.model != name:
        raise RefusedRequestError(404, f"model: expected {name}, found {request.model!r:.80}.")
    return request


Part = str | WrittenText | ToolformerError
"""What a request gets of one prompt: parts of the text, and at the end the whole, or why there is none."""
Parts = asyncio.Queue[tuple[int, Part]]
"""Where the parts of a request's texts come, each with the number of its prompt."""


@dataclass(frozen=True)
class _Order:
    """A prompt of a request that waits to be written."""

    number: int
    """The prompt's place in its request."""
    prompt: Prompt
    decoding: DecodingSettings
    hand: Callable[[int, Part], None]
    """Gives a part to the request; from any thread."""


class Desk:
    """Takes prompts from requests to the thread that writes, and their texts back."""

    def __init__(self, model: WritingModel) -> None:
        self._model = model
        self._orders: queue.Queue[_Order | None] = queue.Queue()
        self._writer = threading.Thread(target=self._write_all, daemon=True, name="writer")

    @contextlib.asynccontextmanager
    async def is_open(self, _: object) -> AsyncIterator[None]:
        """Write within the block; what waits at its end is written, too."""
        self._writer.start()
        yield
        self._orders.put(None)
        await asyncio.to_thread(self._writer.join)

    def order(self, request: CompletionRequest) -> Parts:
        """Queue a request's prompts.

        Raises:
            RefusedRequestError: too many wait.
        """
        if self._orders.qsize() + len(request.prompts) > MOST_WAITING:
            raise RefusedRequestError(
                503, f"expected at most {MOST_WAITING} prompts that wait, found more. Come again later."
            )
        parts, loop = Parts(), asyncio.get_running_loop()

        def hand(number: int, part: Part) -> None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(parts.put_nowait, (number, part))

        for number, prompt in enumerate(request.prompts):
            self._orders.put(_Order(number, prompt, request.decoding, hand))
        return parts

    def _write_all(self) -> None:
        waiting: list[_Order] = []
        ends = False
        while waiting or not ends:
            # 1. All that wait; if none does, the next one.
            while not ends and (not waiting or not self._orders.empty()):
                order = self._orders.get()
                if order is None:
                    ends = True
                else:
                    waiting.append(order)
            # 2. Those that are written as the first one is, together.
            if waiting:
                decoding = waiting[0].decoding
                self._write([order for order in waiting if order.decoding == decoding])
                waiting = [order for order in waiting if order.decoding != decoding]

    def _write(self, orders: list[_Order]) -> None:
        """Write texts together; if one cannot be written, each for itself, so that it alone has the error."""

        def tell(index: int, part: str) -> None:
            orders[index].hand(orders[index].number, part)

        try:
            texts = self._model.write_aloud([order.prompt for order in orders], orders[0].decoding, tell)
        except ToolformerError as error:
            if len(orders) == 1:
                orders[0].hand(orders[0].number, error)
                return
            for order in orders:
                self._write([order])
        except Exception:  # the next request is answered
            logger.exception("%d texts were not written", len(orders))
            for order in orders:
                order.hand(
                    order.number, ToolformerError("the text was not written; the server's log says why.")
                )
        else:
            for order, text in zip(orders, texts, strict=True):
                order.hand(order.number, text)


class _Answer:
    """OpenAI's format of what was written."""

    def __init__(self, request: CompletionRequest, model: WritingModel) -> None:
        self._request = request
        self._model = model
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.model,
        }

    async def whole(self, parts: Parts) -> dict[str, Any]:
        """The answer to a request that is no stream.

        Raises:
            RefusedRequestError: a text cannot be written.
        """
        texts: dict[int, WrittenText] = {}
        while len(texts) < len(self._request.prompts):
            number, part = await parts.get()
            if isinstance(part, ToolformerError):
                raise RefusedRequestError.of(part)
            if isinstance(part, WrittenText):
                texts[number] = part
        choices = []
        for number, text in sorted(texts.items()):
            written = text.text if self._request.calls_in_text else text.without_calls
            echoed = text.prompt.text if self._request.echo else ""
            choices.append(self._choice(number, echoed + written, text))
        return {**self._head, "choices": choices, "usage": self._usage(texts)}

    async def stream(self, parts: Parts) -> AsyncIterator[str]:
        """The events of a stream: each part as it comes, the end of each text, and the end of all."""
        texts: dict[int, WrittenText] = {}
        if self._request.echo:
            for number, prompt in enumerate(self._request.prompts):
                yield self._event([self._choice(number, prompt.text)])
        while len(texts) < len(self._request.prompts):
            number, part = await parts.get()
            if isinstance(part, ToolformerError):
                yield f"data: {json.dumps(RefusedRequestError.of(part).as_json())}\n\n"
                return
            if isinstance(part, WrittenText):
                texts[number] = part
                yield self._event([self._choice(number, "", part)])
            else:
                yield self._event([self._choice(number, part)])
        if (self._request.stream_options or {}).get("include_usage"):
            yield self._event([], self._usage(texts))
        yield "data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> str:
        return f"data: {json.dumps({**self._head, 'choices': choices, 'usage': usage})}\n\n"

    @staticmethod
    def _choice(number: int, text: str, ended: WrittenText | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": number, "text": text, "logprobs": None, "finish_reason": None}
        if ended is not None:
            choice["finish_reason"] = FINISH_REASONS[ended.end]
            choice["calls"] = [asdict(call) for call in ended.calls]
        return choice

    def _usage(self, texts: dict[int, WrittenText]) -> dict[str, int]:
        prompt_tokens = sum(self._model.token_count(text.prompt.text) for text in texts.values())
        completion_tokens = sum(len(text.token_ids) for text in texts.values())
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }


def completions_app(model: WritingModel, name: str, key: str) -> "FastAPI":
    """The application: `/v1/completions`, `/v1/models` and `/health`.

    Args:
        model: with its tools.
        name: under which clients ask for it.
        key: what a client sends as `Authorization: Bearer KEY`; empty: none is asked for.
    """
    from fastapi import Depends, FastAPI, Request, Response
    from fastapi.responses import JSONResponse, StreamingResponse

    desk = Desk(model)
    app = FastAPI(lifespan=desk.is_open, docs_url=None, redoc_url=None, openapi_url=None)
    served = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "toolformer-ops"}

    def require_key(request: Request) -> None:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        if key and not hmac.compare_digest(sent.encode(), key.encode()):
            raise RefusedRequestError(
                401, "expected the server's key as Authorization: Bearer KEY, found another or none."
            )

    @app.exception_handler(RefusedRequestError)
    async def refuse(_: Request, error: RefusedRequestError) -> Response:
        headers = {"Retry-After": str(RETRY_SECONDS)} if error.status == 503 else None
        return JSONResponse(error.as_json(), error.status, headers)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models", dependencies=[Depends(require_key)])
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{**served, "identity": model.identity}]}

    @app.post("/v1/completions", dependencies=[Depends(require_key)])
    async def completions(request: Request) -> Response:
        completion = await read_request(request.stream(), name)
        answer, parts = _Answer(completion, model), desk.order(completion)
        if completion.stream:
            return StreamingResponse(answer.stream(parts), media_type="text/event-stream")
        return JSONResponse(await answer.whole(parts))

    return app


def serve(model: WritingModel, name: str, host: str, port: int, key: str) -> None:
    """Answer requests until the process is told to end.

    Raises:
        ConfigurationError: fastapi and uvicorn are not installed, or other machines could ask without a key.
    """
    if not key and host not in ("127.0.0.1", "::1", "localhost"):
        raise ConfigurationError(
            f"--host: expected this machine alone (127.0.0.1) or a key, found {host} without a key. Set "
            "TOOLFORMER_SERVE_KEY."
        )
    try:
        import uvicorn

        app = completions_app(model, name, key)
    except ImportError as error:
        raise ConfigurationError(
            "serve: expected fastapi and uvicorn, found none. Install 'toolformer-ops[serve]'."
        ) from error
    uvicorn.run(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=10)
