//! The fields of `scheduler_config.json`. Those that a file leaves out have the defaults of the class that is made of
//! it, which differ from class to class.

use serde::Deserialize;

use super::scheduler_class::SchedulerClass;

/// The fields as they are written; none of those that are left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SchedulerFields {
    pub(super) num_train_timesteps: Option<usize>,
    pub(super) beta_start: Option<f64>,
    pub(super) beta_end: Option<f64>,
    pub(super) beta_schedule: Option<String>,
    pub(super) trained_betas: Option<Vec<f32>>,
    pub(super) prediction_type: Option<String>,
    pub(super) timestep_spacing: Option<String>,
    pub(super) steps_offset: Option<i64>,
    pub(super) rescale_betas_zero_snr: Option<bool>,
    pub(super) set_alpha_to_one: Option<bool>,
    pub(super) clip_sample: Option<bool>,
    pub(super) clip_sample_range: Option<f32>,
    pub(super) thresholding: Option<bool>,
    pub(super) skip_prk_steps: Option<bool>,
    pub(super) use_karras_sigmas: Option<bool>,
    pub(super) use_exponential_sigmas: Option<bool>,
    pub(super) use_beta_sigmas: Option<bool>,
    pub(super) use_lu_lambdas: Option<bool>,
    pub(super) use_flow_sigmas: Option<bool>,
    pub(super) sigma_min: Option<f64>,
    pub(super) sigma_max: Option<f64>,
    pub(super) interpolation_type: Option<String>,
    pub(super) timestep_type: Option<String>,
    pub(super) final_sigmas_type: Option<String>,
    pub(super) solver_order: Option<usize>,
    pub(super) solver_type: Option<String>,
    pub(super) algorithm_type: Option<String>,
    pub(super) lower_order_final: Option<bool>,
    pub(super) euler_at_final: Option<bool>,
    pub(super) lambda_min_clipped: Option<f64>,
    pub(super) predict_x0: Option<bool>,
    pub(super) disable_corrector: Option<Vec<usize>>,
    pub(super) shift: Option<f64>,
    pub(super) use_dynamic_shifting: Option<bool>,
    pub(super) base_shift: Option<f64>,
    pub(super) max_shift: Option<f64>,
    pub(super) base_image_seq_len: Option<usize>,
    pub(super) max_image_seq_len: Option<usize>,
    pub(super) shift_terminal: Option<f64>,
    pub(super) invert_sigmas: Option<bool>,
    pub(super) time_shift_type: Option<String>,
    pub(super) stochastic_sampling: Option<bool>,
}

/// The meaning of the output of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoisePrediction {
    /// The noise in the sample.
    Epsilon,
    /// The velocity between picture and noise (Salimans and Ho, 2022, arXiv 2202.00512).
    Velocity,
    /// The picture.
    Sample,
}

/// How the times of the model's calls are spread over those of its training (Lin et al., 2023, arXiv 2305.08891).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spacing {
    Leading,
    Linspace,
    Trailing,
}

/// How sigmas are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SigmaSpread {
    /// By the times.
    ByTimes,
    Karras,
    Exponential,
}

/// The sigma after the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FinalSigma {
    Zero,
    Least,
}

fn unknown<T>(field: &str, value: &str) -> Result<T, String> {
    Err(format!("{field} '{value}' is not known"))
}

impl SchedulerFields {
    /// The times of training.
    pub(super) fn trained_times(&self) -> Result<usize, String> {
        let times = self.num_train_timesteps.unwrap_or(1000);
        if (2..=1 << 20).contains(&times) { Ok(times) } else { Err(format!("num_train_timesteps is {times}")) }
    }

    pub(super) fn prediction(&self) -> Result<NoisePrediction, String> {
        match self.prediction_type.as_deref() {
            None | Some("epsilon") => Ok(NoisePrediction::Epsilon),
            Some("v_prediction") => Ok(NoisePrediction::Velocity),
            Some("sample" | "original_sample") => Ok(NoisePrediction::Sample),
            Some(other) => unknown("prediction_type", other),
        }
    }

    pub(super) fn spacing(&self, class: SchedulerClass) -> Result<Spacing, String> {
        match (self.timestep_spacing.as_deref(), class) {
            (Some("leading"), _) | (None, SchedulerClass::Pndm | SchedulerClass::Ddim) => Ok(Spacing::Leading),
            (Some("linspace") | None, _) => Ok(Spacing::Linspace),
            (Some("trailing"), _) => Ok(Spacing::Trailing),
            (Some(other), _) => unknown("timestep_spacing", other),
        }
    }

    pub(super) fn spread(&self) -> Result<SigmaSpread, String> {
        let [karras, exponential, beta] = [self.use_karras_sigmas, self.use_exponential_sigmas, self.use_beta_sigmas];
        for (name, is_set) in [("use_beta_sigmas", beta), ("use_lu_lambdas", self.use_lu_lambdas)] {
            if is_set == Some(true) {
                return Err(format!("{name} is not known"));
            }
        }
        match (karras.unwrap_or(false), exponential.unwrap_or(false)) {
            (true, true) => Err("use_karras_sigmas and use_exponential_sigmas are both set".to_owned()),
            (true, false) => Ok(SigmaSpread::Karras),
            (false, true) => Ok(SigmaSpread::Exponential),
            (false, false) => Ok(SigmaSpread::ByTimes),
        }
    }

    pub(super) fn final_sigma(&self) -> Result<FinalSigma, String> {
        match self.final_sigmas_type.as_deref() {
            None | Some("zero") => Ok(FinalSigma::Zero),
            Some("sigma_min") => Ok(FinalSigma::Least),
            Some(other) => unknown("final_sigmas_type", other),
        }
    }

    /// Refuses settings that no solver here has.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.thresholding == Some(true) {
            return Err("thresholding of samples is not known".to_owned());
        }
        if self.use_flow_sigmas == Some(true) {
            return Err("use_flow_sigmas is not known: flow_match_euler serves such models".to_owned());
        }
        match self.timestep_type.as_deref() {
            None | Some("discrete") => Ok(()),
            Some(other) => unknown("timestep_type", other),
        }
    }
}
