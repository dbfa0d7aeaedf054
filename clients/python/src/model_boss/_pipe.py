"""Leases at the ledger in Redis, through ``model-boss lease hold``."""

from __future__ import annotations

import json
import logging
import os
import queue
import shutil
import subprocess
import threading
from typing import Any, Callable, Optional

from ._errors import LeaseError, LeaseLost, NeverFits, NotReachable, Refused, WaitedTooLong
from ._words import Grant, Listener, Part, Wish, fields, read_json

_LOG = logging.getLogger("model_boss")
_ID = "lease"
_RELEASE_LIMIT = 15.0
"""Seconds for a release. ``lease hold`` checks the devices for at most ten seconds before it answers."""


class PipeBackend:
    """One lease through the program ``model-boss lease hold``, over a pipe."""

    def __init__(self, redis: str, program: Optional[str]) -> None:
        found = program or os.environ.get("MODEL_BOSS_BIN") or shutil.which("model-boss")
        if not found:
            raise NotReachable("the program model-boss is not on PATH; set MODEL_BOSS_BIN to where it is")
        # The URL may have a password, so it is no argument: every user of the machine can read those.
        environment = {**os.environ, "MODEL_BOSS_REDIS_URL": redis}
        try:
            self._child = subprocess.Popen(
                [found, "lease", "hold"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env=environment,
            )
        except OSError as error:
            raise NotReachable(f"{found} cannot be started: {error}") from error
        self._events: queue.Queue[Optional[dict[str, Any]]] = queue.Queue()
        self._listener: Optional[Listener] = None
        self._asked = self._attached = self._released = False
        self._reader = threading.Thread(target=self._read, name="model-boss lease", daemon=True)
        self._reader.start()

    def acquire(self, wish: Wish, waiting: Callable[[str], None], stopped: Callable[[float], bool]) -> Grant:
        where: dict[str, Any] = {"gpus": wish.count} if wish.devices is None else {"devices": list(wish.devices)}
        self._send({"op": "acquire", "id": _ID, "vram": wish.memory, "label": wish.label, **where, **fields(wish)})
        self._asked = True
        reason = "no answer yet"
        while True:
            try:
                event = self._receive(0.1)
            except queue.Empty:
                if stopped(0):
                    raise WaitedTooLong(f"the memory did not come free in time: {reason}") from None
                continue
            kind = event["event"]
            if kind == "granted":
                parts = [Part(part["device"], part["bytes"], part["uuid"]) for part in event["parts"]]
                return Grant(event["lease"], parts)
            if kind == "waiting":
                reason = event["reason"]
                waiting(reason)
            elif kind in ("failed", "error"):
                self._asked = False
                message = event["message"]
                raise (NeverFits if "never fit" in message else Refused)(message)

    def attach(self, pid: int) -> None:
        self._send({"op": "attach", "id": _ID, "pids": [pid]})
        while True:
            event = self._receive(None)
            if event["event"] == "attached":
                self._attached = True
                return
            if event["event"] in ("failed", "error", "lost"):
                raise LeaseLost(event.get("message", "the lease was lost before the process was let through"))

    def watch(self, listener: Listener) -> None:
        self._listener = listener
        # Events that arrived before there was a listener.
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return
            if event is not None:
                self._notify(event)

    def release(self) -> Optional[str]:
        counted: Optional[str] = None
        self._released = True
        try:
            if self._asked:
                self._send({"op": "release", "id": _ID})
                while True:
                    event = self._receive(_RELEASE_LIMIT)
                    if event["event"] == "released":
                        counted = event["counted"]
                        break
                    if event["event"] in ("error", "failed"):
                        break
        except (LeaseError, queue.Empty) as error:
            counted = str(error)
        self._close()
        return counted

    def forked(self) -> None:
        """Closes the pipe in a forked child, where it is the parent's. The descriptors stay open on /dev/null, so that no other
        file gets their numbers."""
        null = os.open(os.devnull, os.O_RDWR)
        for end in (self._child.stdin, self._child.stdout):
            if end is not None and not end.closed:
                os.dup2(null, end.fileno(), inheritable=False)
        os.close(null)

    def _close(self) -> None:
        if self._child.stdin:
            try:
                self._child.stdin.close()
            except OSError:
                pass
        # Closing the pipe is not enough: a process that was started meanwhile may hold it open as well.
        self._child.terminate()
        try:
            self._child.wait(_RELEASE_LIMIT)
        except subprocess.TimeoutExpired:
            _LOG.warning("model-boss lease hold (process %s) does not end", self._child.pid)

    def _send(self, line: dict[str, Any]) -> None:
        try:
            assert self._child.stdin is not None
            self._child.stdin.write(json.dumps(line) + "\n")
            self._child.stdin.flush()
        except (OSError, ValueError) as error:
            raise NotReachable(f"model-boss lease hold has ended: {error}") from error

    def _receive(self, patience: Optional[float]) -> dict[str, Any]:
        event = self._events.get(timeout=patience)
        if event is None:
            # The mark of the end is put back for the next caller.
            self._events.put(None)
            raise NotReachable("model-boss lease hold has ended")
        return event

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            event = read_json(line)
            if self._listener is None or event["event"] in ("released", "failed", "error"):
                self._events.put(event)
            else:
                self._notify(event)
        self._events.put(None)
        if self._listener is not None and not self._released:
            # The ledger counts the memory until this process ends, even if the lease has no holder.
            _LOG.error("model-boss lease hold has ended; the memory stays counted until this process ends")

    def _notify(self, event: dict[str, Any]) -> None:
        listener, kind = self._listener, event["event"]
        if listener is None:
            return
        if kind == "revoked":
            listener.revoked(event["by"], event["grace_left_ms"] / 1000)
        elif kind == "lost":
            listener.lost("the ledger does not know the lease any more")
        elif kind == "away":
            _LOG.warning("goes on without the ledger: %s", event["reason"])
        elif kind == "back":
            _LOG.warning("the ledger is back")
