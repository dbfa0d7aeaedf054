"""Adds the programs of model-boss to the wheel, where scripts/package has put them ready. Without them the wheel has the
client alone, as `pip install ./clients/python` makes it."""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Programs(BuildHookInterface):
    """The hook of hatchling's wheel builder."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Names the files, and the system that they run on."""
        if not (staged := os.environ.get("MODEL_BOSS_WHEEL_FILES")):
            return
        folder = Path(staged)
        build_data["shared_scripts"] = {str(path): path.name for path in sorted((folder / "scripts").iterdir())}
        data = folder / "data"
        build_data["shared_data"] = {str(path): str(path.relative_to(data)) for path in sorted(data.rglob("*")) if path.is_file()}
        build_data["pure_python"] = False
        build_data["tag"] = os.environ["MODEL_BOSS_WHEEL_TAG"]
