"""A proposer behind an endpoint: what it is asked, what counts as an answer, and what a wrong or hostile server gets."""

import gzip
import json
import time
import tracemalloc
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.openai_server import (
    MODEL,
    OpenAIServer,
    Response,
    continues,
    openai_server,
    text_before_call,
    write_proposer_file,
    written,
)
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, ModelError
from toolformer_ops.language_model.endpoint import client as client_module
from toolformer_ops.language_model.endpoint.answers import FileAnswers, KeptReply
from toolformer_ops.language_model.endpoint.client import (
    CHECK_PROMPT,
    FAILURES_IN_A_ROW,
    MOST_BYTES,
    NO_ANSWER,
    REFUSALS_IN_A_ROW,
    REFUSED,
    TRIES,
    Client,
    Reply,
    Writing,
)
from toolformer_ops.language_model.endpoint.endpoint_file import Endpoint, read_endpoint
from toolformer_ops.language_model.endpoint.proposals import (
    CHANGES_TEXT,
    ELSEWHERE,
    WITHOUT_END,
    EndpointProposer,
    ProposalNumbers,
    TextOfDocument,
)
from toolformer_ops.language_model.tokenization import AnnotationPrompt, TokenizedText
from toolformer_ops.records import CallPosition, SampledContinuation
from toolformer_ops.tools.files.tool_file import tool_files
from toolformer_ops.tools.registry import get_tool

PROMPT = AnnotationPrompt("Calculator", "Add calls.\nInput: {text}\nOutput:")
SUM = "The shop had 520 shirts, sold 187, and has 333 left."
NUMBERS = ProposalNumbers(
    samples=2,
    max_new_tokens=20,
    call_start=" [Calculator(",
    temperature=0.7,
    top_p=0.9,
    until_arrow=False,
    seed=3,
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    for name in ("FIRST_PAUSE_SECONDS", "LONGEST_PAUSE_SECONDS"):
        monkeypatch.setattr(client_module, name, 0.01)


@pytest.fixture
def server():
    with openai_server(continues("520 - 187)")) as running:
        yield running


@pytest.fixture
def bare_settings(tmp_path):
    return Settings(_env_file=None, state_dir=tmp_path, cache_dir=tmp_path / "cache")  # type: ignore[call-arg]


def endpoint_at(url: str, **keys: Any) -> Endpoint:
    return Endpoint(**({"url": url, "model": MODEL, "licence": "mit"} | keys))


def client_of(url: str, *, patience: float = 0.2, **keys: Any) -> Client:
    return Client(endpoint_at(url, **keys), name="writer", patience_seconds=patience)


def replies_of(client: Client, number: int = 1) -> list[Reply]:
    replies = dict(client.ask([{"prompt": f"text {nth}", "max_tokens": 4} for nth in range(number)]))
    return [replies[nth] for nth in range(number)]


def words(text: str) -> TokenizedText:
    starts = (0, *(at for at, character in enumerate(text) if character == " "))
    return TokenizedText(text, tuple(range(len(starts))), starts, tuple(range(len(starts))))


class Memory:
    """Answers in memory."""

    def __init__(self) -> None:
        self.replies: dict[uuid.UUID, Reply] = {}

    def stored(self, keys: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, Reply]:
        return {key: self.replies[key] for key in keys if key in self.replies}

    def keep(self, replies: Sequence[KeptReply]) -> None:
        for kept in replies:
            self.replies.setdefault(kept.request_key, kept.reply)


def proposer_of(server: OpenAIServer, answers: Memory | None = None, **keys: Any) -> EndpointProposer:
    endpoint = endpoint_at(server.url, **keys)
    client = Client(endpoint, name="writer", patience_seconds=0.2)
    return EndpointProposer(endpoint, client, answers or Memory())


def proposed(
    proposer: EndpointProposer, text: str, tokens: Sequence[int], numbers: ProposalNumbers = NUMBERS
) -> tuple[list[list[SampledContinuation]], Counter[str]]:
    proposals = proposer.start(PROMPT, [TextOfDocument(text, uuid.UUID(int=1))], numbers, words)
    proposals.add(text, tokens, "key")
    [samples] = proposals.finish()
    return samples, proposals.refused[0]


# What is asked


def test_a_model_that_continues_text_reads_the_prompt_up_to_the_calls_opening(server):
    proposed(proposer_of(server), SUM, [9])
    expected = f"Add calls.\nInput: {SUM}\nOutput: The shop had 520 shirts, sold 187, and has [Calculator("
    assert {body["prompt"] for body in server.requests} == {expected}


def test_a_request_has_the_runs_numbers(server):
    proposed(proposer_of(server), SUM, [9])
    first = server.requests[0]
    numbers = {name: first[name] for name in ("model", "max_tokens", "temperature", "top_p", "stop")}
    assert numbers == {"model": MODEL, "max_tokens": 20, "temperature": 0.7, "top_p": 0.9, "stop": ["]"]}


def test_each_sample_has_another_seed(server):
    proposed(proposer_of(server), SUM, [8, 9])
    assert len(server.requests) == 4
    assert len({body["seed"] for body in server.requests}) == 2


@pytest.mark.parametrize(("samples", "asked"), [(5, [2, 2, 1]), (2, [2]), (1, [1])])
def test_one_request_asks_for_as_many_samples_as_the_file_says(server, samples, asked):
    proposer = proposer_of(server, answers_per_request=2)
    [found], _ = proposed(proposer, SUM, [9], replace(NUMBERS, samples=samples))
    assert len(found) == samples
    assert sorted((body.get("n", 1) for body in server.requests), reverse=True) == asked


def test_further_fields_of_the_file_are_sent(server):
    proposed(proposer_of(server, extra={"min_p": 0.1, "seed": ""}), SUM, [9])
    assert server.requests[0]["min_p"] == 0.1
    assert "seed" not in server.requests[0]


def test_a_sample_is_what_stands_between_the_brackets(server):
    server.script = continues("520 - 187)] 333 left")  # a server that goes on behind the end
    samples, _ = proposed(proposer_of(server), SUM, [9])
    assert samples == [[SampledContinuation("Calculator(520 - 187)", True)] * 2]


def test_a_sample_that_ends_at_the_most_tokens_has_no_end(server):
    server.script = lambda _: written("520 - ", finish_reason="length")
    samples, _ = proposed(proposer_of(server), SUM, [9])
    assert samples == [[SampledContinuation("Calculator(520 - ", False)] * 2]


# Models that chat

CALL = "[Calculator(520 - 187)]"
CHATS = [
    ("call before a word", SUM.replace("333", f"{CALL} 333"), {9: 2}, {}),
    ("call with a result", SUM.replace("333", "[Calculator(520 - 187) -> 333] 333"), {9: 2}, {}),
    ("two calls", SUM.replace("333", f"{CALL} 333").replace("187,", f"{CALL} 187,"), {6: 2, 9: 2}, {}),
    ("white space around it", f"\n {SUM.replace('333', f'{CALL} 333')}\n", {9: 2}, {}),
    ("thoughts before it", f"<think>\nHm {SUM}</think>\n\n{SUM.replace('333', f'{CALL} 333')}", {9: 2}, {}),
    ("the end of thoughts before it", f"Hm.</think>{SUM.replace('333', f'{CALL} 333')}", {9: 2}, {}),
    ("no call", SUM, {}, {}),
    ("another word", SUM.replace("shirts", "socks").replace("333", f"{CALL} 333"), {}, {CHANGES_TEXT: 2}),
    ("words before it", f"Sure! {SUM}", {}, {CHANGES_TEXT: 2}),
    ("half of it", f"The shop had {CALL} 520", {}, {CHANGES_TEXT: 2}),
    ("another tool", SUM.replace("333", "[QA(520 - 187)] 333"), {}, {CHANGES_TEXT: 2}),
    ("call before all", f"{CALL} {SUM}", {}, {ELSEWHERE: 2}),
    ("call behind all", f"{SUM} {CALL}", {}, {ELSEWHERE: 2}),
    ("nothing", "", {}, {CHANGES_TEXT: 2}),
]


@pytest.mark.parametrize(
    ("answer", "calls", "refused"), [chat[1:] for chat in CHATS], ids=[chat[0] for chat in CHATS]
)
def test_an_answer_of_a_chat_counts_if_it_is_the_text_without_its_calls(server, answer, calls, refused):
    server.script = continues(answer)
    text = words(SUM)
    proposals = proposer_of(server, api="chat").start(
        PROMPT, [TextOfDocument(SUM, uuid.UUID(int=1))], NUMBERS, words
    )
    tokens = [
        token
        for token, start in enumerate(text.starts)
        if token and proposals.allows(0, CallPosition(token, start, 0.5))
    ]
    proposals.add(SUM, tokens, "key")
    [samples] = proposals.finish()
    assert dict(zip(tokens, map(len, samples), strict=True)) == calls
    assert proposals.refused[0] == refused


def test_an_answer_of_a_chat_that_was_cut_off_is_refused(server):
    server.script = lambda _: written(SUM, finish_reason="length")
    _, refused = proposed(proposer_of(server, api="chat"), SUM, [])
    assert refused == {WITHOUT_END: 2}


def test_a_chat_gets_the_tools_prompt_as_a_message(server):
    server.script = continues(SUM)
    proposed(proposer_of(server, api="chat"), SUM, [])
    assert server.paths[0] == "/v1/chat/completions"
    assert server.requests[0]["messages"][-1] == {
        "role": "user",
        "content": f"Add calls.\nInput: {SUM}\nOutput:",
    }


def test_a_text_that_begins_with_white_space_keeps_its_places(server):
    text = f"  {SUM}"
    server.script = continues(SUM.replace("333", f"{CALL} 333"))
    proposals = proposer_of(server, api="chat").start(
        PROMPT, [TextOfDocument(text, uuid.UUID(int=1))], NUMBERS, words
    )
    place = text.index(" 333")
    assert proposals.allows(0, CallPosition(1, place, 0.5))
    assert not proposals.allows(0, CallPosition(1, text.index(" left"), 0.5))


# Answers are kept


def test_what_was_answered_is_not_asked_again(server):
    answers = Memory()
    first = proposed(proposer_of(server, answers), SUM, [8, 9])
    server.script = continues("1 + 1)")
    asked = len(server.requests)
    assert proposed(proposer_of(server, answers), SUM, [8, 9]) == first
    assert len(server.requests) == asked


def test_what_was_answered_before_the_server_died_is_kept(server):
    answers = Memory()

    def dies(body: dict[str, Any]) -> Response:
        return written("1)") if len(server.requests) <= 3 else Response(status=503)

    server.script = dies
    with pytest.raises(ModelError, match="503"):
        proposed(proposer_of(server, answers, concurrency=1), SUM, [7, 8, 9])
    assert len(answers.replies) == 3


def test_another_model_is_asked_anew(server):
    answers = Memory()
    proposed(proposer_of(server, answers), SUM, [9])
    server.script = lambda _: written("2)", model="maker/other")
    proposed(proposer_of(server, answers, model="maker/other"), SUM, [9])
    assert len(server.requests) == 4


def test_replies_in_a_file_outlive_a_line_that_was_cut_off(bare_settings):
    reply = Reply((Writing("ü 1)", True),))
    keys = [uuid.UUID(int=nth) for nth in range(3)]
    store = FileAnswers(bare_settings, "endpoint:m@1")
    store.keep([KeptReply(key, key, reply) for key in keys[:2]])
    content = store.path.read_bytes()
    store.path.write_bytes(content[:-10])
    again = FileAnswers(bare_settings, "endpoint:m@1")
    assert again.stored(keys) == {keys[0]: reply}
    again.keep([KeptReply(keys[1], keys[1], reply), KeptReply(keys[2], keys[2], reply)])
    assert FileAnswers(bare_settings, "endpoint:m@1").stored(keys) == dict.fromkeys(keys, reply)


# Servers that are wrong

WRONG = [
    ("another model", written("2", model="maker/other"), "answers of maker/other"),
    ("no such model", Response(b'{"error": "no such model"}', 404), f"it lists {MODEL}"),
    ("a key that is refused", Response(b"who are you?", 401), "Correct the secret that `key` names"),
    ("a redirect", Response(b"", 302, {"Location": "http://other/v1"}), "a redirect to http://other/v1"),
    ("HTML", Response(b"<html><body>Welcome</body></html>"), "<html><body>Welcome"),
    ("another format", Response(b'{"answer": 42}'), "no answer of the completions API"),
    ("a list", Response(b"[[[[]]]]"), "no answer of the completions API"),
    ("no text", Response(json.dumps({"model": MODEL, "choices": [{"text": None}]}).encode()), "no answer of"),
    ("half an answer", Response(b'{"choices": [{"te', sent=5), "half an answer"),
    ("an error of its own", Response(b"boom", 500), "500 boom"),
    ("an overload", Response(b"busy", 503), "503 busy"),
    ("a refusal", Response(b"max_tokens is too large", 400), "max_tokens is too large"),
    ("an endless body", Response(b"x" * 2**20, is_endless=True), "more than 8,388,608 bytes"),
    ("silence", Response(b"{}", delay=1.0), "within 0.5 s"),
]


@pytest.mark.parametrize(("response", "said"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_server_is_named_before_any_text_is_asked(server, response, said):
    server.script = lambda _: response
    with pytest.raises(ModelError) as raised:
        client_of(server.url, seconds=0.5).check()
    assert said in str(raised.value)
    assert str(raised.value).startswith("proposer writer: expected ")
    assert server.requests == []


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(ModelError, match=r"no connection to http://127\.0\.0\.1:9/v1"):
        client_of("http://127.0.0.1:9/v1").check()


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_right_server_is_asked_a_sum_with_all_fields_of_a_run(server, api):
    answers = Memory()
    server.script = continues(SUM)
    proposer = proposer_of(server, answers, api=api, answers_per_request=2)
    proposer.check()
    proposed(proposer, SUM, [9] if api == "completions" else [])
    assert server.checks[0].keys() == server.requests[0].keys()
    assert CHECK_PROMPT in json.dumps(server.checks)


NAMES = [
    (MODEL, MODEL, True),
    (MODEL, f"{MODEL}-2026-01-01", True),
    (MODEL, f"{MODEL}-20260101", True),
    (MODEL, f"{MODEL}-0613", True),
    (MODEL, f"{MODEL}-latest", True),
    (MODEL, f"{MODEL}@main", True),
    (MODEL, "writer", True),
    (f"{MODEL}:free", MODEL, True),
    (MODEL, None, True),
    (MODEL, "", True),
    (MODEL, f"{MODEL}-Instruct-1B-other", False),
    (MODEL, f"{MODEL}-2026-01-01-other", False),
    (MODEL, f"{MODEL}2", False),
    (MODEL, "other/writer", False),
    (MODEL, 7, False),
]


@pytest.mark.parametrize(("asked", "answered", "is_accepted"), NAMES)
def test_only_a_dated_or_revised_name_is_that_of_the_model(server, asked, answered, is_accepted):
    server.script = lambda _: written("2", model=answered)
    client = client_of(server.url, model=asked)
    if is_accepted:
        client.check()
    else:
        with pytest.raises(ModelError, match="or as `answers_as`, if the server calls it so"):
            client.check()


def test_the_file_says_what_the_server_calls_the_model_of_a_deployment(server):
    server.script = lambda _: written("2", model="gpt-x-2026-01-01")
    client_of(server.url, model="our-deployment", answers_as="gpt-x").check()


def chat_answer(content: Any, finish_reason: Any = "stop") -> Response:
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
    return Response(json.dumps({"model": MODEL, "choices": [choice]}).encode())


ANSWERS = [
    ("a text", chat_answer("a"), Writing("a", True)),
    ("null of a model that thinks", chat_answer(None, "length"), Writing("", False)),
    (
        "parts",
        chat_answer([{"type": "text", "text": "a"}, {"type": "thinking"}, {"type": "text", "text": "b"}]),
        Writing("ab", True),
    ),
    ("no reason of its end", chat_answer("a", None), Writing("a", True)),
    ("TGI's reason", chat_answer("a", "eos_token"), Writing("a", True)),
    ("cut off", chat_answer("a", "length"), Writing("a", False)),
]


@pytest.mark.parametrize(
    ("response", "writing"), [case[1:] for case in ANSWERS], ids=[case[0] for case in ANSWERS]
)
def test_what_servers_of_all_makers_answer_is_an_answer(server, response, writing):
    server.script = lambda _: response
    client = client_of(server.url, api="chat")
    [(_, reply)] = client.ask([{"messages": [{"role": "user", "content": "a"}]}])
    assert reply == Reply((writing,))


def test_a_field_that_the_server_refuses_is_told_at_the_start(server):
    server.script = lambda body: Response(b"n: unknown", 400) if "n" in body else written("1")
    with pytest.raises(ModelError, match=r"n: unknown.*or leave out a field that it refuses"):
        client_of(server.url, answers_per_request=2).check()


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_packed_data_is_not_unpacked_beyond_the_limit(server, layers):
    packed = b"a" * (64 * 2**20)
    for _ in range(layers):
        packed = gzip.compress(packed)
    response = Response(packed, headers={"Content-Encoding": ", ".join(["gzip"] * layers)})
    server.script = lambda _: response
    tracemalloc.start()
    with pytest.raises(ModelError, match="an answer"):
        client_of(server.url).check()
    assert tracemalloc.get_traced_memory()[1] < 4 * MOST_BYTES
    tracemalloc.stop()


def test_a_packed_answer_is_read(server):
    server.script = lambda _: replace(
        written("1"), body=gzip.compress(written("1").body), headers={"Content-Encoding": "gzip"}
    )
    client_of(server.url).check()


KEY = 'sk-4f"9a/1c\\7e-0123456789'
SAID_KEYS = {
    "as it is": KEY,
    "in JSON": json.dumps({"key": KEY}),
    "in JSON with strokes": json.dumps({"key": KEY}).replace("/", "\\/"),
    "in JSON by numbers": json.dumps({"key": KEY.replace("-", "~")}).replace("~", "\\u002d"),
    "cut": KEY[:12],
    "masked": f"{KEY[:8]}***{KEY[-8:]}",
    "at the end of what is quoted": "x " * 95 + KEY,
}


@pytest.mark.parametrize("said", SAID_KEYS)
def test_no_piece_of_the_key_is_in_a_message(server, monkeypatch, said):
    monkeypatch.setenv("WRITER_KEY", KEY)
    server.script = lambda _: Response(SAID_KEYS[said].encode(), 401)
    with pytest.raises(ModelError) as refused:
        client_of(server.url, key="WRITER_KEY").check()
    pieces = [KEY[at : at + 8] for at in range(len(KEY) - 7)]
    assert [piece for piece in pieces if piece in str(refused.value)] == []


PAUSES = {
    "7": 7.0,
    "1.5": 1.5,
    "9999": 300.0,
    "-3": 0.0,
    "soon": 0.0,
    "": 0.0,
    "nan": 0.0,
    "Wed, 21 Oct 2015 07:28:00 GMT": 0.0,
    "Wed, 21 Oct 2215 07:28:00 GMT": 300.0,
}


@pytest.mark.parametrize("header", PAUSES)
def test_a_server_names_the_pause_as_a_number_or_a_date(header):
    assert client_module._seconds(header) == PAUSES[header]


def test_a_prompt_that_the_server_cuts_is_told_once(server, caplog):
    body = json.loads(written("1").body) | {"usage": {"prompt_tokens": 256}}
    server.script = lambda _: Response(json.dumps(body).encode())
    list(client_of(server.url).ask([{"prompt": "word " * 2000}] * 3))
    assert [line for line in caplog.messages if "found 256 tokens of 10000 bytes" in line] == caplog.messages[
        :1
    ]


# In the middle of a run


def failing(server: OpenAIServer, response: Response, times: int, of: str = "text 0") -> None:
    """The first so many requests with this text get the response, all others an answer."""
    seen: Counter[str] = Counter()

    def script(body: dict[str, Any]) -> Response:
        seen[body["prompt"]] += 1
        return response if body["prompt"] == of and seen[of] <= times else written("1)")

    server.script = script


@pytest.mark.parametrize(
    "response",
    [
        Response(b"busy", 429),
        Response(b"", 503, {"Retry-After": "0"}),
        Response(b"boom", 500),
        Response(b"timed out", 524),
        Response(b"overloaded", 529),
        Response(b"<html>", 200),
        Response(b"{}", sent=1),
    ],
    ids=["429", "503", "500", "524", "529", "HTML", "half"],
)
def test_what_passes_is_asked_again(server, response):
    failing(server, response, times=TRIES - 1)
    assert replies_of(client_of(server.url, patience=30.0)) == [Reply((Writing("1)", True),))]


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (Response(b"too long", 400), REFUSED),
        (Response(b"too large", 413), REFUSED),
        (Response(b"boom", 500), NO_ANSWER),
    ],
)
def test_a_text_that_alone_gets_no_answer_is_counted(server, response, reason):
    failing(server, response, times=1000)
    replies = replies_of(client_of(server.url), 3)
    assert [reply.reason for reply in replies] == [reason, "", ""]


def test_a_refused_sample_is_counted_instead_of_lost(server):
    server.script = lambda body: (
        Response(b"no", 400) if body["prompt"].endswith("has [Calculator(") else written("1)")
    )
    samples, refused = proposed(proposer_of(server), SUM, [8, 9])
    assert (list(map(len, samples)), refused) == ([2, 0], {REFUSED: 2})


def test_refusals_of_all_texts_end_the_work(server):
    server.script = lambda _: Response(b"unknown field seed", 400)
    with pytest.raises(ModelError, match=f"{REFUSALS_IN_A_ROW} refusals in a row: 400 unknown field seed"):
        replies_of(client_of(server.url), 2 * REFUSALS_IN_A_ROW)


def test_nonsense_for_all_texts_ends_the_work(server):
    server.script = lambda body: written("2") if CHECK_PROMPT in body["prompt"] else Response(b"boom", 500)
    with pytest.raises(ModelError, match="none after 5 tries: 500 boom"):
        replies_of(client_of(server.url), 2 * FAILURES_IN_A_ROW)


def test_a_server_that_stays_away_ends_the_work_after_its_budget(server):
    server.script = lambda _: Response(b"busy", 503)
    with pytest.raises(ModelError, match=r"expected an answer within 0.2 s .* 503 busy"):
        replies_of(client_of(server.url, patience=0.2))


def test_another_model_in_the_middle_ends_the_work(server):
    failing(server, written("1)", model="maker/other"), times=1)
    with pytest.raises(ModelError, match="answers of maker/other"):
        replies_of(client_of(server.url), 3)


def test_no_more_requests_are_under_way_than_the_file_says(server):
    under_way: Counter[str] = Counter()
    most: list[int] = []

    def script(body: dict[str, Any]) -> Response:
        under_way["now"] += 1
        most.append(under_way["now"])
        time.sleep(0.02)
        under_way["now"] -= 1
        return written("1)")

    server.script = script
    replies_of(client_of(server.url, concurrency=3), 12)
    assert max(most) <= 3


# The key


def test_the_key_is_sent_as_a_bearer_token(server, monkeypatch):
    monkeypatch.setenv("WRITER_KEY", "sesame")
    client_of(server.url, key="WRITER_KEY").check()
    assert server.headers[0]["Authorization"] == "Bearer sesame"


def test_a_key_that_a_server_repeats_is_not_told(server, monkeypatch):
    monkeypatch.setenv("WRITER_KEY", "sesame")
    server.script = lambda _: Response(b"wrong key sesame", 401)
    with pytest.raises(ModelError, match="wrong key <WRITER_KEY>"):
        client_of(server.url, key="WRITER_KEY").check()


@pytest.mark.parametrize("value", ["", "line\nbreak", "schlüssel", " sesame"])
def test_a_key_that_cannot_be_sent_is_refused_without_telling_it(monkeypatch, value):
    monkeypatch.setenv("WRITER_KEY", value)
    with pytest.raises(ConfigurationError, match="WRITER_KEY") as raised:
        client_of("http://127.0.0.1:9/v1", key="WRITER_KEY")
    assert not value or value not in str(raised.value)


def test_a_redirect_gets_no_key(server, monkeypatch):
    monkeypatch.setenv("WRITER_KEY", "sesame")
    with openai_server(continues("2")) as other:
        server.script = lambda _: Response(b"", 307, {"Location": f"{other.url}/completions"})
        with pytest.raises(ModelError, match="a redirect"):
            client_of(server.url, key="WRITER_KEY").check()
        assert other.headers == []


# The file


def test_a_file_of_a_proposer_is_no_tool(bare_settings):
    write_proposer_file(bare_settings.tools_folder, "http://h/v1")
    assert tool_files(bare_settings.tools_folder) == []


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"url": "ftp://h/v1"}, "url: expected an address with http:// or https://"),
        ({"url": "http://user:word@h/v1"}, "without user, password"),
        ({"licence": ""}, "licence: "),
        ({"api": "responses"}, "api: "),
        ({"key": "TOOLFORMER_DATABASE_DSN"}, "not of this deployment itself"),
        ({"key": "AIRFLOW_CONN_X"}, "not of this deployment itself"),
        ({"concurrency": 0}, "concurrency: "),
        ({"speed": 3}, "speed: "),
    ],
)
def test_a_wrong_key_of_the_file_is_named(bare_settings, keys, said):
    address = write_proposer_file(bare_settings.tools_folder, **({"url": "http://h/v1"} | keys))
    with pytest.raises(ConfigurationError, match=said):
        read_endpoint(bare_settings, address)


@pytest.mark.parametrize("name", ["other", "../writer", "a/b", ""])
def test_a_proposer_without_a_file_is_refused(bare_settings, name):
    write_proposer_file(bare_settings.tools_folder, "http://h/v1")
    with pytest.raises(ConfigurationError, match="found writer"):
        read_endpoint(bare_settings, f"endpoint:{name}")


def test_the_address_decides_no_answer():
    same = {endpoint_at(url).identity for url in ("http://one/v1", "http://two/v1")}
    asked_otherwise = {
        endpoint_at("http://one/v1", **keys).identity for keys in ({"api": "chat"}, {"model": "n"})
    }
    assert len(same) == 1
    assert not same & asked_otherwise


def test_the_prompt_is_the_tools_own(server):
    tool = get_tool("Calculator")
    prompt = AnnotationPrompt("Calculator", tool.prompt)
    proposals = proposer_of(server).start(prompt, [TextOfDocument(SUM, uuid.UUID(int=1))], NUMBERS, words)
    proposals.add(SUM, [9], "key")
    proposals.finish()
    assert server.requests[0]["prompt"].startswith(tool.prompt.partition("{text}")[0] + SUM)
    assert text_before_call(server.requests[0]) == "The shop had 520 shirts, sold 187, and has"
