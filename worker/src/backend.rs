//! The functions that the shell needs of the program that computes: loading a model, and writing model files.

use model_boss_engine::Decoder;
use model_boss_protocol::WorkerSpec;

use crate::args::{Convert, Index, Synth};
use crate::failure::LoadFailure;

/// Loads the weights that a start line names and reports the progress, as a share from 0 to 1.
pub type LoadDecoder =
    Box<dyn FnOnce(&WorkerSpec, &mut dyn FnMut(f32)) -> Result<Box<dyn Decoder>, LoadFailure> + Send>;

/// Writes a model file as a command line asks for it.
pub type WriteFile<Asked> = Box<dyn FnOnce(&Asked) -> Result<(), LoadFailure>>;

/// Chooses the instructions of the processor that products use: those of a name, or the best ones. The error says what
/// there is.
pub type ChooseInstructions = Box<dyn FnOnce(Option<&str>) -> Result<CpuInstructions, LoadFailure>>;

/// The instructions of the processor that products use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuInstructions {
    /// The name of the set, as `--cpu-features` takes it.
    pub name: String,
    /// A sentence for operators if products are slow with it.
    pub warning: Option<String>,
}

/// The functions that the shell needs of the program that computes.
pub struct WorkerBackend {
    /// The choice of instructions, before all else.
    pub instructions: ChooseInstructions,
    /// The loader of models, for `serve` and `bench`.
    pub load: LoadDecoder,
    /// The writer of GGUF files, for `convert`.
    pub convert: WriteFile<Convert>,
    /// The writer of layer indexes, for `index`.
    pub index: WriteFile<Index>,
    /// The writer of random models, for `synth`.
    pub synth: WriteFile<Synth>,
}
