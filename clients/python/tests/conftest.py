"""Starts a store of leases: a real coordinator on a simulated machine, or a real Redis server with no coordinator.

scripts/test runs the tests. It builds the binaries and sets their folder in MODEL_BOSS_TEST_BIN_DIR.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Iterator, Optional

import pytest

HERE = pathlib.Path(__file__).resolve()
REPOSITORY = HERE.parents[3]
SOURCE = HERE.parents[1] / "src"
sys.path.insert(0, str(SOURCE))
sys.path.insert(0, str(HERE.parents[1] / "examples"))


def binary(name: str) -> pathlib.Path:
    folders = os.environ.get("MODEL_BOSS_TEST_BIN_DIR", str(REPOSITORY / "target/debug")).split(os.pathsep)
    for folder in folders:
        if (path := pathlib.Path(folder) / name).is_file():
            return path
    raise RuntimeError(f"there is no '{name}' in {folders}; build it: cargo build --workspace --bins")


def environment(**more: str) -> dict[str, str]:
    """Environment variables without those of the user who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MODEL_BOSS_")}
    return {**kept, "PYTHONPATH": str(SOURCE), **more}


def until(ask: Callable[[], Any], what: str) -> Any:
    """Polls until there is a value, for at most thirty seconds."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if answer := ask():
            return answer
        threading.Event().wait(0.02)
    pytest.fail(f"never came: {what}")


class Coordinator:
    """`serve --simulate` with two GPUs of 24 GiB, and its command line."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        (folder / "state").mkdir()
        (folder / "manifests").mkdir()
        (folder / "gpus.toml").write_text('[[gpu]]\nmemory = "24GiB"\ncount = 2\nreserve = "0B"\n')
        first = 30_000 + os.getpid() % 200 * 40
        (folder / "model-boss.toml").write_text(
            f'runtime_dir = "{folder / "run"}"\nworker_ports = "{first}-{first + 39}"\n'
            "[leases]\nterm = '3s'\nheartbeat = '500ms'\n"
        )
        self.process: Optional[subprocess.Popen[str]] = None
        self.url = ""
        self.start()

    def start(self) -> None:
        port = self.url.rpartition(":")[2] or "0"
        command = [str(binary("model-boss")), "serve", "--port", port, "--config", str(self.folder / "model-boss.toml")]
        command += ["--manifests", str(self.folder / "manifests"), "--state-dir", str(self.folder / "state")]
        command += ["--simulate", str(self.folder / "gpus.toml")]
        log = (self.folder / "output.txt").open("a+")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.folder, env=environment()
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                self.url = found.group()
                return
        pytest.fail(f"the coordinator ended: {(self.folder / 'output.txt').read_text()}")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def leases(self) -> list[dict[str, Any]]:
        return list(self.listing()["leases"])

    def listing(self) -> dict[str, Any]:
        listed = subprocess.run(
            [str(binary("model-boss")), "lease", "list", "--json"],
            env=environment(MODEL_BOSS_URL=self.url),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return dict(json.loads(listed.stdout))

    def variables(self) -> dict[str, str]:
        return {"MODEL_BOSS_URL": self.url}

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)


class Redis:
    """A ledger in Redis in which the host's memory is leased; no coordinator."""

    def __init__(self, folder: pathlib.Path, program: str) -> None:
        self.folder = folder
        socket = folder / "redis.sock"
        self.server = subprocess.Popen(
            [program, "--port", "0", "--save", "", "--unixsocket", str(socket)], stdout=subprocess.DEVNULL
        )
        until(socket.exists, "the socket of the Redis server")
        self.url = f"redis+unix://{socket}"

    def leases(self) -> list[dict[str, Any]]:
        listed = subprocess.run(
            [str(binary("model-boss")), "lease", "list", "--json"],
            env=environment(**self.variables()),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return list(json.loads(listed.stdout)["leases"])

    def variables(self) -> dict[str, str]:
        return {
            "MODEL_BOSS_REDIS_URL": self.url,
            "MODEL_BOSS_RUNTIME_DIR": str(self.folder / "run"),
            "MODEL_BOSS_BIN": str(binary("model-boss")),
        }

    def end(self) -> None:
        self.server.kill()
        self.server.wait()


@pytest.fixture
def coordinator(tmp_path: pathlib.Path) -> Iterator[Coordinator]:
    coordinator = Coordinator(tmp_path)
    yield coordinator
    coordinator.end()


@pytest.fixture
def redis(tmp_path: pathlib.Path) -> Iterator[Redis]:
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    redis = Redis(tmp_path, program)
    yield redis
    redis.end()


class Script:
    """A training script in a process of its own, which prints and reads lines."""

    def __init__(self, text: str, variables: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**variables),
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(f"the script ended: {self.errors()}")
        return line.strip()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def code(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def script() -> Iterator[Callable[[str, dict[str, str]], Script]]:
    started: list[Script] = []

    def start(text: str, variables: dict[str, str]) -> Script:
        started.append(Script(text, variables))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
