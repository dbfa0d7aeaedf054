"""A private coordinator, with models, state and a port of its own."""

import http.client
import json
import os
import re
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from . import machine

START_TIMEOUT = 60.0
ANSWER_TIMEOUT = 300.0


class Coordinator:
    """A running coordinator. `program` is model-boss; `settings` are further options, e.g. `--simulate`."""

    def __init__(self, program: Path, worker: Path | None, manifests: Path, settings: tuple[str, ...] = ()):
        self.folder = tempfile.TemporaryDirectory(prefix="gpu-check-boss-")
        places = {"state": "--state-dir", "run": "--runtime-dir"}
        command = [str(program), "serve", "--port", "0", "--manifests", str(manifests), *settings]
        for name, option in places.items():
            (Path(self.folder.name) / name).mkdir()
            command += [option, f"{self.folder.name}/{name}"]
        command += ["--worker-binary", str(worker)] if worker else []
        environment = os.environ | {"LD_LIBRARY_PATH": machine.library_path()}
        self.process = subprocess.Popen(
            command, env=environment, cwd=self.folder.name, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.log, self.address = [], None
        self.reader = threading.Thread(target=self._read_log, daemon=True)
        self.reader.start()
        begun = time.monotonic()
        while self.address is None:
            if self.process.poll() is not None or time.monotonic() - begun > START_TIMEOUT:
                self.stop()
                raise RuntimeError("model-boss does not start: " + " / ".join(self.log[-3:]))
            time.sleep(0.02)

    def ask(self, method: str, path: str, body: dict | None = None) -> tuple[int, dict]:
        request = urllib.request.Request(f"http://{self.address}{path}", method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("content-type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reader.join(timeout=10)
        self.process.stdout.close()
        self.folder.cleanup()

    def _read_log(self) -> None:
        for line in self.process.stdout:
            self.log.append(line.strip())
            found = re.search(r"(?:127\.0\.0\.1|localhost):(\d+)", line)
            if found and self.address is None:
                self.address = f"127.0.0.1:{found.group(1)}"


def move_under_load(boss: Coordinator, model: str, device: str, streams: int, after: float = 1.0) -> dict:
    """Moves a loaded model while `streams` clients send requests without a pause. Returns the counts of answers and errors."""
    answers, stop = [], threading.Event()

    def client(number: int) -> None:
        while not stop.is_set():
            body = {"model": model, "messages": [{"role": "user", "content": f"Client {number}: what is a lease?"}], "max_tokens": 16}
            try:
                answers.append(boss.ask("POST", "/v1/chat/completions", body)[0])
            except (OSError, http.client.HTTPException, ValueError) as error:
                answers.append(f"{type(error).__name__}: {error}")  # An answer that breaks off is one that failed.

    threads = [threading.Thread(target=client, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(after)
        begun, before = time.monotonic(), len(answers)
        status, moved = boss.ask("POST", f"/api/v1/models/{model}/device", {"device": device})
        seconds, during = time.monotonic() - begun, len(answers) - before
        time.sleep(after)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return {
        "status": status,
        "moved": moved,
        "seconds": seconds,
        "answers": len(answers),
        "during_move": during,
        "failed": [answer for answer in answers if answer != 200],
    }
