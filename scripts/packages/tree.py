"""The files of an installation below one prefix, the same for every package. The programs find the others from there."""

import gzip
import os
import shutil
from pathlib import Path

from .binaries import PROGRAMS
from .machine import FILES, REPOSITORY, output, run

GUIDE = ["config.json", "generation_config.json", "model.safetensors", "model.toml", "tokenizer.json", "tokenizer_config.json"]
SHELLS = {
    "bash": "bash-completion/completions/model-boss",
    "zsh": "zsh/{zsh}/_model-boss",
    "fish": "fish/vendor_completions.d/model-boss.fish",
}


def programs(binaries: Path, folder: Path) -> None:
    """Puts the programs into a folder."""
    folder.mkdir(parents=True)
    for name in PROGRAMS:
        shutil.copy(binaries / name, folder / name)
        (folder / name).chmod(0o755)


def share(binaries: Path, folder: Path, zsh: str = "site-functions", packed: bool = False) -> None:
    """Puts everything else into a folder: the built-in model, manual pages, completions."""
    guide = folder / "model-boss/models/guide"
    guide.mkdir(parents=True)
    for name in GUIDE:
        copy(REPOSITORY / "manifests/guide" / name, guide / name)
    copy(FILES / "container/live", folder / "model-boss/live", 0o755)
    pages = folder / "man/man1"
    pages.mkdir(parents=True)
    copy(FILES / "model-boss-fake-worker.1", pages / "model-boss-fake-worker.1")
    for program in ("model-boss", "model-boss-worker"):
        # Defaults are those of the service, not of the user who makes the package.
        run(binaries / program, "man", pages, env={"PATH": os.defpath, "STATE_DIRECTORY": "/var/lib/model-boss"})
    for page in sorted(pages.iterdir()):
        if packed:
            # Without a name and a time in its head, the same page has the same bytes.
            (pages / f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), 9, mtime=0))
            page.unlink()
    for shell, place in SHELLS.items():
        file = folder / place.format(zsh=zsh)
        file.parent.mkdir(parents=True)
        file.write_text(output(binaries / "model-boss", "completions", shell) + "\n")


def copy(source: Path, place: Path, mode: int = 0o644) -> None:
    """Copies a file, with the modes of a package whatever this machine's are."""
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, place)
    place.chmod(mode)
