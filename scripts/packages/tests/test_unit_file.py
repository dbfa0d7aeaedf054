"""The unit of systemd: valid, hardened, and no narrower than what workers need."""

import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from ..machine import FILES, REPOSITORY

UNIT = FILES / "debian/model-boss.service"


class UnitFile(unittest.TestCase):
    def setUp(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is not installed")

    def test_op_9_systemd_takes_the_unit(self):
        with tempfile.TemporaryDirectory(prefix="model-boss-unit-") as folder:
            unit = Path(folder) / UNIT.name
            # The programs are not installed here.
            unit.write_text(re.sub(r"/usr/bin/(model-boss|nvidia-modprobe)", "/bin/true", UNIT.read_text()))
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
            # Only what concerns this unit: a machine has others, and not all of them are well.
            own = [line for line in done.stderr.splitlines() if UNIT.name in line]
            self.assertEqual(own, [])
            done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=35", unit],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout[-2000:])

    def test_op_9_the_unit_lets_workers_make_the_calls_of_their_own_sandbox(self):
        source = (REPOSITORY / "worker/sandbox/src/calls.rs").read_text()
        # Those that programs of others may not make are no needs.
        source = re.sub(r"(?s)const FORBIDDEN: .*?\];", "", source)
        needed = set(re.findall(r"libc::SYS_(\w+)", source)) | {"seccomp", "prctl", "execve", "setpriority"}
        needed |= {"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"}
        self.assertGreater(len(needed), 60)
        filters = re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE)
        allowed = {call for words in filters for word in words.split() for call in calls(word)}
        self.assertEqual(needed - allowed, set())

    def test_op_9_the_unit_hides_neither_gpus_nor_other_processes(self):
        text = "\n".join(line for line in UNIT.read_text().splitlines() if not line.startswith("#"))
        for setting in ("PrivateDevices", "DeviceAllow", "DevicePolicy", "ProtectClock", "ProtectProc", "ProcSubset",
                        "PrivateUsers", "PrivateIPC", "MemoryDenyWriteExecute", "DynamicUser"):
            self.assertNotRegex(text, rf"(?m)^{setting}=(?!no$)", setting)
        self.assertRegex(text, r"(?m)^ReadWritePaths=.*/run/lock")
        self.assertRegex(text, r"(?m)^KillMode=mixed$")


def calls(word: str) -> set:
    """The system calls of a word of a filter, groups within groups."""
    if not word.startswith("@"):
        return {word}
    text = subprocess.run(["systemd-analyze", "syscall-filter", word], capture_output=True, text=True, check=True).stdout
    words = [line.strip() for line in text.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
    return {call for inner in words for call in calls(inner)}
