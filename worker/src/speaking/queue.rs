//! Requests that wait to be spoken, part by part: the most important first, and of equals one part of each in turn, so
//! that each is heard early.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use model_boss_engine::{Activity, DecoderError, EngineError, PartEnd};
use model_boss_protocol::Priority;
use tokio::sync::mpsc;

use super::job::{JobPart, SpeechJob, SpeechOrder};
use super::pieces::{SpeechFailure, SpeechPiece};

/// Turns that a request may be passed over by more important ones, before one of its parts is spoken.
const MOST_PASSED: u32 = 8;

/// The requests that wait.
pub(super) struct SpeechQueue {
    inbox: mpsc::Receiver<SpeechOrder>,
    waiting: BTreeMap<u64, WaitingJob>,
    arrived: u64,
    /// Parts that are being spoken, one in the pauses of another.
    spoken: usize,
}

struct WaitingJob {
    job: Box<SpeechJob>,
    /// Parts that were spoken.
    parts: usize,
    /// Turns since its last one.
    passed: u32,
}

/// A request whose next part is spoken now.
pub(super) struct SpeechTurn {
    number: u64,
    pub(super) job: Box<SpeechJob>,
    pub(super) part: JobPart,
    parts: usize,
}

impl SpeechQueue {
    pub(super) fn new(inbox: mpsc::Receiver<SpeechOrder>) -> Self {
        Self { inbox, waiting: BTreeMap::new(), arrived: 0, spoken: 0 }
    }

    /// The next part, once there is one; none when no request can come any more.
    pub(super) fn next(&mut self, activity: &Activity) -> Option<SpeechTurn> {
        loop {
            self.collect();
            if let Some(turn) = self.take(|_| true) {
                self.publish(activity);
                return Some(turn);
            }
            // Requests that wait for their clients to read are no work.
            activity.occupied(0, 0);
            let order = self.inbox.blocking_recv()?;
            self.push(order);
        }
    }

    /// The next part of a request that is more important than the one that is being spoken.
    pub(super) fn urgent(&mut self, running: Priority, activity: &Activity) -> Option<SpeechTurn> {
        self.collect();
        let turn = self.take(|waiting| waiting.job.priority < running)?;
        self.publish(activity);
        Some(turn)
    }

    /// Puts a request back behind its part, or ends it. The error is that of a device that was lost.
    pub(super) fn finish(
        &mut self,
        turn: SpeechTurn,
        ended: Result<PartEnd, DecoderError>,
        activity: &Activity,
    ) -> Result<(), EngineError> {
        self.spoken -= 1;
        self.publish(activity);
        let SpeechTurn { number, mut job, part, parts } = turn;
        match ended {
            Ok(PartEnd::Stopped) => {}
            Ok(PartEnd::Spoken { frames }) => {
                job.usage.frames += frames;
                job.usage.symbols += part.symbols.len();
                if job.parts.is_empty() {
                    job.reply.send(SpeechPiece::Done(job.usage));
                    return Ok(());
                }
                if part.silence > 0 {
                    job.reply.send(SpeechPiece::Sound(vec![0.0; part.silence]));
                }
                self.waiting.insert(number, WaitingJob { job, parts: parts + 1, passed: 0 });
            }
            Err(DecoderError::Fatal(why)) => return Err(EngineError::DeviceLost(why)),
            Err(DecoderError::OutOfMemory(why)) => {
                job.reply.send(SpeechPiece::Failed(SpeechFailure::OutOfMemory(why)));
            }
            Err(error) => job.reply.send(SpeechPiece::Failed(SpeechFailure::Failed(error.to_string()))),
        }
        Ok(())
    }

    fn publish(&self, activity: &Activity) {
        activity.occupied(self.spoken, self.waiting.len());
    }

    fn take(&mut self, may: impl Fn(&WaitingJob) -> bool) -> Option<SpeechTurn> {
        let ready = self.waiting.iter().filter(|(_, waiting)| waiting.job.reply.has_room() && may(waiting));
        let best =
            ready.min_by_key(|(number, waiting)| (waiting.rank(), waiting.parts, Reverse(waiting.passed), **number));
        let number = best.map(|(number, _)| *number)?;
        let WaitingJob { mut job, parts, .. } = self.waiting.remove(&number)?;
        for waiting in self.waiting.values_mut() {
            waiting.passed = waiting.passed.saturating_add(1);
        }
        let part = job.parts.pop_front()?;
        self.spoken += 1;
        Some(SpeechTurn { number, job, part, parts })
    }

    /// Takes requests in that have come, and drops those whose clients are gone.
    fn collect(&mut self) {
        while let Ok(order) = self.inbox.try_recv() {
            self.push(order);
        }
        self.waiting.retain(|_, waiting| !waiting.job.reply.is_closed());
    }

    fn push(&mut self, order: SpeechOrder) {
        if let SpeechOrder::Speak(job) = order {
            self.waiting.insert(self.arrived, WaitingJob { job, parts: 0, passed: 0 });
            self.arrived += 1;
        }
    }
}

impl WaitingJob {
    /// Its priority; that of the most important once it was passed over for long.
    fn rank(&self) -> Priority {
        if self.passed < MOST_PASSED { self.job.priority } else { Priority::HIGHEST }
    }
}

#[cfg(test)]
mod tests {
    use model_boss_engine::{Histograms, TorchGenerator};

    use super::super::job::wake;
    use super::super::pieces::{PieceReader, SpokenUsage, pieces};
    use super::*;

    struct QueueRig {
        queue: SpeechQueue,
        orders: mpsc::Sender<SpeechOrder>,
        activity: Activity,
    }

    impl QueueRig {
        fn new() -> Self {
            let (orders, inbox) = mpsc::channel(64);
            let activity = Activity::new(Histograms::default());
            Self { queue: SpeechQueue::new(inbox), orders, activity }
        }

        /// A request with so many parts, whose symbols are the request's own number.
        fn ask(&self, number: u32, priority: u8, parts: usize) -> PieceReader {
            let (reply, reader) = pieces(Some(wake(self.orders.clone())));
            let part = JobPart { symbols: vec![number], silence: 3 };
            let job = SpeechJob {
                parts: vec![part; parts].into(),
                voice: 0,
                speed: 1.0,
                instructions: [].into(),
                random: TorchGenerator::seeded(0),
                memory: None,
                priority: Priority::new(priority).unwrap(),
                reply,
                usage: SpokenUsage::default(),
            };
            assert!(self.orders.try_send(SpeechOrder::Speak(Box::new(job))).is_ok());
            reader
        }

        /// Speaks a part and tells whose it was.
        fn speak(&mut self, samples: usize) -> u32 {
            let turn = self.queue.next(&self.activity).unwrap();
            turn.job.reply.send(SpeechPiece::Sound(vec![0.5; samples]));
            let number = turn.part.symbols[0];
            self.queue.finish(turn, Ok(PartEnd::Spoken { frames: 2 }), &self.activity).unwrap();
            number
        }
    }

    #[tokio::test]
    async fn rc_28_the_most_important_come_first_equals_in_turn_and_nobody_waits_for_ever() {
        let mut rig = QueueRig::new();
        let (mut one, _two, _low) = (rig.ask(1, 5, 2), rig.ask(2, 5, 9), rig.ask(3, 8, 1));
        let order: Vec<u32> = (0..3).map(|_| rig.speak(7)).collect();
        assert_eq!(order, [1, 2, 1]);
        let mut told = Vec::new();
        while let Some(piece) = one.next().await {
            told.push(piece);
        }
        let sound = |samples: usize| SpeechPiece::Sound(vec![0.5; samples]);
        let silence = SpeechPiece::Sound(vec![0.0; 3]);
        assert_eq!(told, [sound(7), silence, sound(7), SpeechPiece::Done(SpokenUsage { symbols: 2, frames: 4 })]);
        let order: Vec<u32> = (0..7).map(|_| rig.speak(7)).collect();
        assert_eq!(order, [2, 2, 2, 2, 2, 3, 2], "the least important has its turn");
    }

    #[test]
    fn rc_28_only_what_is_more_important_is_spoken_in_the_pauses_of_another() {
        let mut rig = QueueRig::new();
        let _running = rig.ask(1, 5, 1);
        let turn = rig.queue.next(&rig.activity).unwrap();
        let (_equal, _less) = (rig.ask(2, 5, 1), rig.ask(3, 6, 1));
        assert!(rig.queue.urgent(turn.job.priority, &rig.activity).is_none());
        let _more = rig.ask(4, 4, 1);
        let urgent = rig.queue.urgent(turn.job.priority, &rig.activity).unwrap();
        assert_eq!(urgent.part.symbols, [4]);
        assert_eq!((rig.activity.stats().active, rig.activity.stats().waiting), (2, 2));
        assert!(rig.queue.urgent(urgent.job.priority, &rig.activity).is_none());
        rig.queue.finish(urgent, Ok(PartEnd::Spoken { frames: 1 }), &rig.activity).unwrap();
        rig.queue.finish(turn, Ok(PartEnd::Spoken { frames: 1 }), &rig.activity).unwrap();
        assert_eq!(rig.speak(1), 2);
    }

    #[tokio::test]
    async fn rc_28_clients_that_do_not_read_wait_and_those_that_left_are_dropped() {
        let mut rig = QueueRig::new();
        let mut slow = rig.ask(1, 2, 9);
        assert_eq!(rig.speak(2_000_000), 1);
        let quick = rig.ask(2, 7, 2);
        assert_eq!(rig.speak(1), 2, "the important one has unread sound");
        assert!(matches!(slow.next().await, Some(SpeechPiece::Sound(samples)) if samples.len() == 2_000_000));
        assert_eq!(rig.speak(1), 1);
        drop(slow);
        assert_eq!(rig.speak(1), 2);
        drop(quick);
        let mut failing = rig.ask(3, 5, 2);
        let turn = rig.queue.next(&rig.activity).unwrap();
        assert_eq!(turn.part.symbols, [3]);
        rig.queue.finish(turn, Err(DecoderError::Step("no".to_owned())), &rig.activity).unwrap();
        assert!(
            matches!(failing.next().await, Some(SpeechPiece::Failed(SpeechFailure::Failed(why))) if why.contains("no"))
        );
        let _last = rig.ask(4, 5, 1);
        let turn = rig.queue.next(&rig.activity).unwrap();
        assert!(rig.queue.finish(turn, Err(DecoderError::Fatal("gone".to_owned())), &rig.activity).is_err());
    }
}
