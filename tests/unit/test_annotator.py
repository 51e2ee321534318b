"""`Annotator`: the rows of a text are the same in any batch, order and process, and those of `annotate` on a file."""

import json
import pickle
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.annotated_files import annotate_file
from tests.fake_language_model import FakeLanguageModel
from toolformer_ops import Annotator
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.on_a_file.annotate import annotator as tool_annotator
from toolformer_ops.on_a_file.annotate.call_table import call_schema, call_table

SUM = "There were 2 cats and 3 dogs, a total of 5 animals."
TEXTS = [f"There were {n} cats and 21 dogs, a total of {n + 21} animals." for n in range(32, 39)]
PROPOSED = {"preset": "small_model", "proposer": "tool", "keep_rule": "paper", "prune_below": 0.0}
"""Calls that the tool proposes, so that a model without any training has calls to score."""

Rows = list[dict[str, Any]]


@pytest.fixture
def model(monkeypatch):
    fake = FakeLanguageModel([f"Calculator({number} + 21)" for number in range(32, 36)])
    monkeypatch.setattr(tool_annotator, "load_scoring_model", fake.load)
    return fake


def by_text(rows: Rows) -> dict[str, Rows]:
    """The rows of each text, without the numbers that name its record."""
    texts: dict[str, Rows] = {}
    for row in rows:
        own = {name: value for name, value in row.items() if name != "id"}
        texts.setdefault(row["document_id"], []).append(own)
    return texts


@pytest.fixture
def pool(tmp_path, model):
    """The calls of the texts without placebos, as a file of Parquet."""
    rows = Annotator("fake", "Calculator").annotate(TEXTS)
    pyarrow.parquet.write_table(call_table(rows), tmp_path / "pool.parquet")
    return tmp_path / "pool.parquet"


@pytest.fixture(scope="module")
def real(tiny_model_dir):
    """An annotator with a small network, and its rows of all texts in one batch."""
    annotator = Annotator(str(tiny_model_dir), "Calculator", **PROPOSED)
    return annotator, annotator.annotate(TEXTS)


def test_a_text_alone_has_the_rows_that_it_has_beside_others(real):
    annotator, together = real
    alone = [row for text in TEXTS for row in annotator.annotate([text])]
    assert len(together) >= len(TEXTS)
    assert by_text(alone) == by_text(together)


def test_the_order_of_the_texts_changes_no_row(real):
    annotator, together = real
    assert by_text(annotator.annotate(TEXTS[::-1])) == by_text(together)


def test_an_annotator_that_was_pickled_gives_equal_rows(real):
    annotator, together = real
    copy = pickle.loads(pickle.dumps(annotator))  # noqa: S301 - of this test
    assert copy.annotate(TEXTS) == together


def test_an_annotator_travels_without_weights(real):
    annotator, _ = real
    assert len(pickle.dumps(annotator)) < 1_000


def test_a_batch_of_an_engine_gives_the_rows_of_a_list(real):
    annotator, together = real
    table = annotator.annotate_batch(pa.table({"text": TEXTS, "label": [0] * len(TEXTS)}))
    assert table.to_pylist() == call_table(together).to_pylist()


def test_rows_with_a_pool_depend_on_no_other_text(pool):
    annotator = Annotator("fake", "Calculator", placebo_pool=pool)
    together = annotator.annotate(TEXTS)
    alone = [row for text in TEXTS for row in annotator.annotate([text])]
    assert {row["placebos"] for row in together} == {0, 1}
    assert by_text(alone) == by_text(together)


def test_a_pool_of_a_files_own_calls_gives_the_rows_of_annotate_on_the_file(pool, tmp_path):
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    values = {"preset": "small_model", "placebo_sample": 0}
    of_file = annotate_file(Settings(), tmp_path / "docs.jsonl", "Calculator", "fake", values)
    rows = Annotator("fake", "Calculator", placebo_pool=pool).annotate(TEXTS)
    assert by_text(rows) == by_text(list(of_file))


def test_lines_of_annotate_are_a_pool(pool, tmp_path):
    lines = pyarrow.parquet.read_table(pool).to_pylist()
    (tmp_path / "pool.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [
        Annotator("fake", "Calculator", placebo_pool=file).annotate(TEXTS) for file in tmp_path.glob("pool.*")
    ]
    assert rows[0] == rows[1]


@pytest.mark.usefixtures("model")
def test_a_text_that_is_there_twice_has_its_rows_under_both_ids():
    records = [{"id": "a", "text": SUM}, {"id": "b", "text": SUM}]
    ids = [row["id"] for row in Annotator("fake", "Calculator").annotate(records)]
    assert (ids.count("a"), ids.count("b")) == (len(ids) / 2, len(ids) / 2)
    assert ids


def test_the_model_is_loaded_once_for_all_batches(model):
    annotator = Annotator("fake", "Calculator")
    for text in TEXTS:
        annotator.annotate([text])
    assert model.loads == 1


def test_nothing_is_loaded_before_the_first_text(model):
    Annotator("fake", "Calculator")
    assert model.loads == 0


def test_a_closed_annotator_loads_again(model):
    with Annotator("fake", "Calculator") as annotator:
        annotator.annotate([SUM])
    annotator.annotate([SUM])
    assert model.loads == 2


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("texts", [[], ["No number at all."]])
def test_a_batch_without_calls_has_all_columns(texts):
    table = Annotator("fake", "Calculator").annotate_batch(pa.table({"text": pa.array(texts, pa.string())}))
    assert (table.num_rows, table.schema) == (0, call_schema())


def test_a_batch_without_texts_is_refused():
    with pytest.raises(
        UsageError, match=r"expected a column `text`, found body\. Rename the column of the texts."
    ):
        Annotator("fake", "Calculator").annotate_batch(pa.table({"body": [SUM]}))


def test_a_null_text_is_refused_with_its_number():
    with pytest.raises(UsageError, match=r"texts\[1\]: .*Leave it out, or mend it"):
        Annotator("fake", "Calculator").annotate_batch(pa.table({"text": [SUM, None]}))


def test_a_string_is_no_list_of_texts():
    with pytest.raises(UsageError, match=r"found a string\. Put it into a list"):
        Annotator("fake", "Calculator").annotate(SUM)


def test_a_wrong_tool_is_refused_before_any_worker_starts():
    with pytest.raises(UsageError, match="expected one of the tools"):
        Annotator("fake", "Abacus")


def test_a_pool_beside_no_placebos_is_refused():
    with pytest.raises(UsageError, match="placebos: expected at least 1 beside placebo_pool, found 0"):
        Annotator("fake", "Calculator", placebo_pool="pool.parquet", placebos=0)


def test_a_pool_without_calls_of_the_tool_is_refused(pool):
    dated = {"text": "The market opens today.", "url": "https://example.org/2013/02/14/market"}
    with pytest.raises(UsageError, match=r"expected results of Calendar in .*, found none"):
        Annotator("fake", ["Calculator", "Calendar"], placebo_pool=pool).annotate([dated])


@pytest.mark.parametrize(
    ("content", "said"),
    [('{"text": "a"}\n', "found a row of .* without 'tool'"), ("no json\n", "found another line 1")],
)
def test_a_pool_of_something_else_is_refused(tmp_path, model, content, said):
    (tmp_path / "pool.jsonl").write_text(content)
    with pytest.raises(UsageError, match=said):
        Annotator("fake", "Calculator", placebo_pool=tmp_path / "pool.jsonl").annotate([SUM])


def test_a_batch_ends_with_no_number_of_kept_calls(model):
    with pytest.raises(UsageError, match="until_kept: expected none"):
        Annotator("fake", "Calculator", until_kept=5)
