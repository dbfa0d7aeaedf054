//! AdamW with warm-up, cosine decay and gradient clipping. Its parameters are identified by their names.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor, Var};

/// The settings of parameter updates.
#[derive(Clone, Copy, Debug)]
pub struct OptimizerSettings {
    /// The highest learning rate.
    pub peak_rate: f64,
    /// The share of the peak rate that is left at the end.
    pub final_share: f64,
    /// Steps until the peak.
    pub warm_up: usize,
    /// The weight decay of matrices, multiplied by the learning rate in each step. Norms have none.
    pub weight_decay: f64,
    /// The limit of the gradient's Euclidean length over all parameters.
    pub clip: f64,
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        Self { peak_rate: 3e-3, final_share: 0.02, warm_up: 60, weight_decay: 0.1, clip: 1.0 }
    }
}

impl OptimizerSettings {
    /// The learning rate of a step: a linear rise, then half a cosine down.
    pub fn rate(&self, step: usize, steps: usize) -> f64 {
        if step < self.warm_up {
            return self.peak_rate * (step + 1) as f64 / self.warm_up as f64;
        }
        let done = (step - self.warm_up) as f64 / steps.saturating_sub(self.warm_up).max(1) as f64;
        let falling = 0.5 * (1.0 + (std::f64::consts::PI * done.min(1.0)).cos());
        self.peak_rate * (self.final_share + (1.0 - self.final_share) * falling)
    }
}

/// The state of AdamW (Loshchilov and Hutter, 2019): running means of gradients and of their squares.
pub struct AdamW {
    settings: OptimizerSettings,
    /// The number of finished steps.
    pub step: usize,
    moments: BTreeMap<String, (Vec<f32>, Vec<f32>)>,
}

const BETA_1: f64 = 0.9;
const BETA_2: f64 = 0.99;
const EPSILON: f64 = 1e-8;

impl AdamW {
    /// An optimizer without state of earlier steps.
    pub fn new(settings: OptimizerSettings) -> Self {
        Self { settings, step: 0, moments: BTreeMap::new() }
    }

    /// The optimiser's state, as tensors named `first.NAME` and `second.NAME`.
    pub fn state(&self, parameters: &BTreeMap<String, Var>) -> Result<Vec<(String, Tensor)>> {
        let mut state = Vec::new();
        for (name, (first, second)) in &self.moments {
            let Some(var) = parameters.get(name) else { continue };
            for (kind, values) in [("first", first), ("second", second)] {
                state.push((format!("{kind}.{name}"), Tensor::from_slice(values, var.shape(), var.device())?));
            }
        }
        Ok(state)
    }

    /// An optimiser with the state of an earlier run.
    pub fn resume(
        settings: OptimizerSettings,
        step: usize,
        tensors: &std::collections::HashMap<String, Tensor>,
        parameters: &BTreeMap<String, Var>,
    ) -> Result<Self> {
        let mut moments = BTreeMap::new();
        for name in parameters.keys() {
            let read = |kind: &str| match tensors.get(&format!("{kind}.{name}")) {
                Some(tensor) => tensor.flatten_all()?.to_vec1::<f32>(),
                None => candle_core::bail!("the checkpoint has no {kind} moment of {name}"),
            };
            moments.insert(name.clone(), (read("first")?, read("second")?));
        }
        Ok(Self { settings, step, moments })
    }

    /// Moves the parameters by one step. Returns the learning rate and the gradient's length before clipping.
    pub fn apply(
        &mut self,
        parameters: &BTreeMap<String, Var>,
        gradients: &BTreeMap<String, Vec<f32>>,
        steps: usize,
    ) -> Result<(f64, f64)> {
        let square: f64 = gradients.values().flatten().map(|&g| f64::from(g) * f64::from(g)).sum();
        let length = square.sqrt();
        let scale = (self.settings.clip / length.max(1e-12)).min(1.0);
        let rate = self.settings.rate(self.step, steps);
        self.step += 1;
        let correct_1 = 1.0 - BETA_1.powf(self.step as f64);
        let correct_2 = 1.0 - BETA_2.powf(self.step as f64);
        for (name, var) in parameters {
            let Some(gradient) = gradients.get(name) else { candle_core::bail!("{name} has no gradient") };
            let (first, second) = self
                .moments
                .entry(name.clone())
                .or_insert_with(|| (vec![0.0; gradient.len()], vec![0.0; gradient.len()]));
            let decay = if var.dims().len() > 1 { 1.0 - rate * self.settings.weight_decay } else { 1.0 };
            let mut values = var.flatten_all()?.to_vec1::<f32>()?;
            for (i, value) in values.iter_mut().enumerate() {
                let g = f64::from(gradient[i]) * scale;
                let m = BETA_1 * f64::from(first[i]) + (1.0 - BETA_1) * g;
                let v = BETA_2 * f64::from(second[i]) + (1.0 - BETA_2) * g * g;
                (first[i], second[i]) = (m as f32, v as f32);
                let move_by = rate * (m / correct_1) / ((v / correct_2).sqrt() + EPSILON);
                *value = (f64::from(*value) * decay - move_by) as f32;
            }
            var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?;
        }
        Ok((rate, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn the_rate_rises_then_falls() {
        let settings = OptimizerSettings::default();
        assert!(settings.rate(0, 1_000) < settings.rate(30, 1_000));
        assert!((settings.rate(settings.warm_up, 1_000) - settings.peak_rate).abs() < 1e-9);
        assert!(settings.rate(999, 1_000) < 0.05 * settings.peak_rate);
    }

    #[test]
    fn the_first_step_is_the_rate_against_the_sign_of_the_gradient() {
        let var = Var::from_vec(vec![1_f32, -1.0], 2, &Device::Cpu).unwrap();
        let parameters = BTreeMap::from([("norm".to_owned(), var)]);
        let gradients = BTreeMap::from([("norm".to_owned(), vec![0.5_f32, -0.25])]);
        let settings = OptimizerSettings { warm_up: 0, ..OptimizerSettings::default() };
        let (rate, length) = AdamW::new(settings).apply(&parameters, &gradients, 10).unwrap();
        assert!((length - 0.3125_f64.sqrt()).abs() < 1e-6);
        let values = parameters["norm"].to_vec1::<f32>().unwrap();
        assert!((f64::from(values[0]) - (1.0 - rate)).abs() < 1e-5, "{values:?}");
        assert!((f64::from(values[1]) - (-1.0 + rate)).abs() < 1e-5, "{values:?}");
    }
}
