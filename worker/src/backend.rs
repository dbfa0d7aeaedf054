//! The functions that the shell needs of the program that computes: loading a model, and writing model files.

use model_boss_engine::speech::SpeechModel;
use model_boss_engine::{Decoder, DecoderJudge, Painter, Speaker, TextEncoder};
use model_boss_protocol::{InstructionSet, InstructionSetError, WorkerSpec};

use crate::args::{Convert, Index, Synth};
use crate::failure::LoadFailure;

/// Loads the weights that a start line names and reports the progress, as a share from 0 to 1.
pub type LoadDecoder =
    Box<dyn FnOnce(&WorkerSpec, &mut dyn FnMut(f32)) -> Result<Box<dyn Decoder>, LoadFailure> + Send>;

/// The same for a model that turns texts into vectors.
pub type LoadEncoder =
    Box<dyn FnOnce(&WorkerSpec, &mut dyn FnMut(f32)) -> Result<Box<dyn TextEncoder>, LoadFailure> + Send>;

/// A model that judges pairs of texts.
pub enum Reranker {
    /// One that reads both at once.
    Encoder(Box<dyn TextEncoder>),
    /// One that writes text, and is asked for a word. Without a folder that says how, it is asked as Qwen3-Reranker.
    Decoder(Box<dyn Decoder>, Option<Box<DecoderJudge>>),
}

/// The same for a model that judges pairs of texts.
pub type LoadReranker = Box<dyn FnOnce(&WorkerSpec, &mut dyn FnMut(f32)) -> Result<Reranker, LoadFailure> + Send>;

/// The same for a model that speaks.
pub type LoadSpeaker =
    Box<dyn FnOnce(&WorkerSpec, &mut dyn FnMut(f32)) -> Result<Box<dyn Speaker>, LoadFailure> + Send>;

/// The same for a model that paints.
pub type LoadPainter =
    Box<dyn FnOnce(&WorkerSpec, &mut dyn FnMut(f32)) -> Result<Box<dyn Painter>, LoadFailure> + Send>;

/// The same for a model that turns sound into text.
pub type LoadSpeech =
    Box<dyn FnOnce(&WorkerSpec, &mut dyn FnMut(f32)) -> Result<Box<dyn SpeechModel>, LoadFailure> + Send>;

/// The loaders of each kind of model.
pub struct ModelLoaders {
    /// Models that write text.
    pub decoder: LoadDecoder,
    /// Models that write drafts beside them.
    pub draft: LoadDecoder,
    /// Models that turn texts into vectors.
    pub encoder: LoadEncoder,
    /// Models that judge pairs of texts.
    pub reranker: LoadReranker,
    /// Models that turn texts and images into vectors that can be compared.
    pub towers: LoadEncoder,
    /// Models that speak.
    pub speaker: LoadSpeaker,
    /// Models that paint.
    pub painter: LoadPainter,
    /// Models that turn sound into text.
    pub speech: LoadSpeech,
}

/// Writes a model file as a command line asks for it.
pub type WriteFile<Asked> = Box<dyn FnOnce(&Asked) -> Result<(), LoadFailure>>;

/// Chooses the instructions of the processor that products use, or the best ones. It returns those that count.
pub type ChooseInstructions = Box<dyn FnOnce(Option<InstructionSet>) -> Result<InstructionSet, InstructionSetError>>;

/// The functions that the shell needs of the program that computes.
pub struct WorkerBackend {
    /// The choice of instructions, before all else.
    pub instructions: ChooseInstructions,
    /// The lowest compute capability of NVIDIA GPUs that the program is built for; `None`: for none.
    pub cuda: Option<u32>,
    /// The loaders of models, for `serve` and `bench`.
    pub load: ModelLoaders,
    /// The writer of GGUF files, for `convert`.
    pub convert: WriteFile<Convert>,
    /// The writer of layer indexes, for `index`.
    pub index: WriteFile<Index>,
    /// The writer of random models, for `synth`.
    pub synth: WriteFile<Synth>,
}
