//! The decoder: from the description, the text and the codes so far to the logits of the next codes.

use candle_core::{DType, Device, Result as CandleResult, Tensor};

use super::described_layer::{DescribedLayer, DescribedStep, KeysAndValues};
use super::parler_spec::ParlerSpec;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::norm::Norm;
use crate::layers::rope::{Position, Rope};
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::speech::weights::SpeechWeights;

/// The longest wavelength of the sines of places, divided by two pi.
const LONGEST: f64 = 10_000.0;

/// The decoder with its weights.
pub(super) struct FrameWriter {
    /// Rows of the tokens of texts.
    prompts: Matrix,
    /// Rows of the codes of each codebook.
    codes: Vec<Matrix>,
    layers: Vec<DescribedLayer>,
    norm: Norm,
    /// Of each codebook, or one of all of them.
    heads: Vec<Linear>,
    rope: Option<Rope>,
    prompt_beside: bool,
    target: WeightTarget,
    width: usize,
    /// The codes of each codebook that are written.
    written: usize,
}

/// The state of a part.
pub(super) struct WriterMemory {
    descriptions: Vec<KeysAndValues>,
    layers: Vec<Option<KeysAndValues>>,
    past: usize,
    /// Rows before the first frame: those of the text.
    before: Option<Tensor>,
}

impl FrameWriter {
    pub(super) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        spec: &ParlerSpec,
        target: &WeightTarget,
    ) -> Result<Self, ModelError> {
        let decoder = &spec.decoder;
        let (width, books) = (decoder.width, decoder.num_codebooks);
        let path = "decoder.model.decoder";
        let prompts = weights.rows("embed_prompts.weight", [spec.prompt_tokens, width])?;
        // One more code than is written marks the beginning.
        let codes = |at| weights.rows(&format!("{path}.embed_tokens.{at}.weight"), [decoder.codes + 1, width]);
        let codes = (0..books).map(codes).collect::<Result<Vec<_>, _>>()?;
        let layer = |at| DescribedLayer::read(weights, &format!("{path}.layers.{at}"), decoder);
        let layers = (0..decoder.layers).map(layer).collect::<Result<Vec<_>, _>>()?;
        let norm = weights.norm(&format!("{path}.layer_norm"), width, decoder.norm())?;
        let heads = match decoder.use_fused_lm_heads {
            true => vec![weights.product("decoder.lm_heads", [books * decoder.codes, width])?],
            false => {
                let head = |at| weights.product(&format!("decoder.lm_heads.{at}"), [decoder.codes, width]);
                (0..books).map(head).collect::<Result<Vec<_>, _>>()?
            }
        };
        let rope = decoder.rope().as_ref().map(Rope::new);
        Ok(Self {
            prompts,
            codes,
            layers,
            norm,
            heads,
            rope,
            prompt_beside: spec.prompt_beside,
            target: target.clone(),
            width,
            written: decoder.codes,
        })
    }

    /// The state before the first frame of a text's tokens, by the description's rows `[tokens, width]`.
    pub(super) fn begin(&self, description: &Tensor, prompt: &[u32]) -> CandleResult<WriterMemory> {
        let prompt = self.prompts.rows(prompt, &self.target)?;
        let (states, before) = if self.prompt_beside {
            let placed = (&prompt + self.sines(0..prompt.dim(0)?)?)?;
            (Tensor::cat(&[description, &placed], 0)?, None)
        } else {
            (description.clone(), Some(prompt))
        };
        let descriptions =
            self.layers.iter().map(|layer| layer.described(&states)).collect::<CandleResult<Vec<_>>>()?;
        let layers = self.layers.iter().map(|_| None).collect();
        Ok(WriterMemory { descriptions, layers, past: 0, before })
    }

    /// The logits of each codebook's next code, behind a column of codes.
    pub(super) fn step(&self, column: &[u32], memory: &mut WriterMemory) -> CandleResult<Vec<Vec<f32>>> {
        let mut x = Tensor::zeros((1, self.width), SpeechWeights::TYPE, &self.target.device)?;
        for (rows, code) in self.codes.iter().zip(column) {
            x = (x + rows.rows(&[*code], &self.target)?)?;
        }
        if let Some(before) = memory.before.take() {
            x = Tensor::cat(&[&before, &x], 0)?;
        }
        let (past, moments) = (memory.past, x.dim(0)?);
        let end = past + moments;
        let angles = match &self.rope {
            Some(rope) => {
                let positions: Vec<Position> = (past..end).map(|at| Position { at: [at; 3], length: end }).collect();
                let angles = rope.angles(&positions, DType::F32, &self.target.device)?;
                Some([angles.cos, angles.sin])
            }
            None => {
                x = (x + self.sines(past..end)?)?;
                None
            }
        };
        let mask = || {
            let value = |moment: usize, key: usize| if key <= moment { 0.0 } else { f32::NEG_INFINITY };
            let rows = (past..end).flat_map(|moment| (0..end).map(move |key| value(moment, key)));
            Tensor::from_vec(rows.collect::<Vec<f32>>(), (moments, end), &self.target.device)
        };
        let step = DescribedStep { angles, mask: if moments == 1 { None } else { Some(mask()?) } };
        for ((layer, kept), description) in self.layers.iter().zip(&mut memory.layers).zip(&memory.descriptions) {
            x = layer.forward(&x, kept, description, &step)?;
        }
        memory.past = end;
        let last = self.norm.forward(&x.narrow(0, moments - 1, 1)?.contiguous()?)?;
        let mut logits = Vec::with_capacity(self.codes.len());
        for head in &self.heads {
            let all = head.forward(&last)?.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
            logits.extend(all.chunks(self.written).map(<[f32]>::to_vec));
        }
        Ok(logits)
    }

    /// Cosines and sines of places, `[places, width]` (Vaswani et al., 2017, arXiv 1706.03762, in the order of
    /// tensor2tensor).
    fn sines(&self, places: std::ops::Range<usize>) -> CandleResult<Tensor> {
        let half = self.width / 2;
        let step = (LONGEST.ln() / half.saturating_sub(1).max(1) as f64) as f32;
        let frequencies: Vec<f32> = (0..half).map(|at| (at as f32 * -step).exp()).collect();
        let mut rows = Vec::with_capacity(places.len() * self.width);
        for place in places.clone() {
            let angle = |frequency: &f32| place as f32 * frequency;
            rows.extend(frequencies.iter().map(|frequency| angle(frequency).cos()));
            rows.extend(frequencies.iter().map(|frequency| angle(frequency).sin()));
            rows.resize(rows.len() + self.width % 2, 0.0);
        }
        Tensor::from_vec(rows, (places.len(), self.width), &self.target.device)
    }
}
