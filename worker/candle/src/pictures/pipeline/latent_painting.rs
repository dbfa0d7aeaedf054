//! The pictures of a request on their way from noise, whatever the model.

use candle_core::Result as CandleResult;
use model_boss_engine::{PaintError, PaintProgress, Painting};
use model_boss_images::RgbImage;

use super::beginning::{Beginning, KeptPart, unscaled};
use super::latent_noise::LatentNoise;
use super::picture_bytes::images_of;
use crate::device;
use crate::pictures::schedulers::Solver;
use crate::pictures::vae::Autoencoder;

/// A model that takes latent pictures from one time to the next. Numbers lie picture by picture, channel by channel.
pub(super) trait LatentModel: Sync {
    /// The conditions of a request.
    type Given: Send + Sync;

    /// The output for latent pictures at a time.
    fn predict(&self, latents: &[f32], time: f32, given: &Self::Given) -> CandleResult<Vec<f32>>;

    fn vae(&self) -> &Autoencoder;

    /// Whether the host computes.
    fn is_on_host(&self) -> bool;
}

/// Pictures while they are painted.
pub(super) struct LatentPainting<'a, M: LatentModel> {
    model: &'a M,
    given: M::Given,
    solver: Box<dyn Solver>,
    noise: LatentNoise,
    latents: Vec<f32>,
    kept: Option<KeptPart>,
    first: usize,
    call: usize,
    /// Width and height in pixels.
    size: [usize; 2],
}

impl<'a, M: LatentModel> LatentPainting<'a, M> {
    pub(super) fn new(
        model: &'a M,
        given: M::Given,
        (solver, noise): (Box<dyn Solver>, LatentNoise),
        (beginning, size): (Beginning, [usize; 2]),
    ) -> Self {
        let Beginning { latents, first, kept, .. } = beginning;
        Self { model, given, solver, noise, latents, kept, first, call: first, size }
    }

    fn scaled_latents(&self) -> Vec<f32> {
        let scale = self.solver.input_scale(self.call);
        if scale == 1.0 { self.latents.clone() } else { self.latents.iter().map(|number| number * scale).collect() }
    }

    /// Puts the part back that is not painted anew.
    fn keep(&mut self) {
        let Some(KeptPart { anew, picture, noise }) = &self.kept else { return };
        let noised = (self.call < self.solver.times().len()).then(|| self.solver.noised(self.call, picture, noise));
        let theirs = noised.as_deref().unwrap_or(picture);
        let places = anew.len();
        for (at, (ours, theirs)) in self.latents.iter_mut().zip(theirs).enumerate() {
            let anew = anew[at % places];
            *ours = (1.0 - anew) * theirs + anew * *ours;
        }
    }
}

/// Runs work on one of the threads that share the products.
pub(super) fn on_threads<T: Send>(
    on_host: bool,
    work: impl FnOnce() -> CandleResult<T> + Send,
) -> Result<T, PaintError> {
    let done = if on_host { rayon::scope(|_| work()) } else { work() };
    done.map_err(|error| PaintError::Device(device::failure(&error)))
}

impl<M: LatentModel> Painting for LatentPainting<'_, M> {
    fn progress(&self) -> PaintProgress {
        PaintProgress { step: self.call - self.first, steps: self.solver.times().len() - self.first }
    }

    fn step(&mut self) -> Result<PaintProgress, PaintError> {
        if !self.progress().is_over() {
            let (scaled, time) = (self.scaled_latents(), self.solver.times()[self.call]);
            let (model, given) = (self.model, &self.given);
            let output = on_threads(model.is_on_host(), || model.predict(&scaled, time, given))?;
            let noise = &mut self.noise;
            self.solver.step(self.call, &output, &mut self.latents, &mut || noise.draw());
            self.call += 1;
            self.keep();
        }
        Ok(self.progress())
    }

    fn preview(&self) -> Result<Vec<RgbImage>, PaintError> {
        let (vae, latents) = (self.model.vae(), &self.latents);
        let [width, height] = self.size.map(|side| side / vae.spec().factor());
        let unscaled = unscaled(vae, latents, width * height);
        let numbers = on_threads(self.model.is_on_host(), || vae.decode(&unscaled, [height, width]))?;
        Ok(images_of(&numbers, self.size))
    }

    fn latents(&self) -> &[f32] {
        &self.latents
    }
}
