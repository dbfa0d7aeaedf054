//! Plans (`POST /api/v1/plan`): the fate of a hypothetical request, found with the functions that serve real ones,
//! without side effects.

use model_boss_protocol::{ByteCount, Category, DeviceId, ModelId, Priority, RequestId};

use super::ladders::{Chosen, Needs};
use super::room::{Ask, Offer, Plan};
use super::state::Scheduler;
use crate::catalog::ModelIndex;
use crate::eviction::SlotUse;
use crate::ladder::{RungChoice, RungState, Target};
use crate::phase::ReadyPhase;
use crate::queue::Head;
use crate::refusal::Refusal;
use crate::slot::SlotState;
use crate::view::{Eviction, PlanQuestion, PlanView, PlannedStep, RungView};
use crate::{Moment, SizeRule, WaitReason};

impl Scheduler {
    /// The plan for a request of this kind that arrives now. The scheduler does not change.
    pub fn plan(&self, now: Moment, question: &PlanQuestion) -> Result<PlanView, Refusal> {
        let now = self.now.max(now);
        let priority = question.priority.unwrap_or_default();
        let (target, rung, ladder) = self.imagined_rung(question, priority)?;
        let name = match target {
            Target::Local(name) => name,
            Target::Cloud { .. } => return Ok(elsewhere(target, priority, rung, ladder)),
        };
        let model = self.admit_model(name.as_str())?;
        let known = &self.catalog[model];
        let head = Head::imagined(RequestId(u64::MAX), priority, now);
        let mut ask = Ask { heads: vec![head], ..self.ask_of(model) };
        if let Some(device) = &question.device {
            ask.device = device.clone();
        }
        if let Some(context) = question.context {
            ask.context = Some(context);
        }
        ask.layers = question.layers.over(ask.layers);
        if let Some(size) = &question.size {
            ask.estimate = size.clone();
        }
        let step = self.imagined_step(model, &ask, question)?;
        let site: Vec<DeviceId> = step.parts().iter().map(|(device, _)| device.clone()).collect();
        // A loaded model is planned with the context and layers that it has.
        let loaded = matches!(step, PlannedStep::Serve { .. }).then_some(known.serving).flatten();
        let site = if site.is_empty() { self.first_site(&ask) } else { site };
        let size = self.size_at(&ask, &site);
        let mut layers = self.layers_view(&ask, &site, &size);
        if let Some(slot) = loaded.map(|slot| &self.pool[slot]) {
            layers.streamed = slot.layers.stream;
            if slot.layers.for_want_of_room() && !size.stream {
                layers.why = Some(format!(
                    "there was no room for all of them when it was loaded; it is loaded again with all of them when it was \
                     idle and the room was there for {:.0} s",
                    self.settings.peak_patience.as_secs_f64()
                ));
            }
        }
        let estimate = self.cold_start(model, None);
        Ok(PlanView {
            model: known.id().clone(),
            rung,
            ladder,
            priority,
            size: size.need.total(),
            size_rule: size.rule,
            layers: Some(layers),
            message: step.to_string(),
            step,
            before_it: self.queue.stand_before(model, priority, now),
            expected_load: estimate.map(|estimate| estimate.load),
            expected_answer: known.history.expected_answer(None),
        })
    }

    /// The rung that such a request would get, and the state of all its rungs.
    fn imagined_rung<'a>(
        &self,
        question: &'a PlanQuestion,
        priority: Priority,
    ) -> Result<(&'a Target, RungChoice, Vec<RungView>), Refusal> {
        let ladder = &question.ladder;
        if ladder.rest.is_empty()
            && question.category.is_none()
            && let Target::Local(_) = &ladder.first.target
        {
            // A ladder of one rung leaves no choice: the plan shows what the request would meet there.
            return Ok((&ladder.first.target, RungChoice::NONE, Vec::new()));
        }
        // Unless the question names a category, it is that of the ladder's first local model.
        let local = ladder.rungs().find_map(|rung| match &rung.target {
            Target::Local(name) => self.catalog.resolve(name.as_str()),
            Target::Cloud { .. } => None,
        });
        let done = local.map(|model| self.catalog[model].description.category);
        let category = question.category.or(done).unwrap_or(Category::Llm);
        let needs = Needs { category, priority, deadline: None, work: None };
        let Chosen { index, choice, states } = self.choose_rung(ladder, needs, &[])?;
        let views = states.iter().map(|(rung, state)| RungView {
            rung: rung.position,
            model: rung.target.clone(),
            usable: matches!(state, RungState::Usable(_)),
            expected: state.expected(),
            state: state.to_string(),
        });
        Ok((&states[index].0.target, choice, views.collect()))
    }

    fn imagined_step(&self, model: ModelIndex, ask: &Ask, question: &PlanQuestion) -> Result<PlannedStep, Refusal> {
        let known = &self.catalog[model];
        if let Some(slot) = known.serving.map(|slot| &self.pool[slot])
            && question.device.as_ref().is_none_or(|device| slot.computes_on(device))
            && slot.layers.satisfy(&question.layers, slot.computing().iter().map(|&(_, bytes)| bytes).sum())
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
        if let Some(wait) = self.why_no_ledger() {
            return Ok(PlannedStep::Wait { parts: Vec::new(), wait });
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
            drains: victim.usage == SlotUse::Busy,
            why: victim.right.to_string(),
        });
        let asks = if plan.asks { self.askable(&plan.site, plan.asker.base) } else { Vec::new() };
        PlannedStep::Evict { parts: plan.parts(), evictions: evictions.collect(), asks }
    }
}

/// The plan of a request that a cloud provider would answer.
fn elsewhere(target: &Target, priority: Priority, rung: RungChoice, ladder: Vec<RungView>) -> PlanView {
    let provider = match target {
        Target::Cloud { provider, .. } => provider.clone(),
        Target::Local(model) => model.to_string(),
    };
    let step = PlannedStep::Elsewhere { provider };
    PlanView {
        model: ModelId::from(target.to_string().as_str()),
        rung,
        ladder,
        priority,
        size: ByteCount::ZERO,
        size_rule: SizeRule::Manifest,
        layers: None,
        message: step.to_string(),
        step,
        before_it: 0,
        expected_load: None,
        expected_answer: None,
    }
}
