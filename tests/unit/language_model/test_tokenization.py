"""One encoding of a text, its word starts, its windows, and the start token of each kind of tokenizer."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from tests.tiny_models import train_tokenizer
from toolformer_ops.errors import ModelError, UsageError
from toolformer_ops.language_model.tokenization import (
    MIN_WINDOW,
    AnnotationPrompt,
    Tokenization,
    owner,
    plan_windows,
    start_token_ids,
    unspaced_start_tokens,
    word_start_tokens,
)
from toolformer_ops.writing_systems import tokens_before, unspaced_word_starts

TOKENIZATION = Tokenization(train_tokenizer())


@pytest.mark.parametrize(
    ("pieces", "starts"),
    [
        (["It", " cost", "s", " 29", "%", " (", "net", ")."], ["It", " cost", " 29", " ("]),
        (
            ["sold", " ", "1", "8", "7", " of"],
            ["sold", " ", " of"],
        ),  # a number of several tokens, at its space alone
        (["so", ".", "\n\n", "Then", " go"], ["so", "Then", " go"]),  # after a line break with itself
        (
            ["a", "  ", " b", "   ", "1", " "],
            ["a", " b", "1"],
        ),  # of several spaces the last belongs to the word
    ],
)
def test_a_word_starts_with_the_token_that_brings_its_space_or_its_first_letter(pieces, starts):
    at = [0, *itertools.accumulate(map(len, pieces))]
    assert [pieces[token] for token in word_start_tokens("".join(pieces), at[:-1])] == starts


def test_bytes_within_a_character_start_no_word_without_a_space():
    offsets = [(0, 1), (0, 1), (1, 3), (2, 3), (3, 4)]  # the third token ends within the second character
    assert unspaced_start_tokens("去年卖出", offsets) == (2, 4)


def test_a_place_between_two_words_without_a_space_is_the_same_in_another_vocabulary():
    text = "今年卖出845本书。"
    tokenized = TOKENIZATION.tokenize(text)
    assert tokenized.place_of(text.index("845")) == (
        tokenized.starts.index(text.index("845")),
        text.index("845"),
    )


@settings(derandomize=True, deadline=None, max_examples=50)
@example(text="Zwölf  Boxkämpfer\n\njagen 😀 1,400 ")
@example(text="before <|endoftext|> after")  # a special token is read as characters
@given(
    text=st.text(st.one_of(st.sampled_from(" \n\t a1.[]é😀日"), st.characters(codec="utf-8")), max_size=40)
)
def test_any_text_is_covered_by_its_tokens(text):
    tokenized = TOKENIZATION.tokenize(text)
    assert not set(TOKENIZATION.start_ids) & set(tokenized.ids)
    assert "".join(tokenized.char_span(token, token + 1) for token in range(len(tokenized))) == text
    assert TOKENIZATION.decode(tokenized.ids) == text
    assert list(tokenized.starts) == sorted(tokenized.starts)
    assert tokenized.starts[:1] == ((0,) if text else ())


@settings(derandomize=True, deadline=None, max_examples=50)
@example(text="Zwölf  Boxkämpfer\n\njagen 😀 1,400 ")
@example(text="before <|endoftext|> after")  # a special token is read as characters
@given(
    text=st.text(st.one_of(st.sampled_from(" \n\t a1.[]é😀日"), st.characters(codec="utf-8")), max_size=40)
)
def test_each_word_starts_at_most_once(text):
    tokenized = TOKENIZATION.tokenize(text)
    words = {match.start() for match in re.finditer(r"\S+", text)} | unspaced_word_starts(text)
    started = [tokenized.starts[token] for token in tokenized.word_starts]
    skipped = [start + len(text[start:]) - len(text[start:].lstrip()) for start in started]
    assert len(set(skipped)) == len(skipped)
    assert set(skipped) <= words


def test_a_tokenizer_that_trims_spaces_from_its_offsets_gives_the_same_word_starts():
    trimming = train_tokenizer()
    trimming.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    assert trimming.backend_tokenizer.encode("a b").offsets[-1] == (2, 3), "the offsets leave the space out"
    text = "The shop sold  187 of them.\n So it has 333 left."
    assert Tokenization(trimming).tokenize(text).word_starts == TOKENIZATION.tokenize(text).word_starts


def spelled_after(
    separator: str, text: str, tokenization: Tokenization = TOKENIZATION
) -> tuple[Any, int, int]:
    """The ids behind the separator, their shift, and from which token of the text on they are aligned."""
    tokenized = tokenization.tokenize(text)
    aligned = tokenized.second_word()
    return (*tokenization.spell_after(separator, text, tokenized.ids, aligned), aligned)


# The vocabulary of the tests knows "participants" behind a space only: it takes fewer tokens there.
@pytest.mark.parametrize(("word", "shifts"), [("Hu", False), ("participants", True)])
def test_behind_a_space_only_the_first_word_is_spelled_anew(word, shifts):
    text = f"{word} of the shop"
    ids = TOKENIZATION.ids(text)
    spelled, shift, aligned = spelled_after(" ", text)
    assert spelled == TOKENIZATION.ids("Input: " + text)[len(TOKENIZATION.ids("Input:")) :] != ids
    assert shift == len(spelled) - len(ids)
    assert (shift < 0) == shifts
    assert spelled[aligned + shift :] == ids[aligned:]


def test_a_text_that_brings_its_space_needs_none_or_takes_none_in_is_left_alone():
    ids = TOKENIZATION.ids(" shop sold")
    assert spelled_after(" ", " shop sold")[:2] == (ids, 0)
    assert spelled_after("", "shop")[:2] == (TOKENIZATION.ids("shop"), 0)
    digits = Tokenization(train_tokenizer(digits_alone=True))
    alone = (*digits.ids(" "), *digits.ids("187 of them"))
    assert spelled_after(" ", "187 of them", digits)[:2] == (alone, 1)


def with_names(**names: str) -> Any:
    tokenizer = train_tokenizer()
    tokenizer.add_special_tokens(names)
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "start", "ends"),
    [
        (train_tokenizer(start_token="<s>"), "<s>", ["<|endoftext|>"]),  # which the tokenizer adds itself
        (
            train_tokenizer(),
            "<|endoftext|>",
            ["<|endoftext|>"],
        ),  # without one the document separator of pretraining
        # The start of a chat turn is no start of a document.
        (
            with_names(bos_token="<|im_start|>", eos_token="<|im_end|>"),
            "<|endoftext|>",
            ["<|endoftext|>", "<|im_end|>"],
        ),
    ],
)
def test_the_tokens_around_a_document_are_those_that_the_model_was_trained_with(tokenizer, start, ends):
    assert start_token_ids(tokenizer) == (tokenizer.convert_tokens_to_ids(start),)
    assert Tokenization(tokenizer).end_ids == set(tokenizer.convert_tokens_to_ids(ends))


def test_a_tokenizer_without_offsets_or_that_cannot_write_the_marker_is_refused():
    for without in (object(), ByT5Tokenizer()):
        with pytest.raises(ModelError, match=f"character offsets.*found {type(without).__name__}"):
            Tokenization(without)
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "word": 1}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ModelError, match="vocabulary"):
        Tokenization(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))


def test_a_prompt_has_one_slot_with_words_behind_it():
    prompt = AnnotationPrompt("QA", "Add calls.\nInput: {text}\nOutput:\n")
    assert (prompt.before_text, prompt.separator, prompt.after_text) == (
        "Add calls.\nInput:",
        " ",
        "\nOutput:",
    )
    for template in ("Input: x\nOutput:", "Input: {text}\nOutput: {text}", "Input: {text}\n"):
        with pytest.raises(UsageError, match="expected"):
            AnnotationPrompt("QA", template)


@given(tokens=st.integers(1, 3000), size=st.integers(MIN_WINDOW, 600))
def test_each_position_has_one_owner_with_room_for_context_besides_scored_tokens(tokens, size):
    windows = plan_windows(tokens, size)
    assert [window.owned_start for window in windows] == [0] + [window.owned_end for window in windows[:-1]]
    assert windows[-1].owned_end == tokens
    for window in windows:
        assert 0 <= window.start < window.end <= tokens
        assert window.end - window.start <= size
        for token in {window.owned_start, window.owned_end - 1}:
            assert token - window.start >= min(token, size // 2)
            assert window.end - token >= min(5, tokens - token)
            assert owner(windows, token) == window


def test_a_window_too_small_for_its_overlap_is_refused():
    with pytest.raises(ValueError, match="at least 20 tokens, found 19"):
        plan_windows(100, 19)


@pytest.mark.parametrize(
    "text",  # from the first article of the Universal Declaration of Human Rights
    [
        "All human beings are born free and equal in dignity and righ",
        "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。人人有资格享有本宣言所载的一切权利",
        "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、理性と良心とを授けられており",
        "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로 이성과 양심을 부여",
        "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิ",
        "ມະນຸດທຸກຄົນເກີດມາມີອິດສະຫຼະພາບ ແລະ ສະເໝີໜ້າກັນໃນທາງກຽດສັກສີ",
        "មនុស្សទាំងអស់កើតមកមានសេរីភាព និងភាពស្មើៗគ្នា ក្នុងសេចក្តីថ្ល",
        "လူတိုင်းသည် တူညီလွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် လည်းကောင်း၊ တူညီလ",
        "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་དང༌།",
        "Все люди рождаются свободными и равными в своем достоинстве",  # noqa: RUF001
        "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέ",  # noqa: RUF001
        "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. وقد وهبو",
        "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם ח",
        "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्",
        "மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்; அவர்",
        "Բոլոր մարդիկ ծնվում են ազատ ու հավասար՝ իրենց արժանապատվությ",  # noqa: RUF001
        "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው። የተፈጥሮ ማስተዋልና ሕሊ",
    ],
)
def test_a_text_counts_for_no_less_than_four_fifths_of_its_tokens(text, smollm2_dir):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(smollm2_dir)
    assert len(Tokenization(tokenizer).ids(text)) <= 1.25 * tokens_before(text)[-1]


def test_a_chinese_article_has_a_place_for_a_call_at_nearly_each_character(smollm2_dir):
    tokenization = Tokenization(PreTrainedTokenizerFast.from_pretrained(smollm2_dir))
    text = "这家书店去年一共卖出八百四十五本书，今年又卖出三百一十二本，所以店主决定把旁边的房子也租下来。"  # noqa: RUF001
    places = tokenization.tokenize(text).word_starts
    assert len(places) == len(unspaced_word_starts(text)) + 1 == 36
