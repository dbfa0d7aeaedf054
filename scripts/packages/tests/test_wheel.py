"""The wheel, in a fresh environment of Python."""

import subprocess
import tempfile
import unittest
import zipfile
from pathlib import Path

from .. import wheel
from ..machine import Missing, version
from .programs import ANSWER, QUESTION, binaries, isolated


class Wheel(unittest.TestCase):
    def test_op_9_a_wheel_brings_the_programs_their_model_and_the_client(self):
        with tempfile.TemporaryDirectory(prefix="model-boss-wheel-") as name:
            folder = Path(name)
            try:
                package = wheel.make(binaries(), folder, cuda=False)
            except Missing as missing:
                self.skipTest(str(missing))
            self.assertRegex(package.name, rf"^model_boss-{version()}-py3-none-manylinux_2_\d+_\w+\.whl$")
            names = zipfile.ZipFile(package).namelist()
            self.assertFalse([name for name in names if ".." in name or name.startswith("/")])

            venv, work = folder / "venv", folder / "work"
            work.mkdir()
            subprocess.run(["python3", "-m", "venv", venv], check=True)
            before = files(venv)
            pip = [venv / "bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
            subprocess.run([*pip, "install", "--no-index", package], check=True)

            def run(*command: object) -> str:
                done = subprocess.run(command, cwd=work, env=isolated(folder), capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
                return done.stdout

            self.assertEqual(run(venv / "bin/model-boss", "--version").strip(), f"model-boss {version()}")
            code = "import model_boss; print(model_boss.__version__, model_boss.lease.__name__)"
            self.assertEqual(run(venv / "bin/python", "-c", code).split(), [version(), "lease"])
            # No coordinator runs, no manifest and no configuration is there: the model came with the wheel.
            self.assertIn(ANSWER, run(venv / "bin/model-boss", "run", "guide", QUESTION))
            self.assertTrue((venv / "share/man/man1/model-boss-serve.1").is_file())

            subprocess.run([*pip, "uninstall", "--yes", "model-boss"], check=True)
            self.assertEqual(files(venv) - before, set(), "uninstalling leaves nothing")


def files(folder: Path) -> set:
    """The files below a folder, without what Python compiled."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path for path in found if path.suffix != ".pyc"}
