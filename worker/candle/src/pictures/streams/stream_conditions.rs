//! The conditions of a picture: its time, the weight of its prompt, and the prompt's vector.

use candle_core::{Device, Result, Tensor};

use crate::error::ModelError;
use crate::pictures::layers::{TimeEmbedding, TimeSines};
use crate::spec::Activation;
use crate::speech::weights::SpeechWeights;

const SINES: TimeSines = TimeSines { width: 256, cosines_first: true, shift: 0.0 };

/// Products of the conditions.
pub(in crate::pictures) struct StreamConditions {
    time: TimeEmbedding,
    /// None of models that take no weight of a prompt.
    guidance: Option<TimeEmbedding>,
    text: TimeEmbedding,
    device: Device,
}

impl StreamConditions {
    /// For vectors of so many numbers.
    pub(in crate::pictures) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        [pooled, width]: [usize; 2],
        has_guidance: bool,
    ) -> std::result::Result<Self, ModelError> {
        let mut part = |name: &str, ins| TimeEmbedding::read(weights, &format!("time_text_embed.{name}"), [ins, width]);
        Ok(Self {
            time: part("timestep_embedder", SINES.width)?,
            guidance: if has_guidance { Some(part("guidance_embedder", SINES.width)?) } else { None },
            text: part("text_embedder", pooled)?,
            device: weights.device.clone(),
        })
    }

    /// A row for each vector, behind its activation.
    pub(in crate::pictures) fn forward(&self, time: f32, guidance: f32, pooled: &Tensor) -> Result<Tensor> {
        let sines = |number: f32| SINES.rows(&[number], &self.device);
        let mut row = self.time.forward(&sines(time)?)?;
        if let Some(embedding) = &self.guidance {
            row = (row + embedding.forward(&sines(guidance)?)?)?;
        }
        Activation::Silu.in_place(self.text.forward(pooled)?.broadcast_add(&row)?)
    }
}
