//! What would happen to a request, without doing it (`POST /api/v1/plan`): the same questions that a real request asks,
//! put to the same functions.

use model_boss_protocol::{ApiError, DeviceId, RequestId};

use super::Scheduler;
use super::room::{Ask, Offer, Plan};
use crate::catalog::ModelIndex;
use crate::eviction::Usage;
use crate::queue::Head;
use crate::slot::{ReadyPhase, SlotState};
use crate::view::{Eviction, PlanQuestion, PlanView, PlannedStep};
use crate::{Moment, WaitReason};

impl Scheduler {
    /// What a request of this kind that came now would meet. Changes nothing.
    pub fn plan(&self, now: Moment, question: &PlanQuestion) -> Result<PlanView, ApiError> {
        let now = self.now.max(now);
        let model = self.admit_model(&question.model)?;
        let known = &self.catalog[model];
        let priority = question.priority.unwrap_or_default();
        let head = Head::imagined(RequestId(u64::MAX), priority, now);
        let mut ask = Ask { heads: vec![head], ..self.ask_of(model) };
        if let Some(device) = &question.device {
            ask.device = device.clone();
        }
        if let Some(context) = question.context {
            ask.context = Some(context);
        }
        if let Some(size) = &question.size {
            ask.estimate = size.clone();
        }
        let step = self.imagined_step(model, &ask, question.device.as_ref())?;
        let site: Vec<DeviceId> = step.parts().iter().map(|(device, _)| device.clone()).collect();
        let size = if site.is_empty() { self.size_on(&ask, &ask.device) } else { self.size_at(&ask, &site) };
        let estimate = self.cold_start(model);
        Ok(PlanView {
            model: known.id().clone(),
            priority,
            size: size.bytes,
            size_rule: size.rule,
            message: step.to_string(),
            step,
            before_it: self.queue.stand_before(model, priority, now),
            expected_load: estimate.map(|estimate| estimate.load),
            expected_answer: known.history.expected_answer(),
        })
    }

    fn imagined_step(
        &self,
        model: ModelIndex,
        ask: &Ask,
        elsewhere: Option<&DeviceId>,
    ) -> Result<PlannedStep, ApiError> {
        let known = &self.catalog[model];
        if let Some(slot) = known.serving.map(|slot| &self.pool[slot])
            && elsewhere.is_none_or(|device| slot.parts.iter().any(|(part, _)| part == device))
        {
            let parts = slot.parts.clone();
            let takes_it = slot.state == SlotState::Ready(ReadyPhase::Serving)
                && slot.paused_until.is_none()
                && slot.running.len() < known.max_concurrent();
            return Ok(match takes_it {
                true => PlannedStep::Serve { parts },
                false => PlannedStep::Wait { parts, wait: self.why_not_taken(slot) },
            });
        }
        if let Some(error) = known.failures.refusal(known.id(), self.now, &self.settings) {
            return Err(error);
        }
        let offer = match self.offer(ask) {
            Ok(offer) => offer,
            Err(error) => {
                return match error.refusal(known.id()) {
                    Some(refusal) => Err(refusal),
                    None => Ok(PlannedStep::Wait { parts: Vec::new(), wait: self.why_no_place(ask, error) }),
                };
            }
        };
        Ok(match offer {
            Offer::Now(parts) => PlannedStep::Load { parts },
            Offer::Coming => PlannedStep::Wait { parts: Vec::new(), wait: self.why_no_load(model) },
            Offer::After(plan) => self.evictions(&plan),
            Offer::No(blocked) => {
                let why = blocked.into_iter().next().map(|(site, why)| self.reason(ask, &site, why));
                PlannedStep::Wait { parts: Vec::new(), wait: why.unwrap_or(WaitReason::Queued) }
            }
        })
    }

    fn evictions(&self, plan: &Plan) -> PlannedStep {
        let evictions = plan.victims.iter().map(|victim| Eviction {
            model: self.name_of(victim.slot),
            drains: victim.usage == Usage::Busy,
            why: victim.right.to_string(),
        });
        PlannedStep::Evict { parts: plan.parts(), evictions: evictions.collect() }
    }
}
