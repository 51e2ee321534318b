"""The calls that MT proposes for a text: each foreign phrase, at the places after it where a translation may begin.

Such a place is a bracket, a quotation mark or a dash after a space, or follows words such as `meaning`, at
most `MOST_CHARACTERS` after the phrase. Which phrases are foreign, `foreign_passages.py` says.
"""

import re
from collections.abc import Iterator

from toolformer_ops.tools.base import ProposedCall
from toolformer_ops.tools.foreign_passages import foreign_phrases
from toolformer_ops.tools.paragraphs import on_one_line, paragraphs

MOST_CHARACTERS = 60
"""Between a phrase and the place of its translation."""
PLACES_A_PHRASE = 3
_PLACE = re.compile(
    r"(?<=\s)[(\[]?[\"“‘«](?=\w)|(?<=\s)\((?=\w)|(?<=\s)[-—–]\s+(?=[\w\"“‘])"  # noqa: RUF001
    r"|\b(?i:meaning|(?:which|that)\s+means|that\s+is(?:\s+to\s+say)?|i\.\s?e\.|literally"
    r"|translat(?:ed|es)\s+(?:as|to)|in\s+English)[:,]?\s+(?=[\w\"“‘(])"  # noqa: RUF001
    r"|\A\W{0,3}\s?or\s+(?=[\w\"“‘(])"  # noqa: RUF001
)


def proposed_translations(text: str) -> Iterator[ProposedCall]:
    """The calls of a text, in the order of its phrases."""
    for start, end in paragraphs(text):
        for first, last in foreign_phrases(text[start:end]):
            phrase = on_one_line(text[start + first : start + last])
            behind = text[start + last : min(end, start + last + MOST_CHARACTERS)]
            for match in list(_PLACE.finditer(behind))[:PLACES_A_PHRASE]:
                # A bracket or mark belongs to the translation, words and dashes before it do not.
                opens = match[0][0] in '(["“‘«'  # noqa: RUF001
                yield ProposedCall(start + last + (match.start() if opens else match.end()), phrase)
