//! Descriptions of vision towers and of the text towers beside them, from `config.json`: CLIP (Radford et al., 2021,
//! arXiv 2103.00020), SigLIP (Zhai et al., 2023, arXiv 2303.15343) and SigLIP 2 (Tschannen et al., 2025, arXiv
//! 2502.14786). Fields that a file leaves out have the values that `transformers` gives them.

use serde_json::{Map, Value};

use crate::error::ModelError;
use crate::spec::{Activation, ConfigJsonError};

/// The kind of a pair of towers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TowerKind {
    /// A row for the whole image in front of its patches; texts whose tokens see those before them.
    Clip,
    /// A head that looks at all patches; texts of one length.
    Siglip,
    /// The same with images of any proportions.
    SiglipPatches,
}

/// The layers of a tower: norms in front of each part (Xiong et al., 2020, arXiv 2002.04745), biases everywhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StackSpec {
    pub(crate) hidden: usize,
    pub(crate) inner: usize,
    pub(crate) heads: usize,
    pub(crate) layers: usize,
    pub(crate) activation: Activation,
    pub(crate) eps: f64,
}

/// A tower that reads images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ImageTowerSpec {
    pub(crate) kind: TowerKind,
    pub(crate) stack: StackSpec,
    /// Pixels of a patch's side.
    pub(crate) patch: usize,
    /// Patches of a row and of a column in the table of positions. All images have as many, but for those of any
    /// proportions.
    pub(crate) grid: usize,
    /// Pixels of an image's side; 0 where images have any proportions.
    pub(crate) side: usize,
    /// Whether SigLIP's head is there, which makes one vector of all patches.
    pub(crate) head: bool,
}

/// A tower that reads texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TextTowerSpec {
    pub(crate) kind: TowerKind,
    pub(crate) stack: StackSpec,
    pub(crate) vocabulary: usize,
    /// Rows of the table of positions.
    pub(crate) positions: usize,
    /// The token that fills texts, if the tokenizer's files name none.
    pub(crate) pad: u32,
    /// The token whose row is the text's; none where it is the one with the greatest number.
    pub(crate) end: Option<u32>,
    /// Numbers of SigLIP's vectors.
    pub(crate) width: usize,
}

/// Two towers whose vectors can be compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TowersSpec {
    pub(crate) image: ImageTowerSpec,
    pub(crate) text: TextTowerSpec,
    /// Numbers of a vector.
    pub(crate) width: usize,
}

fn bad(what: String) -> ModelError {
    ModelError::Config(ConfigJsonError::Malformed(what))
}

impl TowerKind {
    /// The kind by `model_type` of a model of both towers, or of one tower by itself.
    pub(crate) fn of(model_type: &str) -> Option<Self> {
        match model_type {
            "clip" | "clip_vision_model" | "clip_text_model" => Some(Self::Clip),
            "siglip" | "siglip_vision_model" | "siglip_text_model" => Some(Self::Siglip),
            "siglip2" | "siglip2_vision_model" | "siglip2_text_model" => Some(Self::SiglipPatches),
            _ => None,
        }
    }
}

impl TowersSpec {
    /// Reads the text of a `config.json`.
    pub(crate) fn from_config(json: &[u8]) -> Result<Self, ModelError> {
        let config: Value = serde_json::from_slice(json).map_err(|error| bad(error.to_string()))?;
        let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let kind = match model_type {
            "clip" | "siglip" | "siglip2" => TowerKind::of(model_type),
            _ => None,
        };
        let Some(kind) = kind else {
            return Err(bad(format!("'{model_type}' is no type of two towers; clip, siglip and siglip2 are")));
        };
        let image = ImageTowerSpec::from_config(kind, &part(kind, &config, "vision_config"))?;
        let text = TextTowerSpec::from_config(kind, &part(kind, &config, "text_config"))?;
        let fields = config.as_object().cloned().unwrap_or_default();
        let width = match kind {
            TowerKind::Clip => TowerFields(&fields).size("projection_dim", 512)?,
            TowerKind::Siglip | TowerKind::SiglipPatches => {
                if text.width != image.stack.hidden {
                    let (one, other) = (text.width, image.stack.hidden);
                    return Err(bad(format!(
                        "texts become {one} numbers and images {other}, which cannot be compared"
                    )));
                }
                if !image.head {
                    return Err(bad("vision_use_head is false: the model makes no vector of an image".to_owned()));
                }
                text.width
            }
        };
        Ok(Self { image, text, width })
    }
}

/// One tower's fields. Those of `text_config_dict` and `vision_config_dict`, as first files of CLIP have them, go over
/// the others, and fields that they leave out are the library's own again.
fn part(kind: TowerKind, config: &Value, name: &str) -> Map<String, Value> {
    let object = |name: &str| config.get(name).and_then(Value::as_object);
    let older = if kind == TowerKind::Clip { object(&format!("{name}_dict")) } else { None };
    older.or_else(|| object(name)).cloned().unwrap_or_default()
}

/// Fields of one tower.
struct TowerFields<'a>(&'a Map<String, Value>);

impl TowerFields<'_> {
    fn given(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A number from 1 on. A list of equal ones is that number.
    fn size(&self, name: &str, otherwise: usize) -> Result<usize, ModelError> {
        let Some(value) = self.given(name) else { return Ok(otherwise) };
        let number = match value.as_array().map(Vec::as_slice) {
            Some([one, other]) if one == other => one.as_u64(),
            Some(_) => return Err(bad(format!("{name} is {value}: images that are no squares are not known"))),
            None => value.as_u64(),
        };
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.filter(|number| (1..1 << 24).contains(number)).ok_or_else(|| bad(format!("{name} is {value}")))
    }

    fn id(&self, name: &str, otherwise: u32) -> Result<u32, ModelError> {
        let Some(value) = self.given(name) else { return Ok(otherwise) };
        let number = match value.as_array().map(Vec::as_slice) {
            Some([one, ..]) => one.as_u64(),
            _ => value.as_u64(),
        };
        number.and_then(|number| u32::try_from(number).ok()).ok_or_else(|| bad(format!("{name} is {value}")))
    }

    fn stack(&self, kind: TowerKind, [hidden, inner, heads]: [usize; 3]) -> Result<StackSpec, ModelError> {
        let (activation, eps) = match kind {
            TowerKind::Clip => ("quick_gelu", 1e-5),
            TowerKind::Siglip | TowerKind::SiglipPatches => ("gelu_pytorch_tanh", 1e-6),
        };
        let name = self.given("hidden_act").map_or(Some(activation), Value::as_str);
        let activation = match name {
            Some("quick_gelu") => Activation::GeluQuick,
            Some("gelu" | "gelu_python") => Activation::GeluErf,
            Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_accurate" | "gelu_python_tanh") => {
                Activation::GeluTanh
            }
            Some("relu") => Activation::Relu,
            Some("silu" | "swish") => Activation::Silu,
            other => return Err(bad(format!("the activation {other:?} is not known"))),
        };
        let eps = self.given("layer_norm_eps").map_or(Some(eps), Value::as_f64);
        let stack = StackSpec {
            hidden: self.size("hidden_size", hidden)?,
            inner: self.size("intermediate_size", inner)?,
            heads: self.size("num_attention_heads", heads)?,
            layers: self.size("num_hidden_layers", 12)?,
            activation,
            eps: eps.ok_or_else(|| bad("layer_norm_eps is no number".to_owned()))?,
        };
        if !stack.hidden.is_multiple_of(stack.heads) {
            return Err(bad(format!("{} heads do not divide a width of {}", stack.heads, stack.hidden)));
        }
        Ok(stack)
    }
}

impl ImageTowerSpec {
    /// Reads the fields of a tower, such as `vision_config`.
    pub(crate) fn from_config(kind: TowerKind, fields: &Map<String, Value>) -> Result<Self, ModelError> {
        let fields = TowerFields(fields);
        let stack = fields.stack(kind, [768, 3072, 12])?;
        let channels = fields.size("num_channels", 3)?;
        if channels != 3 {
            return Err(bad(format!("num_channels is {channels}; 3 is known")));
        }
        let patch = fields.size("patch_size", if kind == TowerKind::Clip { 32 } else { 16 })?;
        let (side, grid) = match kind {
            TowerKind::SiglipPatches => {
                let patches = fields.size("num_patches", 256)?;
                let grid = patches.isqrt();
                if grid * grid != patches {
                    return Err(bad(format!("num_patches is {patches}, which is no square")));
                }
                (0, grid)
            }
            TowerKind::Clip | TowerKind::Siglip => {
                let side = fields.size("image_size", 224)?;
                (side, side / patch)
            }
        };
        if grid == 0 {
            return Err(bad(format!("image_size is {side}, and patch_size is {patch}")));
        }
        let head = match fields.given("vision_use_head") {
            None => true,
            Some(value) => value.as_bool().ok_or_else(|| bad(format!("vision_use_head is {value}")))?,
        };
        Ok(Self { kind, stack, patch, grid, side, head })
    }

    /// Rows in front of the patches.
    pub(crate) fn rows_before(&self) -> usize {
        usize::from(self.kind == TowerKind::Clip)
    }
}

impl TextTowerSpec {
    /// Reads the fields of a tower, such as `text_config`.
    pub(crate) fn from_config(kind: TowerKind, fields: &Map<String, Value>) -> Result<Self, ModelError> {
        let fields = TowerFields(fields);
        let (shape, vocabulary, positions) = match kind {
            TowerKind::Clip => ([512, 2048, 8], 49_408, 77),
            TowerKind::Siglip | TowerKind::SiglipPatches => ([768, 3072, 12], 32_000, 64),
        };
        let stack = fields.stack(kind, shape)?;
        // First files of CLIP have a 2 that means nothing: their texts end with the greatest number.
        let end = Some(fields.id("eos_token_id", 49_407)?).filter(|end| *end != 2);
        Ok(Self {
            kind,
            stack,
            vocabulary: fields.size("vocab_size", vocabulary)?,
            positions: fields.size("max_position_embeddings", positions)?,
            pad: fields.id("pad_token_id", 1)?,
            end,
            width: fields.size("projection_size", stack.hidden)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Result<TowersSpec, ModelError> {
        TowersSpec::from_config(json.as_bytes())
    }

    #[test]
    fn em_3_fields_that_are_left_out_are_the_librarys() {
        let clip = of(r#"{"model_type":"clip"}"#).unwrap();
        assert_eq!((clip.width, clip.image.grid, clip.image.side, clip.text.positions), (512, 7, 224, 77));
        assert_eq!((clip.text.stack.heads, clip.image.stack.heads), (8, 12));
        assert_eq!((clip.text.stack.activation, clip.text.end), (Activation::GeluQuick, Some(49_407)));
        let siglip = of(r#"{"model_type":"siglip","vision_config":{"image_size":384,"patch_size":14}}"#).unwrap();
        assert_eq!((siglip.image.grid, siglip.image.stack.activation), (27, Activation::GeluTanh));
        let patches = of(r#"{"model_type":"siglip2"}"#).unwrap();
        assert_eq!((patches.image.grid, patches.image.side, patches.width), (16, 0, 768));
    }

    #[test]
    fn em_3_older_names_go_over_the_newer_ones() {
        let spec = of(r#"{"model_type":"clip","projection_dim":64,"text_config":{"hidden_size":640},
            "text_config_dict":{"num_hidden_layers":3,"eos_token_id":2},"vision_config_dict":null}"#)
        .unwrap();
        assert_eq!((spec.text.stack.hidden, spec.text.stack.layers, spec.text.end), (512, 3, None));
        assert_eq!((spec.width, spec.image.stack.layers), (64, 12));
    }

    #[test]
    fn em_3_what_cannot_be_computed_is_refused_by_name() {
        for (json, said) in [
            (r#"{"model_type":"bert"}"#, "'bert'"),
            (r#"{"model_type":"clip_vision_model"}"#, "no type of two towers"),
            (r#"{"model_type":"clip","vision_config":{"num_channels":4}}"#, "num_channels is 4"),
            (r#"{"model_type":"clip","vision_config":{"image_size":[224,336]}}"#, "no squares"),
            (r#"{"model_type":"clip","vision_config":{"image_size":8}}"#, "patch_size is 32"),
            (r#"{"model_type":"clip","text_config":{"hidden_act":"snake"}}"#, "snake"),
            (r#"{"model_type":"clip","text_config":{"num_attention_heads":7}}"#, "7 heads"),
            (r#"{"model_type":"siglip","vision_config":{"vision_use_head":false}}"#, "vision_use_head"),
            (r#"{"model_type":"siglip","text_config":{"projection_size":3}}"#, "3 numbers"),
            (r#"{"model_type":"siglip2","vision_config":{"num_patches":200}}"#, "no square"),
        ] {
            assert!(of(json).unwrap_err().to_string().contains(said), "{json}");
        }
    }
}
