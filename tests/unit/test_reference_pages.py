import pytest

from toolformer_ops.cli.reference import DOCS, PAGES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_of_reference_is_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), (
        f"docs/{name} is stale: run `python -m toolformer_ops.cli.reference`"
    )
