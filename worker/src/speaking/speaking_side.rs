//! The worker's side of requests for speech: its voices, and the way to its model or program.

use std::sync::Arc;

use model_boss_engine::{PlaceUse, Speaker, TorchGenerator};
use model_boss_protocol::{ApiError, ErrorCode, Priority, SpeechVoice};
use tokio::sync::mpsc;

use super::job::{JobPart, SpeechJob, SpeechOrder, wake};
use super::pieces::{PieceReader, SpeechFailure, SpeechPiece, SpokenUsage, pieces};
use super::program::StartProgram;
use super::sentences::parts_of;
use crate::gone::engine_gone;

/// Silence behind a sentence, in parts of a second.
const SILENCE: u32 = 8;

/// A model or a program that speaks.
pub(crate) struct Speaking {
    voices: Vec<SpeechVoice>,
    by: SpeakingBy,
}

enum SpeakingBy {
    Model { speaker: Arc<dyn Speaker>, places: Arc<[PlaceUse]>, orders: mpsc::Sender<SpeechOrder> },
    Program(StartProgram),
}

/// A request for speech, once its fields were read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SpeechWish {
    pub(crate) text: String,
    /// The place of the voice in [`Speaking::voices`].
    pub(crate) voice: usize,
    pub(crate) speed: f32,
    pub(crate) seed: u64,
    /// Whether the text is written in phonemes.
    pub(crate) phonemes: bool,
    /// How it shall sound; empty without a wish.
    pub(crate) instructions: String,
    pub(crate) priority: Priority,
}

/// Speech that has begun.
pub(crate) struct Speech {
    /// Samples per second.
    pub(crate) rate: u32,
    /// The first samples.
    pub(crate) first: Vec<f32>,
    /// The samples behind them.
    pub(crate) rest: PieceReader,
}

impl Speaking {
    /// A loaded model.
    pub(crate) fn model(speaker: Arc<dyn Speaker>, orders: mpsc::Sender<SpeechOrder>) -> Self {
        let (voices, places) = (speaker.info().voices.clone(), speaker.places());
        Self { voices, by: SpeakingBy::Model { speaker, places, orders } }
    }

    /// A program that is there.
    pub(crate) fn program(program: StartProgram) -> Self {
        Self { voices: program.program().voices.clone(), by: SpeakingBy::Program(program) }
    }

    /// The voices; the first one is the usual one.
    pub(crate) fn voices(&self) -> &[SpeechVoice] {
        &self.voices
    }

    /// Whether it speaks at any speed.
    pub(crate) fn has_speeds(&self) -> bool {
        match &self.by {
            SpeakingBy::Model { speaker, .. } => speaker.info().has_speeds,
            SpeakingBy::Program(_) => true,
        }
    }

    /// The use of devices, and the most bytes beside the weights.
    pub(crate) fn device_use(&self) -> (&[PlaceUse], u64) {
        match &self.by {
            SpeakingBy::Model { speaker, places, .. } => (places, speaker.info().workspace_bytes),
            SpeakingBy::Program(_) => (&[], 0),
        }
    }

    /// Bytes of the weights.
    pub(crate) fn weight_bytes(&self) -> u64 {
        match &self.by {
            SpeakingBy::Model { speaker, .. } => speaker.info().weight_bytes,
            SpeakingBy::Program(_) => 0,
        }
    }

    /// Begins to speak, and waits for the first samples. Dropping the future, or what it gives, ends the work.
    pub(crate) async fn speak(&self, wish: SpeechWish) -> Result<Speech, ApiError> {
        match &self.by {
            SpeakingBy::Model { speaker, orders, .. } => by_model(speaker.as_ref(), orders, wish).await,
            SpeakingBy::Program(program) => by_program(program, wish).await,
        }
    }
}

async fn by_model(
    speaker: &dyn Speaker,
    orders: &mpsc::Sender<SpeechOrder>,
    wish: SpeechWish,
) -> Result<Speech, ApiError> {
    let rate = speaker.info().rate;
    let instructions = match wish.instructions.trim() {
        "" => Vec::new(),
        text => speaker.instructions(text).map_err(|why| unread(&why))?,
    };
    let mut parts = Vec::new();
    for part in parts_of(&wish.text, speaker.info().longest_part) {
        let symbols = speaker.symbols(part.text, wish.phonemes).map_err(|why| refused(&why))?;
        if !symbols.is_empty() {
            let silence = if part.ends_sentence { (rate / SILENCE) as usize } else { 0 };
            parts.push(JobPart { symbols, silence });
        }
    }
    if parts.is_empty() {
        return Err(ApiError::invalid("input", "'input' has nothing that the model can say"));
    }
    let (reply, mut rest) = pieces(Some(wake(orders.clone())));
    let job = SpeechJob {
        parts: parts.into(),
        voice: wish.voice,
        speed: wish.speed,
        instructions: instructions.into(),
        random: TorchGenerator::seeded(wish.seed),
        memory: None,
        priority: wish.priority,
        reply,
        usage: SpokenUsage::default(),
    };
    if orders.send(SpeechOrder::Speak(Box::new(job))).await.is_err() {
        return Err(engine_gone().await);
    }
    loop {
        match rest.next().await {
            Some(SpeechPiece::Sound(first)) if first.is_empty() => {}
            Some(SpeechPiece::Sound(first)) => return Ok(Speech { rate, first, rest }),
            Some(SpeechPiece::Failed(failure)) => return Err(failure.into()),
            Some(SpeechPiece::Done(_)) => return Err(ApiError::new(ErrorCode::Internal, "the model said nothing")),
            None => return Err(engine_gone().await),
        }
    }
}

async fn by_program(program: &StartProgram, wish: SpeechWish) -> Result<Speech, ApiError> {
    if wish.phonemes {
        return Err(refused("this voice reads letters: leave 'phonemes' out"));
    }
    if !wish.instructions.trim().is_empty() {
        return Err(unread("this voice reads no instructions: leave 'instructions' out, or choose another voice"));
    }
    let symbols = wish.text.chars().count();
    let run = program.run(wish.text, wish.voice, wish.speed).await?;
    let (rate, (reply, mut rest)) = (run.rate, pieces(None));
    tokio::spawn(run.pass_on(symbols, reply));
    // The run has samples, which come first.
    match rest.next().await {
        Some(SpeechPiece::Sound(first)) => Ok(Speech { rate, first, rest }),
        _ => Err(ApiError::new(ErrorCode::Internal, "the program said nothing")),
    }
}

/// A text that this voice cannot say.
fn refused(why: &str) -> ApiError {
    ApiError::new(ErrorCode::UnsupportedByModel, format!("'input' cannot be spoken: {why}")).with_param("input")
}

/// Instructions that this voice cannot read.
fn unread(why: &str) -> ApiError {
    ApiError::new(ErrorCode::UnsupportedByModel, why).with_param("instructions")
}

impl From<SpeechFailure> for ApiError {
    fn from(failure: SpeechFailure) -> Self {
        let message = failure.to_string();
        match failure {
            SpeechFailure::OutOfMemory(_) => {
                Self::new(ErrorCode::NoCapacity, message).retry_after(std::time::Duration::from_secs(1))
            }
            SpeechFailure::Failed(_) => Self::new(ErrorCode::BackendError, message),
        }
    }
}
