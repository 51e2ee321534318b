"""A release as JSON Lines of chat messages: on disk and on S3, and what a chat template loses of them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.finetuning_jobs import plain_text, released_call, released_text
from toolformer_ops.__main__ import app
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ConfigurationError, ModelError, UsageError
from toolformer_ops.release.chat_export import export_chat
from toolformer_ops.release.conversations import CONTINUE, FORMS
from toolformer_ops.release.format import write_texts
from toolformer_ops.release.opened_release import address_of_release
from toolformer_ops.storage.objects.publication import ObjectStore

# A template of the kind that tools-capable models bring: tools in the system turn, calls as JSON, results in
# a turn of their own.
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


def test_a_release_is_exported_by_its_id(s3_settings):
    address = f"s3://{s3_settings.s3_bucket}/releases/0123456789abcdef"
    assert address_of_release(s3_settings, "0123456789abcdef") == address


def test_a_folder_that_exists_is_no_id(s3_settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("0123456789abcdef").mkdir()
    assert address_of_release(s3_settings, "0123456789abcdef") == "0123456789abcdef"


@pytest.fixture
def release(tmp_path):
    """A folder with a release of three texts with five calls of four tools."""
    folder = tmp_path / "release"
    folder.mkdir()
    texts = []
    for plain, calls in zip(TEXTS, CALLS, strict=True):
        released = [
            released_call(plain.index(before), asked, result, tool) for tool, before, asked, result in calls
        ]
        texts.append(released_text(plain, *released))
    write_texts(folder, texts)
    return folder


def test_every_text_becomes_a_line_that_offers_all_tools_of_the_release(release, tmp_path):
    export = export_chat(load_settings(), str(release), str(tmp_path / "chat"), seed=0)
    path = tmp_path / "chat" / "train.jsonl"
    assert (export.address, export.conversations, export.calls, export.written) == (str(path), 3, 5, True)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [plain_text(row["messages"]) for row in rows] == list(TEXTS)
    for row in rows:
        assert [tool["function"]["name"] for tool in row["tools"]] == ["Calculator", "Calendar", "QA", "MT"]


def test_a_second_export_changes_nothing(release, tmp_path):
    out = tmp_path / "chat.jsonl"
    first = export_chat(load_settings(), str(release), str(out), seed=0)
    before = out.stat().st_mtime_ns
    again = export_chat(load_settings(), str(release), str(out), seed=0)
    assert (first.written, again.written, again.sha256) == (True, False, first.sha256)
    assert out.stat().st_mtime_ns == before


def test_another_export_over_the_first_is_refused(release, tmp_path):
    out = tmp_path / "chat.jsonl"
    export_chat(load_settings(), str(release), str(out), seed=0)
    before = out.stat().st_mtime_ns
    with pytest.raises(UsageError, match="expected nothing or this very export"):
        export_chat(load_settings(), str(release), str(out), seed=1)
    assert out.stat().st_mtime_ns == before
    assert list(tmp_path.glob("*.partial")) == []


def test_an_export_of_no_release_is_refused(tmp_path):
    for folder, said in ((tmp_path / "no", "found nothing at"), (tmp_path, "found a folder without them")):
        with pytest.raises(UsageError, match=said):
            export_chat(load_settings(), str(folder), str(tmp_path / "other"), seed=0)
    assert not (tmp_path / "other").exists()


def test_from_s3_to_s3_is_the_same_file(s3_settings, release, tmp_path):
    store = ObjectStore(s3_settings)
    files = {path.relative_to(release).as_posix(): path for path in release.rglob("*.parquet")}
    manifest = store.publish("releases/abc", files)
    local = export_chat(s3_settings, str(release), str(tmp_path / "chat.jsonl"), seed=0)
    source, target = store.uri(manifest.prefix), store.uri("exports/abc")
    remote = export_chat(s3_settings, source, target, seed=0)
    assert (remote.address, remote.sha256) == (f"{target}/train.jsonl", local.sha256)
    assert store.get("exports/abc/train.jsonl") == (tmp_path / "chat.jsonl").read_bytes()
    assert export_chat(s3_settings, source, target, seed=0).written is False
    refused: tuple[tuple[str, str, type[Exception], str], ...] = (
        (source, target, UsageError, "found something else"),
        (store.uri("releases/none"), target, UsageError, "RELEASE: expected a publication"),
        (source, "s3://of-somebody-else/exports", ConfigurationError, "TOOLFORMER_S3_BUCKET"),
    )
    for place, out, error, said in refused:
        with pytest.raises(error, match=said):
            export_chat(s3_settings, place, out, seed=1)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda place: place.mkdir(), "a folder without them"),
        (lambda place: place.write_text("text"), "a file"),
        (lambda _: None, "nothing"),
    ],
)
def test_what_is_no_release_is_named(tmp_path, make, what):
    make(tmp_path / "place")
    with pytest.raises(UsageError, match=f"found {what} at "):
        export_chat(load_settings(), str(tmp_path / "place"), str(tmp_path / "chat"), seed=0)


@pytest.mark.parametrize("out", ["missing/chat", "missing/chat.jsonl"])
def test_an_export_makes_no_missing_folder(release, tmp_path, out):
    with pytest.raises(UsageError, match="OUT: expected a place in a folder that exists"):
        export_chat(load_settings(), str(release), str(tmp_path / out), seed=0)
    assert not (tmp_path / "missing").exists()


def release_with(folder: Path, *texts: str) -> Path:
    """A release of texts, each with a call before its last word."""
    folder.mkdir()
    call = [released_call(text.rindex(" "), "1 + 1", "2") for text in texts]
    write_texts(folder, [released_text(text, one) for text, one in zip(texts, call, strict=True)])
    return folder


@pytest.mark.parametrize(
    "control_token", ["<|im_end|>", "<|start_header_id|>", "<end_of_turn>", "[INST]", "<\uff5cUser\uff5c>"]
)
def test_a_text_that_spells_a_control_token_of_a_known_model_is_left_out(tmp_path, control_token):
    release = release_with(
        tmp_path / "release", f"A turn ends with {control_token} here.", "It is a plain text."
    )
    export = export_chat(load_settings(), str(release), str(tmp_path / "chat.jsonl"), seed=0)
    assert (export.conversations, export.left_out) == (1, 1)
    assert "1 texts are left out, since they spell control tokens" in export.warnings[-1]


def test_a_text_that_spells_a_control_token_of_the_named_model_is_left_out(tiny_model_dir, tmp_path):
    model = with_template(tiny_model_dir, tmp_path / "model", TEMPLATE)
    release = release_with(
        tmp_path / "release", "A text begins with <s> here.", "It ends with <|im_end|> there."
    )
    export = export_chat(
        load_settings(), str(release), str(tmp_path / "chat.jsonl"), seed=0, model=str(model)
    )
    assert (export.conversations, export.left_out) == (1, 1)
    assert "<|im_end|>" in (tmp_path / "chat.jsonl").read_text()  # which is no token of this model


def test_signs_that_are_no_control_tokens_are_exported(tmp_path):
    release = release_with(tmp_path / "release", "If a < b | c > d, then [x] <p> it is so.")
    export = export_chat(load_settings(), str(release), str(tmp_path / "chat.jsonl"), seed=0)
    assert (export.conversations, export.left_out, export.warnings) == (1, 0, ())


def sharegpt_rows(release: Path, folder: Path) -> list[dict[str, Any]]:
    """The rows of an export for LLaMA-Factory, after the rules that its converter has for a row.

    Turns of a person or a tool are at even places and those of the model at odd ones, their number is even, and
    a turn that calls is JSON (data/converter.py, data/formatter.py and data/tool_utils.py of LLaMA-Factory).
    """
    export_chat(load_settings(), str(release), str(folder), seed=0, form=FORMS["sharegpt"])
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    for row in rows:
        roles = [turn["from"] for turn in row["conversations"]]
        assert len(roles) % 2 == 0
        assert {*roles[::2]} <= {"human", "observation"}
        assert {*roles[1::2]} <= {"gpt", "function_call"}
        for turn in row["conversations"]:
            if turn["from"] == "function_call":
                assert json.loads(turn["value"]).keys() == {"name", "arguments"}
        assert all("properties" in tool["function"]["parameters"] for tool in json.loads(row["tools"]))
    return rows


def test_each_place_of_a_text_is_a_conversation_for_llama_factory(release, tmp_path):
    rows = sharegpt_rows(release, tmp_path / "rows")
    values = [[turn["value"] for turn in row["conversations"]] for row in rows]
    assert len(values) == 5  # one a call: no two are at one place
    assert [
        f"{CONTINUE}Out of 1400 people, 400 passed, that is",
        '{"name": "Calculator", "arguments": {"input": "400 / 1400"}}',
        "0.29",
        " 29 %.",
    ] in values


def test_no_word_of_a_text_is_lost_for_llama_factory(release, tmp_path):
    rows = sharegpt_rows(release, tmp_path / "rows")
    last_turns = [(row["conversations"][0]["value"], row["conversations"][-1]["value"]) for row in rows]
    read_whole = {opening.removeprefix(CONTINUE) + written for opening, written in last_turns}
    assert set(TEXTS) <= read_whole


def test_the_folder_tells_llama_factory_what_the_data_set_is(release, tmp_path):
    sharegpt_rows(release, tmp_path / "rows")
    assert json.loads((tmp_path / "rows" / "dataset_info.json").read_text()) == {
        "train": {
            "file_name": "train.jsonl",
            "formatting": "sharegpt",
            "columns": {"messages": "conversations", "tools": "tools"},
        }
    }


def test_the_command_writes_an_export(release, tmp_path):
    command = ["export", str(release), str(tmp_path / "chat"), "--format"]
    assert json.loads(CliRunner().invoke(app, [*command, "chat"]).stdout)["conversations"] == 3


def test_the_command_refuses_an_unknown_format(release, tmp_path):
    command = ["export", str(release), str(tmp_path / "chat"), "--format"]
    assert isinstance(CliRunner().invoke(app, [*command, "alpaca"]).exception, UsageError)


def with_template(model: Path, folder: Path, template: str | None) -> Path:
    """A copy of the model whose tokenizer has that chat template."""
    from transformers import AutoTokenizer

    shutil.copytree(model, folder)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TEMPLATE, None),
        (
            "{% for message in messages %}{{ message.content }}{% endfor %}",
            "drops the tools and calls without",
        ),
        (TEMPLATE.replace("{{ tool | tojson }}", ""), "drops the tools without"),
        (TEMPLATE.replace("{{ call.function.arguments | tojson }}", ""), "drops calls without"),
        (TEMPLATE.replace("{%- else %}{{ message.content }}", "{%- else %}"), "drops results without"),
        ("{{ raise_exception('only users may speak') }}", "cannot render a conversation with a call"),
        (None, "expected a chat template, found none"),
    ],
)
def test_a_template_that_loses_tools_calls_or_results_is_warned_of(
    release, tiny_model_dir, tmp_path, template, expected, caplog
):
    model = with_template(tiny_model_dir, tmp_path / "model", template)
    export = export_chat(
        load_settings(), str(release), str(tmp_path / "chat.jsonl"), seed=0, model=str(model)
    )
    assert export.written
    assert len(export.warnings) == (0 if expected is None else 1)
    assert (expected or "") in "".join(export.warnings)
    assert [line.message for line in caplog.records if line.levelname == "WARNING"] == list(export.warnings)


def test_without_a_named_model_that_of_the_settings_is_asked_if_it_exists(release, tiny_model_dir, tmp_path):
    missing, plain = tmp_path / "no model", with_template(tiny_model_dir, tmp_path / "plain", None)
    tools = with_template(tiny_model_dir, tmp_path / "tools", TEMPLATE)
    for default, named, warnings in ((plain, "", 1), (plain, str(tools), 0), (missing, "", 0)):
        settings = load_settings().model_copy(update={"default_model": str(default)})
        export = export_chat(settings, str(release), str(tmp_path / "chat.jsonl"), seed=0, model=named)
        assert len(export.warnings) == warnings
    with pytest.raises(ModelError):
        export_chat(load_settings(), str(release), str(tmp_path / "chat.jsonl"), seed=0, model=str(missing))


@pytest.fixture
def chat_rows(release, tmp_path, monkeypatch):
    """The export as the library `datasets` loads it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import load_dataset

    export = export_chat(load_settings(), str(release), str(tmp_path / "chat"), seed=0)
    rows = load_dataset("json", data_files=export.address, split="train", cache_dir=str(tmp_path / "cache"))
    written = Path(export.address).read_text(encoding="utf-8").splitlines()
    assert [dict(row) for row in rows] == [
        json.loads(line) for line in written
    ]  # without a null that was not there
    return rows


def test_templates_of_other_models_render_calls_with_their_results(chat_rows, tiny_model_dir):
    import trl
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    folder = Path(trl.__file__).parent / "chat_templates"
    for name in ("qwen2_5", "qwen3_training", "glm4moe_training", "nemotron_3_nano"):
        template = (folder / f"{name}.jinja").read_text(encoding="utf-8")
        for row in chat_rows:
            rendered = tokenizer.apply_chat_template(
                row["messages"], tools=row["tools"], chat_template=template, tokenize=False
            )
            for message in row["messages"]:
                assert message["content"].strip() in rendered, name
                for call in message.get("tool_calls", ()):
                    assert call["function"]["name"] in rendered
