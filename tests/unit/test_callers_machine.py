"""No test sees the machine of whoever runs it: neither while it is collected, nor while it runs."""

from pathlib import Path

import pytest

from toolformer_ops.config import load_settings
from toolformer_ops.tools.registry import BUILT_IN_TOOLS, tool_names


def test_no_file_of_the_caller_was_opened_since_collection_began(callers_machine):
    assert callers_machine.opened == []


@pytest.mark.parametrize("place", [0, 1, 2])
def test_opening_a_file_in_a_hidden_folder_is_noticed(callers_machine, place):
    path = Path(callers_machine.folders[place]) / "no-such-folder" / "environment"
    with pytest.raises(FileNotFoundError):
        path.open()
    assert callers_machine.opened.pop() == str(path)


def test_the_registry_has_the_tools_of_the_paper_alone():
    assert tool_names() == BUILT_IN_TOOLS


def test_no_setting_of_the_caller_is_read():
    assert load_settings().model_fields_set == {"state_dir", "outage_seconds"}


def test_the_home_is_not_the_callers(callers_machine):
    assert str(Path.home()) not in callers_machine.folders
