"""The container image: a folder with its file and the Debian package, built where there is an engine."""

import shutil
from pathlib import Path

from .machine import FILES, Missing, run, version


def context(package: Path, folder: Path, cuda: bool) -> Path:
    """Fills the folder that an engine builds from."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(FILES / "container" / ("Containerfile.cuda" if cuda else "Containerfile"), folder / "Containerfile")
    shutil.copy(package, folder / "model-boss.deb")
    return folder


def make(package: Path, out: Path, cuda: bool):
    """Builds the image and saves it as one file."""
    name = "container-cuda" if cuda else "container"
    folder = context(package, out / name, cuda)
    engine = shutil.which("podman") or shutil.which("docker")
    if engine is None:
        raise Missing(f"neither podman nor docker is installed; {folder} has all that one of them needs: podman build {folder}")
    image = f"model-boss:{version()}{'-cuda' if cuda else ''}"
    # Docker's own format keeps the health check, which the other one of podman's has not.
    words = ["--format", "docker"] if engine.endswith("podman") else []
    run(engine, "build", *words, "--tag", image, "--file", folder / "Containerfile", folder)
    file = out / f"model-boss_{version()}{'-cuda' if cuda else ''}.tar"
    file.unlink(missing_ok=True)
    run(engine, "save", "--output", file, image)
    yield file
