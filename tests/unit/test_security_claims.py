"""The threat model and the page about audits name tests that are there."""

import re

import pytest

from toolformer_ops.config import REPOSITORY

NAMED = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


@pytest.mark.parametrize(("page", "at_least"), [("security.md", 60), ("audit.md", 3)])
def test_every_claim_names_tests_that_exist(page, at_least):
    named = NAMED.findall((REPOSITORY / "docs" / page).read_text(encoding="utf-8"))
    programs = {path: REPOSITORY / path for path, _ in named}
    texts = {path: file.read_text(encoding="utf-8") for path, file in programs.items() if file.exists()}
    assert [(path, test) for path, test in named if f"\ndef {test}(" not in texts.get(path, "")] == []
    assert len(named) >= at_least


def test_each_claim_of_the_threat_model_names_a_test():
    text = (REPOSITORY / "docs" / "security.md").read_text(encoding="utf-8")
    claims = text.partition("## Claims")[2].partition("## What is not defended")[0]
    rows = [
        line for line in claims.splitlines() if line.startswith("| ") and not line.startswith("| claim |")
    ]
    assert [row for row in rows if not NAMED.search(row)] == []
