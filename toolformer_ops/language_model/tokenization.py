r"""What the model reads: a text's one encoding, word starts and windows, a tool's prompt, the start token.

A text x is encoded once, without context. Positions, sampling and all three losses use the same ids, so a
position has the same meaning in every step. The prompt, and a call as prefix z with its newline, are encoded
separately, and the ids are concatenated. So no token spans the border between prefix and text: a vocabulary
with a token for "]\n" does not use it there, in any of the three losses.

In the prompt x follows `Input:` and `Output:` with a space, and is tokenised as it reads there: the first
word may be other tokens than at the start of a text (` Fiscal` for `F` `iscal`). From the second word on the
ids are the same, and positions refer to them.

Special tokens are never read from text: a document that holds `<|endoftext|>` gets the characters, not the
token.

A text longer than the model's window is cut into overlapping windows of its encoding (`plan_windows`).
Exactly one window owns each position. The owner holds at least half a window of text before the position and
at least the five scored tokens from it on, where the text has them. No position is lost; a position late in a
long text sees less of the text before it. The windows depend on the text's length and on the window's size
alone.

Prompt files belong to the tools; `AnnotationPrompt` finds the slot in their text. Imports no torch.
"""

import functools
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolformer_ops.call_syntax import CALL_START
from toolformer_ops.errors import ModelError, UsageError
from toolformer_ops.language_model.losses import SCORED_TOKENS, STORED_TOKENS
from toolformer_ops.writing_systems import unspaced_word_starts

DOCUMENT_SEPARATORS = ("<|endoftext|>", "<|end_of_text|>")
"""Tokens that separate documents in pre-training, by the names that model families use."""
RECENT_TEXTS = 4
"""Encodings that are kept, for the documents that are worked on together."""
MIN_WINDOW = 2 * STORED_TOKENS
"""Tokens; below this a window would be all overlap."""
TEXT_SLOT = "{text}"


@dataclass(frozen=True)
class TokenizedText:
    """A text and its one encoding."""

    text: str
    ids: tuple[int, ...]
    """Token ids, without start token."""
    starts: tuple[int, ...]
    """Offset in `text` where each token starts, its leading white space included."""
    word_starts: tuple[int, ...]
    """Indices of the tokens before which a call may be inserted, ascending.

    Those that start a word after white space, and, in scripts without white space between words, those that
    may start one (`word_start_tokens`, `unspaced_start_tokens`).
    """

    def __len__(self) -> int:
        return len(self.ids)

    def char_span(self, first: int, end: int) -> str:
        """The text of tokens `first` to `end` (exclusive)."""
        stop = self.starts[end] if end < len(self.starts) else len(self.text)
        return self.text[self.starts[first] : stop] if first < len(self.starts) else ""

    def place_of(self, char: int) -> tuple[int, int] | None:
        """The token that starts the word at `char`, or after white space there, and the token's offset.

        So a place that was found with another vocabulary is the same place in this one. None for a word that
        starts inside a token, and for the text's first token.
        """
        return self._places.get(word_at(self.text, char))

    @functools.cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """By the offset of each word, the token that starts it with its offset."""
        tokens = [(token, self.starts[token]) for token in self.word_starts if token >= 1]
        return {word_at(self.text, start): (token, start) for token, start in tokens}

    def second_word(self, first: int = 0) -> int:
        """The token that starts the second word of what begins at token `first`.

        The number of tokens if there is none.
        """
        return next((token for token in self.word_starts if token > first), len(self.ids))


@dataclass(frozen=True)
class CallStart:
    """The given beginning of a call, such as " [QA(", as ids and as a condition on the next token.

    The last token of the given text is not fixed: the model may have learned, or seen in the prompt, a longer
    one in its place (`("` for `(`). So the first token that is drawn is any whose text begins with that last
    token's.
    """

    ids: tuple[int, ...]
    """What is given as it is."""
    first_tokens: tuple[int, ...] | None
    """Which tokens may come first, ascending; None if any may."""


def word_at(text: str, char: int) -> int:
    """The offset of the word at `char`, or after white space there; the text's length if there is none."""
    return next((at for at in range(char, len(text)) if not text[at].isspace()), len(text))


def word_start_tokens(text: str, starts: Sequence[int]) -> tuple[int, ...]:
    """Indices of the tokens that start a word, one a word, ascending.

    The call is inserted where such a token starts. A word is a run of characters that are not white space.
    Its token is the token that brings its space along (` costs`), or a token that is just this one space (` `
    before `4`, in vocabularies that split digits), or, where neither exists (after a line break), the token
    that begins with the word itself. A word that starts inside a token has none.
    """
    starting: list[int] = []
    for token, start in enumerate(starts):
        if token > 0 and starts[token - 1] == start:  # the further bytes of one character
            continue
        end = next((later for later in starts[token + 1 :] if later > start), len(text))
        piece = text[start:end]
        if not piece.strip():
            if piece == " " and end < len(text) and not text[end].isspace():
                starting.append(token)
        elif piece[0].isspace() or start == 0:
            starting.append(token)
        elif text[start - 1].isspace():
            space_is_start = bool(starting) and text[starts[starting[-1]] : start] == " "
            if not space_is_start:
                starting.append(token)
    return tuple(starting)


def unspaced_start_tokens(text: str, offsets: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Indices of the tokens that start a word without white space before it, ascending.

    `unspaced_word_starts` says which words these are. `offsets` are the first character and the end of each
    token. A token that begins with the further bytes of a character starts no word.
    """
    places = unspaced_word_starts(text)
    tokens: list[int] = []
    covered = 0
    for token, (start, end) in enumerate(offsets):
        if start >= covered and start in places:
            tokens.append(token)
        covered = max(covered, end)
    return tuple(tokens)


class Tokenization:
    """A model's vocabulary as the engine uses it."""

    def __init__(self, tokenizer: Any) -> None:
        """Read a vocabulary of transformers.

        Raises:
            ModelError: the tokenizer has no character offsets, changes case or accents, or cannot write a
            call.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(
                "expected a tokenizer with character offsets (tokenizer.json), found "
                f"{type(tokenizer).__name__}. Convert it with transformers' convert_slow_tokenizer and save "
                "it."
            )
        _require_text_as_it_is(backend)
        self._backend = backend
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self._recent = functools.lru_cache(maxsize=RECENT_TEXTS)(self._encode)
        self.start_ids = start_token_ids(tokenizer)
        vocabulary = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True)
        names = (*DOCUMENT_SEPARATORS, tokenizer.eos_token)
        self.end_ids = frozenset(vocabulary[name] for name in names if name in vocabulary)
        self.newline_ids = self.continuation("\n", after="]")
        self.marker_ids = self.continuation(CALL_START)
        self.bare_marker_ids = self.continuation(CALL_START.strip(), after="\n")
        """The marker without its space, as released texts have it at the start of a line."""
        if self.decode(self.marker_ids).strip() != CALL_START.strip():
            raise ModelError(
                f"expected a vocabulary that can write {CALL_START!r}, found that it reads back as "
                f"{self.decode(self.marker_ids)!r}. Choose a model whose tokenizer knows every byte."
            )

    @functools.cached_property
    def bracket_ids(self) -> frozenset[int]:
        """Every token whose text has the bracket of a call, such as `[`, ` [` and `([`.

        End-of-text tokens are not among them.
        """
        return self.ids_holding(CALL_START.strip())

    def ids_holding(self, character: str) -> frozenset[int]:
        """Every token whose text has an ASCII character, such as `]`, `)]` and `")]`.

        End-of-text tokens are not among them.
        """
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        byte = f"<0x{ord(character):02X}>"  # the name of a byte that a vocabulary falls back to
        with_character = {id_ for token, id_ in vocabulary.items() if character in token or token == byte}
        return frozenset(with_character - self.end_ids)

    @functools.cached_property
    def size(self) -> int:
        """One more than the largest id."""
        return 1 + max(int(id_) for id_ in self._backend.get_vocab(with_added_tokens=True).values())

    def ids(self, text: str) -> tuple[int, ...]:
        """`text` encoded by itself, without start token."""
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def continuation(self, text: str, after: str = "a") -> tuple[int, ...]:
        """`text` encoded as it is written after other text.

        Differs from `ids` for vocabularies that put a space before every text that they encode.
        """
        before = self.ids(after)
        joined = self.ids(after + text)
        return joined[len(before) :] if joined[: len(before)] == before else self.ids(text)

    def tokenize(self, text: str) -> TokenizedText:
        """The one encoding of `text`.

        The last ones are kept, since every part of a document asks for that of the whole. Token starts are
        made to cover the text: some tokenizers leave the white space before a word out of its offsets.
        """
        return self._recent(text)

    def _encode(self, text: str) -> TokenizedText:
        encoding = self._backend.encode(text, add_special_tokens=False)
        starts: list[int] = []
        covered = 0
        for start, end in encoding.offsets:
            starts.append(covered if start >= covered and not text[covered:start].strip() else start)
            covered = max(covered, end)
        word_starts = {*word_start_tokens(text, starts), *unspaced_start_tokens(text, encoding.offsets)}
        return TokenizedText(text, tuple(encoding.ids), tuple(starts), tuple(sorted(word_starts)))

    def spell_after(
        self, separator: str, text: str, ids: Sequence[int], aligned: int
    ) -> tuple[tuple[int, ...], int]:
        """The ids of `separator` + `text` as it reads, and the shift of the text's tokens in them.

        Token i of `ids`, the encoding of `text` alone, has index i + shift in the result for every i >=
        `aligned`: the first token of the text's second word. The first word may be other tokens after a
        space, more or fewer (`F` `iscal`, but ` Fiscal`), so the shift may be negative.

        A vocabulary whose tokens differ further on than in the first word gets the separator alone and then
        `ids`.
        """
        if not separator or text[:1].isspace():
            return tuple(ids), 0
        before = self.continuation(separator, after=":")
        spelled = self.continuation(separator + text, after=":")
        shift = len(spelled) - len(ids)
        # The windows of long texts have room for the separator's tokens, and not for more.
        if (
            aligned + shift >= 1
            and shift <= len(before)
            and spelled[aligned + shift :] == tuple(ids[aligned:])
        ):
            return spelled, shift
        return (*before, *ids), len(before)

    def call_start(self, text: str) -> "CallStart":
        """How a model is made to continue `text`, which begins with the marker " ["."""
        ids = self.continuation(text)
        if ids == self.marker_ids:
            return CallStart(ids, None)
        if len(ids) == len(self.marker_ids) or ids[: len(self.marker_ids)] != self.marker_ids:
            ids = (*self.marker_ids, *self.continuation(text.removeprefix(CALL_START), after="["))
        last = self._backend.id_to_token(ids[-1])
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        longer = [id_ for token, id_ in vocabulary.items() if token.startswith(last)]
        return CallStart(ids[:-1], tuple(sorted(longer)))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included; bytes that are not yet a character come as U+FFFD."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))


def _require_text_as_it_is(backend: Any) -> None:
    """Refuse a vocabulary that reads capitals as small letters, or letters without their accents.

    What such a model writes would not be what its texts say: `[QA(who was ada lovelace?)]`.

    Raises:
        ModelError: it does.
    """
    probe = "ÉS"
    normal = backend.normalizer.normalize_str(probe) if backend.normalizer else probe
    read = unicodedata.normalize("NFC", normal)
    if not all(letter in read for letter in probe):
        raise ModelError(
            f"expected a tokenizer that keeps capitals and accents, found that {probe!r} reads as "
            f"{normal!r}: calls and results would come back changed. Choose a cased model."
        )


def start_token_ids(tokenizer: Any) -> tuple[int, ...]:
    """The ids that a document starts with, as the model was trained.

    1. What the tokenizer's own post-processing puts before a text (Llama `<s>` or `<|begin_of_text|>`, Gemma
       `<bos>`, OPT `</s>`).
    2. Else the token that separated documents in pre-training, if the vocabulary names one (GPT-2, GPT-J,
       Pythia, Qwen, Phi,
       SmolLM2: `<|endoftext|>`; Granite: `<|end_of_text|>`).
    3. Else the tokenizer's beginning-of-text or end-of-text token; else nothing.

    A chat model's `bos_token` is no guide: SmolLM2-Instruct names `<|im_start|>`, which starts a chat turn.
    Measured with SmolLM2-135M-Instruct, float32, bits a byte of the text after its first token, and of tokens
    2 to 21 in brackets, on the first 600 characters of 24 digital.gov posts and 400 characters of 24 gsm8k
    problems:

        start token        digital.gov        gsm8k
        none               1.068 (1.235)      1.066 (1.504)
        <|endoftext|>      1.039 (1.128)      1.013 (1.307)
        <|im_start|>       1.075 (1.265)      1.053 (1.440)
        <|im_end|>         1.075 (1.265)      1.049 (1.427)
    """
    backend = tokenizer.backend_tokenizer
    # 1. What comes before a text is what is before its own ids.
    plain = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    for extra in range(1, len(whole) - len(plain) + 1):
        if whole[extra : extra + len(plain)] == plain:
            return tuple(whole[:extra])
    # 2. and 3.
    vocabulary = backend.get_vocab(with_added_tokens=True)
    for name in (*DOCUMENT_SEPARATORS, tokenizer.bos_token, tokenizer.eos_token):
        if name is not None and name in vocabulary:
            return (vocabulary[name],)
    return ()


@dataclass(frozen=True)
class Window:
    """Tokens `start` to `end` of a text, and the positions in it that are this window's own."""

    start: int
    end: int
    """Exclusive."""
    owned_start: int
    owned_end: int
    """Exclusive."""


def plan_windows(tokens: int, size: int, scored_tokens: int = SCORED_TOKENS) -> list[Window]:
    """Windows of at most `size` tokens for a text of `tokens` tokens, ascending; one if the text fits.

    So many tokens from a position on are in the window that owns it, if the text has them.

    Raises:
        ValueError: `size` is below `MIN_WINDOW` and the text does not fit.
    """
    if tokens <= size:
        return [Window(0, tokens, 0, tokens)]
    if size < MIN_WINDOW:
        raise ValueError(f"expected windows of at least {MIN_WINDOW} tokens, found {size}")
    windows: list[Window] = []
    owned_start = 0
    while owned_start < tokens:
        start = min(max(0, owned_start - size // 2), tokens - size)
        end = start + size
        owned_end = tokens if end == tokens else end - scored_tokens + 1
        windows.append(Window(start, end, owned_start, owned_end))
        owned_start = owned_end
    return windows


def owner(windows: list[Window], token: int) -> Window:
    """The one window that owns `token`."""
    return next(window for window in windows if window.owned_start <= token < window.owned_end)


@dataclass(frozen=True)
class AnnotationPrompt:
    """A tool's prompt with its slot."""

    name: str
    """The tool's name, for messages."""
    template: str
    """The prompt's text, with `{text}` once, followed by what asks for the output (`Output:`)."""

    def __post_init__(self) -> None:
        slots = self.template.count(TEXT_SLOT)
        if slots != 1:
            raise UsageError(
                f"prompt of {self.name}: expected '{TEXT_SLOT}' once, found {slots}. Put it after the last "
                "'Input:'."
            )
        if not self.after_text:
            raise UsageError(
                f"prompt of {self.name}: expected words such as 'Output:' after '{TEXT_SLOT}', found none. "
                "Add them."
            )

    @property
    def before_text(self) -> str:
        """The instructions and demonstrations, up to the slot, without the spaces just before it."""
        return self.template.partition(TEXT_SLOT)[0].rstrip(" ")

    @property
    def after_text(self) -> str:
        """From the slot to the last word; white space at the end of the file is not part of the prompt."""
        return self.template.partition(TEXT_SLOT)[2].rstrip()

    @property
    def separator(self) -> str:
        """The characters between a label and the text, in the slot and in the output: usually a space."""
        return self.template.partition(TEXT_SLOT)[0][len(self.before_text) :]
