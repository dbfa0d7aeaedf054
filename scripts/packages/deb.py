"""The Debian package: files, control, maintainer scripts. dpkg-shlibdeps finds the libraries, dpkg-deb packs."""

import gzip
import hashlib
import os
import re
import subprocess
import tempfile
from email.utils import formatdate
from pathlib import Path

from . import licences, tree
from .binaries import PROGRAMS
from .machine import FILES, REPOSITORY, Missing, field, need, output, run, version

# The revision of the package, for a new package of the same version.
REVISION = 1
COMPRESSION = ["-Zxz"]
CONFIGURATION = {"model-boss.toml": "etc/model-boss/model-boss.toml", "tasks.yaml": "etc/model-boss/tasks.yaml"}
SUMMARY = "one door to every language model on a GPU machine"
DESCRIPTION = """\
 model-boss queues requests by priority, loads models beside training jobs, and
 leases the memory of devices before anything touches them. Each loaded model
 has a worker process of its own. Clients speak OpenAI's, Anthropic's or
 Ollama's API at one port, 8210.
 .
 The service listens on 127.0.0.1 and serves the small built-in model "guide".
"""


def make(binaries: Path, out: Path, cuda: bool) -> Path:
    """Makes the package."""
    need("dpkg-deb", "a system like Debian makes Debian packages")
    need("dpkg-shlibdeps", "install the package dpkg-dev")
    name = "model-boss-cuda" if cuda else "model-boss"
    with tempfile.TemporaryDirectory(prefix="model-boss-deb-") as folder:
        root = Path(folder) / "root"
        fill(root, binaries, name)
        control(root, Path(folder), name)
        architecture = output("dpkg", "--print-architecture")
        package = out / f"{name}_{version()}-{REVISION}_{architecture}.deb"
        # The modes in the package are those of its files, whatever the umask of this shell was.
        os.chmod(root, 0o755)
        run("dpkg-deb", "--root-owner-group", *COMPRESSION, "--build", root, package, stdout=subprocess.DEVNULL)
    return package


def fill(root: Path, binaries: Path, name: str) -> None:
    """Puts every file in its place."""
    tree.programs(binaries, root / "usr/bin")
    for program in PROGRAMS:
        run("strip", "--strip-unneeded", "--remove-section=.comment", "--remove-section=.note", root / "usr/bin" / program)
    tree.share(binaries, root / "usr/share", zsh="vendor-completions", packed=True)
    tree.copy(FILES / "debian/model-boss.service", root / "usr/lib/systemd/system/model-boss.service")
    for source, place in CONFIGURATION.items():
        tree.copy(FILES / "debian" / source, root / place)
    documents = root / "usr/share/doc" / name
    documents.mkdir(parents=True)
    (documents / "copyright").write_text(copyright_text())
    pack(documents / "third-party-licences.txt.gz", licences.notices())
    pack(documents / "changelog.gz", (REPOSITORY / "CHANGELOG.md").read_text())
    pack(documents / "changelog.Debian.gz", changelog(name))
    overrides = root / "usr/share/lintian/overrides"
    tree.copy(FILES / "debian/lintian-overrides", overrides / name)
    text = (overrides / name).read_text().replace("@NAME@", name)
    (overrides / name).write_text(text)
    for path in sorted(root.rglob("*")):
        if path.is_dir() or not path.stat().st_mode & 0o100:
            path.chmod(0o755 if path.is_dir() else 0o644)


def control(root: Path, folder: Path, name: str) -> None:
    """Writes the folder DEBIAN."""
    place = root / "DEBIAN"
    place.mkdir()
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    fields = {
        "Package": name,
        "Version": f"{version()}-{REVISION}",
        "Architecture": output("dpkg", "--print-architecture"),
        "Maintainer": maintainer(),
        "Installed-Size": sum(-(-path.stat().st_size // 1024) for path in files) + 64,
        "Depends": f"adduser, {libraries(root, folder)}",
        "Section": "net",
        "Priority": "optional",
        "Homepage": field("repository"),
    }
    if name != "model-boss":
        fields |= {"Provides": f"model-boss (= {version()}-{REVISION})", "Conflicts": "model-boss", "Replaces": "model-boss"}
    text = "".join(f"{key}: {value}\n" for key, value in fields.items())
    (place / "control").write_text(f"{text}Description: {SUMMARY}\n{DESCRIPTION}")
    (place / "conffiles").write_text("".join(f"/{path}\n" for path in sorted(CONFIGURATION.values())))
    for script in ("postinst", "prerm", "postrm"):
        tree.copy(FILES / "debian" / script, place / script, 0o755)
    own = [path for path in files if not path.is_relative_to(root / "etc")]
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in own]
    (place / "md5sums").write_text("".join(sums))


def libraries(root: Path, folder: Path) -> str:
    """The packages of the libraries that the programs need, in the versions that have their symbols."""
    # dpkg-shlibdeps wants to stand in a source package.
    (folder / "debian").mkdir()
    (folder / "debian/control").write_text("Source: model-boss\n\nPackage: model-boss\nArchitecture: any\n")
    programs = [root / "usr/bin" / program for program in PROGRAMS]
    text = output("dpkg-shlibdeps", "-O", *[f"-e{program}" for program in programs], cwd=folder)
    if not (found := re.search(r"^shlibs:Depends=(.*)$", text, re.MULTILINE)):
        raise Missing("dpkg-shlibdeps found no libraries")
    return found[1]


def copyright_text() -> str:
    """The copyright of this repository's files, with the text of MIT; Apache-2.0 lies on every Debian."""
    mit = (REPOSITORY / "LICENSE-MIT").read_text()
    holder = re.search(r"^Copyright \(c\) (.*)$", mit, re.MULTILINE)[1]
    permission = mit[mit.index("Permission is hereby granted"):].strip()
    indented = "\n".join(f" {line}" if line.strip() else " ." for line in permission.splitlines())
    return (FILES / "debian/copyright").read_text().replace("@SOURCE@", field("repository")) \
        .replace("@HOLDER@", holder).replace("@MIT@", indented)


def changelog(name: str) -> str:
    """The one entry of the package's own changelog."""
    when = formatdate(int(output("git", "log", "-1", "--format=%ct", cwd=REPOSITORY)), localtime=False)
    return f"{name} ({version()}-{REVISION}) unstable; urgency=medium\n\n  * Version {version()}: see changelog.gz.\n\n" \
           f" -- {maintainer()}  {when}\n"


def maintainer() -> str:
    """Whoever builds a package maintains it: DEBFULLNAME and DEBEMAIL, as Debian's tools have it."""
    name = os.environ.get("DEBFULLNAME", "the model-boss authors")
    return f"{name} <{os.environ.get('DEBEMAIL', 'model-boss@users.noreply.github.com')}>"


def pack(file: Path, text: str) -> None:
    """Writes a text packed, and the same text always as the same bytes."""
    file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def lint(package: Path) -> str:
    """What lintian says about a package; nothing if all is well."""
    return output(need("lintian", "install the package lintian"), "--no-cfg", "--allow-root", "--fail-on", "none", package)
