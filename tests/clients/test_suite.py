"""Clients of other people, unchanged, each in a small program of `suite/` with an environment of its own.

The head of a program says which packages it needs, in pinned versions. Those that install in seconds run always;
MODEL_BOSS_CLIENTS=all (`scripts/test --all`) runs all of them in their newest versions, and writes the versions that
passed into docs/clients-tested.md.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from conftest import REPOSITORY

SUITE = pathlib.Path(__file__).parent / "suite"
BUILT = REPOSITORY / "target/clients-suite"
PAGE = REPOSITORY / "docs/clients-tested.md"
ALL = os.environ.get("MODEL_BOSS_CLIENTS") == "all"
# The version behind a package's name. Newest versions go without it; an upper bound (`<0.4`) stays.
PINNED = r"==.*|(?<=.)@[^@/]*$"


def spelt(name):
    """A Python package's name in the one spelling that compares."""
    return re.sub(r"[-_.]+", "-", name).lower()


class Program:
    def __init__(self, path):
        self.path = path
        self.name = path.name.partition("_client.")[0]
        self.is_python = path.suffix == ".py"
        head = dict(re.findall(r"^(?:#|//) (\w+): (.+)$", path.read_text(), re.MULTILINE))
        self.pinned, self.speaks, self.always = head["needs"].split(), head["speaks"], head["when"] == "always"

    def needs(self):
        """The packages to install."""
        return [re.sub(PINNED, "", package) for package in self.pinned] if ALL else self.pinned

    def folder(self):
        """Where they are installed; the same needs are installed once."""
        mark = hashlib.sha256(" ".join(self.needs()).encode()).hexdigest()[:8]
        return BUILT / f"{self.name}-{mark}"

    def install(self):
        """The command line that runs the program."""
        folder, done = self.folder(), self.folder() / "installed"
        if ALL or not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for command in self.installing(folder):
                made = subprocess.run(command, cwd=folder, capture_output=True, text=True)
                if made.returncode:
                    pytest.skip(f"{self.name} cannot be installed, no network? {(made.stderr or made.stdout)[-300:]}")
            done.touch()
        if self.is_python:
            return [folder / "venv/bin/python", "-B", self.path]
        # Packages are looked for from a module's own folder upwards.
        for module in [self.path, SUITE / "question.mjs"]:
            shutil.copy(module, folder)
        return ["node", folder / self.path.name]

    def installing(self, folder):
        if self.is_python:
            pip = [folder / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "20"]
            return [[sys.executable, "-m", "venv", folder / "venv"], [*pip, "--retries", "1", *self.needs()]]
        if not shutil.which("npm"):
            pytest.skip(f"{self.name} needs node and npm")
        return [["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, *self.needs()]]

    def installed(self):
        """The versions of the packages that it needs, with the bound of those that have one."""
        names = [re.sub(rf"\[.*?\]|<.*|{PINNED}", "", package) for package in self.pinned]
        if self.is_python:
            command = [self.folder() / "venv/bin/pip", "list", "--format", "json", "--disable-pip-version-check"]
            listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            versions = {spelt(package["name"]): package["version"] for package in listed}
            bounds = [f" (`<{package.partition('<')[2]}`)" if "<" in package else "" for package in self.pinned]
            return [f"{name} {versions[spelt(name)]}{bound}" for name, bound in zip(names, bounds)]
        manifests = [self.folder() / "node_modules" / name / "package.json" for name in names]
        return [f"{name} {json.loads(path.read_text())['version']}" for name, path in zip(names, manifests)]


PROGRAMS = [Program(path) for path in sorted(SUITE.glob("*_client.*"))]


@pytest.fixture(scope="session")
def passed():
    """The programs that passed; the page is written from them."""
    passed = {}
    yield passed
    if ALL:
        PAGE.write_text(page(passed))


def page(passed):
    lines = [
        "# Clients that are tested",
        "",
        "This page is made by `scripts/test --all`, which runs each program of [tests/clients/suite](../tests/clients/suite) in the newest",
        "versions of its packages against a coordinator with the built-in model. `scripts/test` runs those that install in seconds.",
        "",
        "| program | language | API | versions that passed | in `scripts/test` |",
        "|---|---|---|---|---|",
    ]
    for program in PROGRAMS:
        versions = ", ".join(passed.get(program.name, ["none"]))
        language, always = "Python" if program.is_python else "JavaScript", "yes" if program.always else "no"
        lines.append(f"| `{program.name}` | {language} | {program.speaks} | {versions} | {always} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("program", [p for p in PROGRAMS if ALL or p.always], ids=lambda program: program.name)
def test_a_client_behaves_as_with_the_server_it_was_written_for(program, guide_url, passed):
    command = program.install()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MODEL_BOSS_")}
    environment |= {"MODEL_BOSS_ROOT": guide_url.removesuffix("/v1")}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3_000:]
    passed[program.name] = program.installed()
