//! A scheduler as a folder describes it, and as a request wants it.

use serde_json::Value;

use super::ddim::DdimSolver;
use super::dpm_solver::DpmSolver;
use super::euler::EulerSolver;
use super::flow_match::{FlowMatchSolver, FlowSigmas};
use super::pndm::PndmSolver;
use super::scheduler_class::SchedulerClass;
use super::scheduler_fields::SchedulerFields;
use super::solver::Solver;
use super::uni_pc::UniPcSolver;

/// The most steps of a picture.
pub(in crate::pictures) const MOST_STEPS: usize = 1000;

/// The changes that a pipeline makes to its folder's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pictures) enum FolderRules {
    /// None.
    AsWritten,
    /// Those of Stable Diffusion 1 and 2: times begin at 1, and predicted pictures are not clipped.
    StableDiffusion,
}

/// The scheduler of a folder.
#[derive(Clone, Debug)]
pub(in crate::pictures) struct SchedulerSpec {
    class: SchedulerClass,
    written: SchedulerFields,
    rules: FolderRules,
}

impl SchedulerSpec {
    /// Reads `scheduler_config.json`.
    pub(in crate::pictures) fn from_config(config: &Value, rules: FolderRules) -> Result<Self, String> {
        let name = config.get("_class_name").and_then(Value::as_str).unwrap_or_default();
        let Some(class) = SchedulerClass::of_class(name) else {
            let known: Vec<&str> = SchedulerClass::ALL.iter().map(|class| class.class_name()).collect();
            return Err(format!("the scheduler '{name}' is not known; known are {}", known.join(", ")));
        };
        let written = serde_json::from_value(config.clone()).map_err(|error| error.to_string())?;
        let spec = Self { class, written, rules };
        // A request without wishes must work.
        spec.solver(None, 4, FlowSigmas::OfSteps { tokens: 256 })?;
        Ok(spec)
    }

    /// The folder's own class.
    pub(in crate::pictures) fn class(&self) -> SchedulerClass {
        self.class
    }

    /// Whether samples are on straight paths between noise and pictures.
    pub(in crate::pictures) fn is_flow(&self) -> bool {
        self.class == SchedulerClass::FlowMatchEuler
    }

    /// A solver for so many steps, of the folder's class or of the one that a request names.
    pub(in crate::pictures) fn solver(
        &self,
        wanted: Option<&str>,
        steps: usize,
        sigmas: FlowSigmas,
    ) -> Result<Box<dyn Solver>, String> {
        let (class, karras) = match wanted {
            None => (self.class, false),
            Some(name) => SchedulerClass::of_request(name).ok_or_else(|| {
                let names: Vec<&str> = SchedulerClass::request_names().collect();
                format!("the scheduler '{name}' is not known; known are {}", names.join(", "))
            })?,
        };
        if (class == SchedulerClass::FlowMatchEuler) != self.is_flow() {
            return Err(format!("the scheduler {} does not fit this model", class.class_name()));
        }
        let mut fields = self.fields(class);
        if karras {
            fields.use_karras_sigmas = Some(true);
        }
        fields.check()?;
        let most = MOST_STEPS.min(fields.trained_times()?);
        if !(1..=most).contains(&steps) {
            return Err(format!("{steps} steps cannot be made; 1 to {most} can"));
        }
        Ok(match class {
            SchedulerClass::Pndm => {
                if fields.skip_prk_steps != Some(true) && steps < 4 {
                    return Err("PNDM with its first steps by Runge and Kutta needs 4 steps".to_owned());
                }
                Box::new(PndmSolver::new(&fields, steps)?)
            }
            SchedulerClass::Ddim => Box::new(DdimSolver::new(&fields, steps)?),
            SchedulerClass::Euler => Box::new(EulerSolver::new(&fields, steps)?),
            SchedulerClass::EulerAncestral => Box::new(EulerSolver::ancestral(&fields, steps)?),
            SchedulerClass::DpmSolverMultistep => Box::new(DpmSolver::new(&fields, steps)?),
            SchedulerClass::UniPc => Box::new(UniPcSolver::new(&fields, steps)?),
            SchedulerClass::FlowMatchEuler => Box::new(FlowMatchSolver::new(&fields, steps, sigmas)?),
        })
    }

    /// The fields of a class. Another class than the folder's has its own defaults for fields that are not written,
    /// even where the pipeline changes those of the folder's class.
    fn fields(&self, class: SchedulerClass) -> SchedulerFields {
        let mut fields = self.written.clone();
        if self.rules == FolderRules::StableDiffusion {
            let own = class == self.class;
            if own || fields.steps_offset.is_some() {
                fields.steps_offset = Some(1);
            }
            if own || fields.clip_sample.is_some() {
                fields.clip_sample = Some(false);
            }
        }
        fields
    }
}
