"""A release as JSON Lines of chat messages: on disk and on S3, read by datasets, rendered by templates, trained on by TRL."""

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.tiny_models import save_tiny_llama
from toolformer_ops.__main__ import app
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import ConfigurationError, ModelError, UsageError
from toolformer_ops.release.chat_export import export_chat, plain_text
from toolformer_ops.release.format import ReleasedCall, ReleasedText, ReleaseWriter
from toolformer_ops.storage.publication import ObjectStore

# A template of the kind that tools-capable models bring: tools in the system turn, calls as JSON, results in a turn of their own.
TEMPLATE = (
    "{%- if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|end|>{% endif %}"
    "{%- for message in messages %}<|{{ message.role }}|>"
    "{%- if message.role == 'assistant' %}{% generation %}{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>"
    "{%- endfor %}<|end|>{% endgeneration %}"
    "{%- else %}{{ message.content }}<|end|>{% endif %}{% endfor %}"
)
TEXTS = (
    "Out of 1400 people, 400 passed, that is 29 %.",
    "Today is the first Friday of the year, and the shop is open.",
    "He wrote O homem suprimido, a book of 12 * 7 = 84 pages.\nIt [sic] ends, «so».",
)
CALLS = (
    [("Calculator", " 29", "400 / 1400", "0.29")],
    [
        ("Calendar", " Friday", "", "Today is Friday, January 6, 2023."),
        ("QA", " shop", 'What is "open"?', "the [shop]"),
    ],
    [("MT", ", a", "O homem suprimido", "The suppressed man"), ("Calculator", " 84", "12 * 7", "84")],
)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder with a release of three texts with five calls of four tools."""
    folder = tmp_path / "release"
    folder.mkdir()
    with ReleaseWriter(folder) as writer:
        for plain, calls in zip(TEXTS, CALLS, strict=True):
            released = [
                ReleasedCall(
                    str(uuid.uuid5(uuid.NAMESPACE_URL, f"{tool} {call_input}")), tool, call_input, result,
                    plain.index(before), 0.5, 3.0, 3.0, 1.0, 2.0, "a", "b", "c",
                )
                for tool, before, call_input, result in calls
            ]  # fmt: skip
            writer.write(ReleasedText.of(uuid.uuid5(uuid.NAMESPACE_URL, plain), plain, released, None))
    return folder


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_text_becomes_a_line_that_offers_all_tools_of_the_release(release: Path, tmp_path: Path) -> None:
    export = export_chat(load_settings(), str(release), str(tmp_path / "chat"), seed=0)
    assert (export.address, export.conversations, export.calls, export.written) == (
        str(tmp_path / "chat" / "train.jsonl"), 3, 5, True,
    )  # fmt: skip
    rows = _lines(tmp_path / "chat" / "train.jsonl")
    assert [plain_text(row["messages"]) for row in rows] == list(TEXTS)
    for row in rows:
        names = [tool["function"]["name"] for tool in row["tools"]]
        assert names == ["Calculator", "Calendar", "QA", "MT"]


def test_a_second_export_changes_nothing_and_another_one_is_refused(release: Path, tmp_path: Path) -> None:
    out = tmp_path / "chat.jsonl"
    first = export_chat(load_settings(), str(release), str(out), seed=0)
    before = out.stat().st_mtime_ns
    again = export_chat(load_settings(), str(release), str(out), seed=0)
    assert (first.written, again.written, again.sha256) == (True, False, first.sha256)
    with pytest.raises(UsageError, match=r"expected nothing or this very export at .*, found something else"):
        export_chat(load_settings(), str(release), str(out), seed=1)
    assert out.stat().st_mtime_ns == before
    assert list(tmp_path.glob("*.partial")) == []


def test_a_place_without_a_release_is_said(tmp_path: Path) -> None:
    for folder, said in ((tmp_path / "no", "found nothing at"), (tmp_path, "found a folder without them")):
        with pytest.raises(UsageError, match=f"expected a folder with part-.*parquet .*, {said}"):
            export_chat(load_settings(), str(folder), str(tmp_path / "chat"), seed=0)
    assert not (tmp_path / "chat").exists()


def test_from_s3_to_s3_is_the_same_file(s3_settings: Settings, release: Path, tmp_path: Path) -> None:
    store = ObjectStore(s3_settings)
    manifest = store.publish("releases/abc", {path.name: path for path in release.iterdir()})
    local = export_chat(s3_settings, str(release), str(tmp_path / "chat.jsonl"), seed=0)
    source, target = store.uri(manifest.prefix), store.uri("exports/abc")
    remote = export_chat(s3_settings, source, target, seed=0)
    assert remote.address == f"{target}/train.jsonl"
    assert remote.sha256 == local.sha256
    assert store.get("exports/abc/train.jsonl") == (tmp_path / "chat.jsonl").read_bytes()
    assert export_chat(s3_settings, source, target, seed=0).written is False
    with pytest.raises(UsageError, match="found something else"):
        export_chat(s3_settings, source, target, seed=1)
    with pytest.raises(UsageError, match=r"RELEASE: expected a publication at .*releases/none"):
        export_chat(s3_settings, store.uri("releases/none"), target, seed=0)
    with pytest.raises(ConfigurationError, match="TOOLFORMER_S3_BUCKET"):
        export_chat(s3_settings, source, "s3://of-somebody-else/exports", seed=0)


def test_the_command_writes_and_refuses_a_format_that_is_not_known(release: Path, tmp_path: Path) -> None:
    command = ["export", str(release), str(tmp_path / "chat"), "--format"]
    assert json.loads(CliRunner().invoke(app, [*command, "chat"]).stdout)["conversations"] == 3
    refused = CliRunner().invoke(app, [*command, "alpaca"]).exception
    assert isinstance(refused, UsageError)
    assert "--format: expected one of chat, preference, preference-text, found 'alpaca'." in str(refused)


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model without a chat template; not to be written to."""
    return save_tiny_llama(tmp_path_factory.mktemp("plain") / "model")


def with_template(model: Path, folder: Path, template: str | None) -> Path:
    """A copy of the model whose tokenizer has that chat template."""
    from transformers import AutoTokenizer

    shutil.copytree(model, folder)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tools_model(plain_model: Path) -> Path:
    """A folder with the same model and a chat template with tools; not to be written to."""
    return with_template(plain_model, plain_model.parent / "tools", TEMPLATE)


@pytest.fixture(scope="module")
def tokenizer(tools_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tools_model)


SMOLLM2_TEMPLATE = (  # of SmolLM2-135M-Instruct
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful "
    "AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TEMPLATE, None),
        (SMOLLM2_TEMPLATE, "the chat template drops the tools and calls without an error"),
        (TEMPLATE.replace("{{ tool | tojson }}", ""), "drops the tools without"),
        (TEMPLATE.replace("{{ call.function.arguments | tojson }}", ""), "drops calls without"),
        (TEMPLATE.replace("{%- else %}{{ message.content }}", "{%- else %}"), "drops results without"),
        (
            "{{ raise_exception('only users may speak') }}",
            "cannot render a conversation with a call: only users may speak",
        ),
        (None, "expected a chat template, found none"),
    ],
)
def test_a_template_that_loses_tools_calls_or_results_is_warned_of(
    release: Path, plain_model: Path, tmp_path: Path, template: str | None, expected: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    model = with_template(plain_model, tmp_path / "model", template)
    export = export_chat(load_settings(), str(release), str(tmp_path / "chat.jsonl"), seed=0, model=str(model))
    assert export.written
    assert len(export.warnings) == (0 if expected is None else 1)
    assert (expected or "") in "".join(export.warnings)
    assert [line.message for line in caplog.records if line.levelname == "WARNING"] == list(export.warnings)


def test_the_model_of_the_settings_is_asked_if_none_is_named_and_must_not_be_there(
    release: Path, plain_model: Path, tools_model: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "no model"
    for default, named, warnings in ((plain_model, "", 1), (plain_model, str(tools_model), 0), (missing, "", 0)):
        settings = load_settings().model_copy(update={"default_model": str(default)})
        export = export_chat(settings, str(release), str(tmp_path / "chat.jsonl"), seed=0, model=named)
        assert len(export.warnings) == warnings
    with pytest.raises(ModelError):
        export_chat(load_settings(), str(release), str(tmp_path / "chat.jsonl"), seed=0, model=str(missing))


@pytest.fixture
def chat_dataset(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The export as the library `datasets` loads it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import load_dataset

    export = export_chat(load_settings(), str(release), str(tmp_path / "chat"), seed=0)
    return load_dataset("json", data_files=export.address, split="train", cache_dir=str(tmp_path / "cache"))


def test_datasets_loads_it_without_a_null_that_was_not_there(chat_dataset: Any, tmp_path: Path) -> None:
    rows = _lines(tmp_path / "chat" / "train.jsonl")
    assert [dict(row) for row in chat_dataset] == rows


def test_a_chat_template_renders_every_text_call_and_result(chat_dataset: Any, tokenizer: Any) -> None:
    row = chat_dataset[1]
    rendered = tokenizer.apply_chat_template(row["messages"], tools=row["tools"], tokenize=False)
    assert rendered.count("<call>") == 2
    answer = "<|end|><|tool|>Today is Friday, January 6, 2023.<|end|>"
    assert f"<call>Calendar {{}}</call>{answer}<|assistant|> Friday" in rendered
    assert '<call>QA {"input": "What is \\"open\\"?"}</call><|end|><|tool|>the [shop]<|end|>' in rendered
    assert rendered.endswith("<|assistant|> shop is open.<|end|>")
    assert "null" not in rendered.lower()


def test_the_templates_of_qwen_3_and_others_render_calls_and_results(chat_dataset: Any, tokenizer: Any) -> None:
    import trl

    folder = Path(trl.__file__).parent / "chat_templates"
    for name in ("qwen2_5", "qwen3_training", "glm4moe_training", "nemotron_3_nano"):
        template = (folder / f"{name}.jinja").read_text(encoding="utf-8")
        for row in chat_dataset:
            rendered = tokenizer.apply_chat_template(
                row["messages"], tools=row["tools"], chat_template=template, tokenize=False
            )
            for message in row["messages"]:
                assert message["content"].strip() in rendered, name
                for call in message.get("tool_calls", ()):
                    assert call["function"]["name"] in rendered


def test_trl_trains_a_few_steps_on_it(chat_dataset: Any, tools_model: Path, tmp_path: Path) -> None:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl import SFTConfig, SFTTrainer

    arguments = SFTConfig(
        output_dir=str(tmp_path / "trained"), max_steps=3, per_device_train_batch_size=3, learning_rate=1e-2, logging_steps=1,
        assistant_only_loss=True, use_cpu=True, report_to=[], save_strategy="no", bf16=False,
        max_length=1024, model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    trainer = SFTTrainer(model=str(tools_model), args=arguments, train_dataset=chat_dataset)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    batch = next(iter(trainer.get_train_dataloader()))
    scored = batch["labels"] != -100
    assert (
        0 < int(scored.sum()) < int(batch["attention_mask"].sum())
    )  # the assistant's words, and not the user's or tools'
