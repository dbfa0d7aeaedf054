//! The order in which pictures are painted. A step of the most important request comes next, and of equals the one that
//! came first is painted to its end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model_boss_engine::{Activity, DecoderError, EngineError, PaintError, PaintProgress, Painter, Painting};
use model_boss_images::RgbImage;
use model_boss_protocol::Priority;
use tokio::sync::mpsc;

use super::job::{PaintEvent, PaintFailure, PaintJob, PaintTimes, PaintedPictures};

/// Steps that a request is passed over in favour of more important ones before it has its turn.
const MOST_PASSED: u32 = 32;

/// All requests that are not answered yet.
pub(super) struct PaintingDesk<'a> {
    inbox: mpsc::Receiver<PaintJob>,
    /// By their numbers, in the order of their arrival.
    jobs: BTreeMap<u64, OpenPainting<'a>>,
    arrived: u64,
}

/// A request and how far it is.
struct OpenPainting<'a> {
    job: PaintJob,
    /// The batch that is painted, once it is begun.
    painting: Option<Box<dyn Painting + 'a>>,
    /// Batches that are done.
    batches: usize,
    pictures: Vec<RgbImage>,
    passed: u32,
    times: PaintTimes,
}

/// A request whose next step is made now.
pub(super) struct PaintingTurn<'a> {
    number: u64,
    open: OpenPainting<'a>,
}

/// The work that a turn has done.
pub(super) enum TurnWork {
    /// Prompts were read.
    Begun,
    /// A step was made.
    Step(PaintProgress),
    /// The last batch is done.
    Done,
}

impl<'a> PaintingDesk<'a> {
    pub(super) fn new(inbox: mpsc::Receiver<PaintJob>) -> Self {
        Self { inbox, jobs: BTreeMap::new(), arrived: 0 }
    }

    /// The next turn, once there is a request; none when no request can come any more.
    pub(super) fn next(&mut self, activity: &Activity) -> Option<PaintingTurn<'a>> {
        loop {
            self.collect();
            let best = self.jobs.iter().min_by_key(|(number, open)| (open.rank(), **number));
            if let Some(number) = best.map(|(number, _)| *number)
                && let Some(mut open) = self.jobs.remove(&number)
            {
                for other in self.jobs.values_mut() {
                    other.passed = other.passed.saturating_add(u32::from(other.job.priority > open.job.priority));
                }
                open.passed = 0;
                // Published before the turn, so that one that never ends is visible with its requests.
                let active = self.jobs.values().filter(|open| open.has_begun()).count();
                activity.occupied(active + 1, self.jobs.len() - active);
                return Some(PaintingTurn { number, open });
            }
            activity.occupied(0, 0);
            let job = self.inbox.blocking_recv()?;
            self.push(job);
        }
    }

    /// Takes a request back, and tells what became of it. The error is that of a device that was lost.
    pub(super) fn finish(
        &mut self,
        turn: PaintingTurn<'a>,
        done: Result<TurnWork, PaintError>,
        activity: &Activity,
    ) -> Result<(), EngineError> {
        let PaintingTurn { number, mut open } = turn;
        match done {
            Ok(TurnWork::Begun) => {}
            Ok(TurnWork::Step(progress)) => {
                activity.encoded(0, open.times.painting / u32::try_from(open.times.steps.max(1)).unwrap_or(1));
                // The client may be gone, which is seen before the next step.
                let _ = open.job.events.send(PaintEvent::Step(progress));
            }
            Ok(TurnWork::Done) => {
                let pictures = std::mem::take(&mut open.pictures);
                let done = PaintedPictures { pictures, times: open.times };
                let _ = open.job.events.send(PaintEvent::Done(done));
                return Ok(());
            }
            Err(PaintError::Device(DecoderError::Fatal(why))) => return Err(EngineError::DeviceLost(why)),
            Err(error) => {
                let _ = open.job.events.send(PaintEvent::Failed(PaintFailure::from(&error)));
                return Ok(());
            }
        }
        self.jobs.insert(number, open);
        Ok(())
    }

    /// Takes requests in that have come, and drops those whose clients are gone.
    fn collect(&mut self) {
        while let Ok(job) = self.inbox.try_recv() {
            self.push(job);
        }
        self.jobs.retain(|_, open| !open.job.events.is_closed());
    }

    fn push(&mut self, job: PaintJob) {
        let (painting, times) = (None, PaintTimes::default());
        let open = OpenPainting { job, painting, batches: 0, pictures: Vec::new(), passed: 0, times };
        self.jobs.insert(self.arrived, open);
        self.arrived += 1;
    }
}

impl OpenPainting<'_> {
    fn has_begun(&self) -> bool {
        self.painting.is_some() || self.batches > 0
    }

    /// Its priority; that of the most important once it was passed over for long.
    fn rank(&self) -> Priority {
        if self.passed < MOST_PASSED { self.job.priority } else { Priority::HIGHEST }
    }
}

impl<'a> PaintingTurn<'a> {
    /// The next work of the request: reading a batch's prompts, or a step, and after the last step the pictures.
    pub(super) fn advance(&mut self, painter: &'a dyn Painter) -> Result<TurnWork, PaintError> {
        let open = &mut self.open;
        let Some(painting) = &mut open.painting else {
            let Some(request) = open.job.batches.get(open.batches) else { return Ok(TurnWork::Done) };
            open.painting = Some(timed(&mut open.times.begin, || painter.start(request))?);
            return Ok(TurnWork::Begun);
        };
        let progress = timed(&mut open.times.painting, || painting.step())?;
        open.times.steps += 1;
        let of_all = PaintProgress {
            step: open.batches * progress.steps + progress.step,
            steps: open.job.batches.len() * progress.steps,
        };
        if progress.is_over() {
            if let Some(painting) = open.painting.take() {
                open.pictures.extend(timed(&mut open.times.decoding, || painting.finish())?);
            }
            open.batches += 1;
            return Ok(if open.batches == open.job.batches.len() { TurnWork::Done } else { TurnWork::Step(of_all) });
        }
        if let Some(show) = shown_after(progress, open.job.previews) {
            let pictures = timed(&mut open.times.decoding, || painting.preview())?;
            let _ = open.job.events.send(PaintEvent::Preview { show, first: open.pictures.len(), pictures });
        }
        Ok(TurnWork::Step(of_all))
    }
}

/// The number of the show that follows a step, of so many that are spread over all steps.
fn shown_after(progress: PaintProgress, shows: usize) -> Option<usize> {
    let after = |show: usize| ((show + 1) * progress.steps).div_ceil(shows + 1);
    (0..shows).rev().find(|show| after(*show) == progress.step)
}

fn timed<T>(sum: &mut Duration, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    *sum = sum.saturating_add(began.elapsed());
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_25_unfinished_pictures_are_spread_over_the_steps() {
        let shown = |steps: usize, shows: usize| -> Vec<usize> {
            (1..steps).filter(|step| shown_after(PaintProgress { step: *step, steps }, shows).is_some()).collect()
        };
        assert_eq!(shown(20, 3), [5, 10, 15]);
        assert_eq!(shown(20, 1), [10]);
        assert_eq!(shown(3, 2), [1, 2]);
        assert_eq!(shown(2, 3), [1], "there are fewer steps than shows");
        assert!(shown(20, 0).is_empty() && shown(1, 3).is_empty());
    }
}
