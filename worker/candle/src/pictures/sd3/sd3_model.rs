//! The transformer with its weights.

use candle_core::{Result, Tensor};

use super::sd3_spec::Sd3Spec;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::matrix::Matrix;
use crate::pictures::layers::PlaneWeights;
use crate::pictures::streams::{JointBlock, JointForm, JointRows, Modulation, StreamConditions};
use crate::speech::weights::SpeechWeights;

/// The transformer.
pub(in crate::pictures) struct Sd3Model {
    spec: Sd3Spec,
    /// The product of a patch, whose numbers lie channel by channel.
    first: Linear,
    /// A row for each place of the largest picture, `[places, places, width]`.
    places: Tensor,
    text: Linear,
    conditions: StreamConditions,
    blocks: Vec<JointBlock>,
    change: Modulation,
    last: Linear,
}

/// The conditions of a request: those of each text for as many pictures.
pub(in crate::pictures) struct Sd3Given {
    /// The rows of the texts as blocks read them, once for each picture.
    text: Tensor,
    /// The vectors of the texts, `[texts, width]`.
    pooled: Tensor,
    /// The rows of a picture's places, once for each picture.
    places: Tensor,
    form: JointForm,
}

impl Sd3Model {
    pub(in crate::pictures) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        spec: &Sd3Spec,
    ) -> std::result::Result<Self, ModelError> {
        let Sd3Spec { width, channels, patch, places, .. } = *spec;
        let of_patch = channels * patch * patch;
        let weight = weights.tensor("pos_embed.proj.weight", &[width, channels, patch, patch])?;
        let bias = weights.bias("pos_embed.proj", width)?;
        let first = weight
            .reshape((width, of_patch))
            .and_then(|weight| Linear::new(Matrix::Tensor(weight.contiguous()?), bias).in_panels());
        let first = weights.made(first)?;
        let stored = weights.tensor("pos_embed.pos_embed", &[1, places * places, width])?;
        let of_places = weights.made(stored.reshape((places, places, width)))?;
        let blocks = spec.blocks.iter().enumerate();
        let blocks = blocks.map(|(at, block)| JointBlock::read(weights, &format!("transformer_blocks.{at}"), *block));
        let blocks = blocks.collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(Self {
            first,
            places: of_places,
            text: weights.panels("context_embedder", [width, spec.text])?,
            conditions: StreamConditions::read(weights, [spec.pooled, width], false)?,
            blocks,
            change: Modulation::read(weights, "norm_out.linear", [2, width])?,
            last: weights.panels("proj_out", [of_patch, width])?,
            spec: spec.clone(),
        })
    }

    /// The conditions of some pictures of each text, with these rows and columns of patches. Texts have rows and a
    /// vector each.
    pub(in crate::pictures) fn given(
        &self,
        texts: &[(Tensor, Tensor)],
        (pictures, [rows, columns]): (usize, [usize; 2]),
    ) -> Result<Sd3Given> {
        let all = self.spec.places;
        if rows > all || columns > all {
            candle_core::bail!("{rows} x {columns} patches, and there are {all} x {all} places");
        }
        let Some((first, _)) = texts.first() else { candle_core::bail!("a picture without a text") };
        let tokens = first.dim(0)?;
        let mut text = Vec::with_capacity(texts.len() * pictures);
        for (one, _) in texts {
            text.extend(std::iter::repeat_n(self.text.forward(one)?, pictures));
        }
        let pooled = Tensor::cat(&texts.iter().map(|(_, pooled)| pooled).collect::<Vec<_>>(), 0)?;
        let middle = self.places.narrow(0, (all - rows) / 2, rows)?.narrow(1, (all - columns) / 2, columns)?;
        let middle = middle.contiguous()?.reshape((rows * columns, self.spec.width))?;
        Ok(Sd3Given {
            text: Tensor::cat(&text, 0)?,
            pooled,
            places: middle.repeat((text.len(), 1))?,
            form: JointForm::new(text.len(), tokens, rows * columns),
        })
    }

    /// The output for rows of patches at a time, which is from 0 to 1000. Numbers of a patch lie pixel by pixel.
    pub(in crate::pictures) fn forward(&self, patches: &Tensor, time: f32, given: &Sd3Given) -> Result<Tensor> {
        let conditions = self.conditions.forward(time, 0.0, &given.pooled)?;
        let image = (self.first.forward(patches)? + &given.places)?;
        let mut rows = JointRows { text: given.text.clone(), image };
        for block in &self.blocks {
            rows = block.forward(rows, &conditions, (&given.form, None))?;
        }
        // The factor on the norm comes first here.
        self.last.forward(&self.change.forward(&conditions)?.normed(&rows.image, [1, 0])?)
    }
}
