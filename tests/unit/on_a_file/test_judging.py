"""`judge`: calls that others proposed have the losses of `annotate` and `explain`, and what cannot be judged its reason."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.annotated_files import annotate_file
from tests.fake_language_model import FakeLanguageModel
from toolformer_ops.cli.on_a_file import app
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.on_a_file.annotate.annotator import PRINTED
from toolformer_ops.on_a_file.annotate.partial_folder import parts_beside
from toolformer_ops.on_a_file.judge.judging import Judging
from toolformer_ops.on_a_file.judge.proposed_calls import ProposalFields, ProposedCall, proposals_of
from toolformer_ops.on_a_file.look.explanation import explain_call
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.storage.corpora import files

SUM = "There were 2 cats and 3 dogs, a total of 5 animals."
AT = SUM.index(" 5")
CALL = {"text": SUM, "at": AT, "tool": "Calculator", "input": "2 + 3"}
WITHOUT_PLACEBOS = {"placebos": 0, "placebo_sample": 0, "prune_below": 0.0}


@pytest.fixture
def model(monkeypatch):
    fake = FakeLanguageModel()
    monkeypatch.setattr("toolformer_ops.on_a_file.annotate.annotator.load_scoring_model", lambda *_: fake)
    return fake


def file_of(folder: Path, *records: Mapping[str, Any] | str) -> Path:
    path = folder / "calls.jsonl"
    lines = (record if isinstance(record, str) else json.dumps(record) for record in records)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def judged(
    path: Path, *fields: str, model: str = "fake", out: Path | None = None, **values: Any
) -> list[dict[str, Any]]:
    judging = Judging(Settings(), path, model, ProposalFields.of(fields), WITHOUT_PLACEBOS | values)
    with parts_beside(out) as judging.parts:
        return list(judging.rows())


def test_a_call_has_the_losses_that_explain_gives_it(tmp_path, tiny_model_dir):
    [row] = judged(file_of(tmp_path, CALL), model=str(tiny_model_dir))
    explained = explain_call(Settings(), SUM, AT, "Calculator(2 + 3)", None, str(tiny_model_dir))
    names = ("loss_without_call", "loss_without_result", "loss_with_result", "position_token", "result")
    assert {name: row[name] for name in names} == {name: explained[name] for name in names}


@pytest.mark.usefixtures("model")
def test_a_call_has_the_losses_that_annotate_gives_it(tmp_path):
    corpus = tmp_path / "docs.jsonl"
    corpus.write_text(json.dumps({"text": SUM}) + "\n")
    numbers = WITHOUT_PLACEBOS | {"max_positions": 9, "samples_per_position": 1, "scoring_context_tokens": 16}
    annotated = list(annotate_file(Settings(), corpus, "Calculator", "fake", numbers))
    proposed = [
        {"text": SUM, "at": row["position_char"], "call": row["call"], "result": row["result"]}
        for row in annotated
    ]
    rows = judged(file_of(tmp_path, *proposed), scoring_context_tokens=16)
    names = (*PRINTED, "loss_reduction", "position_token", "kept", "not_kept", "before", "after")
    assert len(rows) == len(annotated) == 9
    assert [[row[name] for name in names] for row in rows] == [
        [row[name] for name in names] for row in annotated
    ]


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    "record",
    [
        CALL,
        {**CALL, "tool": "calculator", "result": 5},
        {"text": SUM, "at": AT, "call": "[Calculator(2 + 3)]"},
        {"text": "There were 2 cats and 3 dogs, a total of [Calculator(2 + 3)] 5 animals."},
        {"text": "There were 2 cats and 3 dogs, a total of [Calculator(2 + 3) -> 5] 5 animals."},
    ],
    ids=["tool and input", "a result that is a number", "call", "marked", "marked with its result"],
)
def test_each_form_of_a_record_is_the_same_call(tmp_path, record):
    [row] = judged(file_of(tmp_path, record))
    assert (row["position_char"], row["call"], row["result"], row["loss_reduction"], row["kept"]) == (
        AT,
        "Calculator(2 + 3)",
        "5",
        1.0,
        True,
    )


@pytest.mark.usefixtures("model")
def test_a_result_that_is_given_is_judged_as_it_is(tmp_path):
    [row] = judged(file_of(tmp_path, {**CALL, "result": "7"}))
    assert (row["result"], row["result_is_given"], row["loss_reduction"], row["not_kept"]) == (
        "7",
        True,
        -0.25,
        "below_threshold",
    )


@pytest.mark.usefixtures("model")
def test_a_tool_that_is_not_known_is_judged_by_the_result_that_comes_with_it(tmp_path):
    [row] = judged(file_of(tmp_path, {**CALL, "tool": "Adder", "result": "5"}))
    assert (row["tool"], row["keep_threshold"], row["kept"]) == ("Adder", 1.0, True)


@pytest.mark.usefixtures("model")
def test_the_fields_may_have_other_names(tmp_path):
    record = {"out": {"text": SUM}, "offset": AT, "name": "Calculator", "args": "2 + 3"}
    [row] = judged(file_of(tmp_path, record), "text=out.text", "at=offset", "tool=name", "input=args")
    assert row["kept"]


@pytest.mark.usefixtures("model")
def test_rows_of_parquet_are_judged(tmp_path):
    path = tmp_path / "calls.parquet"
    pq.write_table(pa.Table.from_pylist([CALL]), path)
    assert [row["kept"] for row in judged(path)] == [True]


@pytest.mark.usefixtures("model")
def test_the_text_of_a_dictionary_that_all_rows_name_is_not_repeated_in_memory(tmp_path):
    path = tmp_path / "calls.parquet"
    text = f"{SUM} {'x' * 2_000_000}"
    texts = pa.array([text]).dictionary_encode()
    pq.write_table(
        pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * 1000), texts.dictionary)}), path
    )
    assert path.stat().st_size < 200_000
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        refused = [row["reason"] for row in judged(path)]
    finally:
        pa.set_memory_pool(before)
    assert refused[-1] == "expands_too_far"
    assert pool.max_memory() < 200_000_000


@pytest.mark.usefixtures("model")
def test_a_row_of_parquet_that_is_too_long_is_refused_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_LINE_BYTES", 1000)
    path = tmp_path / "calls.parquet"
    pq.write_table(pa.Table.from_pylist([{**CALL, "id": "a", "text": "x" * 2000}, {**CALL, "id": "b"}]), path)
    assert [row["reason"] for row in judged(path)] == ["line_too_long", None]


HALVES = [
    {**CALL, "text": SUM + " \ud800"},
    {**CALL, "input": "2 + \udc00 3"},
    {**CALL, "result": "\ud800"},
    {**CALL, "url": "https://x/\ud800"},
    {**CALL, "id": "\ud800", "text": SUM + "\ud800"},
    {"text": "There were 2 cats, a total of [Calculator(2 + \ud800)] 5 animals."},
]


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("record", HALVES)
def test_half_of_a_surrogate_pair_refuses_its_record_alone(tmp_path, record):
    out = tmp_path / "judged.jsonl"
    rows = judged(file_of(tmp_path, record, CALL), out=out)
    assert [row["reason"] for row in rows] == ["lone_surrogate", None]
    json.dumps(rows, ensure_ascii=False).encode()


MARKED = "There were 2 cats and 3 dogs, a total of [Calculator(2 + 3)] 5 animals."


def data_designer_folder(folder: Path) -> Path:
    """What Data Designer 0.9.7 leaves in its artifact folder for a data set of one text."""
    (folder / "calls" / "parquet-files").mkdir(parents=True)
    row = {"source_text": SUM, "annotated": MARKED}
    pq.write_table(pa.Table.from_pylist([row]), folder / "calls" / "parquet-files" / "batch_00000.parquet")
    (folder / "calls" / "metadata.json").write_text('{\n  "target_num_records": 1\n}\n')
    (folder / "calls" / "builder_config.json").write_text('{\n  "columns": [\n  ]\n}\n')
    return folder / "calls"


@pytest.mark.usefixtures("model")
def test_a_folder_of_data_designer_is_judged_without_its_descriptions(tmp_path):
    [row] = judged(data_designer_folder(tmp_path), "text=annotated")
    assert (row["call"], row["kept"]) == ("Calculator(2 + 3)", True)


@pytest.mark.usefixtures("model")
def test_rows_of_distilabel_are_judged(tmp_path):
    messages = [{"role": "user", "content": f"Write it again.\n{SUM}"}]
    row = {
        "instruction": f"Write it again.\n{SUM}",
        "generation": MARKED,
        "distilabel_metadata": {"raw_input_text_generation_0": messages},
        "model_name": "writer",
    }
    [judged_row] = judged(file_of(tmp_path, row), "text=generation")
    assert (judged_row["call"], judged_row["kept"]) == ("Calculator(2 + 3)", True)


@pytest.mark.parametrize("name", ["", "default/train/data-00000-of-00001.arrow"])
def test_arrow_files_are_refused_with_the_remedy(tmp_path, name):
    arrow = tmp_path / "default" / "train" / "data-00000-of-00001.arrow"
    arrow.parent.mkdir(parents=True)
    arrow.write_bytes(b"\xff\xff\xff\xff")
    with pytest.raises(UsageError, match=r"found Arrow files, as `save_to_disk` writes them. .*to_parquet"):
        judged(tmp_path / name)


def test_a_field_that_holds_calls_is_named_with_its_option(tmp_path):
    path = file_of(tmp_path, {"instruction": SUM, "generation": MARKED})
    ended = CliRunner().invoke(app, ["judge", str(path), "--model", "fake"])
    assert "generation holds calls: --field text=generation" in ended.stderr


REFUSED: dict[str, Mapping[str, Any] | str] = {
    "corrupt_json": "no json",
    "not_an_object": "[1]",
    "no_text": {"at": 1},
    "text_not_a_string": {"text": 5},
    "empty_text": {"text": " "},
    "no_proposed_call": {"text": SUM},
    "call_does_not_parse": {**CALL, "input": "[2"},
    "tool_not_known": {**CALL, "tool": "Adder"},
    "place_not_in_text": {**CALL, "at": 999},
    "place_not_at_a_token": {**CALL, "at": 3},
    "holds_call_markup": {**CALL, "text": f"{SUM} [Calculator(1 + 1) -> 2]"},
    "result_not_text": {**CALL, "result": {"value": 5}},
    "division_by_zero": {**CALL, "input": "2 / 0"},
    "document_cannot_answer": {**CALL, "tool": "Calendar", "input": ""},
}


@pytest.mark.usefixtures("model")
def test_what_cannot_be_judged_has_a_row_with_its_reason(tmp_path):
    rows = judged(file_of(tmp_path, *REFUSED.values(), CALL))
    assert [row["not_kept"] for row in rows] == [*REFUSED, None]


@pytest.mark.usefixtures("model")
def test_with_placebos_the_results_of_the_calls_are_their_pool(tmp_path):
    texts = [f"Box {n} holds {n} pens and 1 cap, a total of {n + 1} things." for n in range(2, 7)]
    calls = [
        {"text": text, "at": text.index(f" {n} things"), "call": f"Calculator({n - 1} + 1)"}
        for n, text in enumerate(texts, 3)
    ]
    placebos = {"placebos": 3, "placebo_sample": 100, "keep_rule": "probability"}
    rows = judged(file_of(tmp_path, *calls), **placebos)
    assert [(row["information"], row["placebos"], row["kept"]) for row in rows] == [(1.25, 3, True)] * 5
    assert "text" not in rows[0]


def test_what_an_earlier_try_has_judged_is_not_judged_again(tmp_path, model):
    path, out = file_of(tmp_path, CALL), tmp_path / "rows.jsonl"
    first = judged(path, out=out)
    model.seen.clear()
    assert judged(path, out=out) == first
    assert model.seen == []


def test_a_call_whose_text_does_not_fit_into_memory_has_a_row_with_that_reason(tmp_path, model, monkeypatch):
    score_texts = model.score_texts

    def short_of_memory(texts, **options):
        if any(text.endswith("!") for text, _ in texts):
            raise MemoryError
        return score_texts(texts, **options)

    monkeypatch.setattr(model, "score_texts", short_of_memory)
    rows = judged(file_of(tmp_path, CALL, {**CALL, "text": SUM.replace(".", "!")}))
    assert [row["reason"] for row in rows] == [None, "out_of_memory"]


def test_a_field_that_there_is_not_is_refused():
    with pytest.raises(UsageError, match=r"--field: expected FIELD=NAME with one of text, at, call"):
        ProposalFields.of(["body=x"])


@pytest.mark.usefixtures("model")
def test_the_command_counts_refusals_under_their_reasons(tmp_path):
    words = ["judge", str(file_of(tmp_path, "no json", CALL)), "--model", "fake", "--kept"]
    ended = CliRunner().invoke(app, words)
    assert [json.loads(line)["call"] for line in ended.stdout.splitlines()] == ["Calculator(2 + 3)"]
    assert "refused: 1 line is no JSON" in ended.stderr


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(("at", "only_after"), [(SUM.index(" were"), True), (AT, False)])
def test_an_input_that_only_follows_its_place_is_marked(tmp_path, at, only_after):
    [row] = judged(file_of(tmp_path, {**CALL, "at": at}))
    assert row["input_only_after"] is only_after


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(("threshold", "kept"), [(1.0, True), (1.01, False)])
def test_calls_are_kept_from_the_threshold_of_the_parameters(tmp_path, threshold, kept):
    [row] = judged(file_of(tmp_path, CALL), keep_thresholds={"Calculator": threshold})
    assert (row["keep_threshold"], row["kept"]) == (threshold, kept)


@pytest.mark.usefixtures("model")
def test_a_row_of_an_earlier_try_is_judged_by_the_threshold_of_this_one(tmp_path):
    path, out = file_of(tmp_path, CALL), tmp_path / "judged.jsonl"
    numbers = {"keep_thresholds": {"Calculator": 1.0}, "prune_below": 0.0}
    judged(path, out=out, **numbers)
    [row] = judged(path, out=out, **{**numbers, "keep_thresholds": {"Calculator": 1.01}})
    assert (row["keep_threshold"], row["kept"]) == (1.01, False)


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    "read", [{"date": "2023-01-30"}, {"url": "https://x.org/2023/01/30/x"}], ids=["date", "url"]
)
def test_a_tool_reads_the_date_of_the_record(tmp_path, read):
    [row] = judged(file_of(tmp_path, {**CALL, "tool": "Calendar", "input": "", **read}))
    assert row["result"] == "Today is Monday, January 30, 2023."


@pytest.mark.usefixtures("model")
def test_rows_are_in_the_order_of_the_file_over_several_batches(tmp_path):
    records = [{**CALL, "id": number} if number % 3 else {"id": number, "text": ""} for number in range(40)]
    assert [row["id"] for row in judged(file_of(tmp_path, *records))] == [str(number) for number in range(40)]


@pytest.mark.usefixtures("model")
def test_a_call_shows_sixty_characters_of_the_text_on_both_sides(tmp_path):
    text = f"{'It is so. ' * 9}{SUM}{' It was so.' * 9}"
    at = text.index(" 5 animals")
    [row] = judged(file_of(tmp_path, {**CALL, "text": text, "at": at}))
    assert (row["before"], row["after"]) == (text[at - 60 : at], text[at : at + 60])


def test_several_calls_of_a_text_are_placed_in_the_text_without_them():
    record = {"text": "It is [Calculator(1 + 1) -> 2] 2, and [Calculator(2 + 2) -> 4] 4."}
    first, second = proposals_of(record, "f:1", ProposalFields())
    assert isinstance(first, ProposedCall)
    assert isinstance(second, ProposedCall)
    assert first.document.text == second.document.text == "It is 2, and 4."
    assert (first.at, second.at) == (len("It is"), len("It is 2, and"))
    assert (first.result, second.result) == ("2", "4")


@pytest.mark.usefixtures("model")
def test_explain_scores_a_call_with_the_context_that_judge_takes(tmp_path, tiny_model_dir):
    explained = explain_call(Settings(), SUM, AT, "Calculator(2 + 3)", None, str(tiny_model_dir))
    assert (
        explained["context_tokens"]
        == RunChoices.parse({"corpus": "c", "model": "m", "preset": "small_model"}).scoring_context_tokens
    )
