//! The engine's thread with a model that paints: one step after the other, each of the most important request.

mod desk;
#[cfg(test)]
pub(crate) mod fake_painter;
mod job;
mod painting_side;
#[cfg(test)]
mod tests;

use model_boss_engine::{Activity, EngineError, Painter};
use tokio::sync::mpsc;

use crate::cpu_share::StepThreads;
use desk::PaintingDesk;

pub(crate) use job::{PaintEvent, PaintFailure, PaintJob, PaintTimes};
pub(crate) use painting_side::PaintingSide;

/// Paints until no request can come any more.
pub(crate) fn serve(
    painter: &dyn Painter,
    mut threads: StepThreads,
    inbox: mpsc::Receiver<PaintJob>,
    activity: &Activity,
) -> Result<(), EngineError> {
    let mut desk = PaintingDesk::new(inbox);
    loop {
        let Some(mut turn) = desk.next(activity) else { return Ok(()) };
        let done = threads.run(|| turn.advance(painter));
        desk.finish(turn, done, activity)?;
    }
}
