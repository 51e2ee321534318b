"""fastText tells languages apart offline, and each of its labels has an NLLB code or is named as lacking."""

import pytest

from toolformer_ops.tools.languages import ENGLISH_CODE, NLLB_CODE, Language, candidates, identify

NOT_IN_NLLB = frozenset(
    {
        "als", "an", "av", "bar", "bcl", "bpy", "br", "bxr", "cbk", "ce", "co", "cv", "diq", "dsb", "dty", "dv", "eml",
        "frr", "fy", "gom", "gv", "hif", "hsb", "ia", "ie", "io", "jbo", "krc", "kv", "kw", "la", "lez", "lrc", "mhr",
        "mrj", "mwl", "myv", "mzn", "nah", "nap", "nds", "new", "os", "pam", "pfl", "pms", "pnb", "rm", "rue", "sah",
        "sco", "tyv", "vep", "vls", "vo", "wa", "wuu", "xal", "xmf",
    }
)  # fmt: skip
"""fastText's labels for languages that NLLB-200 lacks. `als` is Alemannic here; NLLB's `als_Latn` is Tosk Albanian."""


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("The quick brown fox jumps over the lazy dog.", "en"),
        ("sûreté nucléaire", "fr"),
        ("Os Melhores Escolas em Jersey", "pt"),
        ("der klassische jüdische Mann", "de"),
        ("南京高淳县住房和城乡建设局 城市新区设计", "zh"),
        ("DER KLASSISCHE JÜDISCHE MANN UND SEINE FRAU", "de"),  # in upper case
        ("Où est\nla bibliothèque\r\nde la ville ?", "fr"),  # over several lines
    ],
)
def test_the_likeliest_language(text: str, label: str) -> None:
    found = identify(text)
    assert found is not None
    assert found.label == label
    assert 0.5 < found.confidence <= 1.0


@pytest.mark.parametrize("text", ["", "  \n ", "12, 34 %", "!!! --- ***", "☃ 5"])
def test_nothing_is_said_about_a_text_without_letters(text: str) -> None:
    assert identify(text) is None
    assert candidates(text, count=3) == []


def test_candidates_come_in_order_and_one_model_serves_all() -> None:
    found = candidates("libro", count=3)
    assert len(found) == 3
    assert [item.confidence for item in found] == sorted((item.confidence for item in found), reverse=True)


@pytest.mark.parametrize("text", ["a" * 1_000_000, "\ud800 lone surrogate", "null \x00 byte", "\u202eright to left"])
def test_odd_texts_do_no_harm(text: str) -> None:
    assert isinstance(identify(text), Language)


def test_every_label_of_fasttext_is_mapped_or_named_as_lacking() -> None:
    labels = {language.label for language in candidates("hello", count=1000)}
    # fastText gives labels of probability zero too, so that all are listed.
    assert len(labels) > 150
    assert labels <= set(NLLB_CODE) | NOT_IN_NLLB
    assert not set(NLLB_CODE) & NOT_IN_NLLB
    assert len(NLLB_CODE) + len(NOT_IN_NLLB) == 176


def test_the_codes_are_nllbs_own_and_no_language_of_both_is_left_out() -> None:
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

    assert set(NLLB_CODE.values()) <= set(FAIRSEQ_LANGUAGE_CODES)
    assert ENGLISH_CODE == NLLB_CODE["en"] == "eng_Latn"
    nllb_languages = {code.partition("_")[0] for code in FAIRSEQ_LANGUAGE_CODES}
    assert nllb_languages & NOT_IN_NLLB == {"als"}  # Alemannic; NLLB's als is Albanian
    for label, code in NLLB_CODE.items():
        assert len(label) == 2 or code.partition("_")[0] == label


def test_look_alikes_are_not_confused() -> None:
    meant = {
        "sq": "als_Latn",  # Albanian, not Alemannic
        "ku": "kmr_Latn",  # Northern Kurdish; Central Kurdish has a label of its own
        "ckb": "ckb_Arab",
        "fa": "pes_Arab",
        "no": "nob_Latn",
        "nn": "nno_Latn",
        "zh": "zho_Hans",
        "lo": "lao_Laoo",  # Latin is `la`
    }
    assert {label: NLLB_CODE[label] for label in meant} == meant
    assert "la" in NOT_IN_NLLB
