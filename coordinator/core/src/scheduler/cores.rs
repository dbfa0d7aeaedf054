//! Shares of the host's cores for models that compute there at the same time (FA-5).

use model_boss_protocol::{CpuShare, SlotId};

use super::state::Scheduler;
use crate::Effect;
use crate::cores::{CoreClaim, divide};

impl Scheduler {
    /// Divides the cores between the workers with requests in flight, after these or the settings changed, and tells
    /// each worker whose share is another one. A worker without requests computes nothing, and keeps its last share
    /// until its next request.
    pub(super) fn share_cores(&mut self) {
        if !std::mem::take(&mut self.cores_changed) {
            return;
        }
        let (slots, claims): (Vec<SlotId>, Vec<CoreClaim>) = self
            .pool
            .in_use()
            .filter_map(|slot| {
                let (&(priority, _), cores) = (slot.running.first()?, slot.cores?);
                Some((slot.id, CoreClaim { priority, cores }))
            })
            .unzip();
        let shares = if self.settings.share_cores {
            divide(&claims)
        } else {
            claims.iter().map(|claim| CpuShare::whole(claim.cores)).collect()
        };
        for (id, share) in slots.into_iter().zip(shares) {
            let slot = &mut self.pool[id];
            if slot.cpu_share() != Some(share) {
                slot.share = Some(share);
                self.out.push(Effect::ShareCores { slot: slot.key(), share });
            }
        }
    }
}
