//! The transformer of Stable Diffusion 3 and 3.5 (Esser et al., 2024, arXiv 2403.03206).

mod sd3_model;
mod sd3_spec;

pub(super) use sd3_model::{Sd3Given, Sd3Model};
pub(super) use sd3_spec::Sd3Spec;
