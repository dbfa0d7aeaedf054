"""What can go wrong, in words that say what to do."""

from __future__ import annotations

from typing import Optional

from ._words import printable


class LeaseError(Exception):
    """Something about a lease failed. The base of all errors here, whose words are printable."""

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class NotReachable(LeaseError):
    """Where leases are kept cannot be reached. What is held stays held."""


class Refused(LeaseError):
    """The request makes no sense or is not allowed; ``code`` is one of docs/errors.md where there is one."""

    def __init__(self, message: str, code: Optional[str] = None) -> None:
        super().__init__(message)
        self.code = code


class NeverFits(Refused):
    """More is asked for than the devices have."""


class WaitedTooLong(LeaseError):
    """The memory did not come free in the time that ``wait`` allows."""


class LeaseLost(LeaseError):
    """The lease is gone: its process must not touch the device any more."""


class CudaTouched(LeaseError):
    """CUDA was used before the lease was there: too late to count it, and to choose the GPU."""
