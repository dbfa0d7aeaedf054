//! The sizes of a transformer, from `transformer/config.json`.

use serde_json::{Value, json};

use crate::error::ModelError;
use crate::pictures::layers::ComponentFields;
use crate::pictures::streams::StreamBlockSpec;

/// The most layers.
const MOST_LAYERS: usize = 1024;

/// The sizes of a transformer.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::pictures) struct FluxSpec {
    /// Numbers of a patch.
    pub(in crate::pictures) ins: usize,
    /// Numbers of a text's rows, and of its vector.
    pub(in crate::pictures) text: usize,
    pub(in crate::pictures) pooled: usize,
    /// Whether the weight of the prompt is a condition.
    pub(in crate::pictures) has_guidance: bool,
    /// Numbers of a head that do not turn, turn by the row, and by the column.
    pub(in crate::pictures) axes: [usize; 3],
    pub(in crate::pictures) block: StreamBlockSpec,
    pub(super) layers: usize,
    pub(super) single_layers: usize,
}

impl FluxSpec {
    pub(in crate::pictures) fn from_config(config: &Value) -> Result<Self, ModelError> {
        let fields = ComponentFields::new("transformer", config);
        let class = fields.name("_class_name", "FluxTransformer2DModel")?;
        if class != "FluxTransformer2DModel" {
            return fields.bad(format!("the class '{class}' is not known"));
        }
        fields.only("patch_size", &[json!(1)])?;
        let ins = fields.size("in_channels", 64)?;
        let outs = fields.size("out_channels", ins)?;
        if ins != outs || ins % 4 != 0 {
            return fields.bad(format!("{ins} channels become {outs}"));
        }
        let (heads, dim) = (fields.size("num_attention_heads", 24)?, fields.size("attention_head_dim", 128)?);
        let axes = match fields.given("axes_dims_rope") {
            Some(value) => serde_json::from_value::<[usize; 3]>(value.clone()).ok(),
            None => Some([16, 56, 56]),
        };
        let axes = axes.filter(|axes| axes.iter().all(|axis| axis % 2 == 0 && *axis <= dim));
        let Some(axes) = axes.filter(|axes| axes.iter().sum::<usize>() == dim) else {
            return fields.bad(format!("axes_dims_rope are no three even numbers with the sum {dim}"));
        };
        let layers = [fields.size("num_layers", 19)?, fields.size("num_single_layers", 38)?];
        if layers.iter().any(|layers| *layers > MOST_LAYERS) {
            return fields.bad(format!("{layers:?} layers"));
        }
        let block = StreamBlockSpec { width: heads * dim, heads, has_norms: true, sees_alone: false, ends_text: false };
        Ok(Self {
            ins,
            text: fields.size("joint_attention_dim", 4096)?,
            pooled: fields.size("pooled_projection_dim", 768)?,
            has_guidance: fields.flag("guidance_embeds", false)?,
            axes,
            block,
            layers: layers[0],
            single_layers: layers[1],
        })
    }
}
