//! The facts about images in the files of a model that sees: `config.json`, and the processor's files beside it.

use std::path::Path;

use model_boss_images::{ImagePlanError, Resample, image_processor_fields, number_of, numbers_of};
use model_boss_weights::{SmallFileError, model_folder, read_small_file};
use serde_json::{Map, Value};

use crate::error::ModelError;
use crate::files::{ModelFiles, read_config};
use crate::spec::ConfigJsonError;
use crate::spec::fact_error::FactError;
use crate::spec::facts::ConfigFacts;

/// The most bytes of a processor's file.
const LONGEST_FILE: u64 = 1 << 20;
/// The most bytes of `tokenizer_config.json`.
const LONGEST_CONFIG: u64 = 16 << 20;

/// The files of one model.
pub(crate) struct SightConfig {
    pub(crate) model_type: String,
    /// All of `config.json`.
    pub(crate) whole: ConfigFacts,
    /// Its part about the tower.
    pub(crate) vision: ConfigFacts,
    /// The image processor's fields.
    pub(crate) images: Value,
    /// The fields of `processor_config.json`.
    pub(crate) processor: Value,
    /// The fields of `tokenizer_config.json`.
    tokenizer: Value,
}

impl SightConfig {
    /// Reads the files of a source; none without a tower's description.
    pub(crate) fn read(source: &Path) -> Result<Option<Self>, ModelError> {
        let malformed = |name: &str, error: serde_json::Error| {
            let what = format!("{name}: {error}");
            ModelError::Config(ConfigJsonError::Malformed(what))
        };
        let whole: Value =
            serde_json::from_slice(&read_config(source)?).map_err(|error| malformed("config.json", error))?;
        let Value::Object(whole) = whole else { return Ok(None) };
        let part = |name: &str| match whole.get(name) {
            Some(Value::Object(fields)) => Some(ConfigFacts::plain(fields.clone())),
            _ => None,
        };
        let (Some(vision), Some(Value::String(model_type))) = (part("vision_config"), whole.get("model_type")) else {
            return Ok(None);
        };
        let folder = model_folder(source);
        let file =
            |name: &str| read_small_file(&folder.join(name), LONGEST_FILE).map_err(|error| unreadable(name, error));
        let (processor, preprocessor) = (file("processor_config.json")?, file("preprocessor_config.json")?);
        let images = image_processor_fields(processor.as_deref(), preprocessor.as_deref())
            .map_err(|error| malformed("the image processor's fields", error))?;
        let processor: Option<Value> = processor
            .map(|text| serde_json::from_slice(&text))
            .transpose()
            .map_err(|error| malformed("processor_config.json", error))?;
        // Its list of added tokens may be long.
        let tokenizer = read_small_file(&folder.join("tokenizer_config.json"), LONGEST_CONFIG);
        let tokenizer = tokenizer.map_err(|error| unreadable("tokenizer_config.json", error))?;
        let tokenizer: Option<Value> = tokenizer
            .map(|text| serde_json::from_slice(&text))
            .transpose()
            .map_err(|error| malformed("tokenizer_config.json", error))?;
        let nothing = || Value::Object(Map::new());
        Ok(Some(Self {
            model_type: model_type.clone(),
            vision,
            whole: ConfigFacts::plain(whole),
            images: images.unwrap_or_else(nothing),
            processor: processor.unwrap_or_else(nothing),
            tokenizer: tokenizer.unwrap_or_else(nothing),
        }))
    }

    /// A token's name in the tokenizer's file.
    pub(crate) fn token_name(&self, key: &str) -> Option<&str> {
        let inner = |name: &str| self.tokenizer.get(name)?.get(key);
        let value = self
            .tokenizer
            .get(key)
            .or_else(|| inner("extra_special_tokens"))
            .or_else(|| inner("model_specific_special_tokens"))?;
        value.as_str().or_else(|| value.get("content")?.as_str())
    }

    /// A whole number of the tower's description.
    pub(crate) fn vision_number(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        Ok(self.vision.number(key).map_err(wrong)?.unwrap_or(default))
    }

    /// The token at the places of images.
    pub(crate) fn image_token(&self, default: u32) -> Result<u32, ModelError> {
        for key in ["image_token_id", "image_token_index"] {
            if let Some(token) = self.whole.number(key).map_err(wrong)? {
                return u32::try_from(token).map_err(|_| wrong_image(key, "is no token"));
            }
        }
        Ok(default)
    }

    /// The filter that images are resized by.
    pub(crate) fn resample(&self, default: Resample) -> Result<Resample, ModelError> {
        let Some(number) = number_of(&self.images, "resample").map_err(wrong_plan)? else { return Ok(default) };
        Resample::of_number(number as u64).ok_or_else(|| wrong_image("resample", "is no filter of Pillow's"))
    }

    /// A whole number of the image processor's fields, at least 1.
    pub(crate) fn image_number(&self, field: &str) -> Result<Option<usize>, ModelError> {
        match number_of(&self.images, field).map_err(wrong_plan)? {
            Some(number) if number >= 1.0 && number <= f64::from(u32::MAX) => Ok(Some(number as usize)),
            Some(_) => Err(wrong_image(field, "has to be at least 1")),
            None => Ok(None),
        }
    }

    /// A choice of the image processor's fields.
    pub(crate) fn image_flag(&self, field: &str, default: bool) -> Result<bool, ModelError> {
        match self.images.get(field) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(wrong_image(field, "has to be true or false")),
        }
    }

    /// The factor of bytes, and the mean and deviation of colours, each where it is used.
    pub(crate) fn scale(&self, normal: ([f32; 3], [f32; 3])) -> Result<PixelNumbers, ModelError> {
        let numbers = |field: &str, default: [f32; 3]| -> Result<[f32; 3], ModelError> {
            Ok(numbers_of(&self.images, field).map_err(wrong_plan)?.unwrap_or(default))
        };
        let factor = number_of(&self.images, "rescale_factor").map_err(wrong_plan)?.unwrap_or(1.0 / 255.0);
        if !(factor.is_finite() && factor > 0.0) {
            return Err(wrong_image("rescale_factor", "has to be above 0"));
        }
        let normal = (numbers("image_mean", normal.0)?, numbers("image_std", normal.1)?);
        if normal.1.contains(&0.0) {
            return Err(wrong_image("image_std", "must not have a 0"));
        }
        let factor = self.image_flag("do_rescale", true)?.then_some(factor);
        Ok((factor, self.image_flag("do_normalize", true)?.then_some(normal)))
    }
}

/// The factor of bytes, and the mean and deviation of colours.
pub(crate) type PixelNumbers = (Option<f64>, Option<([f32; 3], [f32; 3])>);

/// The first of some names of a tensor that the files have, without what is behind it.
pub(crate) fn prefix(files: &ModelFiles, prefixes: &[&str], name: &str) -> Option<String> {
    prefixes.iter().find(|prefix| files.has(&format!("{prefix}{name}"))).map(|prefix| (*prefix).to_owned())
}

/// A fault of a fact of `config.json`.
pub(crate) fn wrong(error: FactError) -> ModelError {
    ModelError::Config(error.into())
}

/// A field of `config.json` that this build does not have.
pub(crate) fn unsupported(what: String) -> ModelError {
    ModelError::Config(ConfigJsonError::Unsupported(what))
}

/// A fault of a field of the processor's files.
pub(crate) fn wrong_plan(error: ImagePlanError) -> ModelError {
    ModelError::Config(ConfigJsonError::Unsupported(format!("an image processor that cannot be used ({error})")))
}

fn wrong_image(field: &str, what: &str) -> ModelError {
    wrong_plan(ImagePlanError::new(field, what))
}

fn unreadable(name: &str, error: SmallFileError) -> ModelError {
    match error {
        SmallFileError::Read { path, source } => ModelError::ReadConfig { path, source },
        other => ModelError::Config(ConfigJsonError::Malformed(format!("{name}: {other}"))),
    }
}
