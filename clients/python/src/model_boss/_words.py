"""Requests for leases and their results, for both kinds of backends."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Optional, Protocol, Sequence, Union

Span = Union[int, float, str, timedelta]
"""Seconds, a text with a unit such as ``"2m"`` or ``"1h30m"``, or a timedelta."""

Size = Union[int, str]
"""Bytes, or a text such as ``"18GiB"``."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(span: Span) -> float:
    """A duration in seconds."""
    if isinstance(span, timedelta):
        return span.total_seconds()
    if isinstance(span, (int, float)):
        if span < 0:
            raise ValueError(f"a duration cannot be negative: {span}")
        return float(span)
    parts = re.findall(r"([0-9.]+)\s*(ms|s|m|h|d)", span)
    if not parts or re.sub(r"([0-9.]+)\s*(ms|s|m|h|d)", "", span).strip():
        raise ValueError(f"'{span}' is no duration; write it with a unit, such as '250ms', '30s', '5m' or '1h30m'")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def printable(text: str) -> str:
    """A foreign text for terminals and logs. Characters that could control a terminal are replaced by their numbers."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] if c < "\x7f" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def read_json(text: Union[str, bytes]) -> Any:
    """Parses foreign JSON and makes every text in it printable."""
    return _shown(json.loads(text))


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_shown(one) for one in value]
    if isinstance(value, dict):
        return {printable(name): _shown(one) for name, one in value.items()}
    return value


def label_of(text: str) -> str:
    """A label that the ledger accepts: printable, and at most 128 bytes."""
    return printable(text).encode("utf-8", "replace")[:128].decode("utf-8", "ignore")


@dataclass(frozen=True)
class Wish:
    """A request for a lease."""

    memory: Size
    count: int
    devices: Optional[Sequence[str]]
    priority: Union[int, str]
    preemptible: bool
    preempt: bool
    grace: float
    min_hold: float
    label: str
    wait: Optional[float]


@dataclass(frozen=True)
class Part:
    """Memory on one device."""

    device: str
    bytes: int
    uuid: Optional[str]


@dataclass(frozen=True)
class Grant:
    """A granted lease."""

    lease: str
    parts: Sequence[Part]


class Listener(Protocol):
    """The receiver of a lease's events. A thread of the backend calls it."""

    def revoked(self, by: str, grace_left: float) -> None: ...

    def lost(self, why: str) -> None: ...


class Backend(Protocol):
    """The store of one lease: a coordinator or a ledger."""

    def acquire(self, wish: Wish, waiting: Callable[[str], None], stopped: Callable[[float], bool]) -> Grant:
        """Waits for the memory. ``stopped(seconds)`` pauses for that time and returns whether to stop waiting."""

    def attach(self, pid: int) -> None:
        """Passes the gate: only after this may the process use the device."""

    def watch(self, listener: Listener) -> None:
        """Begins to renew the lease, in the background."""

    def forked(self) -> None:
        """Called in a forked child, which must not use the parent's connection."""

    def release(self) -> Optional[str]:
        """Releases the memory. Returns the reason if some of it stays counted. Called once, in every state."""


def fields(wish: Wish) -> dict[str, Any]:
    """The fields that requests of both backends have."""
    return {
        "priority": wish.priority,
        "preemptible": wish.preemptible,
        "preempt": wish.preempt,
        "grace": wish.grace,
        "min_hold": wish.min_hold,
    }


@dataclass(frozen=True)
class Process:
    """A process, identified by its number and start time, since numbers are reused."""

    pid: int
    start_time: int
    pid_ns: str

    @staticmethod
    def this() -> "Process":
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
            # The name is in parentheses and may contain any character.
            rest = stat.read().rpartition(")")[2].split()
        return Process(os.getpid(), int(rest[19]), os.readlink("/proc/self/ns/pid"))

    def json(self) -> dict[str, Any]:
        return {"pid": self.pid, "start_time": self.start_time, "pid_ns": self.pid_ns}
