"""Which texts WikiSearch and QA are asked about by the filter rule `sharp`."""

import pytest

from toolformer_ops.annotation.filtering import filter_document
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import FilterChoices
from toolformer_ops.tools.registry import get_tool

SHARP = FilterChoices(filter_rule="sharp")
KEPT = [
    "Charles Babbage was an English polymath.",
    "Statics is the branch of mechanics that is concerned with force.",
    "Lions and tigers are the largest cats.",
    "Bern is one of the oldest towns of the country.",
]
REFUSED = [
    "The Zugspitze is 2962 metres high, and a railway goes up to its top.",
    "We had 520 shirts and sold 187, so 333 are left.",
    "This is another day.",
    "",
]


@pytest.mark.parametrize("tool", ["WikiSearch", "QA"])
@pytest.mark.parametrize("text", KEPT)
def test_a_text_that_says_what_something_is_is_kept(tool, text) -> None:
    [decision] = filter_document(get_tool(tool), Document.of(text), SHARP)
    assert (decision.kept, decision.reason) == (True, "says_what_something_is")


@pytest.mark.parametrize("tool", ["WikiSearch", "QA"])
@pytest.mark.parametrize("text", REFUSED)
def test_another_text_is_refused(tool, text) -> None:
    [decision] = filter_document(get_tool(tool), Document.of(text), SHARP)
    assert (decision.kept, decision.reason) == (False, "says_of_nothing_what_it_is")


@pytest.mark.parametrize("text", REFUSED)
def test_by_the_rule_of_the_paper_every_text_is_kept(text) -> None:
    [decision] = filter_document(get_tool("QA"), Document.of(text), FilterChoices())
    assert decision.kept
