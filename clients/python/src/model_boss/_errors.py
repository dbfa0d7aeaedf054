"""Errors, with messages that include a remedy."""

from __future__ import annotations

from typing import Optional

from ._words import printable


class LeaseError(Exception):
    """A failure of a lease: the base class of all errors of this package. Messages are printable."""

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class NotReachable(LeaseError):
    """The store of leases cannot be reached. Leases that are held are not affected."""


class Refused(LeaseError):
    """The request is invalid or not allowed; ``code`` is one of docs/errors.md, or None."""

    def __init__(self, message: str, code: Optional[str] = None) -> None:
        super().__init__(message)
        self.code = code


class NeverFits(Refused):
    """The request is larger than the devices."""


class WaitedTooLong(LeaseError):
    """The memory was not free within the time of ``wait``."""


class LeaseLost(LeaseError):
    """The lease is lost: its process must not use the device any more."""


class CudaTouched(LeaseError):
    """CUDA was initialised before the lease was granted, so its memory was not counted and the GPU cannot be chosen."""
