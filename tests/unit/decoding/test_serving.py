"""The completions endpoint, asked by OpenAI's own client over a socket."""

import datetime
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import uvicorn

from toolformer_ops.config import Settings
from toolformer_ops.decoding import serving
from toolformer_ops.decoding.model import WritingModel
from toolformer_ops.decoding.records import DecodingSettings, Prompt
from toolformer_ops.errors import ConfigurationError

KEY, NAME = "a key of this test", "writer"
PROMPTS = ["the shop had sold", "we meet today and", "people passed a test in this", "of them"]
DAY = datetime.date(2023, 1, 30)


@pytest.fixture(scope="module")
def model(writing_model_dir) -> WritingModel:
    settings = Settings(_env_file=None)  # type: ignore[call-arg]
    return WritingModel.load(settings, str(writing_model_dir), tools=("Calculator", "Calendar"))


@pytest.fixture(scope="module")
def address(model) -> Iterator[str]:
    """Of a running server."""
    config = uvicorn.Config(serving.completions_app(model, NAME, KEY), port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def client(address):
    return client_of(address, KEY)


def client_of(address: str, key: str) -> Any:
    import openai  # in a CPU second, which the workers that run other files need not spend

    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)


def ask(client: Any, prompt: str | list[str], **more: Any) -> Any:
    ours = {"k": 3, "date": str(DAY)} | more.pop("ours", {})
    return client.completions.create(model=NAME, prompt=prompt, max_tokens=12, extra_body=ours, **more)


def written(model: WritingModel, prompts: list[str], **more: Any) -> list[Any]:
    decoding = DecodingSettings(max_new_tokens=12, call_start_rank=3, **more)
    return model.write([Prompt(prompt, DAY) for prompt in prompts], decoding)


def test_a_completion_is_what_the_model_writes_with_its_calls(client, model):
    answer = ask(client, PROMPTS)
    assert [choice.text for choice in answer.choices] == [text.text for text in written(model, PROMPTS)]


def test_a_choice_names_its_calls(client, model):
    answer = ask(client, PROMPTS)
    made = [[call["input"] for call in choice.calls] for choice in answer.choices]
    assert any(made)
    assert made == [[call.input for call in text.calls] for text in written(model, PROMPTS)]


def test_calls_are_left_out_on_request(client, model):
    answer = ask(client, PROMPTS, ours={"calls_in_text": False})
    assert [choice.text for choice in answer.choices] == [
        text.without_calls for text in written(model, PROMPTS)
    ]


def test_the_evaluation_harness_gets_the_texts_without_their_calls(address, model, tmp_path, monkeypatch):
    lm_eval = pytest.importorskip("lm_eval", reason="needs lm_eval: make install")
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda _: None)  # a list of all packages
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    plain = [text.without_calls for text in written(model, PROMPTS)]
    questions = [{"prompt": prompt, "answer": answer} for prompt, answer in zip(PROMPTS, plain, strict=True)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    task = {
        "task": "prompts",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "questions.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n\n"], "max_gen_toks": 12},
        "metric_list": [{"metric": "exact_match"}],
    }
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"model": NAME, "base_url": f"{address}/v1/completions", "tokenizer_backend": "none"},
        gen_kwargs={"k": 3, "calls_in_text": False, "date": str(DAY)},
        tasks=[task],
        task_manager=lm_eval.tasks.TaskManager(include_defaults=False),
    )
    assert results["results"]["prompts"]["exact_match,none"] == 1.0


def test_the_parts_of_a_stream_join_to_the_text(client, model):
    parts: dict[int, list[str]] = {number: [] for number in range(len(PROMPTS))}
    for chunk in ask(client, PROMPTS, stream=True):
        for choice in chunk.choices:
            parts[choice.index].append(choice.text)
    assert ["".join(of_text) for of_text in parts.values()] == [text.text for text in written(model, PROMPTS)]
    assert max(map(len, parts.values())) > 3


def test_a_stream_holds_no_stop_text(client, model):
    whole = written(model, PROMPTS[:1])[0].without_calls
    stop = whole[len(whole) // 2 :][:6]
    sent = "".join(chunk.choices[0].text for chunk in ask(client, PROMPTS[0], stream=True, stop=stop))
    assert sent == written(model, PROMPTS[:1], stops=(stop,))[0].text
    assert stop not in sent


def test_requests_at_the_same_time_get_what_each_gets_alone(client, model):
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda prompt: ask(client, prompt).choices[0].text, PROMPTS * 3))
    assert answers == [text.text for text in written(model, PROMPTS)] * 3


def test_usage_counts_the_tokens_of_both(client, model):
    usage = ask(client, PROMPTS[0]).usage
    assert usage.prompt_tokens == model.token_count(PROMPTS[0])
    assert usage.completion_tokens == len(written(model, PROMPTS[:1])[0].token_ids)


def test_echo_puts_the_prompt_first(client):
    assert ask(client, PROMPTS[0], echo=True).choices[0].text.startswith(PROMPTS[0])


def test_the_model_has_its_name_and_identity(client, model):
    [served] = client.models.list().data
    assert (served.id, served.identity) == (NAME, model.identity)


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"temperature": 0.7}, 400, "temperature"),
        ({"stop": ""}, 400, "stops: expected texts of at least one character"),
        ({"n": 2}, 400, "n: "),
        ({"stream": True, "calls_in_text": False}, 400, "calls_in_text must be true in a stream"),
        ({"prompt": []}, 400, "prompt must be 1 to 128 texts, found 0"),
        ({"prompt": "word " * 5000}, 400, "Shorten it"),
        ({"model": "another"}, 404, "model: expected writer, found 'another'"),
        ({"unknown": 1}, 400, "unknown"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(address, change, status, message):
    body = {"model": NAME, "prompt": PROMPTS[0], "max_tokens": 4} | change
    answer = httpx.post(
        f"{address}/v1/completions", json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=60
    )
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


def test_a_request_without_the_key_is_refused(address):
    import openai

    with pytest.raises(openai.AuthenticationError):
        ask(client_of(address, "another"), PROMPTS[0])


def test_too_large_a_request_is_refused(address, monkeypatch):
    monkeypatch.setattr(serving, "MOST_BYTES", 100)
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{address}/v1/completions", content=b" " * 200, headers=headers)
    assert answer.status_code == 413


def test_a_client_is_told_to_come_again_if_too_many_prompts_wait(address, monkeypatch):
    monkeypatch.setattr(serving, "MOST_WAITING", 1)
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"model": NAME, "prompt": PROMPTS[:2]}
    answer = httpx.post(f"{address}/v1/completions", json=body, headers=headers)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, str(serving.RETRY_SECONDS))


def test_other_machines_are_served_only_with_a_key(model):
    with pytest.raises(ConfigurationError, match="TOOLFORMER_SERVE_KEY"):
        serving.serve(model, NAME, "10.0.0.1", 8000, "")
