"""`scripts/package test`: every test of the packages."""

import os
import unittest
from pathlib import Path


def run_all(binaries: Path) -> int:
    """Runs the tests with the programs in a folder; returns the exit code."""
    os.environ["MODEL_BOSS_TEST_PACKAGES"] = "all"
    if binaries:
        os.environ["MODEL_BOSS_TEST_BIN_DIR"] = str(binaries.resolve())
    scripts = Path(__file__).resolve().parents[2]
    suite = unittest.defaultTestLoader.discover(str(scripts / "packages/tests"), top_level_dir=str(scripts))
    return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1
