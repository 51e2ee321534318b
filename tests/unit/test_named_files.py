"""Files that the documentation, docstrings and comments name are there."""

import re

from toolformer_ops.config import REPOSITORY

NAMED = re.compile(r"`((?:[a-z0-9_.-]+/)+[a-z0-9_-]+\.(?:py|sql|jinja|toml|yaml))`")
"""With a folder: a name alone may be anybody's file."""
EXAMPLES = {"deploy/kubernetes/mine/kustomization.yaml", "migrations/0001_what.sql"}
"""Of files that a reader makes."""
KINDS = ("*.md", "docs/*.md", "sql/**/*.md", "toolformer_ops/**/*.py", "dags/*.py", "sql/**/*.sql")


def test_every_file_that_a_text_names_with_its_folder_is_there():
    texts = [text for kind in KINDS for text in REPOSITORY.glob(kind)]
    assert len(texts) > 300
    lost = [
        f"{text.relative_to(REPOSITORY)}: {name}"
        for text in texts
        for name in NAMED.findall(text.read_text(encoding="utf-8"))
        for near in [
            (REPOSITORY, REPOSITORY / "toolformer_ops", REPOSITORY / "sql", text.parent, text.parent.parent)
        ]
        if name not in EXAMPLES and not any((folder / name).exists() for folder in near)
    ]
    assert lost == []
