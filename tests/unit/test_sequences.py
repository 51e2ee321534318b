"""Texts as training sequences: nothing is lost, no call is cut, passes follow from the seed, and what names a model."""

import dataclasses
from collections.abc import Iterable

import pytest

from tests.finetuning_jobs import released_call, released_text
from tests.tiny_models import train_tokenizer
from toolformer_ops.errors import CallSyntaxError, ModelError
from toolformer_ops.finetuning.recipe import FinetuningRecipe, PassSize
from toolformer_ops.finetuning.sequences import ShuffledPasses, TokenSequences, window_bounds
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.runs.choices import FinetuningChoices


@pytest.fixture(scope="module")
def tokenization():
    return Tokenization(train_tokenizer(start_token="<s>"))


def test_spans_are_where_the_calls_stand_with_the_one_added_space():
    text = released_text(
        "One 2 three 4\nfive",
        released_call(3, "1 + 1", "2"),
        released_call(14, "2 + 3", "5"),
        released_call(11, "2 * 2", "4"),
    )
    assert (
        text.text
        == "One [Calculator(1 + 1) -> 2] 2 three [Calculator(2 * 2) -> 4] 4\n[Calculator(2 + 3) -> 5] five"
    )
    spans = text.call_spans()
    calls = [" [Calculator(1 + 1) -> 2]", " [Calculator(2 * 2) -> 4]", "[Calculator(2 + 3) -> 5] "]
    assert [text.text[span.start_char : span.end_char] for span in spans] == calls
    assert [text.text[span.result_start_char : span.result_end_char] for span in spans] == [" 2", " 4", " 5"]


def test_spans_of_a_damaged_text_are_refused():
    text = released_text(
        "One 2 three 4\nfive",
        released_call(3, "1 + 1", "2"),
        released_call(14, "2 + 3", "5"),
        released_call(11, "2 * 2", "4"),
    )
    for damaged in (
        text.text[:-30],
        text.text.replace("-> 2]", "-> 3]"),
        "",
        text.text.replace("One", "Two!"),
    ):
        with pytest.raises(
            CallSyntaxError, match=rf"text {text.document_id}: expected \[Calculator\(.* at character"
        ):
            dataclasses.replace(text, text=damaged).call_spans()


def test_windows_follow_each_other_without_cutting_a_call_that_fits():
    starts = list(range(0, 50, 2))  # 25 tokens of 2 characters
    found: list[tuple[list[tuple[int, int]], int, list[tuple[int, int]]]] = [
        ([], 10, [(0, 10), (10, 20), (20, 25)]),
        ([], 25, [(0, 25)]),
        # A border inside a call moves to its start: the first would be at token 10, character 20.
        ([(16, 26)], 10, [(0, 8), (8, 18), (18, 25)]),
        ([(20, 26)], 10, [(0, 10), (10, 20), (20, 25)]),  # the call starts right there
        ([(14, 20)], 10, [(0, 10), (10, 20), (20, 25)]),  # the call ends right there
        # A call that is longer than a window is cut.
        ([(0, 48)], 10, [(0, 10), (10, 20), (20, 25)]),
        ([(4, 48)], 10, [(0, 2), (2, 12), (12, 22), (22, 25)]),
    ]
    for calls, length, windows in found:
        assert window_bounds(starts, calls, length) == windows
    assert window_bounds([], [], 10) == []


def test_sequences_hold_every_token_of_every_text_once_behind_the_start_token(tokenization):
    texts = [
        released_text(
            "The shop had 520 shirts and sold 187 of them, so it has 333 left. " * 3,
            released_call(55, "520 - 187", "333"),
        ),
        released_text("Short 2 one.", released_call(5, "1 + 1", "2")),
    ]
    sequences = TokenSequences.of(texts, tokenization, 20)
    [start] = tokenization.start_ids
    rows = [sequences[index]["input_ids"] for index in range(len(sequences))]
    assert all(row[0] == start and len(row) <= 20 and row.count(start) == 1 for row in rows)
    without_start = [token for row in rows for token in row[1:]]
    assert without_start == [token for text in texts for token in tokenization.tokenize(text.text).ids]
    assert sequences.tokens == len(without_start) + len(rows)
    assert sum("[Calculator(520 - 187) -> 333]" in tokenization.decode(row) for row in rows) == 1
    plain = TokenSequences.of(texts, tokenization, 20, without_calls=True)
    rows = [plain[index]["input_ids"][1:] for index in range(len(plain))]
    assert "".join(map(tokenization.decode, rows)) == "".join(text.plain_text for text in texts)
    with pytest.raises(ModelError, match="at least 16 tokens, found a length of 8"):
        TokenSequences.of([], tokenization, 8)


def _sequences(sizes: Iterable[int]) -> TokenSequences:
    """Each of its size, and of its number again and again."""
    sequences = TokenSequences()
    for number, size in enumerate(sizes):
        sequences.append([number] * size)
    return sequences


def test_each_pass_sees_every_sequence_once_in_an_order_of_its_own_that_follows_from_the_seed():
    examples = ShuffledPasses(_sequences([1] * 50), 120, seed=7)
    seen = [examples[index]["input_ids"][0] for index in range(120)]
    assert sorted(seen[:50]) == sorted(seen[50:100]) == list(range(50))
    assert seen[:50] != seen[50:100]
    assert (len(set(seen[100:])), len(examples)) == (20, 120)
    with pytest.raises(IndexError):
        examples[120]
    again, other = (ShuffledPasses(_sequences([1] * 50), 120, seed) for seed in (7, 8))
    assert [again[index]["input_ids"][0] for index in reversed(range(120))] == seen[
        ::-1
    ]  # in any order asked
    assert [other[index]["input_ids"][0] for index in range(120)] != seen
    # Tokens of the first examples.
    sized = ShuffledPasses(_sequences((1, 2, 3)), 6, seed=7)
    sizes = [len(sized[index]["input_ids"]) for index in range(6)]
    assert [sized.tokens_until(count) for count in (0, 3, 5, 2, 6)] == [
        sum(sizes[:end]) for end in (0, 3, 5, 2, 6)
    ]


def test_of_a_development_document_the_beginning_is_taken_if_it_has_one(tokenization):
    long = "The shop had 520 shirts and sold 187 of them. " * 4
    beginnings = TokenSequences.of_beginnings(["Short.", "", long], tokenization, 16)
    [start] = tokenization.start_ids
    expected = [[start, *tokenization.ids("Short.")], [start, *tokenization.ids(long)[:15]]]
    assert [beginnings[index]["labels"] for index in range(len(beginnings))] == expected


def _recipe(**changes: object) -> FinetuningRecipe:
    given = {"release_id": "0123456789abcdef", "base_model": "model@1"}
    own = {name: changes.pop(name) for name in FinetuningRecipe.model_fields if name in changes}
    return FinetuningRecipe.model_validate(
        given | own | {"choices": FinetuningChoices.model_validate(changes)}
    )


def test_effective_batch_stays_the_same_at_any_number_of_gpus():
    recipe = _recipe()
    assert recipe.warmup_steps == 200  # a tenth of the paper's 2,000
    for gpus, processes, share in (
        (1, 1, 128),
        (2, 2, 64),
        (3, 2, 64),
        (8, 8, 16),
        (6, 4, 32),
        (200, 128, 1),
    ):
        assert (recipe.processes(gpus), recipe.share(processes)) == (processes, share)


def test_a_step_is_divided_evenly_into_passes_of_at_most_the_device_batch():
    sizes = [
        _recipe(finetune_batch=batch, finetune_device_batch=4).pass_size("cpu") for batch in (128, 6, 7, 2)
    ]
    assert sizes == [PassSize(sequences=size) for size in (4, 3, 1, 2)]


def test_passes_are_counted_in_tokens_where_no_device_batch_is_chosen():
    assert _recipe().pass_size("cuda") == PassSize(tokens=16_384)


@pytest.mark.parametrize(
    ("size", "half"),
    [
        (PassSize(sequences=4), PassSize(sequences=2)),
        (PassSize(sequences=3), PassSize(sequences=1)),
        (PassSize(sequences=1), None),
        (PassSize(tokens=16_384), PassSize(tokens=8_192)),
        (PassSize(tokens=1_500), PassSize(tokens=1_024)),
        (PassSize(tokens=1_024), None),
    ],
)
def test_a_pass_is_halved_down_to_one_sequence(size, half):
    assert size.half(share=12, longest=1_024) == half


def test_choices_of_adapters_decide_nothing_where_all_weights_are_trained():
    other = _recipe(finetune_lora_rank=8)
    assert other.model_id == "7dbc824a4c0ba12b"


def test_the_model_id_names_exactly_what_decides_the_model():
    same = _recipe()
    assert (
        _recipe(finetune_device_batch=1, finetune_checkpoint_steps=7).model_id
        == same.model_id
        == "7dbc824a4c0ba12b"
    )
    baseline = _recipe(without_calls=True)
    assert (
        baseline.model_id
        == "c587be5847f56ea2"
        == _recipe(without_calls=True, finetune_results="mask").model_id
    )
    changed = [
        _recipe(finetune_steps=1), _recipe(finetune_batch=1), _recipe(finetune_length=16), _recipe(seed=1),
        _recipe(finetune_learning_rate=1.0), _recipe(finetune_results="mask"),
        _recipe(finetune_dev_documents=1), _recipe(finetune_eval_steps=1),
        _recipe(finetune_method="lora"), _recipe(finetune_optimizer="adamw_8bit"),
        _recipe(release_id="f" * 16), _recipe(base_model="model@2"),
    ]  # fmt: skip
    assert len({recipe.model_id for recipe in [same, baseline, *changed]}) == len(changed) + 2
    assert [one.loss_counts.endswith("results of calls") for one in (baseline, changed[5])] == [False, True]
