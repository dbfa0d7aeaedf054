//! The confinement of this project's workers, as far as the kernel has means for it. Workers confine themselves; this
//! module only tells operators what to expect.

use std::fmt;

use model_boss_protocol::{DeviceId, SandboxMode, SandboxState};

/// The confinement of workers on each device.
#[derive(Clone, Debug)]
pub struct WorkerConfinement {
    mode: SandboxMode,
    kernel: SandboxState,
}

impl WorkerConfinement {
    /// That of real workers: by the operator's choice and the kernel.
    pub fn of_workers(mode: SandboxMode) -> Self {
        Self { mode, kernel: kernel() }
    }

    /// That of fake workers.
    pub fn of_fake_workers() -> Self {
        Self { mode: SandboxMode::Off, kernel: SandboxState::off("a fake worker reads no model") }
    }

    /// The confinement of workers on this device.
    pub fn on(&self, device: &DeviceId) -> SandboxState {
        if self.kernel.landlock.is_none() && !self.kernel.seccomp {
            return self.kernel.clone();
        }
        self.mode.exempts(device).map_or_else(|| self.kernel.clone(), SandboxState::off)
    }
}

/// One line for the start.
impl fmt::Display for WorkerConfinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cpu, gpu) = (self.on(&DeviceId::Cpu), self.on(&DeviceId::Cuda(0)));
        write!(f, "{cpu}")?;
        if cpu != gpu {
            write!(f, "; on GPUs {gpu}")?;
        }
        if self.mode == SandboxMode::Required {
            let refused = if cpu.is_whole() { "models on GPUs are not loaded" } else { "no model is loaded" };
            write!(f, "; required, so {refused}")?;
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn kernel() -> SandboxState {
    use landlock::{LandlockStatus, RestrictSelf};
    let mut missing = Vec::new();
    // The call changes nothing: it only asks which version the kernel has.
    let landlock = match RestrictSelf::default().no_new_privs(false).apply().map(|status| status.landlock) {
        Ok(LandlockStatus::Available { effective_abi, .. }) => Some((effective_abi as i32).unsigned_abs()),
        Ok(LandlockStatus::NotEnabled) => {
            missing.push("Landlock is not enabled in this kernel".to_owned());
            None
        }
        Ok(LandlockStatus::NotImplemented) => {
            missing.push("this kernel has no Landlock".to_owned());
            None
        }
        Err(error) => {
            missing.push(format!("Landlock refuses: {error}"));
            None
        }
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let seccomp = status.lines().any(|line| line.starts_with("Seccomp:"));
    if !seccomp {
        missing.push("this kernel has no seccomp".to_owned());
    }
    SandboxState { landlock, seccomp, missing: Some(missing.join("; ")).filter(|why| !why.is_empty()) }
}

#[cfg(not(target_os = "linux"))]
fn kernel() -> SandboxState {
    SandboxState::off("Landlock and seccomp are Linux's")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(mode: SandboxMode, whole: bool) -> WorkerConfinement {
        let kernel = match whole {
            true => SandboxState { landlock: Some(7), seccomp: true, missing: None },
            false => {
                SandboxState { landlock: None, seccomp: true, missing: Some("this kernel has no Landlock".into()) }
            }
        };
        WorkerConfinement { mode, kernel }
    }

    #[test]
    fn op_5_the_start_says_how_workers_are_confined() {
        let said = |mode, whole| with(mode, whole).to_string();
        assert_eq!(said(SandboxMode::Auto, true), "Landlock ABI 7, seccomp; on GPUs off: not yet run on a GPU");
        assert_eq!(said(SandboxMode::Off, true), "off: sandbox = \"off\"");
        let half = "seccomp: this kernel has no Landlock";
        assert_eq!(said(SandboxMode::Auto, false), format!("{half}; on GPUs off: not yet run on a GPU"));
        assert!(said(SandboxMode::Required, true).ends_with("required, so models on GPUs are not loaded"));
        assert!(said(SandboxMode::Required, false).ends_with("required, so no model is loaded"));
        let fake = WorkerConfinement::of_fake_workers();
        assert_eq!(fake.to_string(), "off: a fake worker reads no model");
    }

    #[test]
    fn op_5_asking_the_kernel_confines_nothing() {
        let before = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let asked = kernel();
        let after = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let privileges = |status: &str| status.lines().find(|line| line.starts_with("NoNewPrivs:")).map(str::to_owned);
        assert_eq!(privileges(&before), privileges(&after));
        assert_eq!(asked.is_whole(), asked.missing.is_none(), "{asked}");
    }
}
