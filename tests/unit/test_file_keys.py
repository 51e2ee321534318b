"""The page of the keys of files is what the classes that read the files say."""

from docs.file_keys import PAGE, chapters, page, rows_of


def test_the_page_is_made_from_the_code():
    assert PAGE.read_text(encoding="utf-8") == page(), "make it anew: .venv/bin/python -m docs.file_keys"


def test_each_key_has_a_meaning():
    rows = [row for chapter in chapters() for row in rows_of(chapter.file, "")]
    assert [row for row in rows if row.endswith("|  |")] == []
