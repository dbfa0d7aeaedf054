//! The first latent pictures of a request: noise, or a picture with noise, drawn in the order of `diffusers`.

use candle_core::Result as CandleResult;
use model_boss_engine::{BeginningImage, PaintError};

use super::latent_noise::LatentNoise;
use super::picture_bytes::{numbers_of, painted_anew};
use crate::device;
use crate::pictures::schedulers::Solver;
use crate::pictures::vae::Autoencoder;

/// The first latent pictures, and what is kept of the picture that painting begins with.
pub(super) struct Beginning {
    pub(super) latents: Vec<f32>,
    /// The first call of the model.
    pub(super) first: usize,
    pub(super) kept: Option<KeptPart>,
    /// The mask and the latent picture without what is painted anew, of one picture, where a mask is given.
    pub(super) masked: Option<MaskedLatent>,
}

/// The part of latent pictures that stays.
pub(super) struct KeptPart {
    /// For each place of a latent picture 1 where it is painted anew, else 0.
    pub(super) anew: Vec<f32>,
    /// The picture, once for each that is painted.
    pub(super) picture: Vec<f32>,
    pub(super) noise: Vec<f32>,
}

/// Channels beside those of latent pictures, of models that read them.
pub(super) struct MaskedLatent {
    pub(super) anew: Vec<f32>,
    pub(super) picture: Vec<f32>,
}

/// The way in which pipelines take a share of the steps, and draw for the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BeginningRule {
    /// Whole steps are made, and each picture is begun with one of its own that may be.
    Diffusion,
    /// Whole steps are left out, and all begin with one that the first generator draws.
    Flow,
}

impl BeginningRule {
    /// The first of so many steps.
    fn first(self, steps: usize, strength: f64) -> usize {
        let made = (steps as f64 * strength).min(steps as f64);
        match self {
            Self::Diffusion => steps - made as usize,
            Self::Flow => (steps as f64 - made).max(0.0) as usize,
        }
    }
}

/// The sizes of a request, and the channels that the model reads.
#[derive(Clone, Copy)]
pub(super) struct BeginningForm<'a> {
    pub(super) vae: &'a Autoencoder,
    /// Width and height in pixels.
    pub(super) size: [usize; 2],
    /// Whether the model reads a mask and a masked picture beside the latent one.
    pub(super) reads_mask: bool,
    pub(super) steps: usize,
    pub(super) rule: BeginningRule,
}

fn refused<T>(field: &'static str, why: impl Into<String>) -> Result<T, PaintError> {
    Err(PaintError::refused(field, why))
}

fn computed<T>(result: CandleResult<T>) -> Result<T, PaintError> {
    result.map_err(|error| PaintError::Device(device::failure(&error)))
}

impl BeginningForm<'_> {
    /// Noise alone.
    pub(super) fn noise(&self, solver: &dyn Solver, noise: &mut LatentNoise) -> Beginning {
        let scale = solver.initial_scale();
        let latents = noise.draw().into_iter().map(|number| number * scale).collect();
        Beginning { latents, first: solver.first(), kept: None, masked: None }
    }

    /// A picture with noise, by its strength.
    pub(super) fn image(
        &self,
        given: &BeginningImage,
        solver: &dyn Solver,
        noise: &mut LatentNoise,
    ) -> Result<Beginning, PaintError> {
        if !(0.0..=1.0).contains(&given.strength) {
            return refused("strength", format!("'strength' is {}; it is from 0 to 1", given.strength));
        }
        let first = self.rule.first(self.steps, given.strength);
        if first >= self.steps.min(solver.times().len()) {
            return refused(
                "strength",
                format!("a strength of {} leaves none of {} steps", given.strength, self.steps),
            );
        }
        let numbers = numbers_of(&given.image, self.size);
        match &given.mask {
            Some(mask) => {
                let Some(anew) = painted_anew(mask, self.size) else {
                    return refused("mask", "the mask has not a byte for each pixel");
                };
                self.masked(&numbers, &anew, (given.strength, first), (solver, noise))
            }
            None if self.reads_mask => refused("mask", "this model paints parts of a picture anew: give a mask"),
            None => {
                let posterior = computed(self.vae.encode(&numbers, [self.size[1], self.size[0]]))?;
                let picture: Vec<f32> = match self.rule {
                    BeginningRule::Diffusion => {
                        let drawn = noise.draw();
                        drawn.chunks_exact(posterior.len()).flat_map(|noise| posterior.with(noise)).collect()
                    }
                    BeginningRule::Flow => posterior.with(&noise.draw_first()).repeat(noise.pictures()),
                };
                let latents = solver.noised(first, &self.scaled(picture), &noise.draw());
                Ok(Beginning { latents, first, kept: None, masked: None })
            }
        }
    }

    /// The first generator alone draws for the picture, which is the same for all.
    fn masked(
        &self,
        numbers: &[f32],
        anew: &[bool],
        (strength, first): (f64, usize),
        (solver, noise): (&dyn Solver, &mut LatentNoise),
    ) -> Result<Beginning, PaintError> {
        let [width, height] = self.size;
        let is_noise = strength >= 1.0;
        let mut picture = None;
        if !self.reads_mask || !is_noise {
            let posterior = computed(self.vae.encode(numbers, [height, width]))?;
            picture = Some(self.scaled(posterior.with(&noise.draw_first())).repeat(noise.pictures()));
        }
        let drawn = noise.draw();
        let latents = match &picture {
            Some(picture) if !is_noise => solver.noised(first, picture, &drawn),
            _ => drawn.iter().map(|number| number * solver.initial_scale()).collect(),
        };
        let hidden: Vec<f32> = numbers
            .chunks_exact(width * height)
            .flat_map(|channel| channel.iter().zip(anew).map(|(number, anew)| if *anew { 0.0 } else { *number }))
            .collect();
        // Drawn even where it is not used, as in the reference.
        let drawn_masked = noise.draw_first();
        let factor = self.vae.spec().factor();
        let rows = (0..height / factor).flat_map(|row| (0..width / factor).map(move |column| (row, column)));
        let places: Vec<f32> =
            rows.map(|(row, column)| f32::from(u8::from(anew[(row * width + column) * factor]))).collect();
        if self.reads_mask {
            let posterior = computed(self.vae.encode(&hidden, [height, width]))?;
            let picture = self.scaled(posterior.with(&drawn_masked));
            let masked = Some(MaskedLatent { anew: places, picture });
            return Ok(Beginning { latents, first, kept: None, masked });
        }
        let kept = picture.map(|picture| KeptPart { anew: places, picture, noise: drawn });
        Ok(Beginning { latents, first, kept, masked: None })
    }

    /// A latent picture as the model sees it.
    fn scaled(&self, numbers: Vec<f32>) -> Vec<f32> {
        let spec = self.vae.spec();
        let pixels = (self.size[0] / spec.factor()) * (self.size[1] / spec.factor());
        match &spec.channels {
            Some([means, deviations]) => {
                let channel = |at: usize| at / pixels % means.len();
                let of =
                    |(at, number): (usize, f32)| (number - means[channel(at)]) * spec.scaling / deviations[channel(at)];
                numbers.into_iter().enumerate().map(of).collect()
            }
            None => numbers.into_iter().map(|number| (number - spec.shift) * spec.scaling).collect(),
        }
    }
}

/// Latent pictures as the autoencoder decodes them.
pub(super) fn unscaled(vae: &Autoencoder, latents: &[f32], pixels: usize) -> Vec<f32> {
    let spec = vae.spec();
    match &spec.channels {
        Some([means, deviations]) => {
            let channel = |at: usize| at / pixels % means.len();
            let of = |(at, number): (usize, &f32)| number * deviations[channel(at)] / spec.scaling + means[channel(at)];
            latents.iter().enumerate().map(of).collect()
        }
        None => latents.iter().map(|number| number / spec.scaling + spec.shift).collect(),
    }
}
