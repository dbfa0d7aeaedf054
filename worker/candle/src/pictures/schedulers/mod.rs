//! Schedulers of diffusion models as `diffusers` has them: the times at which the model is called, and how a sample
//! goes from one to the next. Numbers are plain slices; models are not known here.

mod ddim;
mod dpm_solver;
mod euler;
mod flow_match;
mod noise_levels;
mod pndm;
mod scheduler_class;
mod scheduler_fields;
mod scheduler_spec;
mod solver;
mod spacing;
mod uni_pc;

pub(in crate::pictures) use flow_match::FlowSigmas;
pub(in crate::pictures) use scheduler_class::SchedulerClass;
pub(in crate::pictures) use scheduler_spec::{FolderRules, SchedulerSpec};
pub(in crate::pictures) use solver::Solver;

#[cfg(test)]
mod tests;
