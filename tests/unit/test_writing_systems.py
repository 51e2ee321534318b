"""How many tokens the characters of a writing system count for, without a tokenizer."""

import pytest

from toolformer_ops.writing_systems import tokens_before


def test_four_characters_of_english_prose_are_one_token() -> None:
    text = "“It costs £400 — in all,” she said…\n"
    assert tokens_before(text).tolist() == [count / 4 for count in range(len(text) + 1)]


def test_a_text_without_characters_has_no_tokens() -> None:
    assert tokens_before("").tolist() == [0]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("café", 0.25 * 3 + 1),
        ("мир", 3),
        ("上海", 2 * 2),
        ("かな", 2 * 2),
        ("มนุษย์", 6 * 2),
        ("မြန်မာ", 6 * 3),
        ("한국", 2 * 3),
        ("😀", 3),
        ("𠀀", 4),
        ("\ud800", 3),  # half of a pair, as broken JSON has it
        ("\U0010ffff", 4),
    ],
)
def test_characters_count_as_their_writing_system_does(text: str, tokens: float) -> None:
    assert tokens_before(text)[-1] == tokens


def test_a_part_counts_the_same_wherever_it_is_in_a_text() -> None:
    before = tokens_before("two 上海 three")
    assert before[6] - before[4] == tokens_before("上海")[-1]
