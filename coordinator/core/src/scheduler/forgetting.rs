//! Forgetting of models, so that memory stays bounded while clients load from ever new paths or manifests are
//! renamed. The state of a model is dropped some time after its last use.

use std::time::Duration;

use super::state::{LEAST_WAIT, Scheduler, Timer};
use crate::catalog::ModelIndex;
use crate::{Effect, Moment};

/// The shortest time between two searches for unused models, independent of the settings.
const LEAST_LOOK: Duration = Duration::from_secs(1);

impl Scheduler {
    /// A model named by its path may be forgotten once it is unused.
    pub(super) fn not_used_any_more(&mut self, model: ModelIndex) {
        let known = &mut self.catalog[model];
        known.used_at = self.now;
        if known.description.named.is_some() {
            // With this model, the number of unused ones may exceed the limit.
            self.timers.set(Timer::Forget, self.now + LEAST_WAIT);
        }
    }

    /// Forgets models that clients named by their path and that were unused for long. Above a limit of their number,
    /// the models unused for longest are forgotten too. The shell removes them from its catalog too, unless they were
    /// named again meanwhile.
    pub(super) fn forget_path_models(&mut self) {
        let named = self.catalog.iter().filter(|(_, model)| model.listed && model.description.named.is_some());
        let named: Vec<(Moment, ModelIndex)> = named.map(|(index, model)| (model.used_at, index)).collect();
        let mut surplus = named.len().saturating_sub(self.settings.path_models_kept);
        let (mut unused, used): (Vec<_>, Vec<_>) = named.into_iter().partition(|(_, model)| self.nothing_uses(*model));
        unused.sort_unstable();
        let idle = self.settings.path_model_idle;
        let mut next = (!used.is_empty()).then(|| self.now + idle.max(LEAST_LOOK));
        for (used_at, model) in unused {
            let until = used_at + idle;
            if surplus == 0 && until > self.now {
                next = Some(next.map_or(until, |next: Moment| next.min(until)));
                break;
            }
            surplus = surplus.saturating_sub(1);
            self.catalog.leave(model);
            let known = &self.catalog[model];
            if let Some(named) = known.description.named {
                self.out.push(Effect::ForgetModel { model: known.id().clone(), named });
            }
        }
        match next {
            Some(at) => self.timers.set(Timer::Forget, at),
            None => self.timers.clear(Timer::Forget),
        }
    }

    /// Forgets models that the catalog no longer lists, oldest departure first, beyond the number that is remembered.
    /// All state indexed by such a model is dropped too. A model that still finishes requests is forgotten at a later
    /// change of the catalog.
    pub(super) fn forget_models_that_left(&mut self) {
        for model in self.catalog.left_beyond(self.settings.left_models_kept) {
            if !self.nothing_uses(model) {
                continue;
            }
            self.timers.clear(Timer::Consider(model));
            self.timers.clear(Timer::Move(model));
            self.refused_leases.remove(&model);
            self.queue.forget(model);
            let slots = self.catalog.forget(model);
            self.pool.give_up(slots);
        }
    }

    /// Whether no slot, request or plan refers to this model.
    fn nothing_uses(&self, model: ModelIndex) -> bool {
        let known = &self.catalog[model];
        known.serving.is_none()
            && known.returns.is_none()
            && known.slots.iter().all(|slot| !self.pool.is_in_use(*slot))
            && self.queue.len_of(model) == 0
            && !self.claims.contains_key(&model)
            && !self.moves.contains_key(&model)
            && !self.others.places.contains_key(&model)
            && self.second_try.as_ref().is_none_or(|second| second.model != model)
            && self.running.values().all(|running| running.request.model != model)
    }
}
