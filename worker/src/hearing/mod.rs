//! The engine's thread with a model that turns sound into text. Windows of all requests are heard one after the other,
//! and their texts are written together. More important requests go first, also in the middle of a window.

mod desk;
mod job;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use model_boss_audio::MelFilters;
use model_boss_engine::speech::{SpeechModel, TokenTexts};
use model_boss_engine::{Activity, DecoderError, EngineError};
use model_boss_protocol::Priority;
use tokio::sync::mpsc;

use crate::cpu_share::StepThreads;
use desk::{HearingDesk, Round};

pub(crate) use job::{HearError, HearEvent, HearJob, HearTotals};

/// The model and the requests that rounds are computed with.
struct Hearing<'a> {
    model: &'a dyn SpeechModel,
    filters: MelFilters,
    desk: Mutex<HearingDesk>,
    activity: &'a Activity,
    /// The error of a device that was lost.
    lost: Mutex<Option<String>>,
}

/// Computes until no request can come any more.
pub(crate) fn serve(
    model: &dyn SpeechModel,
    texts: Arc<dyn TokenTexts>,
    mut threads: StepThreads,
    inbox: mpsc::Receiver<HearJob>,
    activity: &Activity,
) -> Result<(), EngineError> {
    let hearing = Hearing {
        model,
        filters: MelFilters::new(model.info().mel),
        desk: Mutex::new(HearingDesk::new(inbox, texts)),
        activity,
        lost: Mutex::default(),
    };
    loop {
        let Some(round) = hearing.desk().next_round(model, activity) else { return Ok(()) };
        threads.run(|| hearing.compute(round));
        if let Some(why) = hearing.lost.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(EngineError::DeviceLost(why));
        }
    }
}

impl Hearing<'_> {
    fn desk(&self) -> MutexGuard<'_, HearingDesk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Computes a round, and in its pauses rounds of requests that are more important.
    fn compute(&self, mut round: Round) {
        let priority = round.priority;
        let begun = Instant::now();
        let pause = || self.compute_more_important(priority);
        let done = match &mut round.work {
            desk::RoundWork::Hear(part) => {
                let heard = part.chunk.hear(self.model, &self.filters, &pause);
                self.activity.encoded(self.model.info().frames / 2, begun.elapsed());
                heard
            }
            desk::RoundWork::Settle(part) => part.chunk.settle(self.model, &pause),
            desk::RoundWork::Read(parts) => {
                let read = self.read(parts, &pause);
                self.activity.encoded(parts.len(), begun.elapsed());
                read
            }
        };
        if let Err(DecoderError::Fatal(why)) = &done {
            *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
        }
        self.desk().finish(round, &done);
    }

    fn read(&self, parts: &mut [desk::OpenPart], pause: &(dyn Fn() + Sync)) -> Result<(), DecoderError> {
        let mut steps = Vec::with_capacity(parts.len());
        for part in parts.iter_mut() {
            steps.extend(part.chunk.step(self.model));
        }
        let logits = self.model.step(&mut steps, pause)?;
        drop(steps);
        for (part, logits) in parts.iter_mut().zip(logits) {
            part.chunk.took(self.model, logits)?;
        }
        Ok(())
    }

    /// Rounds of requests that are more important than this, until there are none.
    fn compute_more_important(&self, than: Priority) {
        loop {
            let Some(round) = self.desk().more_important(self.model, than) else { return };
            self.compute(round);
        }
    }
}
