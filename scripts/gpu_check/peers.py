"""Programs of other projects, which are never built here."""

import os
import shutil
from pathlib import Path

from .rows import Bench


def peer(bench: Bench, name: str) -> Path | None:
    """A program in FOLDER, on the PATH, or named by an environment variable such as MODEL_BOSS_LLAMA_BATCHED_BENCH."""
    beside = bench.workers.program.parent / name
    variable = f"MODEL_BOSS_{name.upper().replace('-', '_')}"
    named = os.environ.get(variable) or (beside if beside.is_file() else shutil.which(name))
    return Path(named) if named else None
