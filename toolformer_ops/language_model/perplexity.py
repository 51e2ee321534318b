"""How well a model predicts whole texts with calls disabled: nats, tokens and bytes.

See Toolformer, section 4.3 and footnote 5. Calls disabled: wherever a call could start, the probability of "
[" is set to 0 and the others are scaled up to sum to 1 again. If the text itself has " [" there, that token
is left as it is and counted. (In a vocabulary that spells " [" with several tokens it is the last of them,
and only after the others, that is treated so.)

Sliding window: a text longer than the model's window is read in windows that move by half a window. Each
scores only its tokens that none before it scored, so that every token is scored once and, from the second
window on, with at least half a window of text before it. Each window begins with the start token as the model
was trained; without one the first token of the text is not scored, since nothing predicts it.

Does not average: `evaluation/running.py` does, over texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.tokenization import Tokenization, TokenizedText


@dataclass(frozen=True)
class TextLoss:
    """The loss of one text."""

    token_nats: tuple[float, ...]
    """A number a scored token, in the order of the text: minus its natural log probability."""
    utf8_bytes: int
    """Bytes of the text that these tokens spell."""

    @property
    def nats(self) -> float:
        """Their sum; nats / tokens is the mean."""
        return sum(self.token_nats)

    @property
    def tokens(self) -> int:
        """How many were scored."""
        return len(self.token_nats)


def text_losses(
    model: CausalModel, tokenization: Tokenization, texts: Sequence[TokenizedText]
) -> list[TextLoss]:
    """The loss of each text, in order."""
    before, (*others, marker) = tokenization.start_ids, tokenization.marker_ids
    room = model.window_tokens - len(before)
    first = 0 if before else 1
    # 1. The windows: index of the text, start, first token that is scored, end (exclusive).
    windows: list[tuple[int, int, int, int]] = []
    for index, text in enumerate(texts):
        scored_from, end = first, min(room, len(text))
        while scored_from < end:
            windows.append((index, max(0, end - room), scored_from, end))
            scored_from, end = end, min(end + max(1, room // 2), len(text))
    nats: list[list[float]] = [[] for _ in texts]
    at_once = model.sizes.loss_windows
    for batch in (windows[at : at + at_once] for at in range(0, len(windows), at_once)):
        # 2. Hidden states. The last token of a window is predicted and not put in.
        sequences = [[*before, *texts[index].ids[start : end - 1]] for index, start, _, end in batch]
        rows = [
            range(len(before) + scored_from - start - 1, len(ids))
            for ids, (_, start, scored_from, _) in zip(sequences, batch, strict=True)
        ]
        hidden = model.hidden_states(sequences, rows)
        for (index, _, scored_from, _), states in zip(batch, hidden, strict=True):
            # 3. Where the marker's last token would complete it, it is left out, and the others are scaled
            #    up.
            ids = texts[index].ids
            values: list[float] = []
            for log_probs in model.log_probability_blocks(states):  # (rows, vocabulary)
                first_token = scored_from + len(values)
                places = range(first_token, first_token + len(log_probs))
                starts = [at >= len(others) and [*ids[at - len(others) : at]] == others for at in places]
                wanted = torch.tensor(ids[places.start : places.stop], device=log_probs.device)
                chosen = log_probs.gather(1, wanted[:, None])[:, 0]  # (rows,)
                log_probs[:, marker] = -torch.inf
                rest = log_probs.logsumexp(dim=-1)  # log of what the others have together
                scaled = torch.tensor(starts, device=log_probs.device) & (wanted != marker)
                values += torch.where(scaled, chosen - rest, chosen).tolist()
            nats[index] += [-value for value in values]
    losses = []
    for token_nats, text in zip(nats, texts, strict=True):
        scored = text.char_span(first, len(text))
        losses.append(TextLoss(tuple(token_nats), len(scored.encode())))
    return losses
