"""Leases of GPU memory for training code, beside the models that model-boss serves.

    import model_boss

    with model_boss.lease(vram="18GiB", gpus=1, preemptible=True, grace="2m") as lease:
        import torch                       # only now: no code may use CUDA before the lease is granted
        for step, batch in enumerate(data):
            train(batch)
            if lease.revoked.is_set():     # a more important request needs the memory
                save_checkpoint()
                break

Requests are sent to the coordinator over HTTP (``MODEL_BOSS_URL``, by default http://127.0.0.1:8210). With a Redis URL
(``MODEL_BOSS_REDIS_URL``) they are sent to the program ``model-boss lease hold`` over a pipe, and no coordinator needs to
run. The ledger decides all grants and revocations; this package decides none.
"""

from importlib import metadata as _metadata

from ._errors import (
    CudaTouched,
    LeaseError,
    LeaseLost,
    NeverFits,
    NotReachable,
    Refused,
    WaitedTooLong,
)
from ._lease import Lease, Revocation, lease

__all__ = [
    "CudaTouched",
    "Lease",
    "LeaseError",
    "LeaseLost",
    "NeverFits",
    "NotReachable",
    "Refused",
    "Revocation",
    "WaitedTooLong",
    "lease",
]

try:
    __version__ = _metadata.version("model-boss")
except _metadata.PackageNotFoundError:  # imported from a checkout, without an installation
    __version__ = "0"
