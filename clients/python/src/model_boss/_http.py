"""Leases at a coordinator over HTTP."""

from __future__ import annotations

import http.client
import json
import logging
import os
import threading
import time
import urllib.parse
import uuid
from typing import Any, Callable, Optional, Union

from ._errors import LeaseError, LeaseLost, NeverFits, NotReachable, Refused, WaitedTooLong
from ._words import Grant, Listener, Part, Process, Wish, fields, read_json

_LOG = logging.getLogger("model_boss")
_ROUTE = "/api/v1/leases"
_ANSWER_LIMIT = 5.0
"""Seconds for an answer. The coordinator samples its devices before it answers."""
_ATTACH_LIMIT = 10.0
"""Seconds for which an attach is repeated. After them the grant is about to expire."""
_ATTACH_INTERVAL = 0.2
_PASSING = {"lease_store_unavailable", "lease_store_recovering", "draining"}


class HttpBackend:
    """One lease at the coordinator at ``url``."""

    def __init__(self, url: str, key: Optional[str]) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError(f"'{url}' is not the address of a coordinator; write one such as http://127.0.0.1:8210")
        self._url, self._host, self._port = url.rstrip("/"), parts.hostname, parts.port or 80
        self._key = key
        self._process = Process.this()
        self._request_id = f"python-{self._process.pid}-{self._process.start_time}-{uuid.uuid4().hex}"
        self._wish: dict[str, Any] = {}
        self._id = ""
        self._token: Union[str, int, None] = None
        self._parts: list[dict[str, Any]] = []
        self._attached = False
        self._heartbeat = 3.0
        self._over = threading.Event()
        self._keeper: Optional[threading.Thread] = None

    def acquire(self, wish: Wish, waiting: Callable[[str], None], stopped: Callable[[float], bool]) -> Grant:
        self._wish = {
            "request_id": self._request_id,
            "owner": {**self._process.json(), "label": wish.label},
            **fields(wish),
        }
        if wish.devices is None:
            where: dict[str, Any] = {"any": {"count": wish.count, "memory": wish.memory}}
        else:
            where = {"parts": [{"device": device, "memory": wish.memory} for device in wish.devices]}
        met = False
        while True:
            try:
                status, answer = self._ask("POST", _ROUTE, {**self._wish, **where, "wait": True})
                met = True
            except NotReachable as error:
                # A coordinator that answered before will return; one that never answered has a wrong address.
                if not met:
                    raise
                status, answer = 202, {"waiting": {"position": 1, "reason": str(error), "retry_after_ms": 1000}}
            except Refused as error:
                if error.code not in _PASSING:
                    raise
                met = True
                status, answer = 202, {"waiting": {"position": 1, "reason": str(error), "retry_after_ms": 1000}}
            if status != 202:
                return self._granted(answer)
            rest = answer["waiting"]
            reason = f"{rest['position']} in the queue: {rest['reason']}"
            waiting(reason)
            if stopped(max(0.01, min(rest["retry_after_ms"] / 1000, 5.0))):
                raise WaitedTooLong(f"the memory did not come free in time: {reason}")

    def _granted(self, answer: dict[str, Any]) -> Grant:
        lease = answer["lease"]
        self._id, self._token = lease["id"], lease["token"]
        self._heartbeat = answer["heartbeat_ms"] / 1000
        self._remember(lease)
        parts = [Part(part["device"], part["bytes"], part.get("uuid")) for part in lease["parts"]]
        return Grant(self._id, parts)

    def _remember(self, lease: dict[str, Any]) -> None:
        self._parts = [{"device": p["device"], "memory": p["bytes"]} for p in lease["parts"] if p["bytes"] > 0]

    def attach(self, pid: int) -> None:
        # If an answer is lost, the process may have been attached: the request is repeated, which has no further effect.
        self._attached = True
        deadline = time.monotonic() + _ATTACH_LIMIT
        while True:
            try:
                self._ask("POST", f"{_ROUTE}/{self._id}/attach", {"token": self._token, "pids": [pid]})
                return
            except NotReachable:
                if time.monotonic() >= deadline:
                    raise
            except Refused as error:
                if error.code not in _PASSING or time.monotonic() >= deadline:
                    raise
            self._over.wait(_ATTACH_INTERVAL)

    def watch(self, listener: Listener) -> None:
        self._keeper = threading.Thread(target=self._keep, args=(listener,), name="model-boss lease", daemon=True)
        self._keeper.start()

    def _keep(self, listener: Listener) -> None:
        """The heartbeat. While the coordinator is unreachable the lease is not lost, and the work continues."""
        away = False
        while not self._over.wait(self._heartbeat):
            try:
                lease = self._renew()
                if away:
                    _LOG.warning("the coordinator is back; %s is kept", self._id)
                away = False
            except LeaseLost as error:
                return listener.lost(str(error))
            except Exception as error:  # after any error, the next heartbeat tries again
                if not away:
                    _LOG.warning("goes on without the coordinator: %s", error)
                away = True
                continue
            revoke = lease.get("revoke") if lease else None
            if revoke:
                listener.revoked(revoke["by"], revoke["grace_left_ms"] / 1000)

    def _renew(self) -> Optional[dict[str, Any]]:
        body = {"leases": [{"id": self._id, "token": self._token}]}
        try:
            _, answer = self._ask("PUT", _ROUTE, body)
            if not answer.get("lost"):
                return next(iter(answer["leases"]), None)
        except LeaseLost:
            pass
        # The lease is reasserted at a coordinator that does not have it. The answer to that is final.
        wish = self._wish
        keys = ("request_id", "owner", "priority", "preemptible", "grace", "min_hold")
        record = {key: wish[key] for key in keys}
        record.update(token=self._token, parts=self._parts, processes=[self._process.json()])
        status, answer = self._ask("POST", f"{_ROUTE}/{self._id}/reassert", record)
        if status == 200:
            self._remember(answer["lease"])
            return dict(answer["lease"])
        return None

    def forked(self) -> None:
        """Does nothing: every request has a connection of its own, and the heartbeat's thread is the parent's."""

    def release(self) -> Optional[str]:
        self._over.set()
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(_ANSWER_LIMIT)
        try:
            if self._token is None:
                if self._wish:
                    self._ask("DELETE", _ROUTE, {"request_id": self._request_id, "owner": self._wish["owner"]})
                return None
            if self._attached:
                # This process continues. The lease shrinks to the least, and the measured use of the process counts.
                least = [{**part, "memory": 1} for part in self._parts]
                self._ask("PUT", f"{_ROUTE}/{self._id}", {"token": self._token, "parts": least})
            _, answer = self._ask("DELETE", f"{_ROUTE}/{self._id}", {"token": self._token})
        except LeaseLost:
            return None
        except LeaseError as error:
            # The lease expires, and ends when this process does.
            return str(error)
        return None if answer.get("released") else str(answer.get("reason") or "its process lives")

    def _ask(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_ANSWER_LIMIT)
        try:
            connection.request(method, path, json.dumps(body), headers)
            response = connection.getresponse()
            status, text = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            hint = "start one with `model-boss serve`, or set MODEL_BOSS_URL"
            raise NotReachable(f"no coordinator answers at {self._url}: {error}; {hint}") from error
        finally:
            connection.close()
        return status, _answer(self._url, status, text)


def _answer(url: str, status: int, text: bytes) -> dict[str, Any]:
    try:
        answer = read_json(text)
        error = answer.get("error") if status >= 300 else None
    except (ValueError, AttributeError) as cause:
        # The answer is that of a proxy in front of a coordinator that restarts.
        kind = NotReachable if status >= 500 else Refused
        raise kind(f"{url} answered {status} and nothing that model-boss would say") from cause
    if status < 300:
        return dict(answer)
    code, message = (error or {}).get("code"), str((error or {}).get("message", f"status {status}"))
    if code in ("lease_lost", "lease_not_found"):
        raise LeaseLost(message)
    if code == "lease_never_fits":
        raise NeverFits(message, code)
    raise Refused(message, code)


def url_of_environment() -> str:
    return os.environ.get("MODEL_BOSS_URL") or "http://127.0.0.1:8210"
