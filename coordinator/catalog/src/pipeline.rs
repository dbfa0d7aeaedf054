//! Pipelines that paint: the folder of `diffusers`, its components, and the memory that they take.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model_boss_host::plain_file::{CONFIG, text_beside_weights};
use model_boss_protocol::{ByteCount, PICTURE_BYTES_PER_PIXEL};
use serde::Deserialize;
use serde_json::Value;

use super::files::ModelFile;
use super::headers::HeaderFacts;

/// `model_index.json`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PipelineIndex {
    /// The class of the pipeline.
    #[serde(rename = "_class_name")]
    pub(super) class: String,
    /// Components with their library and class, and settings.
    #[serde(flatten)]
    entries: BTreeMap<String, Value>,
}

/// Names of a component's weight files without their ending. The first one of which there are files counts, since
/// folders often have the same weights in two precisions.
const STEMS: [&str; 2] = ["diffusion_pytorch_model", "model"];

/// The marks of files in single and in half precision.
const PRECISIONS: [&str; 2] = ["", ".fp16"];

/// Components that are made of convolutions, which are kept in f32 whatever their files have.
const OF_CONVOLUTIONS: [&str; 2] = ["unet", "vae"];

/// The side of a picture where nothing tells it.
const UNKNOWN_SIDE: u64 = 1024;

impl PipelineIndex {
    /// The index of a folder; `None` where it has none that can be read.
    pub(super) fn read(source: &Path) -> Option<Self> {
        serde_json::from_str(&text_beside_weights(&source.join("model_index.json"), CONFIG)?).ok()
    }

    /// The components that have weights, by the names of their folders.
    fn components(&self) -> impl Iterator<Item = &str> {
        let is_part = |value: &Value| value.get(1).is_some_and(Value::is_string);
        self.entries.iter().filter(move |(_, value)| is_part(value)).map(|(name, _)| name.as_str())
    }
}

/// Bytes of a pipeline's weights in memory, and of the activations of a picture of its usual size.
pub(super) fn memory(source: &Path, files: &[ModelFile]) -> Option<(ByteCount, ByteCount)> {
    let index = PipelineIndex::read(source)?;
    let mut weights = ByteCount::ZERO;
    for component in index.components() {
        let used = weights_in(&source.join(component), files);
        let Some((bytes, is_narrow)) = HeaderFacts::weights_and_width(&used) else { continue };
        let in_f32 = is_narrow && OF_CONVOLUTIONS.contains(&component);
        weights = weights + if in_f32 { bytes + bytes } else { bytes };
    }
    (weights > ByteCount::ZERO).then(|| (weights, activations(&index, source)))
}

/// The weight files of a component that are read.
fn weights_in(folder: &Path, files: &[ModelFile]) -> Vec<ModelFile> {
    let name = |file: &ModelFile| file.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let here: Vec<&ModelFile> =
        files.iter().filter(|file| file.is_weights() && file.path().parent() == Some(folder)).collect();
    let named = |is: &dyn Fn(&str) -> bool| -> Vec<ModelFile> {
        here.iter().filter(|file| is(&name(file))).map(|file| (*file).clone()).collect()
    };
    for precision in PRECISIONS {
        for stem in STEMS {
            let whole = named(&|name| name == format!("{stem}{precision}.safetensors"));
            // Of files in parts the mark of the precision is in front of the number or behind it.
            let parts = || {
                let [front, behind] = [format!("{stem}{precision}-"), format!("{stem}-")];
                named(&|name| {
                    let is_half = name.contains(PRECISIONS[1]);
                    is_half != precision.is_empty() && (name.starts_with(&front) || name.starts_with(&behind))
                })
            };
            let used = if whole.is_empty() { parts() } else { whole };
            if !used.is_empty() {
                return used;
            }
        }
    }
    Vec::new()
}

/// Activations of one picture of the usual size.
fn activations(index: &PipelineIndex, source: &Path) -> ByteCount {
    let number = |component: &str, field: &str| -> Option<Value> {
        let path: PathBuf = source.join(component).join("config.json");
        let config: Value = serde_json::from_str(&text_beside_weights(&path, CONFIG)?).ok()?;
        config.get(field).cloned()
    };
    let sample = ["unet", "transformer"].into_iter().find_map(|part| number(part, "sample_size")?.as_u64());
    let levels = number("vae", "block_out_channels").and_then(|levels| levels.as_array().map(Vec::len));
    let factor = 1_u64 << levels.unwrap_or(4).clamp(1, 8).saturating_sub(1);
    let side = sample.map_or(UNKNOWN_SIDE, |sample| sample.saturating_mul(factor)).min(4096);
    // SD3 and FLUX paint larger pictures than their configurations say.
    let side = if index.class.starts_with("StableDiffusionP") { side } else { side.max(512) };
    ByteCount(side.saturating_mul(side).saturating_mul(PICTURE_BYTES_PER_PIXEL))
}

#[cfg(test)]
mod tests {
    use super::super::files::model_files;
    use super::*;

    /// A file with one tensor of so many numbers.
    fn tensor(path: &Path, kind: &str, count: usize) {
        let size = if kind == "F16" { 2 } else { 4 } * count;
        let head = format!(r#"{{"a":{{"dtype":"{kind}","shape":[1,{count}],"data_offsets":[0,{size}]}}}}"#);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let bytes = [&(head.len() as u64).to_le_bytes()[..], head.as_bytes(), &vec![0; size]].concat();
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn rc_25_a_pipelines_memory_is_that_of_the_weights_it_reads_and_of_a_picture() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let read = || memory(folder.path(), &model_files(folder.path()));
        assert_eq!(read(), None);
        let index = r#"{"_class_name":"StableDiffusionPipeline","_diffusers_version":"0.35.0","safety_checker":[null,null],
            "text_encoder":["transformers","CLIPTextModel"],"unet":["diffusers","UNet2DConditionModel"],"vae":["diffusers","AutoencoderKL"],"tokenizer":["transformers","CLIPTokenizer"]}"#;
        std::fs::write(path("model_index.json"), index).unwrap();
        assert_eq!(read(), None, "without weights nothing is known");
        tensor(&path("unet/diffusion_pytorch_model.safetensors"), "F32", 100);
        tensor(&path("unet/diffusion_pytorch_model.fp16.safetensors"), "F16", 100);
        tensor(&path("unet/diffusion_pytorch_model.non_ema.safetensors"), "F32", 100);
        tensor(&path("vae/diffusion_pytorch_model.fp16.safetensors"), "F16", 10);
        tensor(&path("text_encoder/model-00001-of-00002.fp16.safetensors"), "F16", 30);
        tensor(&path("text_encoder/model-00002-of-00002.fp16.safetensors"), "F16", 10);
        tensor(&path("v1-5-pruned.safetensors"), "F32", 1000);
        tensor(&path("safety_checker/model.safetensors"), "F32", 1000);
        std::fs::write(path("unet/config.json"), r#"{"sample_size":64}"#).unwrap();
        std::fs::write(path("vae/config.json"), r#"{"block_out_channels":[128,256,512,512]}"#).unwrap();
        let picture = ByteCount(512 * 512 * PICTURE_BYTES_PER_PIXEL);
        assert_eq!(read(), Some((ByteCount(400 + 40 + 80), picture)));
    }
}
