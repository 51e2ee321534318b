"""Which texts say what something is: what WikiSearch and QA are asked about by the filter rule `sharp`.

The paper asks both tools about every text (appendix A). A text that defines its subject, such as `Babbage was an
English polymath`, is the one in which an encyclopedia says what follows. English only. Reads no index.
"""

import re

from toolformer_ops.records import Document
from toolformer_ops.tools.base import FilterDecision

_SAYS_WHAT_IT_IS = re.compile(r"\b(?:is|are|was|were) (?:an?|the|one of) ")


def judge_definitions(document: Document) -> list[FilterDecision]:
    """One decision for the whole document."""
    kept = _SAYS_WHAT_IT_IS.search(document.text) is not None
    reason = "says_what_something_is" if kept else "says_of_nothing_what_it_is"
    return [FilterDecision(kept=kept, reason=reason, end_char=len(document.text))]
