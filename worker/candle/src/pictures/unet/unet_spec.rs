//! The sizes of a network, from `unet/config.json`. Fields that are left out have the defaults of `diffusers`.

use serde_json::{Value, json};

use crate::error::ModelError;
use crate::pictures::layers::{ComponentFields, TimeSines};

/// The most blocks on the way down.
const MOST_BLOCKS: usize = 8;

/// A block on the way down. The one on the way up has the same sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct UnetBlockSpec {
    pub(super) width: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// Layers of attention to the text behind each pair of convolutions on the way down; 0 of a block without.
    pub(super) attention_down: usize,
    /// The same on the way up.
    pub(super) attention_up: usize,
    /// The width of the text's rows.
    pub(super) text_width: usize,
}

/// Conditions beside the text's rows: one row of the text, and sizes of the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AddedSpec {
    /// The width of each size as sines.
    pub(super) sines: TimeSines,
    /// The width of all together.
    pub(super) ins: usize,
}

/// The layers in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MiddleSpec {
    Absent,
    /// Convolutions, and so many layers of attention.
    Text(usize),
}

#[derive(Clone, Debug, PartialEq)]
pub(in crate::pictures) struct UnetSpec {
    pub(in crate::pictures) ins: usize,
    pub(in crate::pictures) outs: usize,
    /// The usual side of latent pictures.
    pub(in crate::pictures) sample_size: Option<usize>,
    pub(super) blocks: Vec<UnetBlockSpec>,
    pub(super) middle: MiddleSpec,
    pub(super) groups: (usize, f64),
    pub(super) time: TimeSines,
    pub(super) time_width: usize,
    pub(super) added: Option<AddedSpec>,
}

impl UnetSpec {
    pub(in crate::pictures) fn from_config(config: &Value) -> Result<Self, ModelError> {
        let fields = ComponentFields::new("unet", config);
        refuse_others(&fields)?;
        let usual = ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"];
        let downs = fields.names("down_block_types", &usual)?;
        let usual = ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"];
        let ups = fields.names("up_block_types", &usual)?;
        let count = downs.len();
        if !(1..=MOST_BLOCKS).contains(&count) || ups.len() != count {
            return fields.bad(format!("{count} blocks on the way down and {} on the way up", ups.len()));
        }
        let widths = match fields.given("block_out_channels") {
            None if count == 4 => vec![320, 640, 1280, 1280],
            _ => fields.sizes("block_out_channels", count, 0)?,
        };
        let layers = fields.sizes("layers_per_block", count, 2)?;
        // The name is that of heads' widths, and the number is that of heads.
        let heads = fields.sizes("attention_head_dim", count, 8)?;
        let text_widths = fields.sizes("cross_attention_dim", count, 1280)?;
        let attention = fields.sizes("transformer_layers_per_block", count, 1)?;
        let has_text = |names: &[String], at: usize| match names[at].as_str() {
            "CrossAttnDownBlock2D" | "CrossAttnUpBlock2D" => Ok(true),
            "DownBlock2D" | "UpBlock2D" => Ok(false),
            other => fields.bad(format!("the block '{other}' is not known")),
        };
        let mut blocks = Vec::with_capacity(count);
        for at in 0..count {
            let (down, up) = (has_text(&downs, at)?, has_text(&ups, count - 1 - at)?);
            let (width, heads) = (widths[at], heads[at]);
            if (down || up || at + 1 == count) && !width.is_multiple_of(heads) {
                return fields.bad(format!("{heads} heads do not divide a width of {width}"));
            }
            blocks.push(UnetBlockSpec {
                width,
                layers: layers[at],
                heads,
                attention_down: if down { attention[at] } else { 0 },
                attention_up: if up { attention[at] } else { 0 },
                text_width: text_widths[at],
            });
        }
        let middle = match fields.given("mid_block_type").and_then(Value::as_str) {
            None if config.get("mid_block_type").is_some() => MiddleSpec::Absent,
            None | Some("UNetMidBlock2DCrossAttn") => MiddleSpec::Text(attention[count - 1]),
            Some(other) => return fields.bad(format!("the block '{other}' is not known")),
        };
        let groups = (fields.size("norm_num_groups", 32)?, fields.number("norm_eps", 1e-5)?);
        let cosines_first = fields.flag("flip_sin_to_cos", true)?;
        let shift = fields.number("freq_shift", 0.0)? as f32;
        let sines = |width| TimeSines { width, cosines_first, shift };
        let added = match fields.given("addition_embed_type").and_then(Value::as_str) {
            None => None,
            Some("text_time") => Some(AddedSpec {
                sines: sines(fields.size("addition_time_embed_dim", 256)?),
                ins: fields.size("projection_class_embeddings_input_dim", 2816)?,
            }),
            Some(other) => return fields.bad(format!("addition_embed_type '{other}' is not known")),
        };
        let sample_size = match fields.given("sample_size") {
            Some(value) if value.is_array() => fields.sizes("sample_size", 2, 64)?.into_iter().max(),
            Some(_) => Some(fields.size("sample_size", 64)?),
            None => None,
        };
        Ok(Self {
            ins: fields.size("in_channels", 4)?,
            outs: fields.size("out_channels", 4)?,
            sample_size,
            groups,
            time: sines(widths[0]),
            time_width: fields.size("time_embedding_dim", 4 * widths[0])?,
            blocks,
            middle,
            added,
        })
    }

    /// The width of the text's rows.
    pub(in crate::pictures) fn text_width(&self) -> usize {
        self.blocks[0].text_width
    }

    /// The width of the text's one row and of all sizes beside it; none where the network has no such conditions.
    pub(in crate::pictures) fn added_width(&self) -> Option<[usize; 2]> {
        self.added.map(|added| [added.ins, added.sines.width])
    }
}

/// Refuses settings of networks that are built otherwise.
fn refuse_others(fields: &ComponentFields<'_>) -> Result<(), ModelError> {
    let null = Value::Null;
    fields.only("center_input_sample", &[json!(false)])?;
    fields.only("only_cross_attention", &[json!(false)])?;
    fields.only("mid_block_only_cross_attention", &[null.clone(), json!(false)])?;
    fields.only("dual_cross_attention", &[json!(false)])?;
    fields.only("downsample_padding", &[json!(1)])?;
    fields.only("mid_block_scale_factor", &[json!(1), json!(1.0)])?;
    fields.only("act_fn", &[json!("silu"), json!("swish")])?;
    fields.only("resnet_time_scale_shift", &[json!("default")])?;
    fields.only("resnet_skip_time_act", &[json!(false)])?;
    fields.only("resnet_out_scale_factor", &[json!(1), json!(1.0)])?;
    fields.only("time_embedding_type", &[json!("positional")])?;
    fields.only("conv_in_kernel", &[json!(3)])?;
    fields.only("conv_out_kernel", &[json!(3)])?;
    fields.only("attention_type", &[json!("default")])?;
    fields.only("class_embeddings_concat", &[json!(false)])?;
    for name in [
        "encoder_hid_dim",
        "encoder_hid_dim_type",
        "class_embed_type",
        "num_class_embeds",
        "time_embedding_act_fn",
        "timestep_post_act",
        "time_cond_proj_dim",
        "cross_attention_norm",
        "reverse_transformer_layers_per_block",
        "num_attention_heads",
    ] {
        fields.only(name, std::slice::from_ref(&null))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_25_fields_that_are_left_out_are_the_librarys() {
        let spec = UnetSpec::from_config(&json!({"cross_attention_dim": 768})).unwrap();
        assert_eq!((spec.blocks.len(), spec.time_width, spec.text_width()), (4, 1280, 768));
        assert_eq!((spec.blocks[3].attention_down, spec.blocks[3].attention_up, spec.blocks[2].heads), (0, 0, 8));
        assert_eq!(spec.middle, MiddleSpec::Text(1));
    }

    #[test]
    fn rc_25_networks_that_are_built_otherwise_are_refused_by_name() {
        for (field, value) in [
            ("class_embed_type", json!("timestep")),
            ("act_fn", json!("gelu")),
            ("down_block_types", json!(["AttnDownBlock2D", "DownBlock2D", "DownBlock2D", "DownBlock2D"])),
            ("block_out_channels", json!([1, 2])),
            ("block_out_channels", json!([0, 2, 4, 4])),
            ("attention_head_dim", json!(7)),
            ("addition_embed_type", json!("image")),
            ("mid_block_type", json!("UNetMidBlock2DSimpleCrossAttn")),
            ("norm_eps", json!("small")),
        ] {
            let error = UnetSpec::from_config(&json!({field: value})).unwrap_err().to_string();
            let words = [field, "AttnDownBlock2D", "UNetMidBlock2DSimpleCrossAttn", "7 heads"];
            assert!(words.iter().any(|word| error.contains(word)), "{field}: {error}");
        }
    }
}
