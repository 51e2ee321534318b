"""What others read Parquet and data sets with reads a release's folder as it is, on S3 and as it is downloaded."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest

from tests.clients.conftest import TEXTS

CALLS = {"Calculator(520 - 187)", "Calculator(400 / 1400)"}


def rows_of_arrow(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def rows_of_pandas(folder: str) -> list[dict[str, Any]]:
    import pandas as pd

    frame = pd.read_parquet(folder)
    return [{**row, "calls": list(row["calls"])} for row in frame.to_dict(orient="records")]


def rows_of_polars(folder: str) -> list[dict[str, Any]]:
    import polars as pl

    return pl.scan_parquet(folder).collect().to_dicts()


READERS: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "pyarrow": lambda folder: rows_of_arrow(pyarrow.dataset.dataset(folder).to_table()),
    "polars": rows_of_polars,
    "pandas": rows_of_pandas,
}


def require_the_texts(rows: list[dict[str, Any]]) -> None:
    """The rows are the texts of the release, each with its call."""
    assert {row["plain_text"] for row in rows} == set(TEXTS)
    assert {f"{call['tool']}({call['input']})" for row in rows for call in row["calls"]} == CALLS


@pytest.mark.parametrize("name", READERS)
def test_the_data_folder_of_a_download_is_read_whole(released, name):
    require_the_texts(READERS[name](str(released.folder / "data")))


def test_pyarrow_reads_the_data_folder_on_s3(released):
    folder = released.data.removeprefix("s3://")
    require_the_texts(rows_of_arrow(pyarrow.dataset.dataset(folder, filesystem=released.s3).to_table()))


def test_polars_reads_the_data_folder_on_s3(released):
    import polars as pl

    frame = pl.scan_parquet(released.data, storage_options=released.s3_options)
    require_the_texts(frame.collect().to_dicts())


def test_datasets_reads_a_download_by_what_its_card_says(released, tmp_path):
    import datasets

    rows = datasets.load_dataset(str(released.folder), split="train", cache_dir=str(tmp_path / "cache"))
    require_the_texts([dict(row) for row in rows])
