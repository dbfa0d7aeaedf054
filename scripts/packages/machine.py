"""The repository, its version, and the programs of this machine."""

import re
import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = Path(__file__).resolve().parent


class Missing(Exception):
    """A step cannot be done on this machine; the text says what is missing."""


def need(program: str, how: str) -> str:
    """The path of a program; `how` says where it comes from."""
    # Programs of the system are not on everybody's PATH.
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if path is None:
        raise Missing(f"'{program}' is missing: {how}")
    return path


def run(*command: object, **options: object) -> subprocess.CompletedProcess:
    """Runs a command, which must succeed."""
    return subprocess.run([str(word) for word in command], check=True, **options)


def output(*command: object, **options: object) -> str:
    """The text that a command prints, which must succeed."""
    return run(*command, stdout=subprocess.PIPE, text=True, **options).stdout.strip()


def field(name: str) -> str:
    """A field of `[workspace.package]`, the one place of the version, the licence and the address."""
    text = (REPOSITORY / "Cargo.toml").read_text()
    section = text.split("[workspace.package]", 1)[1].split("\n[", 1)[0]
    return re.search(rf'^{name} = "([^"]+)"', section, re.MULTILINE)[1]


def version() -> str:
    """The version of every package."""
    return field("version")


def target() -> Path:
    """Cargo's target folder."""
    text = output("cargo", "metadata", "--no-deps", "--format-version", "1", cwd=REPOSITORY)
    return Path(re.search(r'"target_directory":"([^"]*)"', text)[1])
