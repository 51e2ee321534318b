"""MT asks where a foreign passage stands between English text, and not where English holds names, numbers or units."""

import pytest

from toolformer_ops.tools.foreign_passages import judge_paragraph

ENGLISH = "The old man walked slowly along the river and looked at the boats that came down."
FRENCH = "Il faut que nous allions tout de suite chercher le docteur avant la nuit."
ENGLISH_END = "Then he went home again and spoke to nobody about it for a year."
NUMBERS = "12 34 % 56 * 78 / 90 = 1 2 3 4 5 6"
KEPT = "foreign_between_english"
NOT_BETWEEN, NO_FOREIGN = "foreign_not_between_english", "no_foreign_chunk"
NO_WORDS, TOO_SHORT = "only_numbers_or_symbols", "too_short_for_a_chunk_between_others"

PARAGRAPHS = [
    # The passage need not begin at a multiple of ten tokens.
    *((f"{' '.join(ENGLISH.split()[:words])} {FRENCH} {ENGLISH_END}", KEPT) for words in range(6, 17)),
    (f"{ENGLISH} {FRENCH} {FRENCH}", NOT_BETWEEN),
    # fastText is sure of English on one to three words of any language: "“André," counts as English to it.
    (f"“André,” {FRENCH} {ENGLISH_END}", NOT_BETWEEN),
    (f"{ENGLISH} {FRENCH} * * * said he.", NOT_BETWEEN),  # stars are no words
    # A rest of five words is judged as a whole.
    (f"Then the old man said: {FRENCH} {ENGLISH_END}", KEPT),
    # A text in one language, or with numbers and signs, which are neither foreign nor English.
    (f"{ENGLISH} {ENGLISH_END}", NO_FOREIGN),
    (f"{ENGLISH} {NUMBERS} {ENGLISH_END}", NO_FOREIGN),
    (NUMBERS * 3, NO_WORDS),
    ("He said bonjour and left.", TOO_SHORT),
    # Line breaks and marks of quotation within a paragraph are white space.
    (f"{ENGLISH} {FRENCH} {ENGLISH_END}".replace(" ", "\n> "), KEPT),
    # Novels set foreign words between underscores, and join a speech by dashes.
    (f"{ENGLISH} _{FRENCH}_ {ENGLISH_END}", KEPT),
    (f"{ENGLISH} {FRENCH.upper()} {ENGLISH_END}", KEPT),
    (f"{ENGLISH[:-1]}—{FRENCH[:-1]}—{ENGLISH_END}", KEPT),
]


@pytest.mark.parametrize(("text", "reason"), PARAGRAPHS)
def test_a_paragraph_is_kept_if_a_foreign_passage_stands_between_english_text(text, reason):
    assert judge_paragraph(text) == reason


PASSAGES = {
    "Arabic": "يجب أن نجد الطبيب قبل حلول الليل في المدينة",
    "Chinese": "南京高淳县住房和城乡建设局城市新区设计",
    "Dutch": "Wij moeten de dokter halen voordat de nacht valt.",
    "Finnish": "Meidän täytyy löytää lääkäri ennen yötä ja sadetta.",
    "German": "Das soll mein Weib werden, sagte der Bauer zu seinem Sohn.",
    "Greek": "Πρέπει να βρούμε τον γιατρό πριν νυχτώσει.",  # noqa: RUF001
    "Hebrew": "אנחנו צריכים למצוא את הרופא לפני הלילה",
    "Hindi": "हमें रात होने से पहले डॉक्टर को ढूंढना होगा",
    "Italian": "Dobbiamo cercare subito il medico prima che scenda la notte.",
    "Japanese": "夜になる前に医者を探さなければなりません",
    "Korean": "밤이 되기 전에 의사를 찾아야 합니다 우리는",
    "Polish": "Musimy sprowadzić lekarza, zanim zapadnie noc.",
    "Portuguese": "Precisamos procurar o médico antes que a noite chegue.",
    "Russian with names": "Мы видели Ивана Петровича в Москве у старого дома.",  # noqa: RUF001
    "Spanish": "Tenemos que buscar al médico antes de que llegue la noche.",
    "Swedish": "Vi måste hämta läkaren innan natten kommer.",
    "Thai": "เราต้องหาหมอก่อนค่ำ",
    "Turkish": "Gece olmadan önce doktoru bulmamız gerekiyor.",  # noqa: RUF001
    "Vietnamese": "Chúng ta phải tìm bác sĩ trước khi trời tối.",
}


@pytest.mark.parametrize("passage", PASSAGES.values(), ids=PASSAGES)
def test_a_passage_of_another_language_is_foreign(passage):
    assert judge_paragraph(f"{ENGLISH} “{passage}” {ENGLISH_END}") == KEPT


PLAIN_ENGLISH = {
    "actors": "with Cole Hauser, Parker Posey, Adam Goldberg, Joey Lauren Adams, Milla Jovovich and Nicky Katt",
    "files": "Word document, 12 KB, 2 pages, Feb. 2015, Word document, 8 KB, 3 pages, Feb. 2015,",
    "cities": "in Paris, Lyon, Avignon, Marseille, Toulon, Cannes, Nice, Monaco, Menton and Ventimiglia,",
    "addresses": "at https://www.beispiel.de/formulare/antrag/seite-eins and info@beispiel.de or www.exemple.fr",
    "units": "in the ratio of 3 ml per 10 kg, 5 ml per 20 kg, 7 ml per 30 kg and 9 ml per 40 kg,",
    "species": "such as Rosa canina, Quercus robur, Fagus sylvatica, Betula pendula and Acer campestre,",
    "code": "with int main(void) { return x = y << 2; } and foo_bar baz-qux tmp0 idx1 buf2 len3 ptr4",
    "standards": "as ASU 2015-14, ASU 2016-08, ASU 2016-10, ASU 2016-12, ASU 2016-20, and ASU 2017-05",
    "prices": "who charges $4 per necklace, $10 per ring, $5 per pair of earrings, 3 bags for $5 per bag,",
    "a heading": "IN CHAPTER TWO OF THE BOOK ABOUT NASA AND ESA, THE OLD MAN OF THE RIVER,",
    "formats": "in a file that lists all CSV, XML, JSON, XLS, XLSX, XML, and Shapefiles of a domain name,",
    "companies": "at BMW, EADS, FIAT and OMV, and then at RWE, SAP, SNCF and TUI,",
    "streets": "at Karl-Marx-Allee, Unter den Linden, Friedrichstrasse and Kurfürstendamm,",
}


@pytest.mark.parametrize("words", PLAIN_ENGLISH.values(), ids=PLAIN_ENGLISH)
def test_names_numbers_or_units_in_english_are_not_foreign(words):
    assert judge_paragraph(f"{ENGLISH[:-1]} {words} {ENGLISH_END}") == NO_FOREIGN


def test_each_chunk_of_a_long_line_is_asked_for_a_bounded_number_of_times(monkeypatch):
    import toolformer_ops.tools.foreign_passages as module

    asked: list[str] = []
    identify = module.identify

    def counting(text: str) -> object:
        asked.append(text)
        return identify(text)

    monkeypatch.setattr(module, "identify", counting)
    for line in (f"{FRENCH} " * 100, f"{ENGLISH} " * 100, f"{ENGLISH} " + f"{FRENCH} " * 100, "好" * 1400):
        asked.clear()
        judge_paragraph(line)
        assert len(asked) < 2 * 1700  # tokens of the longest line
