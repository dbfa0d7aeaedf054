"""The Debian package, in a Debian of its own: installed, run, upgraded, removed, purged."""

import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from .. import deb
from ..machine import version
from . import chroot
from .programs import ANSWER, QUESTION, ask, binaries, chat, ports

USER = "model-boss"


class DebianPackage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        chroot.require()
        cls._folder = tempfile.TemporaryDirectory(prefix="model-boss-deb-")
        cls.addClassCleanup(cls._folder.cleanup)
        cls.package = deb.make(binaries(), Path(cls._folder.name), cuda=False)

    def test_op_9_lintian_finds_no_fault(self):
        if not shutil.which("lintian"):
            self.skipTest("lintian is not installed")
        self.assertEqual(deb.lint(self.package), "")

    def test_op_9_a_package_is_installed_run_upgraded_removed_and_purged(self):
        debian = chroot.Debian()
        self.addCleanup(debian.close)
        debian.run("apt-get", "update", "-qq")
        # What the package needs is there before, so that only its own files are counted.
        debian.run("apt-get", "install", "-qq", "--yes", "--no-install-recommends", "adduser", "libgcc-s1")
        before = debian.files()
        users = (debian.root / "etc/passwd").read_text()

        self.install(debian, self.package)
        self.assertIn("model-boss:", (debian.root / "etc/passwd").read_text())
        wants = debian.root / "etc/systemd/system/multi-user.target.wants/model-boss.service"
        self.assertTrue(wants.is_symlink(), "the service starts with the machine")
        self.serves(debian)

        # Twice the same, as after an interrupted installation.
        debian.run("dpkg-reconfigure", "-f", "noninteractive", "model-boss")

        # An operator's settings, models and keys outlast an upgrade.
        settings = debian.root / "etc/model-boss/model-boss.toml"
        settings.write_text(settings.read_text() + "drain_grace = \"7s\"\n")
        debian.run("model-boss", "keys", "create", "me", "--scope", "admin", user=USER)
        newer = self.newer()
        self.install(debian, newer)
        self.assertIn("7s", settings.read_text())
        shown = debian.run("model-boss", "config", "show", "--origin", user=USER).stdout
        self.assertRegex(shown, r"drain_grace.*7s.*/etc/model-boss/model-boss\.toml")
        self.assertTrue((debian.root / "var/lib/model-boss/api-keys").is_file())
        installed = debian.run("dpkg-query", "-W", "-f", "${Version}", "model-boss").stdout
        self.assertEqual(installed, f"{version()}-{deb.REVISION + 1}")

        debian.run("dpkg", "--remove", "model-boss")
        self.assertTrue((debian.root / "var/lib/model-boss/api-keys").is_file(), "removing keeps the state")
        self.assertTrue(settings.is_file(), "removing keeps the settings")
        # And a removed package comes back.
        self.install(debian, newer)
        debian.run("dpkg", "--purge", "model-boss")
        self.assertEqual(debian.files() - before, set(), "a purge leaves nothing")
        self.assertEqual((debian.root / "etc/passwd").read_text(), users)

    def install(self, debian: chroot.Debian, package: Path) -> None:
        shutil.copy(package, debian.root / "tmp/model-boss.deb")
        debian.run("apt-get", "install", "-qq", "--yes", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold",
                   "/tmp/model-boss.deb")

    def serves(self, debian: chroot.Debian) -> None:
        """The unit's own command line, as the unit's user, answers a chat, keeps its files to itself, and stops in order."""
        unit = (debian.root / "usr/lib/systemd/system/model-boss.service").read_text()
        command = re.search(r"(?m)^ExecStart=(.*)$", unit)[1].split()
        user = re.search(r"(?m)^User=(.*)$", unit)[1]
        service = debian.start(command, user, HOME="/var/lib/model-boss", **ports())
        self.addCleanup(service.kill)
        self.assertIn("guide", "".join(service.head) + str(ask(service.port, "/v1/models")))
        self.assertIn(ANSWER, chat(service.port), service.log())
        said = debian.run("model-boss", "--url", f"http://127.0.0.1:{service.port}", "run", "guide", QUESTION, user=USER)
        self.assertIn(ANSWER, said.stdout)
        health = ask(service.port, "/api/v1/health")
        self.assertEqual(health["status"], "ok", health)
        self.assertEqual(service.end(), 0, service.log())
        owner = (debian.root / "var/lib/model-boss").stat()
        self.assertEqual((owner.st_mode & 0o777, owner.st_uid), (0o750, self.uid(debian)))

    def uid(self, debian: chroot.Debian) -> int:
        return int(re.search(r"(?m)^model-boss:[^:]*:(\d+):", (debian.root / "etc/passwd").read_text())[1])

    def newer(self) -> Path:
        """The same package with the next revision."""
        revision, folder = deb.REVISION, Path(self._folder.name) / "newer"
        folder.mkdir()
        deb.REVISION += 1
        try:
            return deb.make(binaries(), folder, cuda=False)
        finally:
            deb.REVISION = revision
