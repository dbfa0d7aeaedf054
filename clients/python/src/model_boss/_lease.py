"""The interface of a lease for training code."""

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
"""Seconds in which a process that lost its lease must end."""
_EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: the program has no fault and may be started again."""


@dataclass(frozen=True)
class Revocation:
    """The revocation of a lease."""

    by: str
    """The label of the holder that needs the memory."""
    deadline: float
    """The end of the grace, by ``time.monotonic()``. A process that still holds the lease then is ended."""

    @property
    def remaining(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self.deadline - time.monotonic())


class Lease:
    """Memory on GPUs, held by this process. :func:`lease` makes it, for use in a ``with`` or ``async with`` statement."""

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
        """Set when the lease is revoked: save the state of the work, and leave the ``with`` statement."""
        self.lost = threading.Event()
        """Set when the lease is lost; the process ends within five seconds unless ``on_lost`` was given."""
        _LIVING.add(self)

    @property
    def id(self) -> str:
        """The lease's name in ``model-boss lease list``."""
        return self._held().lease

    @property
    def devices(self) -> Sequence[str]:
        """The devices by the names of this host, such as ``["cuda:1"]``. Within this process the first is ``cuda:0``."""
        return [part.device for part in self._held().parts]

    @property
    def cuda_visible_devices(self) -> str:
        """The UUIDs of the GPUs, as the value of ``CUDA_VISIBLE_DEVICES``; empty without a GPU."""
        return ",".join(part.uuid for part in self._held().parts if part.uuid)

    @property
    def revocation(self) -> Optional[Revocation]:
        """The revocation with its deadline; ``None`` as long as the lease is not revoked."""
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
            # CUDA must not have been initialised with other GPUs before the variable is set.
            _before_cuda()
            self._environment()
            backend.attach(self._pid)
            backend.watch(_LeaseListener(self))
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
        # A child that was forked meanwhile does not hold the lease.
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
        """Runs a callback in a thread of its own, because a checkpoint may take long and would delay the heartbeat."""

        def call() -> None:
            try:
                callback(self)
            except Exception:
                _LOG.exception("the callback of %s failed", self.id)

        threading.Thread(target=call, name="model-boss callback", daemon=True).start()

    def _end(self, why: str) -> None:
        """Ends this process. The ledger never ends processes of a living owner, so the owner does it."""
        if self._over.is_set() or self._ending:
            return
        self._ending = True

        def end() -> None:
            print(f"model_boss: {printable(why)}: this process ends", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
            if not self._over.wait(_LAST_WORDS):
                os._exit(_EXIT_CODE)

        threading.Thread(target=end, name="model-boss end", daemon=True).start()


class _LeaseListener:
    """The listener of a backend for a lease. It keeps these methods out of the public interface of :class:`Lease`."""

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

    Enter it before any code uses CUDA. Entering is the gate: it waits for the memory, and sets ``CUDA_VISIBLE_DEVICES`` to
    the granted GPUs (unless ``set_environment`` is false). Leaving releases the memory. The memory that this process still
    uses then stays counted until the process ends, because CUDA frees the rest only then.

    vram: bytes on each GPU, or a text such as ``"18GiB"``.
    gpus: the number of GPUs; the first with enough memory are used. Or ``devices``: these, such as ``["cuda:0"]`` or ``["cpu"]``.
    priority: 0 (most important) to 9, or interactive, normal, batch.
    preemptible: more important requests may revoke the lease, but not within ``min_hold`` of the grant. Then
        ``lease.revoked`` is set and ``on_revoke`` is called in a thread of its own. After ``grace`` the process is ended.
    preempt: revoke less important leases that allow it.
    wait: the longest wait; for ever by default, 0 tries once. After it :class:`WaitedTooLong` is raised.
    on_wait: called with the reason of the wait whenever it changes.
    on_lost: called if the lease is lost, in place of ending the process. The device must not be used any more then.
    url: the coordinator. redis: the ledger in Redis, used through ``program`` (``model-boss``), in place of ``url``.
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
    """Makes a forked child a process of its parent's lease: it does not renew, lose or release the lease itself."""
    for inherited in list(_LIVING):
        inherited._over.set()
        if inherited._backend is not None:
            inherited._backend.forked()


os.register_at_fork(after_in_child=_forked)
