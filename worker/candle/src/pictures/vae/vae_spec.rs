//! The sizes of an autoencoder, from `vae/config.json`.

use serde_json::{Value, json};

use crate::error::ModelError;
use crate::pictures::layers::ComponentFields;

/// The most blocks.
const MOST_BLOCKS: usize = 8;

#[derive(Clone, Debug, PartialEq)]
pub(in crate::pictures) struct VaeSpec {
    pub(in crate::pictures) latent_channels: usize,
    /// The factor on latent pictures, and the number that is taken away before.
    pub(in crate::pictures) scaling: f32,
    pub(in crate::pictures) shift: f32,
    /// The mean and the deviation of each channel, of autoencoders that have them.
    pub(in crate::pictures) channels: Option<[Vec<f32>; 2]>,
    pub(super) widths: Vec<usize>,
    pub(super) layers: usize,
    pub(super) groups: usize,
    pub(super) has_quant: bool,
    pub(super) has_post_quant: bool,
    pub(super) has_attention: bool,
}

impl VaeSpec {
    pub(in crate::pictures) fn from_config(config: &Value) -> Result<Self, ModelError> {
        let fields = ComponentFields::new("vae", config);
        let class = fields.name("_class_name", "AutoencoderKL")?;
        if class != "AutoencoderKL" {
            return fields.bad(format!("the class '{class}' is not known"));
        }
        fields.only("in_channels", &[json!(3)])?;
        fields.only("out_channels", &[json!(3)])?;
        fields.only("act_fn", &[json!("silu"), json!("swish")])?;
        for (name, known) in [("down_block_types", "DownEncoderBlock2D"), ("up_block_types", "UpDecoderBlock2D")] {
            let names = fields.names(name, &[known])?;
            if let Some(other) = names.iter().find(|name| *name != known) {
                return fields.bad(format!("the block '{other}' is not known"));
            }
        }
        let count = fields.names("down_block_types", &["DownEncoderBlock2D"])?.len();
        if !(1..=MOST_BLOCKS).contains(&count) {
            return fields.bad(format!("{count} blocks"));
        }
        let latent_channels = fields.size("latent_channels", 4)?;
        let numbers = |name: &str| -> Result<Option<Vec<f32>>, ModelError> {
            let Some(value) = fields.given(name) else { return Ok(None) };
            let list: Option<Vec<f32>> = serde_json::from_value(value.clone()).ok();
            match list {
                Some(list) if list.len() == latent_channels => Ok(Some(list)),
                _ => fields.bad(format!("{name} is {value}, which is not known")),
            }
        };
        let scaling = fields.number("scaling_factor", 0.18215)? as f32;
        if scaling == 0.0 || !scaling.is_finite() {
            return fields.bad("scaling_factor is 0");
        }
        Ok(Self {
            latent_channels,
            scaling,
            shift: fields.number("shift_factor", 0.0)? as f32,
            channels: numbers("latents_mean")?.zip(numbers("latents_std")?).map(|(mean, deviation)| [mean, deviation]),
            widths: fields.sizes("block_out_channels", count, 64)?,
            layers: fields.size("layers_per_block", 1)?,
            groups: fields.size("norm_num_groups", 32)?,
            has_quant: fields.flag("use_quant_conv", true)?,
            has_post_quant: fields.flag("use_post_quant_conv", true)?,
            has_attention: fields.flag("mid_block_add_attention", true)?,
        })
    }

    /// Pixels of a picture's side for each of a latent one.
    pub(in crate::pictures) fn factor(&self) -> usize {
        1 << (self.widths.len() - 1)
    }
}
