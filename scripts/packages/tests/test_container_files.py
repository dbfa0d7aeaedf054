"""What both container files have in common, whether or not they can be built here."""

import re
import unittest

from ..machine import FILES

FOLDER = FILES / "container"


class ContainerFiles(unittest.TestCase):
    def test_op_9_both_container_files_differ_in_their_base_and_its_libraries_only(self):
        def steps(name: str) -> list:
            text = (FOLDER / name).read_text()
            lines = [line for line in text.splitlines() if not line.startswith(("#", "FROM"))]
            return [re.sub(r"(libcublas|libcurand)\S* ", "", line) for line in lines]

        self.assertEqual(steps("Containerfile"), steps("Containerfile.cuda"))
        self.assertIn("nvidia/cuda", (FOLDER / "Containerfile.cuda").read_text())
