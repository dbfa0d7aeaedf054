//! `about`: facts about this program on this machine, for `model-boss doctor`. No model is loaded and no device opened.
//! The process confines itself as a worker would, so the answer tells what the kernel really gave.

use model_boss_protocol::{InstructionSet, SandboxMode, SandboxState, WorkerAbout};
use model_boss_sandbox::{AllowedFiles, ProcessKind, confine};

use crate::terminal::print;
use crate::threads::plan_for;

/// Prints the facts as JSON.
pub(crate) fn run(cpu_features: InstructionSet, cuda: Option<u32>) {
    // The plan reads files, so it comes before the sandbox.
    let threads = plan_for(None).count();
    let confined = confine(SandboxMode::Auto, None, ProcessKind::Worker, &AllowedFiles::default());
    let sandbox = confined.unwrap_or_else(|error| SandboxState::off(error.to_string()));
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let about = WorkerAbout { version, cpu_features, sandbox, threads, cuda };
    // Such facts always have a spelling in JSON.
    print(serde_json::to_string(&about).unwrap_or_default());
}
