"""A Hugging Face Trainer that saves a checkpoint and stops when its lease is revoked. The next run continues from there.

    with model_boss.lease(vram="18GiB", preemptible=True, grace="5m") as lease:
        trainer = Trainer(..., callbacks=[SaveOnRevocation(lease)])
        trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir))

With torchrun, the program that starts it enters the lease, because the ranks are its children:
`model-boss lease run --gpus 4 --on-revoke USR1 -- torchrun …`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import model_boss

if TYPE_CHECKING:
    TrainerCallback = object
else:
    try:
        from transformers import TrainerCallback
    except ImportError:  # without transformers, the class only needs its own methods
        TrainerCallback = object


class SaveOnRevocation(TrainerCallback):
    """Makes the trainer save and stop at the next step after the revocation, also between evaluation steps."""

    def __init__(self, lease: model_boss.Lease) -> None:
        self.lease = lease

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self.lease.revoked.is_set():
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        # Within gradient accumulation no checkpoint can be saved, but the trainer checks this flag.
        if self.lease.revoked.is_set():
            control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        revocation = self.lease.revocation
        if revocation is not None:
            print(f"saved step {state.global_step} with {revocation.remaining:.0f} s to spare for {revocation.by}")
        return control
