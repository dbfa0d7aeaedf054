//! The description of Qwen's towers, from `config.json`.

use model_boss_images::PixelScale;

use crate::error::ModelError;
use crate::sight::config::{SightConfig, unsupported, wrong};
use crate::sight::patches::PatchOrder;
use crate::spec::Activation;
use crate::spec::facts::activation;

/// The mean and deviation of CLIP's training, which Qwen's processor has too.
const CLIP_NORMAL: ([f32; 3], [f32; 3]) =
    ([0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1]);

/// A tower's description.
#[derive(Clone, Debug)]
pub(super) struct QwenVision {
    /// The prefix of all names.
    pub(super) prefix: String,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) layers: usize,
    pub(super) intermediate: usize,
    /// Images of a video that one patch has; all are the same image here.
    pub(super) frames: usize,
    pub(super) order: PatchOrder,
    pub(super) activation: Activation,
    /// The base of the wavelengths of rows and columns.
    pub(super) theta: f64,
    /// Width of the decoder's rows.
    pub(super) out: usize,
    pub(super) scale: PixelScale,
    pub(super) kind: QwenKind,
}

/// The differences of the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum QwenKind {
    /// Qwen2.5-VL: most layers see windows of the image.
    Windows {
        /// Squares of a window's side.
        side: usize,
        /// The layers that see all.
        full: Vec<usize>,
    },
    /// Qwen3-VL: a table of positions, and results of some layers for the decoder's first ones.
    Positions {
        /// Rows of the table, which has as many columns.
        side: usize,
        /// The layers whose results are taken.
        deep: Vec<usize>,
    },
}

impl QwenVision {
    pub(super) fn read(config: &SightConfig, prefix: String) -> Result<Self, ModelError> {
        let windows = config.model_type == "qwen2_5_vl";
        let number = |key: &str, default: usize| config.vision_number(key, default);
        let (patch, merge) = (number("patch_size", if windows { 14 } else { 16 })?, number("spatial_merge_size", 2)?);
        if number("in_channels", 3)? != 3 || number("in_chans", 3)? != 3 {
            return Err(unsupported("a tower of images without three colours".to_owned()));
        }
        let listed = |key: &str, default: &[usize]| {
            Ok::<_, ModelError>(config.vision.numbers(key).map_err(wrong)?.unwrap_or_else(|| default.to_vec()))
        };
        let kind = if windows {
            let side = number("window_size", 112)? / merge.max(1) / patch.max(1);
            QwenKind::Windows { side: side.max(1), full: listed("fullatt_block_indexes", &[7, 15, 23, 31])? }
        } else {
            let side = number("num_position_embeddings", 2304)?.isqrt();
            QwenKind::Positions { side, deep: listed("deepstack_visual_indexes", &[8, 16, 24])? }
        };
        let default = if windows { "silu" } else { "gelu_pytorch_tanh" };
        let act = config.vision.text("hidden_act").map_err(wrong)?.unwrap_or(default);
        let rope = config.vision.table("rope_parameters").map_err(wrong)?;
        let theta = rope.map_or(Ok(None), |rope| rope.float("rope_theta")).map_err(wrong)?;
        let vision = Self {
            prefix,
            hidden: number("hidden_size", if windows { 3584 } else { 1152 })?,
            heads: number("num_heads", 16)?,
            layers: number("depth", if windows { 32 } else { 27 })?,
            intermediate: number("intermediate_size", if windows { 3420 } else { 4304 })?,
            frames: number("temporal_patch_size", 2)?,
            order: PatchOrder { patch, merge },
            activation: activation(act).map_err(wrong)?,
            theta: theta.unwrap_or(10_000.0),
            out: number("out_hidden_size", 3584)?,
            scale: {
                let (factor, normal) = config.scale(CLIP_NORMAL)?;
                PixelScale::of(factor, normal)
            },
            kind,
        };
        vision.check()?;
        Ok(vision)
    }

    /// Refuses numbers that no tower can have.
    fn check(&self) -> Result<(), ModelError> {
        let sizes = [self.hidden, self.heads, self.layers, self.frames, self.order.patch, self.order.merge, self.out];
        // Half of a head turns by rows and half by columns, each in pairs.
        let whole_heads = self.heads > 0 && self.hidden.is_multiple_of(self.heads * 4);
        if sizes.contains(&0) || !whole_heads || sizes.iter().any(|size| *size > 1 << 20) || self.layers > 1024 {
            let Self { hidden, heads, layers, .. } = self;
            return Err(unsupported(format!("a tower of {layers} layers of width {hidden} with {heads} heads")));
        }
        if let QwenKind::Positions { deep, side } = &self.kind
            && (*side == 0 || deep.iter().any(|layer| *layer >= self.layers))
        {
            return Err(unsupported(format!("results of the layers {deep:?} of a tower that has {}", self.layers)));
        }
        Ok(())
    }

    /// Width of a square of patches.
    pub(super) fn merged(&self) -> usize {
        self.hidden * self.order.merge * self.order.merge
    }

    /// Shapes by names without the prefix.
    pub(super) fn shapes(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, inner, merged, patch) = (self.hidden, self.intermediate, self.merged(), self.order.patch);
        let mut all: Vec<(String, Vec<usize>)> = Vec::new();
        let mut add = |name: String, shape: &[usize]| all.push((name, shape.to_vec()));
        add("patch_embed.proj.weight".to_owned(), &[hidden, 3, self.frames, patch, patch]);
        let mut linear = |path: String, outs: usize, ins: usize| {
            all.push((format!("{path}.weight"), vec![outs, ins]));
            all.push((format!("{path}.bias"), vec![outs]));
        };
        for layer in 0..self.layers {
            let path = |part: &str| format!("blocks.{layer}.{part}");
            linear(path("attn.qkv"), 3 * hidden, hidden);
            linear(path("attn.proj"), hidden, hidden);
            match self.kind {
                QwenKind::Windows { .. } => {
                    linear(path("mlp.gate_proj"), inner, hidden);
                    linear(path("mlp.up_proj"), inner, hidden);
                    linear(path("mlp.down_proj"), hidden, inner);
                }
                QwenKind::Positions { .. } => {
                    linear(path("mlp.linear_fc1"), inner, hidden);
                    linear(path("mlp.linear_fc2"), hidden, inner);
                }
            }
        }
        match &self.kind {
            QwenKind::Windows { .. } => {
                linear("merger.mlp.0".to_owned(), merged, merged);
                linear("merger.mlp.2".to_owned(), self.out, merged);
            }
            QwenKind::Positions { deep, .. } => {
                let lists = (0..deep.len()).map(|index| format!("deepstack_merger_list.{index}"));
                for path in std::iter::once("merger".to_owned()).chain(lists) {
                    linear(format!("{path}.linear_fc1"), merged, merged);
                    linear(format!("{path}.linear_fc2"), self.out, merged);
                }
            }
        }
        let norms = (0..self.layers).flat_map(|layer| [1, 2].map(|norm| format!("blocks.{layer}.norm{norm}")));
        match &self.kind {
            QwenKind::Windows { .. } => {
                let norms = norms.chain(["merger.ln_q".to_owned()]);
                all.extend(norms.map(|path| (format!("{path}.weight"), vec![hidden])));
            }
            QwenKind::Positions { side, deep } => {
                let norms = norms.map(|path| (path, hidden)).chain([("merger.norm".to_owned(), hidden)]);
                let lists = (0..deep.len()).map(|index| (format!("deepstack_merger_list.{index}.norm"), merged));
                for (path, width) in norms.chain(lists).collect::<Vec<_>>() {
                    all.push((format!("{path}.weight"), vec![width]));
                    all.push((format!("{path}.bias"), vec![width]));
                }
                all.push(("patch_embed.proj.bias".to_owned(), vec![hidden]));
                all.push(("pos_embed.weight".to_owned(), vec![side * side, hidden]));
            }
        }
        all
    }
}
