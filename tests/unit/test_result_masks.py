"""The loss leaves out what the tools wrote, and nothing else, whatever the tokenizer."""

import json
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.finetuning_jobs import released_call
from tests.tiny_models import TRAINING_TEXTS, train_tokenizer
from toolformer_ops.config import Settings
from toolformer_ops.finetuning.sequences import NOT_SCORED, TokenSequences
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.release.card import ReleaseCounts, dataset_card
from toolformer_ops.release.format import ReleasedText, write_texts
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.models import with_sample_end

PLAIN = "The shop had 520 shirts, so it has 333 left. We met in Z\u00fcrich at 21 \u00b0C.\nToday is Monday."
CALLS = (
    released_call(PLAIN.index(" 333"), "520 - 187", "333"),
    released_call(
        PLAIN.index(" Z"), "Where did we meet?", "  in Z\u00fcrich,  at 21 \u00b0C \U0001f600 ", "QA"
    ),
    released_call(PLAIN.index("Today"), "", "Today is Monday, January 30, 2023", "Calendar"),
)
TEXT = ReleasedText.of(uuid.UUID(int=1), PLAIN, CALLS, None)


def _fast(backend: Tokenizer, trainer: Any = None) -> Any:
    from transformers import PreTrainedTokenizerFast

    if trainer is not None:
        backend.train_from_iterator([*TRAINING_TEXTS, TEXT.text], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>", unk_token="<unk>")


def word_piece() -> Any:
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))  # type: ignore[call-arg]
    backend.normalizer = normalizers.BertNormalizer(strip_accents=False, lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return _fast(
        backend,
        trainers.WordPieceTrainer(
            vocab_size=300, special_tokens=["<unk>", "<|endoftext|>"], show_progress=False
        ),
    )


def unigram() -> Any:
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    special = ["<unk>", "<|endoftext|>"]
    return _fast(
        backend,
        trainers.UnigramTrainer(
            vocab_size=250, special_tokens=special, unk_token="<unk>", show_progress=False
        ),
    )


def single_bytes() -> Any:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _fast(
        backend,
        trainers.BpeTrainer(
            vocab_size=256, initial_alphabet=alphabet, special_tokens=["<unk>"], show_progress=False
        ),
    )


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "byte-level BPE": train_tokenizer,
    "byte-level BPE that splits digits": lambda: train_tokenizer(digits_alone=True, start_token="<s>"),
    "WordPiece": word_piece,
    "Unigram": unigram,
    "bytes": single_bytes,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_exactly_the_tokens_with_a_character_of_a_result_are_masked(name):
    tokenizer = TOKENIZERS[name]()
    tokenization = Tokenization(tokenizer)
    start = len(tokenization.start_ids)
    plain = TokenSequences.of([TEXT], tokenization, 1000)
    masked = TokenSequences.of([TEXT], tokenization, 1000, mask_results=True)
    assert masked[0]["input_ids"] == plain[0]["input_ids"] == plain[0]["labels"]
    found = {place - start for place, label in enumerate(masked[0]["labels"]) if label == NOT_SCORED}
    # The tokenizer's own alignment says which characters each token has: white space alone may be in none.
    results = [
        place for span in TEXT.call_spans() for place in range(span.result_start_char, span.result_end_char)
    ]
    written = "".join(TEXT.text[place] for place in results)
    assert written == " 333 in Z\u00fcrich,  at 21 \u00b0C \U0001f600 Today is Monday, January 30, 2023"
    encoded = tokenizer(TEXT.text, add_special_tokens=False)
    expected = {encoded.char_to_token(place) for place in results} - {None}
    assert expected <= found
    for token in found - expected:
        first, end = encoded.token_to_chars(token)
        assert end == first or set(range(first, end)) & set(results), encoded.tokens()[token]
    assert masked.masked_tokens == len(found) > 10
    kept = [label for label in masked[0]["labels"][start:] if label != NOT_SCORED]
    if name.startswith("by"):  # the others do not read back what they wrote, character by character
        assert tokenization.decode(kept) == re.sub(r"\) -> [^\]]*\]", ") ->]", TEXT.text)


@pytest.mark.parametrize("straddling", ["3]", "-> 3", " 333] 333"])
def test_a_token_across_the_border_of_a_result_is_masked(straddling):
    tokenizer = TOKENIZERS["byte-level BPE"]()
    tokenizer.add_tokens([AddedToken(straddling, normalized=False)])
    sequence = TokenSequences.of([TEXT], Tokenization(tokenizer), 1000, mask_results=True)[0]
    across = [place for place, token in enumerate(sequence["input_ids"]) if token == len(tokenizer) - 1]
    assert across
    assert {sequence["labels"][place] for place in across} == {NOT_SCORED}


def test_of_a_call_that_is_cut_by_the_length_each_part_is_masked():
    result = "Spinning reel > They are used by people, " * 6
    text = ReleasedText.of(
        uuid.UUID(int=2), "They fish.", [released_call(4, "reel", result, "WikiSearch")], None
    )
    tokenization = Tokenization(TOKENIZERS["byte-level BPE"]())
    cut = TokenSequences.of([text], tokenization, 20, mask_results=True)
    assert len(cut) > 4
    labels = [
        label for index in range(len(cut)) for label in cut[index]["labels"][len(tokenization.start_ids) :]
    ]
    whole = TokenSequences.of([text], tokenization, 1000, mask_results=True)[0]["labels"]
    assert labels == whole[len(tokenization.start_ids) :]
    assert "Spinning" not in tokenization.decode([label for label in labels if label != NOT_SCORED])


@pytest.fixture
def release(tmp_path):
    write_texts(tmp_path, [TEXT])
    return tmp_path


def test_trl_trains_on_the_labels_of_the_package_as_the_card_makes_them(release, tiny_model_dir):
    import datasets
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    definition = {"model": "m", "tools": [], "lacking_tools": [], "max_examples_per_tool": 1}
    counts = ReleaseCounts()
    counts.add(TEXT)
    card = dataset_card("0" * 16, definition, counts, {})
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", card, re.DOTALL) if "def labelled" in block
    )
    rows = datasets.load_dataset(
        "parquet",
        data_files=str(release / "data" / "part-*.parquet"),
        split="train",
        cache_dir=str(release / "cache"),
    )
    names: dict[str, Any] = {"rows": rows, "tokenizer": AutoTokenizer.from_pretrained(tiny_model_dir)}
    exec(code, names)  # noqa: S102 - the card's own words
    expected = TokenSequences.of([TEXT], Tokenization(names["tokenizer"]), 1000, mask_results=True)[0]
    assert [names["rows"][0][name] for name in ("input_ids", "labels")] == [
        expected["input_ids"],
        expected["labels"],
    ]
    arguments = SFTConfig(
        output_dir=str(release / "out"),
        max_steps=1,
        report_to=[],
        use_cpu=True,
        per_device_train_batch_size=1,
    )
    trainer = SFTTrainer(str(tiny_model_dir), args=arguments, train_dataset=names["rows"])
    [batch] = list(trainer.get_train_dataloader())
    assert batch["labels"][0].tolist() == expected["labels"]


@pytest.mark.parametrize(
    ("definition", "chosen", "expected"),
    [
        ({"finetune_results": "mask"}, None, "arrow"),
        ({"finetune_results": "mask"}, "bracket", "bracket"),
        ({}, None, None),  # as with `train`
        (None, None, None),
        (None, "arrow", "arrow"),
    ],
)
def test_samples_of_a_model_end_as_its_training_says_unless_they_are_told_otherwise(
    tiny_model_dir, tmp_path, definition, chosen, expected
):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_model_dir.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    if definition is not None:
        (folder / "finetuning.json").write_text(json.dumps({"definition": definition}))
    choices = RunChoices.parse({"corpus": "c", "model": str(folder), "sample_until": chosen})
    assert with_sample_end(Settings(), choices).sample_until == expected
    # It is the model that samples that counts.
    proposed = choices.model_copy(update={"proposer": "endpoint:p"})
    assert with_sample_end(Settings(), proposed).sample_until == chosen
