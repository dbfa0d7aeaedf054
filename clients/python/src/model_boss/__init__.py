"""Leases of GPU memory for training code, beside the models that model-boss serves.

    import model_boss

    with model_boss.lease(vram="18GiB", gpus=1, preemptible=True, grace="2m") as lease:
        import torch                       # only now: nothing may touch CUDA before the lease is there
        for step, batch in enumerate(data):
            train(batch)
            if lease.revoked.is_set():     # somebody more important needs the memory
                save_checkpoint()
                break

The coordinator is asked over HTTP (``MODEL_BOSS_URL``, by default http://127.0.0.1:8210). With a Redis URL
(``MODEL_BOSS_REDIS_URL``) the program ``model-boss lease hold`` is asked over a pipe instead, and no coordinator needs to
run. Nothing is decided here: who gets memory, and who gives it back, is decided by the ledger.
"""

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

__version__ = "0.1.0"
