//! Models that turn texts and images into vectors that can be compared: CLIP, SigLIP and SigLIP 2. The tower that reads
//! images serves models that write text about images, too.

pub(crate) mod image_tower;
mod pooling_head;
mod positions;
pub(crate) mod stack;
mod text_files;
mod text_tower;
pub(crate) mod tower_spec;

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Result as CandleResult, Tensor};
use model_boss_engine::{
    DecoderError, EncoderInfo, EncoderText, LabelShares, PairForm, PlaceUse, SightInfo, TextEncoder,
};
use model_boss_images::{NewSize, PixelPlan, PixelPlanes, PixelSteps, image_processor_fields};
use model_boss_protocol::{DeviceId, KvCacheType};
use model_boss_weights::{model_folder, towers_folder};

use crate::device;
use crate::encoder::normalised;
use crate::error::{LoadError, ModelError};
use crate::files::ModelFiles;
use crate::layers::linear::{Bias, Linear};
use crate::layers::named_weights::NamedWeights;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::spec::ConfigJsonError;
use image_tower::ImageTower;
use stack::TowerPart;
use text_files::{TextFiles, bytes};
use text_tower::TextTower;
use tower_spec::{TowerKind, TowersSpec};

/// The limit on each of a folder's small files, in bytes.
const LONGEST: u64 = 4 << 20;

/// Two towers whose weights are loaded.
struct LoadedTowers {
    info: EncoderInfo,
    sight: SightInfo,
    target: WeightTarget,
    text: TextTower,
    image: ImageTower,
    /// CLIP's last products, of texts and of images.
    projections: Option<[Linear; 2]>,
    places: Arc<[PlaceUse]>,
}

/// Loads two towers and reports the progress, as a share from 0 to 1. The path is a folder of `transformers`, or one of
/// `sentence-transformers` whose first module is such a folder.
pub fn load_towers(
    source: &Path,
    on: &DeviceId,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn TextEncoder>, LoadError> {
    let device = device::open(on)?;
    let failed = |reason: ModelError| match reason {
        ModelError::Device(error) => LoadError::DeviceLost { device: on.clone(), why: error.to_string() },
        reason => LoadError::BadModel { model: source.to_owned(), reason: Box::new(reason) },
    };
    let read = || -> Result<LoadedTowers, ModelError> {
        let source = towers_folder(source);
        let (files, config) = ModelFiles::plain(&source)?;
        let spec = TowersSpec::from_config(&config)?;
        let folder = model_folder(&source);
        let texts = TextFiles::read(folder, &spec.text)?;
        let pixels = pixel_steps(folder, &spec)?;
        let parts = parts_of(&spec, &files);
        let mut expected = 0;
        let mut kinds = Vec::new();
        for (name, shape) in &parts {
            let stored = files.get(name)?;
            if stored.shape != *shape {
                let what = format!("has the shape {:?} in place of {shape:?}", stored.shape);
                return Err(ModelError::Tensor { name: name.clone(), what });
            }
            expected += stored.len();
            if shape.len() == 2 {
                kinds.push(stored.kind);
            }
        }
        let target = WeightTarget::of(device, &kinds, KvCacheType::Auto)
            .map_err(|reason| ModelError::Device(DecoderError::Step(reason.to_string())))?;
        let mut reader = WeightReader::new(&files, &target, expected, progress);
        let text = TextTower::read(&mut reader, &spec.text, &target, (TEXT, texts.fill))?;
        let image = ImageTower::read(&mut reader, &spec.image, &target, IMAGE)?;
        let projections = match spec.image.kind {
            TowerKind::Clip => Some([
                Linear::read(&mut reader, TEXT_PROJECTION, Bias::Without)?,
                Linear::read(&mut reader, IMAGE_PROJECTION, Bias::Without)?,
            ]),
            TowerKind::Siglip | TowerKind::SiglipPatches => None,
        };
        let scale = number(&mut reader, SCALE)?.exp();
        let bias = if projections.is_some() { 0.0 } else { number(&mut reader, BIAS)? };
        let weight_bytes = reader.bytes();
        drop(reader);
        let layers = spec.text.stack.layers + spec.image.stack.layers;
        let info = EncoderInfo {
            vocab_size: spec.text.vocabulary,
            max_tokens: if projections.is_some() { spec.text.positions } else { texts.fill.length },
            width: spec.width,
            labels: Vec::new(),
            shares: LabelShares::default(),
            pairs: PairForm::Joined,
            weight_bytes,
            workspace_bytes: 0,
            kv_tokens: Some(0),
            prompts: std::collections::BTreeMap::new(),
            default_prompt: None,
            leaves_prompts_out: false,
            tasks: Vec::new(),
        };
        let sight = SightInfo {
            pixels,
            patch: spec.image.patch,
            rows_before: spec.image.rows_before(),
            scale,
            bias,
            shares: if projections.is_some() { LabelShares::Together } else { LabelShares::Apart },
            text_rows: if projections.is_some() { 0 } else { texts.fill.length },
            letters: texts.letters,
            end: texts.end,
        };
        let place = PlaceUse::new(on.clone(), 0..layers, (weight_bytes, 0), (0, 0));
        Ok(LoadedTowers { info, sight, target, text, image, projections, places: [place].into() })
    };
    Ok(Box::new(read().map_err(failed)?))
}

const TEXT: &str = "text_model.";
const IMAGE: &str = "vision_model.";
const TEXT_PROJECTION: &str = "text_projection";
const IMAGE_PROJECTION: &str = "visual_projection";
const SCALE: &str = "logit_scale";
const BIAS: &str = "logit_bias";

/// Every tensor with its shape. The two numbers may be stored with a dimension or without.
fn parts_of(spec: &TowersSpec, files: &ModelFiles) -> Vec<TowerPart> {
    let mut parts = spec.text.parts(TEXT);
    parts.extend(spec.image.parts(IMAGE));
    let stored = |name: &str| {
        let shape = files.get(name).ok().map(|stored| stored.shape.clone());
        (name.to_owned(), shape.filter(|shape| shape.iter().all(|size| *size == 1)).unwrap_or_default())
    };
    parts.push(stored(SCALE));
    match spec.image.kind {
        TowerKind::Clip => {
            parts.push((format!("{TEXT_PROJECTION}.weight"), vec![spec.width, spec.text.stack.hidden]));
            parts.push((format!("{IMAGE_PROJECTION}.weight"), vec![spec.width, spec.image.stack.hidden]));
        }
        TowerKind::Siglip | TowerKind::SiglipPatches => parts.push(stored(BIAS)),
    }
    parts
}

/// One number of the file.
fn number(reader: &mut WeightReader<'_>, name: &str) -> Result<f32, ModelError> {
    let tensor = reader.tensor(name)?;
    let read = || tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
    let numbers = read().map_err(|error| ModelError::Device(device::failure(&error)))?;
    numbers.first().copied().ok_or_else(|| ModelError::Tensor { name: name.to_owned(), what: "is empty".to_owned() })
}

/// The steps of images, which have to give the size that the tower reads.
fn pixel_steps(folder: &Path, spec: &TowersSpec) -> Result<PixelSteps, ModelError> {
    let bad = |what: String| ModelError::Config(ConfigJsonError::Malformed(what));
    let processor = bytes(&folder.join("processor_config.json"), LONGEST)?;
    let preprocessor = bytes(&folder.join("preprocessor_config.json"), LONGEST)?;
    let fields = image_processor_fields(processor.as_deref(), preprocessor.as_deref());
    let fields = fields.map_err(|error| bad(format!("preprocessor_config.json: {error}")))?;
    let fields = fields.ok_or_else(|| {
        bad("preprocessor_config.json is missing: without it, nothing says how images become numbers".to_owned())
    })?;
    let usual = match spec.image.kind {
        TowerKind::Clip => PixelPlan::CLIP,
        TowerKind::Siglip => PixelPlan::SIGLIP,
        TowerKind::SiglipPatches => PixelPlan::SIGLIP_PATCHES,
    };
    let named =
        fields.get("image_processor_type").or(fields.get("feature_extractor_type")).filter(|name| !name.is_null());
    let plan = match named {
        None => usual,
        Some(name) => name
            .as_str()
            .and_then(PixelPlan::of_processor)
            .ok_or_else(|| bad(format!("preprocessor_config.json: the image processor {name} is not known")))?,
    };
    let steps = plan.steps(&fields).map_err(|error| bad(error.to_string()))?;
    if matches!(steps.size, Some(NewSize::Patches { .. })) != (spec.image.kind == TowerKind::SiglipPatches) {
        return Err(bad("preprocessor_config.json: the image processor is for another kind of tower".to_owned()));
    }
    let side = spec.image.side;
    let given = match (steps.crop, steps.size) {
        (Some((height, width)), _) => format!("{height}x{width}"),
        (None, Some(NewSize::Sides { height, width })) => format!("{height}x{width}"),
        (None, Some(NewSize::Patches { side, .. })) if side == spec.image.patch => return Ok(steps),
        (None, Some(NewSize::Patches { side, .. })) => {
            let patch = spec.image.patch;
            return Err(bad(format!("preprocessor_config.json: patch_size is {side}, and the model's is {patch}")));
        }
        _ => "many sizes".to_owned(),
    };
    if given != format!("{side}x{side}") {
        let what = format!("preprocessor_config.json: images become {given} pixels, and the model reads {side}x{side}");
        return Err(bad(what));
    }
    Ok(steps)
}

impl LoadedTowers {
    /// Vectors of length 1, `[rows, width]`.
    fn vectors(&self, pooled: &Tensor, projection: usize) -> CandleResult<Vec<Vec<f32>>> {
        let vectors = match &self.projections {
            Some(projections) => projections[projection].forward(pooled)?,
            None => pooled.clone(),
        };
        normalised(&vectors.to_dtype(DType::F32)?)?.to_vec2()
    }

    fn on_threads(
        &self,
        compute: impl FnOnce() -> CandleResult<Vec<Vec<f32>>> + Send,
    ) -> Result<Vec<Vec<f32>>, DecoderError> {
        // On one of the threads that share the products.
        let computed = if self.target.device.is_cpu() { rayon::scope(|_| compute()) } else { compute() };
        computed.map_err(|error| device::failure(&error))
    }
}

impl TextEncoder for LoadedTowers {
    fn info(&self) -> &EncoderInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::clone(&self.places)
    }

    fn encode(&mut self, texts: &[EncoderText<'_>]) -> Result<Vec<Vec<f32>>, DecoderError> {
        self.info.check(texts)?;
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let texts: Vec<&[u32]> = texts.iter().map(|text| text.tokens).collect();
        self.on_threads(|| self.vectors(&self.text.pooled(&texts)?, 0))
    }

    fn sight(&self) -> Option<&SightInfo> {
        Some(&self.sight)
    }

    fn encode_images(&mut self, images: &[&PixelPlanes]) -> Result<Vec<Vec<f32>>, DecoderError> {
        let is_wrong = |image: &&PixelPlanes| {
            let side = self.sight.patch;
            image.values.len() != 3 * image.height * image.width || image.height < side || image.width < side
        };
        if images.iter().any(is_wrong) {
            return Err(DecoderError::Step("an image has another size than the model reads".to_owned()));
        }
        if images.is_empty() {
            return Ok(Vec::new());
        }
        self.on_threads(|| self.vectors(&self.image.pooled(images)?, 1))
    }
}

#[cfg(test)]
mod tests;
