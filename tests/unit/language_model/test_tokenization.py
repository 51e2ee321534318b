"""One encoding of a text, its word starts, and the start token of each kind of tokenizer."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.tiny_models import train_tokenizer
from toolformer_ops.errors import ModelError, UsageError
from toolformer_ops.language_model import AnnotationPrompt
from toolformer_ops.language_model.tokenization import Tokenization, start_token_ids, word_start_tokens


@pytest.fixture(scope="module")
def tokenization() -> Tokenization:
    return TOKENIZATION


TOKENIZATION = Tokenization(train_tokenizer())


@pytest.mark.parametrize(
    ("pieces", "starts"),
    [
        (
            ["It", " cost", "s", " 29", "%", " (", "net", ")."],
            ["It", " cost", " 29", " ("],
        ),  # with the token of its space
        (
            ["sold", " ", "1", "8", "7", " of"],
            ["sold", " ", " of"],
        ),  # a number whose digits are tokens, at its space alone
        (["so", ".", "\n\n", "Then", " go"], ["so", "Then", " go"]),  # after a line break with itself
        (["a", "  ", " b"], ["a", " b"]),  # of several spaces the last belongs to the word
        (["a", "   ", "1"], ["a", "1"]),
        (["a", " b", " "], ["a", " b"]),  # trailing space starts none
    ],
)
def test_a_word_starts_with_the_token_that_brings_its_space_or_its_first_letter(
    pieces: list[str], starts: list[str]
) -> None:
    at = [0, *itertools.accumulate(map(len, pieces))]
    assert [pieces[token] for token in word_start_tokens("".join(pieces), at[:-1])] == starts


@settings(derandomize=True, deadline=None, max_examples=50)
@example(text="Zwölf  Boxkämpfer\n\njagen 😀 1,400 ")
@example(text="日本語 and more")
@given(text=st.text(st.one_of(st.sampled_from(" \n\t a1.[]é😀日"), st.characters(codec="utf-8")), max_size=40))
def test_any_text_is_covered_and_each_word_starts_at_most_once(text: str) -> None:
    tokenized = TOKENIZATION.tokenize(text)
    assert "".join(tokenized.char_span(token, token + 1) for token in range(len(tokenized))) == text
    assert TOKENIZATION.decode(tokenized.ids) == text
    assert list(tokenized.starts) == sorted(tokenized.starts)
    assert tokenized.starts[:1] == ((0,) if text else ())
    words = {match.start() for match in re.finditer(r"\S+", text)}
    started = [tokenized.starts[token] for token in tokenized.word_starts]
    skipped = [start + len(text[start:]) - len(text[start:].lstrip()) for start in started]
    assert len(set(skipped)) == len(skipped)
    assert set(skipped) <= words


def test_a_tokenizer_that_trims_spaces_from_its_offsets_gives_the_same_starts(tokenization: Tokenization) -> None:
    trimming = train_tokenizer()
    trimming.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    text = "The shop sold  187 of them.\n So it has 333 left."
    assert trimming.backend_tokenizer.encode("a b").offsets[-1] == (2, 3), "the offsets leave the space out"
    trimmed, plain = Tokenization(trimming).tokenize(text), tokenization.tokenize(text)
    assert [text[start:].lstrip()[:3] for start in trimmed.starts] == [
        text[start:].lstrip()[:3] for start in plain.starts
    ]
    assert trimmed.word_starts == plain.word_starts


def test_special_tokens_in_a_text_are_read_as_characters(tokenization: Tokenization) -> None:
    assert tokenization.start_ids[0] not in tokenization.ids("before <|endoftext|> after")
    assert tokenization.decode(tokenization.ids("before <|endoftext|> after")) == "before <|endoftext|> after"


def spelled_after(tokenization: Tokenization, separator: str, text: str) -> tuple[tuple[int, ...], int, int]:
    """The ids behind the separator, their shift, and from which token of the text on they are aligned."""
    tokenized = tokenization.tokenize(text)
    aligned = tokenized.second_word()
    return (*tokenization.spell_after(separator, text, tokenized.ids, aligned), aligned)


@pytest.mark.parametrize("word", ["The", "sold", "participants", "Hu", "Zebra"])
def test_behind_a_space_only_the_first_word_is_spelled_anew_and_as_it_reads(
    tokenization: Tokenization, word: str
) -> None:
    text = f"{word} of the shop"
    ids = tokenization.ids(text)
    spelled, shift, aligned = spelled_after(tokenization, " ", text)
    assert spelled == tokenization.ids("Input: " + text)[len(tokenization.ids("Input:")) :] != ids
    assert shift == len(spelled) - len(ids)
    assert spelled[aligned + shift :] == ids[aligned:]
    if (
        word == "participants"
    ):  # which the vocabulary of the tests knows behind a space only: it takes fewer tokens there
        alone, behind = tokenization.ids(word), tokenization.ids(f" {word}")
        assert shift == len(behind) - len(alone) < 0
        assert (spelled[: len(behind)], aligned) == (behind, len(alone))


def test_a_text_that_brings_its_own_space_or_needs_none_is_left_alone(tokenization: Tokenization) -> None:
    ids = tokenization.ids(" shop sold")
    assert spelled_after(tokenization, " ", " shop sold")[:2] == (ids, 0)
    assert spelled_after(tokenization, "", "shop")[:2] == (tokenization.ids("shop"), 0)


def test_where_the_space_cannot_be_spelled_in_it_stands_alone() -> None:
    tokenization = Tokenization(train_tokenizer(digits_alone=True))
    ids = tokenization.ids("187 of them")
    assert spelled_after(tokenization, " ", "187 of them")[:2] == ((*tokenization.ids(" "), *ids), 1)


def with_names(**names: str) -> Any:
    tokenizer = train_tokenizer()
    tokenizer.add_special_tokens(names)
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "start"),
    [
        (train_tokenizer(start_token="<s>"), "<s>"),  # which the tokenizer adds itself
        (train_tokenizer(), "<|endoftext|>"),  # without one the document separator of pretraining
        # The start of a chat turn is no start of a document.
        (with_names(bos_token="<|im_start|>", eos_token="<|im_end|>"), "<|endoftext|>"),
    ],
)
def test_a_document_starts_with_the_token_that_the_model_was_trained_with(tokenizer: Any, start: str) -> None:
    assert start_token_ids(tokenizer) == (tokenizer.convert_tokens_to_ids(start),)


def test_documents_end_at_separator_and_end_token() -> None:
    tokenizer = with_names(eos_token="<|im_end|>")
    expected = {tokenizer.convert_tokens_to_ids(name) for name in ("<|endoftext|>", "<|im_end|>")}
    assert Tokenization(tokenizer).end_ids == expected


def test_a_tokenizer_without_offsets_is_refused() -> None:
    with pytest.raises(ModelError, match="character offsets"):
        Tokenization(object())


def test_a_vocabulary_that_cannot_write_the_marker_is_refused() -> None:
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "word": 1}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ModelError, match=r"expected a vocabulary that can write ' \['"):
        Tokenization(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))


def test_a_prompt_gives_what_stands_before_and_after_its_slot() -> None:
    prompt = AnnotationPrompt("QA", "Add calls.\nInput: {text}\nOutput:\n")
    assert (prompt.before_text, prompt.separator, prompt.after_text) == ("Add calls.\nInput:", " ", "\nOutput:")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("Input: x\nOutput:", "expected '{text}' once, found 0"),
        ("Input: {text}\nOutput: {text}", "expected '{text}' once, found 2"),
        ("Input: {text}\n", "expected words such as 'Output:'"),
    ],
)
def test_a_prompt_whose_slot_cannot_be_filled_is_refused(template: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        AnnotationPrompt("QA", template)
