"""Files that processes share: replaced whole, and locked."""

from pathlib import Path

import pytest

from toolformer_ops.storage.shared_files import replace_file


def test_a_file_is_replaced_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_text("old")
    replace_file(path, "new \u00e9", mode=0o600)
    assert path.read_text(encoding="utf-8") == "new \u00e9"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_failed_replacement_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_file(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
