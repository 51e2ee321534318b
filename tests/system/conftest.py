"""The embedded services, a small corpus and a tiny model that writes calls, for tests of whole DAG runs."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.writing_model import save_model_that_writes_calls
from toolformer_ops.config import STATE_DIR_VARIABLE, Settings, load_settings
from toolformer_ops.local_services.lifecycle import delete_state, up

RECORDS = (
    {
        "text": "The shop had 520 shirts and sold 187 of them, so it has 333 left.",
        "url": "https://shop.example/2023/01/30/x",
    },
    {
        "text": "We sold 31 tickets on Monday and 45 on Sunday, which is 76 in all.",
        "url": "https://x.example/2022/11/05/y",
    },
    {
        "text": "A box holds 12 eggs, so that 7 boxes hold 12 * 7 = 84 eggs.",
        "url": "https://farm.example/2021-06-14/eggs",
    },
    {"text": "Of 1400 people, 400 passed the test, and 1000 did not.", "url": "https://news.example/2020/02/29/test"},
    {"text": "This text has neither a sum nor a date in its address.", "url": "https://blog.example/about"},
)
"""Four texts for the Calculator and the Calendar, and one for neither."""


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The settings that lead to a Postgres, an S3 and an Airflow of the session's own, with no rows and no objects."""
    state = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("TOOLFORMER_")]:
            patch.delenv(name)
        patch.setenv(STATE_DIR_VARIABLE, str(state))
        load_settings.cache_clear()
        found = up(load_settings())
    try:
        yield found
    finally:
        delete_state(found)
        load_settings.cache_clear()


@pytest.fixture(scope="session")
def writing_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that writes calls of the Calculator and the Calendar."""
    return save_model_that_writes_calls(tmp_path_factory.mktemp("models") / "writing")


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`RECORDS` as JSON Lines."""
    path = tmp_path_factory.mktemp("corpus") / "small.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS), encoding="utf-8")
    return path
