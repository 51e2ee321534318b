"""A study whose tool is a tool file: from then on this process has the tools of its folder."""

import os
from pathlib import Path

from toolformer_ops.config import ENV_PREFIX, Settings, load_settings
from toolformer_ops.tools.registry import forget_tools


def with_tools(settings: Settings, folder: Path) -> Settings:
    """The settings with the tool files of a folder; for a process of its own, whose tools become others."""
    os.environ[f"{ENV_PREFIX}TOOLS_DIR"] = str(folder)
    load_settings.cache_clear()
    forget_tools()
    return settings.model_copy(update={"tools_dir": folder})
