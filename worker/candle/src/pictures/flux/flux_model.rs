//! The transformer with its weights.

use candle_core::{Device, Result, Tensor};

use super::flux_spec::FluxSpec;
use super::single_block::SingleBlock;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::pictures::layers::PlaneWeights;
use crate::pictures::streams::{
    JointBlock, JointForm, JointRows, Modulation, StreamConditions, StreamSight, StreamTurns,
};
use crate::speech::weights::SpeechWeights;

/// The transformer.
pub(in crate::pictures) struct FluxModel {
    spec: FluxSpec,
    first: Linear,
    text: Linear,
    conditions: StreamConditions,
    joint: Vec<JointBlock>,
    single: Vec<SingleBlock>,
    change: Modulation,
    last: Linear,
    device: Device,
}

/// The conditions of a request.
pub(in crate::pictures) struct FluxGiven {
    /// The rows of the text as blocks read them, once for each picture.
    text: Tensor,
    /// The vector of the text, `[1, width]`.
    pooled: Tensor,
    guidance: f32,
    form: JointForm,
    turns: StreamTurns,
}

impl FluxModel {
    pub(in crate::pictures) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        spec: &FluxSpec,
    ) -> std::result::Result<Self, ModelError> {
        let (width, block) = (spec.block.width, spec.block);
        let joint = (0..spec.layers).map(|at| JointBlock::read(weights, &format!("transformer_blocks.{at}"), block));
        let joint = joint.collect::<std::result::Result<Vec<_>, _>>()?;
        let single = |at: usize| SingleBlock::read(weights, &format!("single_transformer_blocks.{at}"), block);
        let single = (0..spec.single_layers).map(single).collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(Self {
            first: weights.panels("x_embedder", [width, spec.ins])?,
            text: weights.panels("context_embedder", [width, spec.text])?,
            conditions: StreamConditions::read(weights, [spec.pooled, width], spec.has_guidance)?,
            joint,
            single,
            change: Modulation::read(weights, "norm_out.linear", [2, width])?,
            last: weights.panels("proj_out", [spec.ins, width])?,
            spec: spec.clone(),
            device: weights.device.clone(),
        })
    }

    /// The conditions of some pictures with these rows and columns of patches: the rows of a text, and its vector.
    pub(in crate::pictures) fn given(
        &self,
        (text, pooled): (&Tensor, Tensor),
        guidance: f32,
        (pictures, patches): (usize, [usize; 2]),
    ) -> Result<FluxGiven> {
        let tokens = text.dim(0)?;
        let turns = StreamTurns::new(tokens, patches, (self.spec.axes, self.spec.block.heads), &self.device)?;
        let text = self.text.forward(text)?;
        let text = if pictures == 1 { text } else { text.repeat((pictures, 1))? };
        let form = JointForm::new(pictures, tokens, patches[0] * patches[1]);
        Ok(FluxGiven { text, pooled, guidance, form, turns })
    }

    /// The output for rows of patches at a time, which is from 0 to 1000.
    pub(in crate::pictures) fn forward(&self, patches: &Tensor, time: f32, given: &FluxGiven) -> Result<Tensor> {
        let FluxGiven { form, turns, .. } = given;
        let conditions = self.conditions.forward(time, given.guidance * 1000.0, &given.pooled)?;
        let mut rows = JointRows { text: given.text.clone(), image: self.first.forward(patches)? };
        for block in &self.joint {
            rows = block.forward(rows, &conditions, (form, Some(turns)))?;
        }
        let mut x = form.joined(&rows.text, &rows.image)?;
        let sight = StreamSight { heads: self.spec.block.heads, ranges: form.both(), turns: Some(turns) };
        for block in &self.single {
            x = block.forward(&x, &conditions, &sight)?;
        }
        // The factor on the norm comes first here.
        let change = self.change.forward(&conditions)?;
        self.last.forward(&change.normed(&form.apart(&x)?.image, [1, 0])?)
    }
}
