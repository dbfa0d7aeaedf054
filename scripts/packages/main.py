"""The command line of `scripts/package`."""

import argparse
import subprocess
import sys
from pathlib import Path

from . import binaries, container, deb, wheel
from .machine import Missing, target


def main(description: str) -> int:
    """Makes the packages that the command line names."""
    parser = argparse.ArgumentParser(prog="scripts/package", description=description)
    parser.add_argument("what", choices=["deb", "wheel", "container", "all", "test"])
    parser.add_argument("--out", type=Path, help="the folder of the packages [default: target/packages]")
    parser.add_argument("--binaries", type=Path, help="a folder with the built programs [default: they are built]")
    parser.add_argument("--cuda", action="store_true", help="with a worker for NVIDIA GPUs (docs/cuda.md)")
    arguments = parser.parse_args()
    try:
        if arguments.what == "test":
            return test(arguments)
        out = arguments.out or target() / "packages"
        out.mkdir(parents=True, exist_ok=True)
        folder = arguments.binaries or binaries.build(arguments.cuda)
        binaries.check(folder)
        for made in make(arguments.what, folder, out, arguments.cuda):
            print(f"{made} ({made.stat().st_size / 1e6:.1f} MB)")
    except Missing as error:
        print(f"scripts/package: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"scripts/package: failed: {' '.join(error.cmd)}", file=sys.stderr)
        return 1
    return 0


def make(what: str, folder: Path, out: Path, cuda: bool):
    """Makes packages of the programs in `folder`, one after the other."""
    if what in ("wheel", "all"):
        yield wheel.make(folder, out, cuda)
    if what in ("deb", "container", "all"):
        package = deb.make(folder, out, cuda)
        yield package
    if what in ("container", "all"):
        yield from container.make(package, out, cuda)


def test(arguments: argparse.Namespace) -> int:
    """Installs each package and runs it."""
    from .tests.run import run_all

    return run_all(arguments.binaries)
