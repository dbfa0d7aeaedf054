"""Manual pages and completions have every command of the programs."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from .. import tree
from .programs import binaries


class Manual(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._folder = tempfile.TemporaryDirectory(prefix="model-boss-share-")
        cls.addClassCleanup(cls._folder.cleanup)
        cls.share = Path(cls._folder.name) / "share"
        tree.share(binaries(), cls.share)

    def test_op_9_every_command_has_a_manual_page(self):
        pages = {page.name for page in (self.share / "man/man1").iterdir()}
        wanted = {f"{'-'.join(words)}.1" for program in ("model-boss", "model-boss-worker") for words in commands([program])}
        self.assertGreater(len(wanted), 40)
        self.assertEqual(wanted - pages, set())
        if shutil.which("mandoc"):
            faults = subprocess.run(["mandoc", "-T", "lint", "-W", "error", *sorted((self.share / "man/man1").iterdir())],
                                    capture_output=True, text=True)
            self.assertEqual(faults.stdout, "")

    def test_op_9_no_page_names_a_folder_of_the_machine_that_made_it(self):
        home = os.path.expanduser("~")
        for page in (self.share / "man/man1").iterdir():
            self.assertNotIn(home, page.read_text(), page.name)

    def test_op_9_completions_have_every_command_and_are_scripts_of_their_shells(self):
        top = {words[1] for words in commands(["model-boss"], depth=1) if len(words) == 2}
        for shell, place in tree.SHELLS.items():
            file = self.share / place.format(zsh="site-functions")
            text = file.read_text()
            self.assertEqual({name for name in top if not re.search(rf"\b{name}\b", text)}, set(), shell)
            if shutil.which(shell):
                self.assertEqual(subprocess.run([shell, "-n", file], capture_output=True, text=True).stderr, "", shell)


def commands(words: list, depth: int = 3):
    """A command and all below it, by what they say of themselves."""
    yield words
    if depth == 0:
        return
    done = subprocess.run([binaries() / words[0], *words[1:], "--help"], capture_output=True, text=True, check=True)
    section = done.stdout.partition("\nCommands:\n")[2].partition("\n\n")[0]
    for name in re.findall(r"^  (\w[\w-]*)(?:  |$)", section, re.MULTILINE):
        if name != "help":
            yield from commands([*words, name], depth - 1)
