//! The sizes of a transformer, from `transformer/config.json`.

use serde_json::{Value, json};

use crate::error::ModelError;
use crate::pictures::layers::ComponentFields;
use crate::pictures::streams::StreamBlockSpec;

/// The most layers.
const MOST_LAYERS: usize = 1024;

/// The sizes of a transformer.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::pictures) struct Sd3Spec {
    /// Channels of latent pictures.
    pub(in crate::pictures) channels: usize,
    /// Pixels of a latent picture on a side of a patch.
    pub(in crate::pictures) patch: usize,
    /// The side of a usual latent picture.
    pub(in crate::pictures) sample_size: usize,
    /// The most patches on a side.
    pub(in crate::pictures) places: usize,
    /// Numbers of a text's rows, and of its vector.
    pub(in crate::pictures) text: usize,
    pub(in crate::pictures) pooled: usize,
    pub(super) width: usize,
    pub(super) blocks: Vec<StreamBlockSpec>,
}

impl Sd3Spec {
    pub(in crate::pictures) fn from_config(config: &Value) -> Result<Self, ModelError> {
        let fields = ComponentFields::new("transformer", config);
        let class = fields.name("_class_name", "SD3Transformer2DModel")?;
        if class != "SD3Transformer2DModel" {
            return fields.bad(format!("the class '{class}' is not known"));
        }
        fields.only("qk_norm", &[Value::Null, json!("rms_norm")])?;
        let has_norms = fields.given("qk_norm").is_some();
        let channels = fields.size("in_channels", 16)?;
        let outs = fields.size("out_channels", 16)?;
        if channels != outs {
            return fields.bad(format!("{channels} channels become {outs}"));
        }
        let (heads, dim) = (fields.size("num_attention_heads", 18)?, fields.size("attention_head_dim", 64)?);
        let width = heads * dim;
        let caption = fields.size("caption_projection_dim", 1152)?;
        if caption != width {
            return fields.bad(format!("caption_projection_dim is {caption}, and rows have {width} numbers"));
        }
        let layers = fields.size("num_layers", 18)?;
        if layers > MOST_LAYERS {
            return fields.bad(format!("{layers} layers"));
        }
        let alone = match fields.given("dual_attention_layers") {
            Some(value) => serde_json::from_value::<Vec<usize>>(value.clone()).ok(),
            None => Some(Vec::new()),
        };
        let Some(alone) = alone else { return fields.bad("dual_attention_layers is no list of layers") };
        let block = |at: usize| {
            let (sees_alone, ends_text) = (alone.contains(&at), at + 1 == layers);
            StreamBlockSpec { width, heads, has_norms, sees_alone, ends_text }
        };
        Ok(Self {
            channels,
            patch: fields.size("patch_size", 2)?,
            sample_size: fields.size("sample_size", 128)?,
            places: fields.size("pos_embed_max_size", 96)?,
            text: fields.size("joint_attention_dim", 4096)?,
            pooled: fields.size("pooled_projection_dim", 2048)?,
            width,
            blocks: (0..layers).map(block).collect(),
        })
    }
}
