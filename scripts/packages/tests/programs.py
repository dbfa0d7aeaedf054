"""The programs that the tests pack, and requests to them."""

import functools
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path

from ..binaries import PROGRAMS
from ..machine import target

QUESTION = "Which port does model-boss listen on?"
ANSWER = "8210"


@functools.cache
def binaries() -> Path:
    """The programs of MODEL_BOSS_TEST_BIN_DIR, else of the last debug build, without what debuggers read."""
    source = Path(os.environ.get("MODEL_BOSS_TEST_BIN_DIR") or target() / "debug")
    folder = Path(_folder().name)
    for name in PROGRAMS:
        shutil.copy(source / name, folder / name)
        subprocess.run(["strip", "--strip-debug", folder / name], check=True)
    return folder


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="model-boss-binaries-")


def isolated(folder: Path) -> dict:
    """The environment of a coordinator that meets no other one of this machine, and reaches no hub."""
    first = 24_000 + os.getpid() % 200 * 40
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MODEL_BOSS_")}
    return {**kept, "HOME": str(folder), "HF_HUB_OFFLINE": "1", **ports(first), "MODEL_BOSS_RUNTIME_DIR": str(folder / "run")}


def ports(first: int = 0) -> dict:
    """Settings by which a coordinator takes any free port, and its workers ports that no other test uses."""
    first = first or 32_000 - os.getpid() % 20 * 40
    return {"MODEL_BOSS_PORT": "0", "MODEL_BOSS_WORKER_PORTS": f"{first}-{first + 39}"}


def chat(port: int, key: str = "") -> str:
    """The answer of the built-in model to a question."""
    body = {"model": "guide", "messages": [{"role": "user", "content": QUESTION}]}
    return ask(port, "/v1/chat/completions", body, key)["choices"][0]["message"]["content"]


def ask(port: int, path: str, body: object = None, key: str = "") -> object:
    """One request to a coordinator, and its answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)
