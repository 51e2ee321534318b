"""MT asks only where a foreign passage stands in English, translates what is foreign, and says why it does not."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolError
from toolformer_ops.records import Document
from toolformer_ops.tools.base import FilterDecision
from toolformer_ops.tools.machine_translation import TOOL, judge_paragraph, paragraphs

ENGLISH = "The old man walked slowly along the river and looked at the boats that came down."
FRENCH = "Il faut que nous allions tout de suite chercher le docteur avant la nuit."
CHINESE = "南京高淳县住房和城乡建设局城市新区设计"
ENGLISH_END = "Then he went home again and spoke to nobody about it for a year."
KEPT = "foreign_between_english"


class ScriptedModel:
    """A language model that answers what it is told to."""

    def __init__(self, answers: Sequence[str]) -> None:
        self.answers = answers
        self.prompts: list[str] = []

    def generate_texts(self, prompts: Sequence[str], max_new_tokens: int, stop: str | None = None) -> list[str]:
        self.prompts += prompts
        assert stop == "\n"
        assert max_new_tokens == 128
        return list(self.answers)


def settings_with(**values: Any) -> Settings:
    return Settings(_env_file=None, **values)  # type: ignore[call-arg]


def prompted(*answers: str) -> tuple[ScriptedModel, Any]:
    model = ScriptedModel(answers)
    return model, TOOL.open(settings_with(translator="prompted_lm"), lambda: cast("Any", model))


# The filter


def test_a_foreign_passage_between_english_text_is_kept() -> None:
    assert judge_paragraph(f"{ENGLISH} {FRENCH} {ENGLISH_END}") == KEPT
    assert judge_paragraph(f"{ENGLISH} {CHINESE} {ENGLISH_END}") == KEPT  # each Chinese character is a token


def test_the_passage_need_not_begin_at_a_multiple_of_ten_tokens() -> None:
    for words_before in range(6, 16):
        start = " ".join(ENGLISH.split()[:words_before])
        assert judge_paragraph(f"{start} {FRENCH} {ENGLISH_END}") == KEPT


def test_a_passage_at_the_start_or_end_is_not_between_english_text() -> None:
    assert judge_paragraph(f"{FRENCH} {FRENCH} {ENGLISH}") == "foreign_not_between_english"
    assert judge_paragraph(f"{ENGLISH} {FRENCH} {FRENCH}") == "foreign_not_between_english"


def test_a_few_words_at_the_start_or_end_are_no_english_text() -> None:
    # fastText is sure of English on one to three words of any language: "“André," counts as English to it.
    assert judge_paragraph(f"“André,” {FRENCH} {ENGLISH_END}") == "foreign_not_between_english"
    assert judge_paragraph(f"He said: {FRENCH} {ENGLISH_END}") == "foreign_not_between_english"
    assert judge_paragraph(f"{ENGLISH} {FRENCH} said he.") == "foreign_not_between_english"
    assert judge_paragraph(f"{ENGLISH} {FRENCH} * * * said he.") == "foreign_not_between_english"  # stars are no words


def test_a_rest_of_five_words_is_judged_as_a_whole() -> None:
    assert judge_paragraph(f"Then the old man said: {FRENCH} {ENGLISH_END}") == KEPT
    assert judge_paragraph(f"{ENGLISH} {FRENCH} said the old man then.") == KEPT


def test_a_text_in_one_language_is_not_kept() -> None:
    assert judge_paragraph(f"{ENGLISH} {ENGLISH_END}") == "no_foreign_chunk"
    assert judge_paragraph(f"{FRENCH} {FRENCH} {FRENCH}") == "foreign_not_between_english"


def test_numbers_and_signs_are_neither_foreign_nor_english() -> None:
    numbers = "12 34 % 56 * 78 / 90 = 1 2 3 4 5 6"
    assert judge_paragraph(f"{ENGLISH} {numbers} {ENGLISH_END}") == "no_foreign_chunk"
    assert judge_paragraph(f"{numbers} {FRENCH} {FRENCH} {numbers}") == "foreign_not_between_english"
    assert judge_paragraph(numbers * 3) == "only_numbers_or_symbols"


def test_a_paragraph_too_short_for_a_chunk_between_others_is_left_out() -> None:
    assert judge_paragraph("He said bonjour and left.") == "too_short_for_a_chunk_between_others"
    assert judge_paragraph("one two three four five six seven eight nine ten eleven")[:9] == "too_short"  # 11 tokens


def test_each_paragraph_is_judged_alone_and_found_again_by_its_offsets() -> None:
    mixed = f"{ENGLISH} {FRENCH} {ENGLISH_END}"
    text = f"{ENGLISH}\n\n  {mixed}\t\r\n \n{FRENCH}\n"
    decisions = TOOL.filter(Document.of(text))
    assert [(item.paragraph, item.kept) for item in decisions] == [(0, False), (1, True), (2, False)]
    assert [text[item.start_char : item.end_char] for item in decisions] == [ENGLISH, mixed, FRENCH]


@pytest.mark.parametrize("text", ["", " \n\t\n "])
def test_a_document_without_a_paragraph_has_one_decision(text: str) -> None:
    assert TOOL.filter(Document.of(text)) == [FilterDecision(False, "no_paragraph", 0, 0, len(text))]


def test_paragraphs_are_lines_that_are_not_blank() -> None:
    found = [(item.number, item.start_char, item.text) for item in paragraphs("a\n\n  b c \nd")]
    assert found == [(0, 0, "a"), (1, 5, "b c"), (2, 10, "d")]


# What is asked


def test_an_input_that_stands_only_after_the_call_is_recognised() -> None:
    before, after = "He has published one book:", " O homem suprimido (1935), and no other."
    assert TOOL.input_only_after("O homem suprimido", before, after)
    assert not TOOL.input_only_after("O homem suprimido", before + " O homem suprimido", " (1935)")
    assert not TOOL.input_only_after("O homem suprimido", before + " O homem suprimido", after)
    assert TOOL.input_only_after(
        "O homem suprimido", before + " O homem", " suprimido (1935)"
    )  # cut in two by the call
    assert not TOOL.input_only_after("o mundo", before, after)  # stands nowhere


def test_inputs_are_looked_for_as_words_whatever_their_case_and_spaces() -> None:
    assert not TOOL.input_only_after("o  HOMEM", "It is O\nhomem", " O homem")
    assert TOOL.input_only_after("homem", "homemade", " homem")
    assert not TOOL.input_only_after("城市", "南京高淳县城市新区", "城市")  # no spaces between Chinese words
    assert not TOOL.input_only_after(" ", "a", " b")


def test_the_effective_input_has_single_spaces() -> None:
    assert TOOL.effective_input(" sûreté \n nucléaire ", Document.of("x")) == "sûreté nucléaire"


# Translating with the run's own model


def test_the_language_model_is_shown_the_phrase_and_its_line_is_the_result() -> None:
    model, runner = prompted(" nuclear safety")
    assert runner.run(["sûreté nucléaire"])[0].results == ("nuclear safety",)
    assert len(model.prompts) == 1
    assert model.prompts[0].endswith("\n\nText: sûreté nucléaire\nEnglish:")


def test_what_needs_no_translation_or_cannot_have_one_gets_a_reason() -> None:
    model, runner = prompted(" the cat", " ")
    inputs = ["", "This is the house that Jack built.", "el gato negro", "12 %", "das schöne Haus", "le chat " * 100]
    outputs = runner.run(inputs)
    assert [output.reason for output in outputs] == [
        "empty_input", "already_english", None, "no_words", "empty_translation", "input_too_long",
    ]  # fmt: skip
    assert outputs[2].results == ("the cat",)
    assert len(model.prompts) == 2


def test_a_word_that_fasttext_does_not_know_is_not_taken_for_english() -> None:
    _, runner = prompted(" turtle")
    assert runner.run(["tortuga"])[0].results == ("turtle",)  # English to fastText, with a confidence of 0.08


def test_the_version_names_the_translator_and_its_model() -> None:
    own = settings_with(translator="prompted_lm")
    assert "prompted_lm smol@1" in TOOL.version(own, "smol@1")
    assert TOOL.version(own, "smol@1") != TOOL.version(own, "smol@2")


# Translating with NLLB

PAIRS = [
    ("fra_Latn", "sûreté nucléaire", "nuclear safety"),
    ("deu_Latn", "der klassische jüdische Mann", "the classical Jewish man"),
]


@pytest.fixture(scope="module")
def nllb_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of NLLB's shape with a vocabulary of letters, which has learnt `PAIRS` by heart."""
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

    letters = sorted({letter for _, *texts in PAIRS for letter in "".join(texts).replace(" ", "")} | {"\u2581"})
    vocabulary = {token: number for number, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters])}
    tokenizer = NllbTokenizer(vocab=vocabulary, merges=[])
    torch.manual_seed(0)
    size = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    drops = dict.fromkeys(["dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop"], 0.0)
    config = M2M100Config(
        vocab_size=len(tokenizer), max_position_embeddings=512, decoder_start_token_id=2, **size, **heads, **drops
    )
    model = M2M100ForConditionalGeneration(config)

    def batch(column: int, language: str | None) -> dict[str, Any]:
        rows = []
        for pair in PAIRS:
            tokenizer.src_lang = language or pair[0]
            rows.append(tokenizer(pair[column])["input_ids"])
        return cast("dict[str, Any]", tokenizer.pad({"input_ids": rows}, padding=True, return_tensors="pt"))

    sources, targets = batch(1, None), batch(2, "eng_Latn")
    labels = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100)  # (pairs, tokens)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        model(**sources, labels=labels).loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("nllb")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def nllb(nllb_dir: Path) -> Any:
    def no_language_model() -> Any:
        raise AssertionError("NLLB needs no language model")

    return TOOL.open(settings_with(translator="nllb", translator_model=str(nllb_dir)), no_language_model)


def test_a_checkpoint_translates_what_it_was_taught(nllb: Any) -> None:
    outputs = nllb.run(["der klassische jüdische Mann", "sûreté nucléaire"])
    assert [output.results for output in outputs] == [("the classical Jewish man",), ("nuclear safety",)]


def test_a_batch_of_one_equals_a_batch_of_many(nllb: Any) -> None:
    phrases = ["sûreté nucléaire", "der klassische jüdische Mann"]
    assert nllb.run([phrases[0]]) + nllb.run([phrases[1]]) == nllb.run(phrases)
    assert nllb.run(phrases * 10) == nllb.run(phrases) * 10  # more than one batch


def test_source_and_target_language_are_given_to_the_checkpoint(nllb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = nllb._translator._model, nllb._translator._tokenizer
    seen: dict[str, Any] = {}

    def generate(**arguments: Any) -> Any:
        seen.update(arguments)
        return arguments["input_ids"]

    monkeypatch.setattr(model, "generate", generate)
    nllb.run(["sûreté nucléaire"])
    assert tokenizer.convert_ids_to_tokens(seen["input_ids"][0][0].item()) == "fra_Latn"
    assert tokenizer.convert_ids_to_tokens(seen["input_ids"][0][-1].item()) == "</s>"
    assert tokenizer.convert_ids_to_tokens(seen["forced_bos_token_id"]) == "eng_Latn"


def test_languages_and_lengths_beyond_the_checkpoint_get_a_reason(nllb: Any) -> None:
    breton = "Demat d'an holl, penaos emañ kont ganeoc'h hiziv e Breizh?"
    outputs = nllb.run(["sûreté nucléaire", breton, "la sûreté nucléaire " * 40])
    assert [output.reason for output in outputs] == [None, "language_not_supported", "input_too_long"]
    assert outputs[0].results == ("nuclear safety",)


def test_a_translation_without_an_end_is_no_result(nllb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolformer_ops.tools.translators.MAX_NEW_TOKENS", 5)
    assert nllb.run(["sûreté nucléaire"])[0].reason == "translation_unfinished"


def test_the_version_follows_the_checkpoints_content(nllb_dir: Path) -> None:
    version = TOOL.version(settings_with(translator="nllb", translator_model=str(nllb_dir)), "smol@1")
    assert f"nllb {nllb_dir.name}@" in version
    assert "smol" not in version  # the run's own model does not matter


def open_nllb(**values: Any) -> None:
    TOOL.open(settings_with(translator="nllb", hub_offline=True, **values), lambda: cast("Any", None))


def test_a_checkpoint_that_is_not_there_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="TOOLFORMER_TRANSLATOR_MODEL: expected an NLLB checkpoint"):
        open_nllb()
    with pytest.raises(ToolError, match=f"TOOLFORMER_TRANSLATOR_MODEL={tmp_path}"):
        open_nllb(translator_model=str(tmp_path))
    with pytest.raises(ToolError, match="TOOLFORMER_TRANSLATOR_MODEL"):
        TOOL.version(settings_with(translator="nllb", translator_model=str(tmp_path)), "smol@1")


def test_a_checkpoint_of_another_shape_or_without_safetensors_is_refused(nllb_dir: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    causal = tmp_path / "causal"
    shutil.copytree(nllb_dir, causal)
    (causal / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ToolError, match="expected a sequence-to-sequence checkpoint"):
        open_nllb(translator_model=str(causal))

    pickled = tmp_path / "pickled"
    shutil.copytree(nllb_dir, pickled)
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    with pytest.raises(ToolError, match="with safetensors"):
        open_nllb(translator_model=str(pickled))
