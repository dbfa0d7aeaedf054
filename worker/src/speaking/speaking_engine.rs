//! The engine's thread with a model that speaks: one part after the other, and in the pauses of each those of requests
//! that are more important.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use model_boss_engine::{Activity, DecoderError, EngineError, PartEnd, Speaker, SpeechListener, SpokenPart};
use tokio::sync::mpsc;

use super::job::SpeechOrder;
use super::pieces::SpeechPiece;
use super::queue::{SpeechQueue, SpeechTurn};
use crate::cpu_share::StepThreads;

/// Speaks until no request can come any more.
pub(crate) fn serve(
    speaker: &dyn Speaker,
    mut threads: StepThreads,
    inbox: mpsc::Receiver<SpeechOrder>,
    activity: &Activity,
) -> Result<(), EngineError> {
    let engine = SpeakingEngine { queue: Mutex::new(SpeechQueue::new(inbox)), activity };
    loop {
        let Some(mut turn) = engine.queue().next(activity) else { return Ok(()) };
        let ended = threads.run(|| engine.speak(speaker, &mut turn));
        engine.queue().finish(turn, ended, activity)?;
    }
}

struct SpeakingEngine<'a> {
    queue: Mutex<SpeechQueue>,
    activity: &'a Activity,
}

/// Sends the samples of a part on, and speaks others in its pauses.
struct TurnListener<'a, 'b> {
    engine: &'a SpeakingEngine<'b>,
    turn: &'a SpeechTurn,
    /// The end of the last pause.
    since: Instant,
}

impl SpeakingEngine<'_> {
    fn queue(&self) -> MutexGuard<'_, SpeechQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn speak(&self, speaker: &dyn Speaker, turn: &mut SpeechTurn) -> Result<PartEnd, DecoderError> {
        let (mut random, mut memory) = (turn.job.random.clone(), turn.job.memory.take());
        let (symbols, instructions) = (&turn.part.symbols, &turn.job.instructions);
        let part = SpokenPart { symbols, voice: turn.job.voice, speed: turn.job.speed, instructions };
        let mut listener = TurnListener { engine: self, turn, since: Instant::now() };
        let ended = speaker.speak(&part, &mut memory, &mut random, &mut listener);
        self.activity.encoded(turn.part.symbols.len(), listener.since.elapsed());
        (turn.job.random, turn.job.memory) = (random, memory);
        ended
    }
}

impl SpeechListener for TurnListener<'_, '_> {
    fn hear(&mut self, samples: &[f32]) {
        self.turn.job.reply.send(SpeechPiece::Sound(samples.to_vec()));
    }

    fn pause(&mut self, speaker: &dyn Speaker) -> bool {
        // A step of the engine is the work between two pauses.
        self.engine.activity.encoded(0, self.since.elapsed());
        loop {
            let urgent = self.engine.queue().urgent(self.turn.job.priority, self.engine.activity);
            let Some(mut urgent) = urgent else { break };
            let ended = self.engine.speak(speaker, &mut urgent);
            // A lost device is met again by the part itself.
            let _ = self.engine.queue().finish(urgent, ended, self.engine.activity);
        }
        self.since = Instant::now();
        !self.turn.job.reply.is_closed()
    }
}
