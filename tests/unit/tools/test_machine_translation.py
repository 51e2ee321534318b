"""MT asks only where a foreign passage stands in English, translates what is foreign, and says why it does not."""

import textwrap
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolError
from toolformer_ops.records import Document
from toolformer_ops.tools.base import FilterDecision, ToolOutput
from toolformer_ops.tools.languages import ENGLISH_CODE, NLLB_CODE, candidates, identify
from toolformer_ops.tools.machine_translation import TOOL

ENGLISH = "The old man walked slowly along the river and looked at the boats that came down."
FRENCH = "Il faut que nous allions tout de suite chercher le docteur avant la nuit."
ENGLISH_END = "Then he went home again and spoke to nobody about it for a year."
KEPT = "foreign_between_english"


def test_each_paragraph_is_judged_alone_under_its_offsets():
    mixed = f"{ENGLISH} {FRENCH} {ENGLISH_END}"
    text = f"{ENGLISH}\n\n  {mixed}\t\r\n \n{FRENCH}\n"
    decisions = TOOL.filter(Document.of(text))
    assert [(item.paragraph, item.kept) for item in decisions] == [(0, False), (1, True), (2, False)]
    assert [text[item.start_char : item.end_char] for item in decisions] == [ENGLISH, mixed, FRENCH]
    assert TOOL.filter(Document.of(" \n\t\n ")) == [FilterDecision(False, "no_paragraph", 0, 0, 5)]


@pytest.mark.parametrize("line_start", ["", "    ", "> "])
def test_a_foreign_passage_in_hard_wrapped_text_is_kept(line_start):
    lines = textwrap.wrap(f"{ENGLISH} {FRENCH} {ENGLISH_END}", 72)
    text = "\n".join(f"{line_start}{line}" for line in lines)
    [decision] = TOOL.filter(Document.of(text))
    assert decision.reason == KEPT


# What is asked

BEFORE, AFTER = "He has published one book:", " O homem suprimido (1935), and no other."


def test_an_input_is_only_after_if_its_words_stand_there_alone():
    for call_input, before, after, only_after in (
        ("O homem suprimido", BEFORE, AFTER, True),
        ("O homem suprimido", f"{BEFORE} O homem suprimido", " (1935)", False),
        ("O homem suprimido", f"{BEFORE} O homem", " suprimido (1935)", True),  # cut in two by the call
        ("o  HOMEM", "It is O\nhomem", " O homem", False),  # in other letters and spaces
        ("O homem", "> It is O\n> homem", " O homem", False),  # over two quoted lines
        ("homem", "homemade", " homem", True),  # as a word
        (" ", "a", " b", False),
        ("城市", "南京高淳县城市新区", "城市", False),  # no spaces between Chinese words
    ):
        assert TOOL.input_only_after(call_input, before, after) is only_after


# Translating with the run's own model


def test_each_phrase_has_the_models_line_or_a_reason():
    model: Any = Mock()
    model.generate_texts.return_value = [" nuclear safety", " ", " turtle"]
    runner = TOOL.open(Settings(), lambda: model)
    outcomes = {
        "sûreté nucléaire": "nuclear safety",
        "": "empty_input",
        "This is the house that Jack built.": "already_english",
        "12 %": "no_words",
        "das schöne Haus": "empty_translation",
        "le chat " * 100: "input_too_long",
        "tortuga": "turtle",  # English to fastText, with a confidence of 0.08
    }
    outputs = runner.run(list(outcomes))
    assert [output.results[0] if output.results else output.reason for output in outputs] == list(
        outcomes.values()
    )
    [prompts], options = model.generate_texts.call_args
    assert options == {"max_new_tokens": 128, "stop": "\n"}
    asked = ["sûreté nucléaire", "das schöne Haus", "tortuga"]
    assert [prompt.rpartition("\n\n")[2] for prompt in prompts] == [
        f"Text: {text}\nEnglish:" for text in asked
    ]


# Translating with NLLB

PAIRS = [
    ("fra_Latn", "sûreté nucléaire", "nuclear safety"),
    ("deu_Latn", "der klassische jüdische Mann", "the classical Jewish man"),
]


@pytest.fixture(scope="module")
def nllb_dir(tmp_path_factory):
    """A checkpoint of NLLB's shape with a vocabulary of letters, which has learnt `PAIRS` by heart."""
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

    letters = sorted(
        {letter for _, *texts in PAIRS for letter in "".join(texts).replace(" ", "")} | {"\u2581"}
    )
    vocabulary = {token: number for number, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters])}
    tokenizer = NllbTokenizer(vocab=vocabulary, merges=[])
    torch.manual_seed(0)
    sizes: Any = {
        **dict.fromkeys(["encoder_ffn_dim", "decoder_ffn_dim"], 64),
        **dict.fromkeys(["encoder_attention_heads", "decoder_attention_heads"], 2),
        **dict.fromkeys(["encoder_layers", "decoder_layers"], 1),
        **dict.fromkeys(["dropout", "attention_dropout", "activation_dropout"], 0.0),
    }
    config = M2M100Config(vocab_size=len(tokenizer), d_model=32, decoder_start_token_id=2, **sizes)
    model = M2M100ForConditionalGeneration(config)

    taught = []
    for language, source, target in PAIRS:
        tokenizer.src_lang, tokenizer.tgt_lang = language, "eng_Latn"
        taught.append(tokenizer(source, text_target=target, return_tensors="pt"))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for pair in taught * 60:
        optimizer.zero_grad()
        model(**pair).loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("nllb")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def nllb_settings(folder: Path) -> Settings:
    return Settings(hub_offline=True, translator_model=str(folder))


@pytest.fixture(scope="module")
def nllb(nllb_dir):
    return TOOL.open(nllb_settings(nllb_dir), pytest.fail)


def test_a_checkpoint_translates_what_it_was_taught_in_any_batch_else_names_a_reason(nllb):
    breton = "Demat d'an holl, penaos emañ kont ganeoc'h hiziv e Breizh?"
    phrases = [*(pair[1] for pair in PAIRS), breton, "la sûreté nucléaire " * 40]
    outputs = [ToolOutput.of(pair[2]) for pair in PAIRS]
    outputs += [ToolOutput.none("language_not_supported"), ToolOutput.none("input_too_long")]
    assert nllb.run(phrases[::-1]) == outputs[::-1]
    assert nllb.run(phrases[:1]) == outputs[:1]
    assert nllb.run(phrases * 10) == outputs * 10  # more than one batch


def test_the_translator_is_told_both_languages(nllb, monkeypatch):
    model, tokenizer = nllb._translator._model, nllb._translator._tokenizer
    generate = Mock(wraps=model.generate)
    monkeypatch.setattr(model, "generate", generate)
    nllb.run(["sûreté nucléaire"])
    ids, target = (
        generate.call_args.kwargs["input_ids"][0].tolist(),
        generate.call_args.kwargs["forced_bos_token_id"],
    )
    assert tokenizer.convert_ids_to_tokens([ids[0], ids[-1], target]) == ["fra_Latn", "</s>", "eng_Latn"]


def test_a_translation_without_an_end_is_no_result(nllb, monkeypatch):
    monkeypatch.setattr("toolformer_ops.tools.translators.MAX_NEW_TOKENS", 5)
    assert nllb.run(["sûreté nucléaire"])[0].reason == "translation_unfinished"


def test_the_version_names_the_translator_with_its_model(nllb_dir):
    own = Settings()
    assert "prompted_lm smol@1" in TOOL.version(own, "smol@1")
    assert TOOL.version(own, "smol@1") != TOOL.version(own, "smol@2")
    version = TOOL.version(nllb_settings(nllb_dir), "smol@1")
    assert f"nllb {nllb_dir.name}@" in version
    assert "smol" not in version  # the run's own model does not matter


def test_a_missing_translator_is_named_with_its_setting(tmp_path):
    with pytest.raises(ToolError, match="TOOLFORMER_TRANSLATOR_MODEL"):
        TOOL.open(nllb_settings(tmp_path), pytest.fail)
    with pytest.raises(ToolError, match="TOOLFORMER_TRANSLATOR_MODEL"):
        TOOL.version(nllb_settings(tmp_path), "smol@1")


# Languages


def test_the_likeliest_language_of_a_text_with_letters():
    for text, label in (
        ("sûreté nucléaire", "fr"),
        ("南京高淳县住房和城乡建设局 城市新区设计", "zh"),
        ("DER KLASSISCHE JÜDISCHE MANN UND SEINE FRAU", "de"),  # in upper case
        ("Où est\nla bibliothèque\r\nde la ville ?", "fr"),  # over several lines
        ("", None),
        ("12, 34 % ☃", None),
        (f"{ENGLISH} \x00 \ud800 \u202e", "en"),
    ):
        found = identify(text)
        assert (found.label if found else None) == label
        assert found is None or 0.5 < found.confidence <= 1.0


def test_every_label_of_fasttext_that_nllb_knows_has_nllbs_own_code():
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

    found = candidates("hello", count=1000)  # also those of probability zero
    assert [item.confidence for item in found] == sorted((item.confidence for item in found), reverse=True)
    labels = {language.label for language in found}
    lacking = labels - set(NLLB_CODE)
    assert (len(labels) > 150, len(lacking) < 60) == (True, True)
    assert set(NLLB_CODE.values()) <= set(FAIRSEQ_LANGUAGE_CODES)
    assert ENGLISH_CODE == NLLB_CODE["en"] == "eng_Latn"
    nllb_languages = {code.partition("_")[0] for code in FAIRSEQ_LANGUAGE_CODES}
    assert nllb_languages & lacking == {"als"}  # Alemannic; NLLB's als is Albanian
    assert all(len(label) == 2 or code.partition("_")[0] == label for label, code in NLLB_CODE.items())
    assert (NLLB_CODE["sq"], NLLB_CODE["ku"], NLLB_CODE["lo"]) == (
        "als_Latn",
        "kmr_Latn",
        "lao_Laoo",
    )  # look-alikes
