"""The programs that packages carry: how they are built, and what must not be in them."""

import os
import re
from pathlib import Path

from .machine import REPOSITORY, Missing, need, output, run, target

PROGRAMS = ["model-boss", "model-boss-worker", "model-boss-fake-worker"]
PROFILE = "dist"


def build(cuda: bool) -> Path:
    """Builds the programs by the profile of packages, without paths of this machine in them; returns their folder."""
    need("cargo", "install Rust, https://rustup.rs")
    need("cc", "install a C compiler, e.g. the package build-essential")
    if cuda and "MODEL_BOSS_CUDA_DIR" not in os.environ and not (target() / "cuda-toolkit/env.sh").is_file():
        need("nvcc", "run scripts/cuda-toolkit, then: . target/cuda-toolkit/env.sh (docs/cuda.md)")
    folder = target() / ("packages-cuda" if cuda else "packages-cpu")
    words = [word for program in PROGRAMS for word in ("--bin", program)]
    features = ["--features", "model-boss-worker/cuda"] if cuda else []
    flags = " ".join([os.environ.get("RUSTFLAGS", ""), *(f"--remap-path-prefix={a}={b}" for a, b in renamed())])
    c_flags = " ".join([os.environ.get("CFLAGS", ""), *(f"-ffile-prefix-map={a}={b}" for a, b in renamed())])
    environment = {**os.environ, "RUSTFLAGS": flags.strip(), "CFLAGS": c_flags.strip()}
    run("cargo", "build", "--locked", "--profile", PROFILE, "--target-dir", folder, *words, *features,
        cwd=REPOSITORY, env=environment)
    return folder / PROFILE


def renamed() -> list:
    """Folders of this machine, and the names that stand for them in messages of the programs. The last one counts."""
    cargo = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    sources = [(folder, "crates") for folder in sorted((cargo / "registry/src").glob("*"))]
    return [(Path.home(), "home"), (cargo, "cargo"), (REPOSITORY, "model-boss"), *sources]


def check(folder: Path) -> None:
    """Every program is there, runs, and names no folder of this machine."""
    for name in PROGRAMS:
        program = folder / name
        if not program.is_file():
            raise Missing(f"{program} is missing: build it, or leave --binaries out")
        # The fake worker takes no words: the coordinator sends it all it needs.
        if name != "model-boss-fake-worker":
            output(program, "--version")
        if found := own_paths(program):
            raise Missing(f"{program} carries paths of this machine, such as {found[0]}: build it by scripts/package")


def own_paths(program: Path) -> list:
    """The paths of this machine's folders in a program."""
    data = program.read_bytes()
    folders = [str(folder).encode() for folder, _ in renamed()[1:]]
    found = [re.search(re.escape(folder) + rb"[\x21-\x7e]*", data) for folder in folders]
    return [match.group().decode()[:120] for match in found if match]


def newest_glibc(folder: Path) -> tuple:
    """The oldest glibc that has all symbols of the programs, as (2, 34)."""
    found = set()
    for name in PROGRAMS:
        text = output(need("objdump", "install binutils"), "-T", folder / name)
        found |= {(int(major), int(minor)) for major, minor in re.findall(r"\(?GLIBC_(\d+)\.(\d+)", text)}
    return max(found)
