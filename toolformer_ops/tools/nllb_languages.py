"""NLLB-200's name for each language that fastText's lid.176 knows.

NLLB names a language as in FLORES-200, by ISO 639-3 and script (`fra_Latn`); fastText mostly by ISO 639-1 (`fr`), after the
Wikipedia editions it was trained on. Where fastText's label covers several NLLB languages, the one that most of the edition
is written in is taken: Standard Arabic, Western Persian, Tosk Albanian, Northern Kurdish, simplified Chinese, Croatian for
Serbo-Croatian.

Sources: Costa-jussa et al. 2022, table 1; the labels of lid.176. Does not identify languages: that is
`language_identification.py`.
"""

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
"""fastText's label -> NLLB's code."""

NOT_IN_NLLB = frozenset(
    {
        "als", "an", "av", "bar", "bcl", "bpy", "br", "bxr", "cbk", "ce", "co", "cv", "diq", "dsb", "dty", "dv", "eml",
        "frr", "fy", "gom", "gv", "hif", "hsb", "ia", "ie", "io", "jbo", "krc", "kv", "kw", "la", "lez", "lrc", "mhr",
        "mrj", "mwl", "myv", "mzn", "nah", "nap", "nds", "new", "os", "pam", "pfl", "pms", "pnb", "rm", "rue", "sah",
        "sco", "tyv", "vep", "vls", "vo", "wa", "wuu", "xal", "xmf",
    }
)  # fmt: skip
"""fastText's labels for languages that NLLB-200 lacks. `als` is Alemannic here; NLLB's `als_Latn` is Tosk Albanian."""
