//! Speech to text: the contract with a model that hears, and everything around it that is no arithmetic. These are the
//! rules about tokens, windows of long sounds, second tries at a higher temperature, segments, and words with times.
//!
//! The rules are those of the model's authors (Radford et al., 2022, arXiv 2212.04356, and their program).

mod alignment;
mod chunk;
#[cfg(any(test, feature = "fake"))]
pub mod fake_speech;
mod model;
#[cfg(any(test, feature = "fake"))]
pub mod probe;
mod rules;
mod segments;
mod squeeze;
mod text;
mod vocabulary;
mod words;

pub use chunk::{ChunkSound, ChunkSpeech, ChunkState, HeardText};
pub use model::{AtSpeechPause, HeardWindow, SpeechInfo, SpeechModel, SpeechStep, SpeechText, SpeechTokens};
pub use segments::{SpeechSegment, SpokenWord};
pub use text::TranscriptWish;
pub use vocabulary::TokenTexts;
