//! The types that the coordinator and its workers share.
//!
//! They are plain data with a textual form: they parse, print and travel through serde. The crate has no I/O, clock
//! or decisions. `coordinator*` and `worker*` crates share only this crate, and otherwise communicate over HTTP.

mod architecture;
mod bytes;
mod category;
mod clock;
mod command;
mod cpu_share;
mod demand;
mod device;
mod draft;
mod error;
mod error_chain;
mod hub_repo;
mod ids;
mod instruction_set;
mod kv_cache_type;
mod llama_args;
mod manifest;
mod multipart;
mod others;
mod parked;
mod printable;
mod priority;
mod residency;
mod sandbox;
#[cfg(feature = "schema")]
mod schema;
mod source;
mod span;
mod speculation;
mod speech;
pub mod sse;
mod thinking;
mod work_progress;
mod worker;
mod worker_about;

pub use architecture::{
    CONFIG_ARCHITECTURES, ENCODER_TYPES, GGUF_ARCHITECTURES, GGUF_ENCODERS, HEARING_TYPES, PICTURE_BYTES_PER_PIXEL,
    PIPELINE_CLASSES, SEEING_TYPES, SPEECH_TYPES, TOWER_TYPES, config_architecture,
};
pub use bytes::{ByteCount, ParseByteCountError, SignedBytes};
pub use category::{Category, Modality, ParseCategoryError};
pub use clock::Later;
pub use command::{CommandSource, CommandSpec, CommandTemplateError, Piece, Placeholder, StopSignal, split_template};
pub use cpu_share::{CpuShare, LOWEST_NICE, WorkerCores, WorkerOrder};
pub use demand::{DEMANDS, Demand, Remedy, UnmetDemand, beyond_worker, refuse_demands, refuse_unmet, wanted_form};
pub use device::{DeviceId, GPU_CONTEXT, ParseDeviceError};
pub use draft::DraftSpec;
pub use error::{ApiError, ErrorBody, ErrorCode, ErrorObject, ErrorSource, PromptLength};
pub use error_chain::chain;
pub use hub_repo::{HubRepo, ParseHubRepoError};
pub use ids::{ClientId, Generation, ModelId, RequestId, SlotId, SpawnToken, Tokens, without_latest};
pub use instruction_set::{InstructionSet, InstructionSetError};
pub use kv_cache_type::{KvCacheType, ParseKvCacheTypeError};
pub use llama_args::{LlamaArgs, LlamaArgsError};
pub use manifest::{Backend, DeviceFlag, Manifest, ManifestError, PromptFormat, Recipe, is_adapter_name};
pub use multipart::{FormError, FormPart, form_boundary, form_parts};
pub use others::{OtherLease, OtherRequest};
pub use parked::{
    ParkedCounts, ParkedFault, ParkedFrame, ParkedHead, ParkedOutcome, ParkedReader, ParkedRefusal, ParkedWriter,
    check_parked,
};
pub use printable::{Label, PrintableWriter, is_printable, printable, printable_line, push_printable};
pub use priority::{ParsePriorityError, Priority};
pub use residency::{ParseResidencyError, ParseStoreError, Residency, ResidencyMode, StoreKind};
pub use sandbox::{ParseSandboxModeError, SandboxMode, SandboxState};
pub use source::{MAIN_REVISION, Source, SourceFault, check_hub_path, check_revision};
pub use span::{KeepAlive, LONGEST_SPAN, ParseSpanError, parse_span, span_of_secs};
pub use speculation::Speculation;
pub use speech::{
    LONGEST_SPEECH, ProgramSound, SOUND_RATES, SPEECH_SPEEDS, SpeechPlace, SpeechProgram, SpeechProgramError,
    SpeechValues, SpeechVoice,
};
pub use thinking::{BadThinking, THINKING_BUDGETS, THINKING_SWITCHES, Thinking};
pub use work_progress::{WorkProgress, WorkUnit};
pub use worker::{
    EngineStats, HealthQuestion, Readiness, ReadyProof, StreamStats, TextLimits, WorkerExit, WorkerHealth, WorkerSpec,
    WorkerSpecError, headers,
};
pub use worker_about::{FileProgress, WorkerAbout};
