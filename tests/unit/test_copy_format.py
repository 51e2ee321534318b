"""Rows as COPY's text format: each value is written alike, whatever else its column holds."""

import uuid
from typing import Any

import pytest

from toolformer_ops.storage.postgres.copy_format import copy_text

KEY = uuid.UUID(int=10)
WRITTEN: list[tuple[Any, str]] = [
    (None, r"\N"),
    (True, "t"),
    (False, "f"),
    (-3, "-3"),
    (0.25, "0.25"),
    (float("nan"), "nan"),
    ("plain", "plain"),
    ("a\tb\nc\\d\re", r"a\tb\nc\\d\re"),
    (r"\N", r"\\N"),
    (KEY, "0000000000000000000000000000000a"),
    ({"é": 1}, r'{"\\u00e9": 1}'),
    (["a", None, 'b"\\'], r'{"a",NULL,"b\\"\\\\"}'),
    (
        [[-0.5, -1.2345678806304932], [None, None], (-2.0, -1e-05)],
        "{{-0.5,-1.23456788},{NULL,NULL},{-2,-1e-05}}",
    ),
    ([], "{}"),
]


@pytest.mark.parametrize(("value", "written"), WRITTEN)
def test_a_value_is_written_alike_whatever_stands_beside_it(value, written):
    assert copy_text([[1, value], [2, value]]) == f"1\t{written}\n2\t{written}\n"
    assert copy_text([["x\t"], [value], [None], [1]]) == f"x\\t\n{written}\n\\N\n1\n"
    assert copy_text([[None], [value], [None]]) == f"\\N\n{written}\n\\N\n"
