"""The tables of models in docs/gpu.md name every architecture that is measured or refused."""

import re

import pytest

from benchmarks.random_models import TINY_ARCHITECTURES
from toolformer_ops.config import REPOSITORY
from toolformer_ops.language_model.models.sharing import REASONS


def plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@pytest.fixture(scope="module")
def tables():
    """Those of the architectures that are taken, and those that are refused."""
    page = (REPOSITORY / "docs" / "gpu.md").read_text(encoding="utf-8")
    taken, refused = page.partition("## Models")[2].partition("\nRefused")[::2]
    return plain(taken), plain(refused.partition("\n**")[0])


def test_every_measured_architecture_is_in_the_table(tables):
    assert [name for name in TINY_ARCHITECTURES if plain(name) not in tables[0]] == []


def test_every_refused_architecture_is_in_the_table(tables):
    assert [name for name in REASONS if plain(name) not in tables[1]] == []


def test_an_architecture_that_is_not_there_would_be_missed(tables):
    assert plain("no_such_model") not in "".join(tables)
