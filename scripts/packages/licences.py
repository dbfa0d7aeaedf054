"""The licences of the crates that the programs are linked from: each text once, with the crates that it is of."""

import json
import re
from pathlib import Path

from .binaries import PROGRAMS
from .machine import REPOSITORY, output

NAMES = re.compile(r"(?i)^(licen[cs]e|copying|copyright|notice|unlicense)")


def notices() -> str:
    """A text for people: every crate with its licence, then the texts."""
    crates = linked()
    lines = ["Crates of others in the programs of this package, each with its licence.", ""]
    lines += [f"{crate['name']} {crate['version']}: {crate['license'] or 'see the text'}" for crate in crates]
    of_text = {}
    for crate in crates:
        for file in sorted(Path(crate["manifest_path"]).parent.iterdir()):
            if file.is_file() and NAMES.match(file.name):
                text = file.read_text(errors="replace").strip()
                of_text.setdefault(text, []).append(f"{crate['name']} {crate['version']}")
    for text, owners in of_text.items():
        lines += ["", "-" * 80, ", ".join(owners), "", text]
    return "\n".join(lines) + "\n"


def linked() -> list:
    """The crates of others that are linked into the programs, in the order of their names."""
    words = [word for name in PROGRAMS for word in ("-p", name)]
    tree = output("cargo", "tree", "--locked", "-e", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", *words,
                  cwd=REPOSITORY)
    used = {tuple(line.split()[:2]) for line in tree.splitlines() if line.strip()}
    packages = json.loads(output("cargo", "metadata", "--locked", "--format-version", "1", cwd=REPOSITORY))["packages"]
    of_others = [crate for crate in packages if crate["source"] and (crate["name"], f"v{crate['version']}") in used]
    return sorted(of_others, key=lambda crate: (crate["name"], crate["version"]))
