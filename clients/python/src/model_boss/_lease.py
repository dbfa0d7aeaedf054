"""The lease as training code sees it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Callable, Optional, Sequence, Union

from ._errors import CudaTouched, LeaseError
from ._http import HttpBackend, url_of_environment
from ._pipe import PipeBackend
from ._words import Backend, Grant, Size, Span, Wish, label_of, printable, seconds

_LOG = logging.getLogger("model_boss")
_LAST_WORDS = 5.0
"""Whoever lost its lease must be gone in so many seconds."""
_EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: nothing was wrong with the work, it may be started again."""


@dataclass(frozen=True)
class Revocation:
    """That a lease is asked back."""

    by: str
    """Who needs the memory."""
    deadline: float
    """Until when it has to be given back, by ``time.monotonic()``. Then the process is ended."""

    @property
    def remaining(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.deadline - time.monotonic())


class Lease:
    """Memory on GPUs, held by this process. Made by :func:`lease`; use it in a ``with`` or ``async with`` statement."""

    def __init__(
        self,
        backend: Callable[[], Backend],
        wish: Wish,
        on_revoke: Optional[Callable[["Lease"], object]],
        on_wait: Optional[Callable[[str], object]],
        on_lost: Optional[Callable[["Lease"], object]],
        set_environment: bool,
    ) -> None:
        self._open, self._wish = backend, wish
        self._on_revoke, self._on_wait, self._on_lost = on_revoke, on_wait, on_lost
        self._set_environment = set_environment
        self._backend: Optional[Backend] = None
        self._grant: Optional[Grant] = None
        self._pid = os.getpid()
        self._given_up = threading.Event()
        self._before: dict[str, Optional[str]] = {}
        self._revocation: Optional[Revocation] = None
        self._over = threading.Event()
        self._ending = False
        self.revoked = threading.Event()
        """Set when the memory is asked back: save what must not be lost, and leave the ``with`` statement."""
        self.lost = threading.Event()
        """Set when the lease is gone; the process ends within five seconds unless ``on_lost`` was given."""
        _LIVING.add(self)

    @property
    def id(self) -> str:
        """Its name in ``model-boss lease list``."""
        return self._held().lease

    @property
    def devices(self) -> Sequence[str]:
        """The devices by the names of this host, such as ``["cuda:1"]``. Within this process the first is ``cuda:0``."""
        return [part.device for part in self._held().parts]

    @property
    def cuda_visible_devices(self) -> str:
        """The GPUs by UUID, as ``CUDA_VISIBLE_DEVICES`` has it; empty when there are none."""
        return ",".join(part.uuid for part in self._held().parts if part.uuid)

    @property
    def revocation(self) -> Optional[Revocation]:
        """Who asks for the memory and how long there still is; ``None`` while nobody does."""
        return self._revocation

    def __enter__(self) -> "Lease":
        if self._backend is not None:
            raise LeaseError("a lease is used once; make another with model_boss.lease()")
        _before_cuda()
        backend = self._backend = self._open()
        begun, wait = time.monotonic(), self._wish.wait

        def stopped(rest: float) -> bool:
            left = float("inf") if wait is None else begun + wait - time.monotonic()
            return self._given_up.wait(max(0.0, min(rest, left))) or left <= rest

        try:
            self._grant = backend.acquire(self._wish, self._waiting(), stopped)
            # The GPUs are chosen before anything can have chosen others.
            _before_cuda()
            self._environment()
            backend.attach(self._pid)
            backend.watch(_Ears(self))
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        # A child that was forked meanwhile holds nothing.
        if os.getpid() == self._pid:
            self._leave()

    async def __aenter__(self) -> "Lease":
        entering = asyncio.get_running_loop().run_in_executor(None, self.__enter__)
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            self._given_up.set()
            try:
                await entering
            except LeaseError:
                pass
            else:
                await asyncio.get_running_loop().run_in_executor(None, self._leave)
            raise

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.__exit__, kind, error, trace)

    def _held(self) -> Grant:
        if self._grant is None:
            raise LeaseError("the lease is not there yet: use `with model_boss.lease(...) as lease:`")
        return self._grant

    def _leave(self) -> None:
        self._over.set()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        counted = self._backend.release() if self._backend is not None else None
        if counted:
            _LOG.info("what this process still uses stays counted until it ends: %s", counted)

    def _waiting(self) -> Callable[[str], None]:
        last = ""

        def waiting(reason: str) -> None:
            nonlocal last
            if reason != last:
                last = reason
                _LOG.info("waits for memory, %s", reason)
                if self._on_wait is not None:
                    self._on_wait(reason)

        return waiting

    def _environment(self) -> None:
        if not self._set_environment:
            return
        chosen = {"CUDA_VISIBLE_DEVICES": self.cuda_visible_devices, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        for name, value in {**chosen, "MODEL_BOSS_LEASE": self.id}.items():
            self._before[name] = os.environ.get(name)
            os.environ[name] = value

    def _revoked(self, by: str, grace_left: float) -> None:
        first = self._revocation is None
        self._revocation = Revocation(by, time.monotonic() + grace_left)
        if first:
            _LOG.warning("%s needs the memory; %.0f s are left", by, grace_left)
            self.revoked.set()
            if self._on_revoke is not None:
                self._call(self._on_revoke)
        if grace_left <= 0:
            self._end("the grace is over and the memory was not given back")

    def _lost(self, why: str) -> None:
        self.lost.set()
        if self._on_lost is not None:
            self._call(self._on_lost)
        else:
            self._end(why)

    def _call(self, callback: Callable[["Lease"], object]) -> None:
        """In a thread of its own: a checkpoint may take long, and the heartbeat must not."""

        def call() -> None:
            try:
                callback(self)
            except Exception:
                _LOG.exception("the callback of %s failed", self.id)

        threading.Thread(target=call, name="model-boss callback", daemon=True).start()

    def _end(self, why: str) -> None:
        """Only the owner ends its own processes."""
        if self._over.is_set() or self._ending:
            return
        self._ending = True

        def end() -> None:
            print(f"model_boss: {printable(why)}: this process ends", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
            if not self._over.wait(_LAST_WORDS):
                os._exit(_EXIT_CODE)

        threading.Thread(target=end, name="model-boss end", daemon=True).start()


class _Ears:
    """What a backend tells a lease; keeps it out of the public face of :class:`Lease`."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def revoked(self, by: str, grace_left: float) -> None:
        self._lease._revoked(by, grace_left)

    def lost(self, why: str) -> None:
        self._lease._lost(why)


def lease(
    vram: Size,
    gpus: int = 1,
    *,
    devices: Optional[Sequence[str]] = None,
    priority: Union[int, str] = 7,
    preemptible: bool = False,
    grace: Span = "60s",
    min_hold: Span = "10m",
    preempt: bool = False,
    label: Optional[str] = None,
    wait: Optional[Span] = None,
    on_revoke: Optional[Callable[[Lease], object]] = None,
    on_wait: Optional[Callable[[str], object]] = None,
    on_lost: Optional[Callable[[Lease], object]] = None,
    set_environment: bool = True,
    url: Optional[str] = None,
    redis: Optional[str] = None,
    program: Optional[str] = None,
) -> Lease:
    """Memory for this process and its children, to be used in a ``with`` or ``async with`` statement.

    Enter it before anything touches CUDA: entering is the gate, and sets ``CUDA_VISIBLE_DEVICES`` to the GPUs that were
    granted (unless ``set_environment`` is false). Entering waits for the memory, leaving gives it back: what this process
    still uses then stays counted until it ends, because CUDA itself gives the rest back only then.

    vram: bytes on each GPU, or a text such as ``"18GiB"``.
    gpus: on how many GPUs, whichever have room first; or ``devices``: on these, such as ``["cuda:0"]`` or ``["cpu"]``.
    priority: 0 (most important) to 9, or interactive, normal, batch.
    preemptible: more important requests may ask for the memory back. Then ``lease.revoked`` is set and ``on_revoke`` is
        called in a thread of its own, and after ``grace`` the process is ended. Not within ``min_hold`` of the grant.
    preempt: ask less important holders that allow it to give memory back.
    wait: how long to wait; for ever by default, 0 tries once. Then :class:`WaitedTooLong` is raised.
    on_wait: is told the reason whenever it changes.
    on_lost: is called instead of ending the process when the lease is gone. The device must then be left alone.
    url: the coordinator. redis: the ledger in Redis, asked through ``program`` (``model-boss``), wins over ``url``.
    """
    if gpus < 1:
        raise ValueError("gpus must be at least 1")
    if devices is not None and not devices:
        raise ValueError("devices names none; leave it out to take whichever GPUs have room")
    wish = Wish(
        memory=vram,
        count=gpus,
        devices=devices,
        priority=priority,
        preemptible=preemptible or on_revoke is not None,
        preempt=preempt,
        grace=seconds(grace),
        min_hold=seconds(min_hold),
        label=label_of(label or os.path.basename(sys.argv[0] or "") or "python"),
        wait=None if wait is None else seconds(wait),
    )
    ledger = redis or (None if url else os.environ.get("MODEL_BOSS_REDIS_URL"))

    def backend() -> Backend:
        if ledger:
            return PipeBackend(ledger, program)
        return HttpBackend(url or url_of_environment(), os.environ.get("MODEL_BOSS_API_KEY"))

    return Lease(backend, wish, on_revoke, on_wait, on_lost, set_environment)


def _before_cuda() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise CudaTouched(
            "CUDA is in use already: enter model_boss.lease() before anything touches a GPU (importing torch is fine)"
        )


_LIVING: "weakref.WeakSet[Lease]" = weakref.WeakSet()


def _forked() -> None:
    """A forked child belongs to its parent's lease, and keeps, loses and releases nothing by itself."""
    for inherited in list(_LIVING):
        inherited._over.set()
        if inherited._backend is not None:
            inherited._backend.forked()


os.register_at_fork(after_in_child=_forked)
