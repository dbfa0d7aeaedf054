"""The wheel: the Python client of clients/python, and the programs with their files. hatchling makes it."""

import os
import shutil
import sysconfig
import tempfile
from pathlib import Path

from . import licences, tree
from .binaries import newest_glibc
from .machine import FILES, REPOSITORY, Missing, run, target


def make(binaries: Path, out: Path, cuda: bool) -> Path:
    """Makes the wheel."""
    if cuda:
        raise Missing("a wheel with CUDA is larger than PyPI takes: use the deb or the container with --cuda")
    python = tools()
    with tempfile.TemporaryDirectory(prefix="model-boss-wheel-") as folder:
        staged = Path(folder) / "staged"
        tree.programs(binaries, staged / "scripts")
        tree.share(binaries, staged / "data/share")
        documents = staged / "data/share/doc/model-boss"
        for name in ("LICENSE-MIT", "LICENSE-APACHE"):
            tree.copy(REPOSITORY / name, documents / name)
        (documents / "third-party-licences.txt").write_text(licences.notices())
        made = Path(folder) / "made"
        environment = {**os.environ, "MODEL_BOSS_WHEEL_FILES": str(staged), "MODEL_BOSS_WHEEL_TAG": tag(binaries)}
        run(python, "-m", "hatchling", "build", "-t", "wheel", "-d", made, cwd=REPOSITORY / "clients/python", env=environment)
        [wheel] = made.glob("*.whl")
        return Path(shutil.copy(wheel, out))


def tag(binaries: Path) -> str:
    """Any Python 3, no interface of C, and the system: the glibc whose symbols the programs need."""
    major, minor = newest_glibc(binaries)
    machine = sysconfig.get_platform().split("-")[-1]
    return f"py3-none-manylinux_{major}_{minor}_{machine}"


def tools() -> Path:
    """A Python with hatchling of the pinned version, in an environment of its own."""
    requirements, venv = FILES / "requirements.txt", target() / "packages-venv"
    done = venv / "installed.txt"
    if not (done.is_file() and done.read_text() == requirements.read_text()):
        try:
            run("python3", "-m", "venv", "--clear", venv)
            run(venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "20", "--retries", "1",
                "-r", requirements)
        except Exception as error:
            raise Missing(f"hatchling could not be installed, no network? ({error})") from error
        shutil.copy(requirements, done)
    return venv / "bin/python"
