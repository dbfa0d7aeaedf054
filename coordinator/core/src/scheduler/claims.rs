//! Claims. A claim reserves the slots that are evicted for a model, and the memory that they free. It also reserves the
//! model's turn until it has that memory (RC-18).

use model_boss_protocol::{DeviceId, SlotId};

use super::room::{Ask, Plan};
use super::state::{Reconsider, Scheduler};
use crate::Verdict;
use crate::catalog::ModelIndex;
use crate::device::Claim;
use crate::eviction::{self, Right, SlotUse};
use crate::reason::LeaveCause;

impl Scheduler {
    /// Evicts the plan's victims, and reserves the turn and the memory for this model.
    pub(super) fn make_room(&mut self, ask: &Ask, plan: Plan) {
        let parts = plan.parts();
        let Plan { asker, site, held: _, takes, victims, coming, asks } = plan;
        let model = ask.model;
        self.release_claim(model);
        let asking = self.catalog[model].id().clone();
        let mut leaving: Vec<SlotId> = victims.iter().map(|victim| victim.slot).collect();
        let ousted = self.oust(model, &site, &leaving);
        leaving.extend(coming);
        let standing = eviction::standing(&asker, &victims);
        // The model joins the line first, so that later models cannot take the room that becomes free.
        self.stand_in_line(model, parts, asker.base, asks);
        if asks {
            let asked = self.askable(&site, asker.base).iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            let reasons = vec![format!("a request of priority {} waits for it", asker.base), format!("asked: {asked}")];
            self.decisions.record(self.now, Verdict::Revoke, &asking, Some(asker.id), reasons);
        }
        self.claims.insert(model, Claim { asker: asker.id, standing, site, takes, victims: leaving.clone() });
        self.queue.set_aside(model, true);
        for victim in &victims {
            let name = self.name_of(victim.slot);
            let what = if victim.usage == SlotUse::Busy { Verdict::Drain } else { Verdict::Evict };
            let reasons = vec![format!("room for '{asking}' (priority {})", asker.base), victim.right.to_string()];
            self.decisions.record(self.now, what, &name, Some(asker.id), reasons);
            let cause = match victim.right {
                Right::Unwanted => LeaveCause::Unwanted,
                _ => LeaveCause::Eviction { room_for: asking.clone() },
            };
            match victim.usage {
                SlotUse::Idle => self.stop_slot(victim.slot, cause),
                SlotUse::Busy => self.drain_slot(victim.slot, cause),
            }
        }
        for (other, claim) in ousted {
            for slot in claim.victims {
                if !leaving.contains(&slot) {
                    self.keep_slot(slot, other);
                }
            }
            self.reconsider_at_least(Reconsider::Kinds);
            self.consider_move(other);
        }
    }

    /// Ends the claims that a plan for this site with these victims overrides.
    fn oust(&mut self, model: ModelIndex, site: &[DeviceId], victims: &[SlotId]) -> Vec<(ModelIndex, Claim)> {
        let alone = self.exclusive_on(model, site);
        let passed_over = |claimant: ModelIndex, claim: &Claim| {
            claim.victims.iter().any(|victim| victims.contains(victim))
                || claim.site.iter().any(|device| site.contains(device) || alone.contains(device))
                || self.exclusive_on(claimant, &claim.site).iter().any(|d| site.contains(d) || alone.contains(d))
        };
        let claims = self.claims.iter().filter(|(claimant, claim)| passed_over(**claimant, claim));
        let models: Vec<ModelIndex> = claims.map(|(claimant, _)| *claimant).collect();
        models.iter().for_each(|&claimant| self.queue.set_aside(claimant, false));
        models.into_iter().filter_map(|claimant| Some((claimant, self.claims.remove(&claimant)?))).collect()
    }

    /// Cancels the model's claim. Victims that still drain for it stay loaded, and the model returns to its queue.
    pub(super) fn drop_claim(&mut self, model: ModelIndex) {
        if self.release_claim(model) {
            self.queue.set_aside(model, false);
        }
    }

    /// Cancels the claim of a model that gets another turn at once. Returns whether it had a claim.
    fn release_claim(&mut self, model: ModelIndex) -> bool {
        let Some(claim) = self.claims.remove(&model) else { return false };
        for victim in claim.victims {
            self.keep_slot(victim, model);
        }
        true
    }

    /// Cancels all claims on a device.
    pub(super) fn drop_claims_on(&mut self, device: &DeviceId) {
        let on_it = self.claims.iter().filter(|(_, claim)| claim.site.contains(device));
        let models: Vec<ModelIndex> = on_it.map(|(model, _)| *model).collect();
        for model in models {
            self.drop_claim(model);
        }
    }

    pub(super) fn claim_of(&self, model: ModelIndex) -> Option<&Claim> {
        self.claims.get(&model)
    }
}
