//! The confinement of workers: what the kernel has, and what a worker really got.

use model_boss_protocol::{SandboxMode, SandboxState};

use super::super::finding::{Area, Finding};

/// The version of Landlock's interface from which sockets and signals are limited as well.
const WHOLE_LANDLOCK: u32 = 6;

/// Facts about the sandbox.
#[derive(Clone, Debug)]
pub(crate) struct SandboxFacts {
    pub(crate) mode: SandboxMode,
    /// The means that the kernel says it has.
    pub(crate) kernel: SandboxState,
    /// The means that a worker got which confined itself.
    pub(crate) worker: Option<SandboxState>,
    pub(crate) has_gpu: bool,
    pub(crate) container: Option<String>,
}

pub(crate) fn judge(facts: &SandboxFacts) -> Vec<Finding> {
    let area = Area::Sandbox;
    if facts.mode == SandboxMode::Off {
        return vec![
            Finding::note(area, "sandbox", "workers are not confined: sandbox = \"off\"")
                .why("A fault in the reader of a model's file could reach other files and the network")
                .remedy("Remove the setting (docs/sandbox.md)"),
        ];
    }
    let state = facts.worker.as_ref().unwrap_or(&facts.kernel);
    let is_required = facts.mode == SandboxMode::Required;
    let remedy = match (&facts.container, state.landlock) {
        (Some(_), None) => {
            "The container's seccomp profile may hide Landlock: a newer docker, or --security-opt seccomp=FILE"
        }
        _ => "A kernel of 6.7 or newer with Landlock in its list of security modules (lsm=landlock,…)",
    };
    let mut findings = vec![match state.is_whole() {
        true => Finding::ok(area, "sandbox", format!("workers on the CPU are confined: {state}")),
        false if is_required => {
            Finding::failure(area, "sandbox", format!("sandbox = \"required\", and the kernel gives {state}"))
                .why("No model is loaded")
                .remedy(remedy)
        }
        false => Finding::warning(area, "sandbox", format!("workers are confined in part: {state}"))
            .why("A fault in the reader of a model's file could reach further than the model's files")
            .remedy(remedy),
    }];
    if let Some(old) = state.landlock.filter(|version| *version < WHOLE_LANDLOCK) {
        findings.push(
            Finding::note(area, "landlock", format!("the kernel's Landlock has interface {old}"))
                .why("Signals and some sockets are limited from interface 6 on")
                .remedy("A kernel of 6.12 or newer"),
        );
    }
    if facts.has_gpu {
        let finding = if is_required { Finding::warning } else { Finding::note };
        findings.push(
            finding(area, "on_gpus", "workers on GPUs are not confined".to_owned())
                .why(if is_required {
                    "sandbox = \"required\", so models on GPUs are not loaded"
                } else {
                    "Drivers were not run under the sandbox yet"
                })
                .remedy("Load models of strangers on the CPU"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    #[test]
    fn op_1_a_sandbox_is_judged_by_what_a_worker_got() {
        let whole = || SandboxState { landlock: Some(7), seccomp: true, missing: None };
        let part = || SandboxState { landlock: None, seccomp: true, missing: Some("no Landlock".into()) };
        let good =
            SandboxFacts { mode: SandboxMode::Auto, kernel: whole(), worker: None, has_gpu: false, container: None };
        assert_eq!(results(&judge(&good)), [("sandbox", Grade::Ok)]);
        let old = SandboxState { landlock: Some(3), ..whole() };
        let gpu = SandboxFacts { has_gpu: true, ..good.clone() };
        for (facts, expected) in [
            (SandboxFacts { mode: SandboxMode::Off, ..good.clone() }, ("sandbox", Grade::Note)),
            (SandboxFacts { worker: Some(part()), ..good.clone() }, ("sandbox", Grade::Warning)),
            (SandboxFacts { kernel: part(), worker: Some(whole()), ..good.clone() }, ("sandbox", Grade::Ok)),
            (SandboxFacts { mode: SandboxMode::Required, kernel: part(), ..good.clone() }, ("sandbox", Grade::Failure)),
            (SandboxFacts { kernel: old, ..good.clone() }, ("landlock", Grade::Note)),
            (SandboxFacts { mode: SandboxMode::Required, ..gpu.clone() }, ("on_gpus", Grade::Warning)),
            (gpu, ("on_gpus", Grade::Note)),
        ] {
            let found = results(&judge(&facts));
            assert!(found.contains(&expected), "{expected:?} in {found:?}");
        }
    }
}
