//! Confining the calling process.

use model_boss_protocol::{SandboxMode, SandboxState};

use crate::error::SandboxError;
use crate::files::AllowedFiles;
use crate::process_kind::ProcessKind;

/// Confines the calling process for good, and everything that it starts. `exempt` is a reason not to, as
/// [`SandboxMode::exempts`] states it.
///
/// # Errors
/// With [`SandboxMode::Required`] where anything is missing; else only if other threads run already.
pub fn confine(
    mode: SandboxMode,
    exempt: Option<&str>,
    kind: ProcessKind,
    files: &AllowedFiles,
) -> Result<SandboxState, SandboxError> {
    let state = match exempt {
        Some(why) => SandboxState::off(why),
        None => by_the_kernel(kind, files)?,
    };
    if mode == SandboxMode::Required && !state.is_whole() {
        return Err(SandboxError::Required(state));
    }
    Ok(state)
}

/// Confines the calling process for good, and a program that it starts: to these files, without a network, and without
/// calls that change the system or look into other processes.
///
/// # Errors
/// With [`SandboxMode::Required`] where anything is missing; else only if other threads run already.
pub fn confine_program(mode: SandboxMode, files: &AllowedFiles) -> Result<SandboxState, SandboxError> {
    confine(mode, Some("sandbox = \"off\"").filter(|_| mode == SandboxMode::Off), ProcessKind::Program, files)
}

#[cfg(target_os = "linux")]
fn by_the_kernel(kind: ProcessKind, files: &AllowedFiles) -> Result<SandboxState, SandboxError> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(SandboxError::Threads(threads));
    }
    let mut missing = Vec::new();
    // The list of system calls has none of those that set up Landlock.
    let landlock = crate::paths::limit(files).map_err(|why| missing.push(why)).ok();
    let seccomp = crate::calls::limit(kind).map_err(|why| missing.push(why)).is_ok();
    let missing = Some(missing.join("; ")).filter(|why| !why.is_empty());
    Ok(SandboxState { landlock, seccomp, missing })
}

#[cfg(not(target_os = "linux"))]
fn by_the_kernel(_: ProcessKind, _: &AllowedFiles) -> Result<SandboxState, SandboxError> {
    Ok(SandboxState::off("Landlock and seccomp are Linux's"))
}

#[cfg(test)]
mod tests {
    use model_boss_protocol::DeviceId;

    use super::*;

    #[test]
    fn op_5_a_required_sandbox_refuses_where_none_is_in_force() {
        let on = |mode: SandboxMode, device| {
            confine(mode, mode.exempts(&device), ProcessKind::Worker, &AllowedFiles::default())
        };
        let gpu = on(SandboxMode::Auto, DeviceId::Cuda(0)).unwrap();
        assert_eq!(gpu, SandboxState::off("not yet run on a GPU"));
        let refused = on(SandboxMode::Required, DeviceId::Cuda(0)).unwrap_err().to_string();
        assert!(refused.contains("required") && refused.contains("not yet run on a GPU"), "{refused}");
        assert!(on(SandboxMode::Off, DeviceId::Cpu).is_ok());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn op_5_a_process_of_several_threads_is_not_confined() {
        // A test runs on a thread beside the main one.
        let refused = confine(SandboxMode::Auto, None, ProcessKind::Worker, &AllowedFiles::default()).unwrap_err();
        assert!(matches!(refused, SandboxError::Threads(2..)), "{refused}");
    }
}
