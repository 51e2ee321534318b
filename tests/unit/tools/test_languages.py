"""fastText tells languages apart offline, and each of its labels has an NLLB code or is named as lacking."""

from toolformer_ops.tools.languages import ENGLISH_CODE, NLLB_CODE, candidates, identify

NOT_IN_NLLB = frozenset(
    {
        "als", "an", "av", "bar", "bcl", "bpy", "br", "bxr", "cbk", "ce", "co", "cv", "diq", "dsb", "dty", "dv", "eml",
        "frr", "fy", "gom", "gv", "hif", "hsb", "ia", "ie", "io", "jbo", "krc", "kv", "kw", "la", "lez", "lrc", "mhr",
        "mrj", "mwl", "myv", "mzn", "nah", "nap", "nds", "new", "os", "pam", "pfl", "pms", "pnb", "rm", "rue", "sah",
        "sco", "tyv", "vep", "vls", "vo", "wa", "wuu", "xal", "xmf",
    }
)  # fmt: skip
"""fastText's labels for languages that NLLB-200 lacks. `als` is Alemannic here; NLLB's `als_Latn` is Tosk Albanian."""


def test_the_likeliest_language_of_a_text_with_letters() -> None:
    for text, label in (
        ("sûreté nucléaire", "fr"),
        ("南京高淳县住房和城乡建设局 城市新区设计", "zh"),
        ("DER KLASSISCHE JÜDISCHE MANN UND SEINE FRAU", "de"),  # in upper case
        ("Où est\nla bibliothèque\r\nde la ville ?", "fr"),  # over several lines
        ("", None),
        ("12, 34 % ☃", None),
    ):
        found = identify(text)
        assert (found.label if found else None) == label
        assert found is None or 0.5 < found.confidence <= 1.0


def test_odd_texts_do_no_harm() -> None:
    assert all(map(identify, ["a" * 100_000, "\ud800 lone surrogate", "null \x00 byte", "\u202eright to left"]))


def test_every_label_of_fasttext_has_nllbs_own_code_or_is_named_as_lacking() -> None:
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

    found = candidates("hello", count=1000)  # also those of probability zero
    assert [item.confidence for item in found] == sorted((item.confidence for item in found), reverse=True)
    labels = {language.label for language in found}
    assert len(labels) > 150
    assert labels <= set(NLLB_CODE) | NOT_IN_NLLB
    assert not set(NLLB_CODE) & NOT_IN_NLLB
    assert set(NLLB_CODE.values()) <= set(FAIRSEQ_LANGUAGE_CODES)
    assert ENGLISH_CODE == NLLB_CODE["en"] == "eng_Latn"
    nllb_languages = {code.partition("_")[0] for code in FAIRSEQ_LANGUAGE_CODES}
    assert nllb_languages & NOT_IN_NLLB == {"als"}  # Alemannic; NLLB's als is Albanian
    assert all(len(label) == 2 or code.partition("_")[0] == label for label, code in NLLB_CODE.items())
    assert (NLLB_CODE["sq"], NLLB_CODE["ku"], NLLB_CODE["lo"]) == ("als_Latn", "kmr_Latn", "lao_Laoo")  # look-alikes
