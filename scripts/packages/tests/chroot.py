"""A Debian in a folder, in which packages are installed and run. It shares this machine's network and nothing else."""

import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from .. import deb
from ..machine import output, target

# The folder and the mounts of /dev are those that a container has. All of it ends with the process.
ENTER = r"""
set -e
mount -t proc proc "$0/proc"
mount -t tmpfs -o mode=755 tmpfs "$0/dev"
for node in null zero full random urandom tty; do
    touch "$0/dev/$node"
    mount --bind "/dev/$node" "$0/dev/$node"
done
mkdir -m 1777 "$0/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm"
ln -s /proc/self/fd "$0/dev/fd"
exec chroot "$0" "$@"
"""


def release() -> tuple:
    """The mirror and the release of this machine's own packages, as apt knows them."""
    name = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)[1]
    lines = output("apt-get", "indextargets", "--format", "$(SITE) $(CODENAME)", "Created-By: Packages").splitlines()
    return next(line.split()[0] for line in lines if line.split()[1:] == [name]), name


def require() -> None:
    """Skips the test where it cannot run."""
    if os.environ.get("MODEL_BOSS_TEST_PACKAGES") != "all":
        raise unittest.SkipTest("packages in a Debian of their own are tested by --all")
    if os.geteuid() != 0:
        raise unittest.SkipTest("only root can install packages in a folder")
    for program in ("debootstrap", "unshare", "chroot", "apt-get", "dpkg-deb", "dpkg-shlibdeps"):
        if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
            raise unittest.SkipTest(f"{program} is not installed")
    # A small file matters to those who load it, not here.
    deb.COMPRESSION = ["-Zgzip", "-z1"]
    if subprocess.run(["unshare", "-m", "-p", "-f", "true"], capture_output=True).returncode != 0:
        raise unittest.SkipTest("this system lets nobody mount in a namespace")


def base() -> Path:
    """The smallest Debian with apt's lists, packed; it is made once."""
    site, name = release()
    packed = target() / f"packages-debian-{name}-{platform.machine()}.tar"
    if not packed.is_file():
        with tempfile.TemporaryDirectory(prefix="model-boss-debian-") as folder:
            made = subprocess.run(["debootstrap", "--variant=minbase", name, folder, site], capture_output=True, text=True)
            if made.returncode != 0:
                raise unittest.SkipTest(f"debootstrap failed, no network? ({made.stdout.strip().splitlines()[-1:]})")
            part = packed.with_suffix(".part")
            subprocess.run(["tar", "-C", folder, "-cf", part, "."], check=True)
            part.rename(packed)
    return packed


class Debian:
    """One such folder."""

    def __init__(self) -> None:
        packed = base()
        self._folder = tempfile.TemporaryDirectory(prefix="model-boss-debian-")
        self.root = Path(self._folder.name)
        subprocess.run(["tar", "-C", self.root, "-xpf", packed], check=True)
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")

    def close(self) -> None:
        """Removes the folder."""
        self._folder.cleanup()

    def words(self, command: list, user: str = "root") -> list:
        """The command line that runs a command in the folder."""
        # As services and containers do it: no shell, no login, no more rights than the user's.
        as_user = [] if user == "root" else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--no-new-privs"]
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private",
                "sh", "-c", ENTER, str(self.root), *as_user, *map(str, command)]

    def run(self, *command: object, user: str = "root", check: bool = True, **variables: str) -> subprocess.CompletedProcess:
        """Runs a command to its end."""
        done = subprocess.run(self.words(list(command), user), capture_output=True, text=True, env=environment(variables))
        if check and done.returncode != 0:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done

    def start(self, command: list, user: str, **variables: str) -> "Service":
        """Starts a coordinator."""
        return Service(self, command, user, variables)

    def files(self) -> set:
        """Every file and folder, but for those in which dpkg and apt keep their own records."""
        own = ("var/lib/dpkg", "var/lib/apt", "var/cache", "var/log", "tmp", "proc", "dev", "run", "sys")
        # Libraries and tools that apt installed for the package stay; copies of the lists of users are adduser's.
        backups = {"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-", "etc/.pwd.lock"}
        found = (os.path.relpath(Path(folder) / name, self.root)
                 for folder, folders, names in os.walk(self.root) for name in folders + names)
        return {path for path in found if not path.startswith(own) and path not in backups}


class Service:
    """A coordinator in such a folder."""

    def __init__(self, debian: Debian, command: list, user: str, variables: dict) -> None:
        self._log = tempfile.TemporaryFile(mode="w+")
        self._process = subprocess.Popen(debian.words(command, user), stdout=subprocess.PIPE, stderr=self._log, text=True,
                                         env=environment(variables))
        self.head = []
        for line in self._process.stdout:
            self.head.append(line)
            if found := re.search(r"listens on http://[^ ]*:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            code = self._process.wait()
            raise AssertionError(f"the coordinator ended with {code}:\n{self.log()}")

    def log(self) -> str:
        """What it wrote to standard error."""
        self._log.seek(0)
        return self._log.read()

    def end(self) -> int:
        """Sends SIGTERM to the coordinator, as systemd and engines do; returns its exit code."""
        [child] = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        return self._process.wait(60)

    def kill(self) -> None:
        """Ends it whatever it does."""
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()


def environment(variables: dict) -> dict:
    """The environment of a command: nothing of this machine's."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **variables}
