# ruff: noqa: RUF001 -- characters of full width are what is tested
"""How many tokens the characters of a writing system count for, without a tokenizer."""

import itertools

import pytest

from toolformer_ops.writing_systems import tokens_before, unspaced_word_starts


def test_four_characters_of_english_prose_are_one_token():
    text = "“It costs £400 — in all,” she said…\n"
    assert tokens_before(text).tolist() == [count / 4 for count in range(len(text) + 1)]


def test_a_text_without_characters_has_no_tokens():
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
def test_characters_count_as_their_writing_system_does(text, tokens):
    assert tokens_before(text)[-1] == tokens


def test_a_part_counts_the_same_wherever_it_is_in_a_text():
    before = tokens_before("two 上海 three")
    assert before[6] - before[4] == tokens_before("上海")[-1]


@pytest.mark.parametrize(
    "words",
    [
        "今|年|卖|出|三百一十二|本，|他|说。",
        "今|年|卖|出|845本|（共|1,157本），|GDP增|长|3.5%。",
        "他|读|《红|楼|梦》",
        "日|本|で|一|番|高|い|建|物|は|「東|京|スカイツリー」|で|す。|人々",
        "もっと|コンピュータ|を",
        "มี|เห|ตุ|ผ|ล|๒๕๖๙",
        "ມະ|ນຸ|ດ|ມີ|ເຫ|ດ",
        "ភា|ព|ស្មើៗ|គ្នា",
        "လူ|တိုင်း|သည်",
        "རིགས་|རྒྱུད་|ཡོངས་|ལ།",
    ],
)
def test_a_word_may_start_at_a_syllable_of_a_script_without_spaces(words):
    text = words.replace("|", "")
    starts = sorted(unspaced_word_starts(text))
    parts = [text[start:end] for start, end in itertools.pairwise([0, *starts, len(text)])]
    assert "|".join(parts) == words


@pytest.mark.parametrize(
    "text",
    [
        "Out of 1400 participants, 400 (or 29%) passed “the test”.",
        "Все люди рождаются свободными и равными.",
        "모든 인간은 태어날 때부터 자유로우며",
        "सभी मनुष्यों को गौरव",
        "１２３（ＡＢＣ）：Hello，world",
    ],
)
def test_a_text_of_scripts_with_spaces_has_no_word_start_without_a_space(text):
    assert unspaced_word_starts(text) == frozenset()


def test_white_space_before_a_word_leaves_its_start_to_the_rule_of_white_space():
    assert unspaced_word_starts("of 上\n海") == frozenset()
