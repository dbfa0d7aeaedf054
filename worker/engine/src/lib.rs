//! The engine contract, batching, sampling and text: everything around a decoder, for any decoder.
//!
//! Knows no candle, no CUDA and no HTTP.

mod activity;
mod adapter;
pub mod batch;
pub mod constraint;
mod decoder;
mod decoder_scorer;
mod drafts;
mod encoder;
mod engine;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod images;
mod kv;
mod label_shares;
mod painter;
mod places;
mod regular;
pub mod residency;
pub mod sampling;
mod sight;
mod speaker;
pub mod speech;
pub mod text;
mod text_engine;
mod text_steps;
pub mod tools;
mod torch_generator;

pub use activity::{Activity, EngineTotals, Histograms};
pub use adapter::{AdapterError, AdapterFiles, AdapterLoader, LoadedAdapter};
pub use decoder::{BlockId, Decoder, DecoderError, DecoderInfo, DecoderStep, Logits};
pub use decoder_scorer::{DecoderJudge, DecoderScorer};
pub use encoder::{AtPause, EncodedForm, EncoderInfo, EncoderText, PairForm, PairPrompt, PausedEncoder, TextEncoder};
pub use engine::{
    ContextShift, Engine, EngineError, EngineInfo, FinishReason, Finished, Generate, Progress, Reply, SequenceEvent,
    SequenceId, SequenceTimings, TokenUsage, Work, WorkError,
};
pub use images::{ImageDigest, ImageDigests, ImageTiles, PromptImage, SeenRows, StepImage};
pub use kv::{BLOCK_TOKENS, CacheSalt, KvSlot, SequenceStep, Sequences};
pub use label_shares::LabelShares;
pub use painter::{
    BeginningImage, PaintError, PaintProgress, Painter, PainterComponent, PainterInfo, Painting, PictureRequest,
    PipelineKind,
};
pub use places::{PlaceReport, PlaceUse};
pub use sight::{SightInfo, TextLetters};
pub use speaker::{PartEnd, Speaker, SpeakerInfo, SpeakerMemory, SpeechListener, SpokenPart};
pub use text_engine::parking::{NotRestored, ParkedBlocks, RestoredBlocks};
pub use text_engine::{DraftUse, TextEngine, TextEngineSettings};
pub use text_steps::TextSteps;
pub use torch_generator::TorchGenerator;
