"""Worker processes without a coordinator, one at a time, and requests to them over HTTP."""

import json
import os
import re
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import machine

LOAD_TIMEOUT = 300.0
ANSWER_TIMEOUT = 300.0


class Workers:
    """Starts workers, never more than one at a time, so that the memory in use is the worker's own."""

    def __init__(self, program: Path, gpu: machine.Gpu | None):
        self.program, self.gpu, self.running = program, gpu, None

    def serving(self, model: Path, device: str, *options: str) -> "Worker":
        """The worker of this model, which is started and loaded unless it is running."""
        if self.running is None or self.running.of != (model, device, options) or not self.running.alive():
            self.stop()
            self.running = self.start(model, device, *options)
            self.running.wait_until_loaded()
        return self.running

    def start(self, model: Path, device: str, *options: str, visible: str | None = None) -> "Worker":
        environment = os.environ | {"LD_LIBRARY_PATH": machine.library_path()}
        # The GPU is selected by its UUID, as the coordinator does, and is then number 0.
        environment["CUDA_VISIBLE_DEVICES"] = visible if visible is not None else self.gpu.uuid if self.gpu else ""
        command = [self.program, "serve", model, "--port", "0", "--device", device, "--max-concurrent", "32", *options]
        return Worker((model, device, options), [str(part) for part in command], environment)

    def stop(self) -> None:
        if self.running is not None:
            self.running.kill()
            self.running = None


class Worker:
    def __init__(self, of: tuple[Path, str, tuple[str, ...]], command: list[str], environment: dict[str, str]):
        self.of, self.started = of, time.monotonic()
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.log, self.address, self.loaded_after = [], None, None
        self.reader = threading.Thread(target=self._read_log, daemon=True)
        self.reader.start()

    def wait_until_loaded(self) -> None:
        while time.monotonic() - self.started < LOAD_TIMEOUT:
            if not self.alive():
                raise RuntimeError(f"the worker ended with {self.ended()[0]}: {self.ended()[1]}")
            try:
                if self.address and self.ask("GET", "/health")["status"] == "ok":
                    self.loaded_after = time.monotonic() - self.started
                    return
            except OSError:
                pass  # Not listening yet, or 503 while it loads.
            time.sleep(0.01)
        raise RuntimeError("the model is not loaded after five minutes")

    def ask(self, method: str, path: str, body: dict | None = None) -> dict:
        request = urllib.request.Request(f"http://{self.address}{path}", method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT) as answer:
            return json.load(answer)

    def complete(self, **fields) -> dict:
        """A greedy completion that continues after the end of the answer, without the model's own default parameters."""
        plain = {"temperature": 0.0, "ignore_eos": True, "repeat_penalty": 1.0}
        return self.ask("POST", "/v1/completions", plain | fields)

    def complete_together(self, bodies: list[dict]) -> list[dict]:
        """Sends all requests at once, each on a connection of its own. Returns the answers in the order of the requests."""
        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(lambda body: self.complete(**body), bodies))

    def alive(self) -> bool:
        return self.process.poll() is None

    def ended(self, timeout: float = LOAD_TIMEOUT) -> tuple[int, str]:
        """Waits for the worker's end. Returns its exit code and its last line."""
        code = self.process.wait(timeout)
        self.reader.join(timeout=10)
        return code, self.log[-1] if self.log else ""

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _read_log(self) -> None:
        for line in self.process.stderr:
            self.log.append(line.strip())
            found = re.search(r"127\.0\.0\.1:\d+", line)
            if found and self.address is None:
                self.address = found.group()
