"""Requests to an OpenAI-compatible server, side by side.

Each is within limits of time and size, and tried again within a budget. What comes back is one of four:

    an answer   JSON with a text for each sample, by the model that was asked for, if it names one
    a refusal   of this request alone (400, 413, 422), such as a text that is too long: counted, not tried again
    away        no connection, 408, 429, 502 to 504, 520 to 530: tried again for `patience_seconds` without any answer
    nonsense    500, half an answer, another format, an endless body, no end in time: tried again `TRIES` times. If
                the server then answers something else, it is this request alone, and counted

All else is wrong for every text and ends the work at once: a key that is refused, an address without such a
server or that leads elsewhere, another model, and refusals or nonsense many times in a row.

Redirects are not followed, since they would take texts and key to another address. The key is in no message.
"""

import asyncio
import contextlib
import datetime
import email.utils
import json
import logging
import queue
import re
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolformer_ops.call_syntax import CALL_END
from toolformer_ops.config import secret_of
from toolformer_ops.errors import ConfigurationError, ModelError
from toolformer_ops.language_model.endpoint.endpoint_file import Endpoint
from toolformer_ops.shown_text import without_secret
from toolformer_ops.storage.corpora.record_rules import escape_control_characters

if TYPE_CHECKING:
    import httpx
    import tenacity

logger = logging.getLogger(__name__)

REFUSED = "endpoint_refused"
NO_ANSWER = "endpoint_gave_no_answer"
TRIES = 5
"""Most tries of a request that gets nonsense."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 20.0
LONGEST_NAMED_PAUSE_SECONDS = 300.0
"""The longest pause that a server may ask for (`Retry-After`)."""
FAILURES_IN_A_ROW = 5
"""Requests without an answer, one after the other, after which the server is given up."""
REFUSALS_IN_A_ROW = 50
"""Refusals, one after the other, after which it is given up; texts that are too long may be neighbours."""
MOST_BYTES = 8 * 2**20
"""Most bytes of an answer."""
QUOTED_CHARACTERS = 200
CHECK_TRIES = 3
CHECK_PROMPT = "1 + 1 ="
"""What is asked before any text, for `CHECK_TOKENS`."""
CHECK_TOKENS = 16
MOST_BYTES_A_TOKEN = 8
"""A server that counts fewer tokens for a long prompt has cut it: languages have one to five bytes a token."""
LONG_PROMPT_BYTES = 2000
_WRONG_KEY = (401, 403)
_NOT_THERE = (404, 405, 410)
_AWAY = (408, 425, 429, 502, 503, 504, *range(520, 531))
_CUT_OFF = frozenset({"length", "max_tokens", "model_length", "content_filter", "error", "abort"})
"""What servers name as `finish_reason` of a sample that did not end by itself; all others, such as `stop`,
`eos_token` and null, are its end."""
_REVISION = re.compile(r"[@:].+|-(?:\d{4}-?\d{2}-?\d{2}|\d{3,4}|latest|preview)")
"""What follows a model's name in that of a dated or revised form of it."""


@dataclass(frozen=True)
class Writing:
    """What the model wrote as one sample."""

    text: str
    is_finished: bool
    """Whether it ended by itself or at an end that the request names, and not at the most tokens."""


@dataclass(frozen=True)
class Reply:
    """What came back for a request: as many writings as it asked for, or the reason that there are none."""

    writings: tuple[Writing, ...] = ()
    reason: str = ""


class _AwayError(Exception):
    """The server is not there now."""

    def __init__(self, message: str, pause_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.pause_seconds = pause_seconds


class _NonsenseError(Exception):
    """What came back is no answer."""


class _RefusedError(Exception):
    """The server refuses this request."""


class Client:
    """Asks one endpoint.

    Its requests have an event loop in a separate thread, so that a notebook may ask, too.
    """

    def __init__(self, endpoint: Endpoint, *, name: str, patience_seconds: float) -> None:
        """Prepare it; `name` is the proposer's in messages. Nothing is asked yet.

        Raises:
            ConfigurationError: the secret is not set.
        """
        self._endpoint = endpoint
        self._name = name
        self._patience = patience_seconds
        self._key = secret_of(endpoint.key) if endpoint.key else ""
        if endpoint.key and not self._key:
            raise ConfigurationError(
                f"proposer {name}: expected the environment variable {endpoint.key} (`key` of its file), "
                "found none of that name. Set it where the stages run: in the environment, in the file "
                "`environment` of the state folder, or in the Kubernetes Secret."
            )
        if not (self._key.isascii() and self._key.isprintable() and self._key.strip() == self._key):
            raise ConfigurationError(
                f"proposer {name}: expected a key of printable ASCII characters in {endpoint.key}, found "
                "others, such as a line break. Correct it."
            )
        self._failures = self._refusals = 0
        self._has_told_of_cut_prompts = False
        self._answered_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Ask for a few tokens of a sum, before any text, with the fields of a run's requests.

        Raises:
            ModelError: the address, the model or the key is wrong, or the server is not there.
        """
        waiting = asyncio.run_coroutine_threadsafe(self._check(), self._running_loop())
        try:
            waiting.result()
        finally:
            waiting.cancel()

    def ask(self, bodies: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Reply]]:
        """The replies to requests, each with its request's number, from 0, in the order in which they come.

        `bodies` lack the model's name and the file's further fields; each asks for `n` samples, or for one.

        Raises:
            ModelError: the server refuses all, is not there for longer than the budget, or answers nonsense.
        """
        replies: queue.SimpleQueue[tuple[int, Reply] | Exception | None] = queue.SimpleQueue()

        async def answer_all() -> None:
            free = asyncio.Semaphore(self._endpoint.concurrency)

            async def answer(number: int) -> None:
                async with free:
                    replies.put((number, await self._reply(client, bodies[number])))

            async with self._client() as client, asyncio.TaskGroup() as tasks:
                for number in range(len(bodies)):
                    tasks.create_task(answer(number))

        async def ask_all() -> None:
            self._answered_at = asyncio.get_running_loop().time()
            try:
                await answer_all()
                replies.put(None)
            except Exception as error:
                replies.put(error)

        work = asyncio.run_coroutine_threadsafe(ask_all(), self._running_loop())
        try:
            while (reply := replies.get()) is not None:
                if isinstance(reply, ExceptionGroup):
                    raise reply.exceptions[0]  # the first; the others were cancelled with it
                if isinstance(reply, Exception):
                    raise reply
                yield reply
        finally:
            work.cancel()

    async def _check(self) -> None:
        import tenacity

        retries = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((_AwayError, _NonsenseError)),
            stop=tenacity.stop_after_attempt(CHECK_TRIES),
            wait=tenacity.wait_fixed(FIRST_PAUSE_SECONDS),
            reraise=True,
        )
        async with self._client() as client:
            self._answered_at = asyncio.get_running_loop().time()
            try:
                await retries(self._asked, client, self._check_body())
            except (_AwayError, _NonsenseError) as error:
                raise self._wrong(
                    f"an answer to {CHECK_PROMPT!r}", str(error), "Start the server, or correct `url`"
                ) from error
            except _RefusedError as error:
                raise await self._with_models(client, str(error)) from error

    def _check_body(self) -> dict[str, Any]:
        samples = self._endpoint.answers_per_request
        several = {"n": samples} if samples > 1 else {}
        body = {"max_tokens": CHECK_TOKENS, "temperature": 1.0, "top_p": 1.0, "seed": 1, **several}
        if self._endpoint.api == "chat":
            return {"messages": [{"role": "user", "content": CHECK_PROMPT}], **body}
        return {"prompt": CHECK_PROMPT, "stop": [CALL_END], **body}

    async def _reply(self, client: "httpx.AsyncClient", body: Mapping[str, Any]) -> Reply:
        """The reply to one request, in several tries."""
        import tenacity

        retries = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((_AwayError, _NonsenseError)),
            stop=self._is_given_up,
            wait=_pause,
            reraise=True,
        )
        try:
            writings: tuple[Writing, ...] = await retries(self._asked, client, body)
        except _RefusedError as error:
            self._refusals += 1
            if self._refusals >= REFUSALS_IN_A_ROW:
                raise self._wrong(
                    "answers", f"{self._refusals} refusals in a row: {error}", "Correct the proposer's file"
                ) from error
            if self._refusals == 1:
                logger.warning("proposer %s: the server refuses a request: %s", self._name, error)
            return Reply(reason=REFUSED)
        except _AwayError as error:
            raise self._wrong(
                f"an answer within {self._patience:g} s",
                str(error),
                "Look at the server, then start the task again",
            ) from error
        except _NonsenseError as error:
            self._failures += 1
            if self._failures < FAILURES_IN_A_ROW and await self._answers_else(client):
                logger.warning("proposer %s: no answer after %d tries: %s", self._name, TRIES, error)
                return Reply(reason=NO_ANSWER)
            raise self._wrong(
                "answers", f"none after {TRIES} tries: {error}", "Look at the server's log"
            ) from error
        self._failures = self._refusals = 0
        self._answered_at = asyncio.get_running_loop().time()
        return Reply(writings)

    async def _answers_else(self, client: "httpx.AsyncClient") -> bool:
        """Whether the server answers another question."""
        try:
            await self._asked(client, self._check_body())
        except (_AwayError, _NonsenseError, _RefusedError):
            return False
        return True

    def _is_given_up(self, state: "tenacity.RetryCallState") -> bool:
        """Whether a request that failed is not tried again."""
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, _AwayError):
            # As long as other requests get answers, such as within a limit of rate, the server works.
            return asyncio.get_running_loop().time() - self._answered_at >= self._patience
        return state.attempt_number >= TRIES

    async def _asked(self, client: "httpx.AsyncClient", body: Mapping[str, Any]) -> tuple[Writing, ...]:
        """The writings of one request, asked once."""
        endpoint = self._endpoint
        path = "/chat/completions" if endpoint.api == "chat" else "/completions"
        fields = {"model": endpoint.model, **body, **endpoint.extra}
        status, headers, content = await self._sent(
            client, "POST", path, {name: value for name, value in fields.items() if value != ""}
        )
        quoted = self._quoted(content)
        if status in _WRONG_KEY:
            raise self._wrong(
                "a key that is accepted", f"{status} {quoted}", "Correct the secret that `key` names"
            )
        if 300 <= status < 400:
            to = self._quoted(headers.get("location", "").encode())
            raise self._wrong(
                "an answer", f"{status}, a redirect to {to}", "Name that address as `url`, if it is right"
            )
        if status in _NOT_THERE:
            raise await self._with_models(client, f"{status} {quoted}")
        if status in _AWAY:
            raise _AwayError(f"{status} {quoted}", _seconds(headers.get("retry-after", "")))
        if 400 <= status < 500:
            raise _RefusedError(f"{status} {quoted}")
        if status != 200:
            raise _NonsenseError(f"{status} {quoted}")
        try:
            answer = json.loads(content)
            writings = tuple(_writing(choice, endpoint.api) for choice in answer["choices"])
            model = answer.get("model") or endpoint.model
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise _NonsenseError(f"no answer of the {endpoint.api} API: {quoted}") from error
        if not isinstance(model, str) or not _is_of(model, endpoint.answers_as or endpoint.model):
            raise self._wrong(
                f"the model {endpoint.answers_as or endpoint.model}",
                f"answers of {self._quoted(str(model).encode())}",
                "Name that one as `model`, if it is meant, or as `answers_as`, if the server calls it so",
            )
        if len(writings) != body.get("n", 1):
            raise _NonsenseError(f"{len(writings)} samples, where {body.get('n', 1)} were asked for")
        self._look_at_tokens(body, answer)
        return writings

    def _look_at_tokens(self, body: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Warn once if the server has read fewer tokens than any prompt of such a length has."""
        usage = answer.get("usage")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        prompt = body.get("prompt") or "".join(message["content"] for message in body["messages"])
        size = len(prompt.encode("utf-8", "replace"))
        if not isinstance(tokens, int) or tokens <= 0 or size < LONG_PROMPT_BYTES:
            return
        if size > MOST_BYTES_A_TOKEN * tokens and not self._has_told_of_cut_prompts:
            self._has_told_of_cut_prompts = True
            logger.warning(
                "proposer %s: expected the server to read the whole prompt, found %d tokens of %d bytes. It cuts "
                "long prompts: give its model a longer window (num_ctx of Ollama), or choose a smaller "
                "max_text_tokens.",
                self._name,
                tokens,
                size,
            )

    async def _sent(
        self, client: "httpx.AsyncClient", method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of what came back, within the limits of time and size."""
        import httpx

        content = bytearray()
        try:
            async with (
                asyncio.timeout(self._endpoint.seconds),
                client.stream(method, f"{self._endpoint.url}{path}", json=body) as response,
            ):
                # As it was sent: packed data within packed data would unpack to gigabytes before any look.
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > MOST_BYTES:
                        raise _NonsenseError(f"an answer of more than {MOST_BYTES:,} bytes")
        except TimeoutError as error:
            raise _NonsenseError(f"no whole answer within {self._endpoint.seconds:g} s") from error
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise _AwayError(f"no connection to {self._endpoint.url} ({error})") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _NonsenseError(f"half an answer or none ({type(error).__name__}: {error})") from error
        return response.status_code, response.headers, _unpacked(bytes(content), response.headers)

    async def _with_models(self, client: "httpx.AsyncClient", problem: str) -> ModelError:
        """The error of a model or an address that is not there, with the models that the server lists."""
        listed = ""
        with contextlib.suppress(
            _AwayError, _NonsenseError, ValueError, LookupError, TypeError, RecursionError
        ):
            _, _, content = await self._sent(client, "GET", "/models")
            names = [str(model["id"]) for model in json.loads(content)["data"]]
            listed = f"; it lists {self._quoted(', '.join(names).encode())}" if names else ""
        api = "the chat API" if self._endpoint.api == "chat" else "the completions API"
        return self._wrong(
            f"the model {self._endpoint.model} and {api}",
            f"{problem}{listed}",
            "Correct `url` (it usually ends in /v1), `model` or `api`, or leave out a field that it refuses "
            '([extra] seed = "")',
        )

    def _wrong(self, expected: str, problem: str, remedy: str) -> ModelError:
        return ModelError(
            f"proposer {self._name}: expected {expected} at {self._endpoint.url}, found {problem}. {remedy}."
        )

    def _quoted(self, content: bytes) -> str:
        """The beginning of what a server said, on one line, without the key."""
        text = content[: 20 * QUOTED_CHARACTERS].decode("utf-8", "replace")
        text = without_secret(text, self._key, f"<{self._endpoint.key}>")
        return escape_control_characters(" ".join(text.split()))[0][:QUOTED_CHARACTERS] or "nothing"

    def _client(self) -> "httpx.AsyncClient":
        import httpx

        headers = {"Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        limits = httpx.Limits(max_connections=self._endpoint.concurrency)
        return httpx.AsyncClient(
            headers=headers, timeout=self._endpoint.seconds, limits=limits, follow_redirects=False
        )

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(
                target=self._loop.run_forever, daemon=True, name=f"proposer {self._name}"
            ).start()
        return self._loop


def _pause(state: "tenacity.RetryCallState") -> float:
    """Seconds before the next try.

    They are drawn at random below a limit that doubles each time, or are what the server asks for.
    """
    import tenacity

    drawn = tenacity.wait_random_exponential(multiplier=FIRST_PAUSE_SECONDS, max=LONGEST_PAUSE_SECONDS)(state)
    error = state.outcome.exception() if state.outcome else None
    return max(drawn, error.pause_seconds if isinstance(error, _AwayError) else 0.0)


def _seconds(retry_after: str) -> float:
    """What the header `Retry-After` asks for, a number of seconds or a date."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(retry_after)
        except ValueError:
            return 0.0
        seconds = moment.timestamp() - datetime.datetime.now(datetime.UTC).timestamp()
    return min(seconds, LONGEST_NAMED_PAUSE_SECONDS) if seconds > 0 else 0.0


def _unpacked(content: bytes, headers: Mapping[str, str]) -> bytes:
    """A body that was packed although none was asked for; raises what `_asked` takes for nonsense."""
    packing = headers.get("content-encoding", "").strip().lower()
    if packing in {"", "identity"}:
        return content
    if packing != "gzip":
        raise _NonsenseError(f"an answer packed as {packing!r:.40}, where none was asked for")
    try:
        unpacked = zlib.decompressobj(wbits=31).decompress(content, MOST_BYTES + 1)
    except zlib.error as error:
        raise _NonsenseError(f"an answer that does not unpack ({error})") from error
    if len(unpacked) > MOST_BYTES:
        raise _NonsenseError(f"an answer of more than {MOST_BYTES:,} bytes")
    return unpacked


def _writing(choice: Mapping[str, Any], api: str) -> Writing:
    """A sample of an answer; raises what `_asked` takes for nonsense."""
    text = choice["message"]["content"] if api == "chat" else choice["text"]
    if text is None and api == "chat":
        text = ""  # of a model that still thinks at the most tokens
    if isinstance(text, list):
        text = "".join(part["text"] for part in text if part.get("type") in {"text", "output_text"})
    if not isinstance(text, str):
        raise TypeError(f"expected a text, found {type(text).__name__}")
    # Half of a surrogate pair, which JSON may write, is no character.
    whole = text.encode("utf-8", "replace").decode("utf-8")
    is_finished = choice.get("finish_reason") not in _CUT_OFF
    return Writing(escape_control_characters(whole)[0], is_finished)


def _is_of(answered: str, model: str) -> bool:
    """Whether the name in an answer is that of the model, or of a dated or revised form of it.

    Such forms are `gpt-x-2026-01-01` and `name@main`. A variant that is asked for after a colon, and the
    maker before a stroke, may be left out.
    """
    without_variant = model.partition(":")[0]
    for name in (model, without_variant, without_variant.rpartition("/")[2]):
        if answered == name or (answered.startswith(name) and _REVISION.fullmatch(answered, len(name))):
            return True
    return False
