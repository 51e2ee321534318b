"""Calls that a tool itself proposes for documents, at positions of their paragraphs.

Does without a model what `text_sampling.py` does with one. Nothing is drawn, and no position is pruned: the
losses of a proposed call prune it (`language_model/scoring.py`).

1. The tool proposes calls for a document. The first `MOST_PROPOSED_CALLS` are taken.
2. A call's place becomes the position of the token that starts the word there.
3. The call belongs to the kept paragraph that holds the word.

What is refused on the way is counted. Does not read the inputs as calls (`candidates.py`).
"""

import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toolformer_ops.language_model.tokenization import TokenizedText, word_at
from toolformer_ops.records import CallPosition, Paragraph
from toolformer_ops.tools.base import BEYOND_THE_LIMIT, Proposer, Tool
from toolformer_ops.tools.files.answering import MOST_PROPOSED_CALLS


@dataclass(frozen=True)
class OpenProposer:
    """A tool that proposes calls, ready to be asked."""

    proposer: Proposer
    tokenize: Callable[[str], TokenizedText]
    """How the run's language model reads a text."""


@dataclass
class PlacedProposals:
    """What a tool proposes within one paragraph."""

    inputs: dict[CallPosition, list[str]] = field(default_factory=dict)
    """The inputs of the calls at each position, in the order of the text."""
    counts: Counter[str] = field(default_factory=Counter)
    """Counts of `proposals` and of refused ones by reason; a document's are with its first paragraph."""
    seconds: float = 0.0


def placed_proposals(
    tool: Tool, proposing: OpenProposer, paragraphs: Sequence[Paragraph]
) -> list[PlacedProposals]:
    """What the tool proposes for each of these paragraphs, in order; it is asked once for each document.

    Raises:
        InfrastructureError: what knows the tool's calls is not there now.
    """
    placed = [PlacedProposals() for _ in paragraphs]
    numbers_of: dict[uuid.UUID, list[int]] = defaultdict(list)
    for number, paragraph in enumerate(paragraphs):
        numbers_of[paragraph.document.document_id].append(number)
    for numbers in numbers_of.values():
        started = time.perf_counter()
        document, counts = paragraphs[numbers[0]].document, placed[numbers[0]].counts
        # 1. What it proposes.
        proposed = proposing.proposer.proposals(tool.spec.as_read(document))
        counts["proposals"] = len(proposed.calls) + proposed.left_out.total()
        counts.update(proposed.left_out)
        if len(proposed.calls) > MOST_PROPOSED_CALLS:
            counts[BEYOND_THE_LIMIT] += len(proposed.calls) - MOST_PROPOSED_CALLS
        # 2. Where, and in which paragraph.
        for call in proposed.calls[:MOST_PROPOSED_CALLS]:
            if not 0 <= call.char < len(document.text):
                counts["proposal_outside_the_text"] += 1
                continue
            place = proposing.tokenize(document.text).place_of(call.char)
            if place is None:
                counts["proposal_inside_a_word"] += 1
                continue
            word = word_at(document.text, call.char)
            own = [
                number
                for number in numbers
                if paragraphs[number].start_char <= word < paragraphs[number].end_char
            ]
            if own:
                inputs = placed[own[0]].inputs
                inputs.setdefault(CallPosition(*place, probability=None), []).append(call.input)
            else:
                counts["proposal_outside_kept_text"] += 1
        placed[numbers[0]].seconds = time.perf_counter() - started
    return placed
