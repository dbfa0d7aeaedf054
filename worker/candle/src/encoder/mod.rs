//! Encoders: models that turn a text into a vector, or a pair of texts into a number for each label. Texts of several
//! requests are computed in one pass, without padding.

mod adapted;
pub(crate) mod attend;
mod bert;
mod decoder_judge;
mod decoder_rows;
pub(crate) mod distances;
pub(crate) mod facts;
pub(crate) mod family;
pub(crate) mod folder_file;
mod gguf;
mod gguf_facts;
mod keys;
mod labels;
mod layers;
mod modern;
mod parts;
mod pooling;
mod rotary_facts;
pub(crate) mod row_parts;
mod sentence_folder;
mod spec;
mod steps;
mod text_length;

use std::path::Path;
use std::sync::Arc;

use candle_core::Result as CandleResult;
use model_boss_engine::{
    AtPause, DecoderError, EncodedForm, EncoderInfo, EncoderText, LabelShares, PairForm, PausedEncoder, PlaceUse,
    TextEncoder,
};
use model_boss_protocol::{DeviceId, ENCODER_TYPES, KvCacheType};
use model_boss_weights::gguf::{GgufModel, TensorType};
use model_boss_weights::{gguf_file, layers_folder, model_folder};

use crate::device;
use crate::error::{LoadError, ModelError};
use crate::files::ModelFiles;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::spec::GgufSpecError;
use family::{EncoderBody, EncoderFamily, Pause};
use labels::{TaskTexts, activated, shares_of};
use modern::ModernSpec;
use parts::EncoderPart;
use pooling::{PoolStep, Pooling};
use sentence_folder::SentenceFolder;
use spec::EncoderSpec;
use steps::{LoadedStep, loaded_steps, ranges, shaped};

pub use decoder_judge::decoder_judge;
pub use decoder_rows::load_decoder_embedder;
pub(crate) use pooling::normalised;

/// An encoder whose weights are loaded.
struct LoadedEncoder {
    info: EncoderInfo,
    target: WeightTarget,
    body: Box<dyn EncoderBody>,
    steps: Vec<LoadedStep>,
    places: Arc<[PlaceUse]>,
}

/// The results that are asked of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderTask {
    /// The vector of a text.
    Vectors,
    /// A number for each of the labels of a classifier.
    Labels,
}

/// Whether a model's `config.json`, or its GGUF file, is that of an encoder.
pub fn is_encoder(source: &Path) -> bool {
    if let Ok(Some(file)) = gguf_file(source) {
        return GgufModel::open(&file).is_ok_and(|model| gguf_facts::is_encoder(&model));
    }
    let kind = ModelFiles::plain(&layers_folder(source)).ok().and_then(|(_, config)| facts::model_type(&config));
    kind.is_some_and(|kind| ENCODER_TYPES.contains(&kind.as_str()))
}

/// Loads an encoder and reports its progress, as a share from 0 to 1. The path is a folder with `config.json` and
/// safetensors, as `sentence-transformers` or `transformers` write it, or a GGUF file.
pub fn load_encoder(
    source: &Path,
    on: &DeviceId,
    task: EncoderTask,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn TextEncoder>, LoadError> {
    let device = device::open(on)?;
    let failed = |reason: ModelError| match reason {
        ModelError::Device(error) => LoadError::DeviceLost { device: on.clone(), why: error.to_string() },
        reason => LoadError::BadModel { model: source.to_owned(), reason: Box::new(reason) },
    };
    let read = || -> Result<LoadedEncoder, ModelError> {
        let DescribedEncoder { files, family, folder, shares: activated } = DescribedEncoder::open(source, task)?;
        let mut parts = family.parts(&files);
        if task == EncoderTask::Labels && folder.scores.is_none() {
            parts.extend(family.head_parts(&files));
        }
        let files = files.placing(parts.clone());
        let (expected, kinds) = checked(&files, &parts)?;
        // Its vectors would be wrong. A classifier's parts are of no use to them.
        if let Some(name) = files.unplaced().filter(|name| !name.starts_with("cls")) {
            let what = format!("a use for tensor `{}`", name.escape_debug());
            return Err(GgufSpecError::Unsupported(what).into());
        }
        let target = WeightTarget::of(device, &kinds, KvCacheType::Auto)
            .map_err(|reason| ModelError::Device(DecoderError::Step(reason.to_string())))?;
        let mut reader = WeightReader::new(&files, &target, expected, progress);
        let size = family.size();
        let longest = folder.max_tokens.unwrap_or(usize::MAX).min(size.longest);
        let body = family.read(&mut reader, longest, &target)?;
        let mut steps = loaded_steps(&folder, &target)?;
        let (mut width, mut labels, mut shares) = (folder.width(size.hidden), Vec::new(), LabelShares::default());
        if task == EncoderTask::Labels {
            let (names, how) = family.labels();
            let count = folder.scores.unwrap_or(names.len());
            (width, labels) = (count, names.to_vec());
            shares = activated.unwrap_or(how);
            if count != names.len() {
                labels = (0..count).map(|label| format!("LABEL_{label}")).collect();
                shares = activated.unwrap_or(shares_of(count == 1));
            }
            if folder.scores.is_none() {
                steps.extend(family.read_head(&mut reader)?);
            }
        }
        let weight_bytes = reader.bytes();
        let place = PlaceUse::new(on.clone(), 0..size.layers, (weight_bytes, 0), (0, 0));
        let info = EncoderInfo {
            vocab_size: size.vocabulary,
            max_tokens: longest,
            width,
            labels,
            shares,
            pairs: PairForm::Joined,
            weight_bytes,
            workspace_bytes: 0,
            kv_tokens: Some(0),
            prompts: folder.prompts.clone(),
            default_prompt: folder.default_prompt.clone(),
            leaves_prompts_out: folder.leaves_prompts_out,
            tasks: family.tasks().to_vec(),
        };
        drop(reader);
        Ok(LoadedEncoder { info, target, body, steps, places: [place].into() })
    };
    Ok(Box::new(read().map_err(failed)?))
}

/// The family of a `config.json`.
fn family_of(config: &[u8]) -> Result<Box<dyn EncoderFamily>, ModelError> {
    Ok(match facts::model_type(config).as_deref() {
        Some("modernbert") => Box::new(ModernSpec::from_config(config)?),
        _ => Box::new(EncoderSpec::from_config(config)?),
    })
}

/// A model's description, and its files.
struct DescribedEncoder {
    files: ModelFiles,
    family: Box<dyn EncoderFamily>,
    folder: SentenceFolder,
    /// How a judge's numbers become shares, where its files say it by a function.
    shares: Option<LabelShares>,
}

impl DescribedEncoder {
    fn open(source: &Path, task: EncoderTask) -> Result<Self, ModelError> {
        let pooled = |family: &dyn EncoderFamily| vec![PoolStep::Pool(vec![family.classifier_pooling()])];
        if let Some(file) = gguf_file(source)? {
            let model = GgufModel::open(&file)?;
            let family = gguf_facts::family_of(&model)?;
            let folder = match task {
                EncoderTask::Vectors => gguf::described(&file, &model, Pooling::Mean)?,
                EncoderTask::Labels => SentenceFolder::plain(model_folder(&file), pooled(family.as_ref()))?,
            };
            return Ok(Self { files: ModelFiles::of_gguf(model), family, folder, shares: None });
        }
        let (files, config) = ModelFiles::plain(&layers_folder(source))?;
        let family = family_of(&config)?;
        let mut folder = match task {
            EncoderTask::Vectors => SentenceFolder::read(model_folder(source), Pooling::Mean)?,
            EncoderTask::Labels => match SentenceFolder::judging(model_folder(source))? {
                Some(folder) => folder,
                None => SentenceFolder::plain(model_folder(source), pooled(family.as_ref()))?,
            },
        };
        let shares = match task {
            EncoderTask::Vectors => None,
            EncoderTask::Labels => activated(&config, folder.activation.as_deref())?,
        };
        let texts = TaskTexts::read(&config).task_instructions.into_iter();
        for (task, text) in texts.filter(|(task, _)| family.tasks().contains(task)) {
            folder.prompts.entry(task).or_insert(text);
        }
        Ok(Self { files, family, folder, shares })
    }
}

/// The bytes of all parts, and the types of their matrices. A part that is missing or has another shape is an error.
fn checked(files: &ModelFiles, parts: &[EncoderPart]) -> Result<(u64, Vec<TensorType>), ModelError> {
    let (mut bytes, mut kinds) = (0, Vec::new());
    for (name, _, shape) in parts {
        let stored = files.get(name)?;
        if stored.shape != *shape {
            let what = format!("has the shape {:?} in place of {shape:?}", stored.shape);
            return Err(ModelError::Tensor { name: files.spelled(name).into_owned(), what });
        }
        bytes += stored.len();
        if shape.len() == 2 {
            kinds.push(stored.kind);
        }
    }
    Ok((bytes, kinds))
}

impl LoadedEncoder {
    fn computed(
        &self,
        texts: &[EncoderText<'_>],
        form: EncodedForm,
        pause: Pause<'_>,
    ) -> Result<Vec<Vec<Vec<f32>>>, DecoderError> {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        self.info.check(texts)?;
        // On one of the threads that share the products.
        let computed = match self.target.device.is_cpu() {
            true => rayon::scope(|_| self.vectors(texts, form, pause)),
            false => self.vectors(texts, form, pause),
        };
        computed.map_err(|error| device::failure(&error))
    }

    fn vectors(
        &self,
        texts: &[EncoderText<'_>],
        form: EncodedForm,
        pause: Pause<'_>,
    ) -> CandleResult<Vec<Vec<Vec<f32>>>> {
        let same = |text: &EncoderText<'_>| text.task == texts[0].task;
        if texts.iter().all(same) {
            let rows = self.body.rows(texts, &ranges(texts), pause)?;
            return shaped(&rows, texts, &self.steps, form);
        }
        // Each task by itself.
        let mut vectors = vec![Vec::new(); texts.len()];
        let mut tasks: Vec<Option<usize>> = texts.iter().map(|text| text.task).collect();
        tasks.sort_unstable();
        tasks.dedup();
        for task in tasks {
            let of_task = || texts.iter().enumerate().filter(|(_, text)| text.task == task);
            let alike: Vec<EncoderText<'_>> = of_task().map(|(_, text)| *text).collect();
            for ((at, _), rows) in of_task().zip(self.vectors(&alike, form, pause)?) {
                vectors[at] = rows;
            }
        }
        Ok(vectors)
    }
}

impl TextEncoder for LoadedEncoder {
    fn info(&self) -> &EncoderInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::clone(&self.places)
    }

    fn encode(&mut self, texts: &[EncoderText<'_>]) -> Result<Vec<Vec<f32>>, DecoderError> {
        Ok(self.encode_as(texts, EncodedForm::Whole)?.into_iter().flatten().collect())
    }

    fn has_form(&self, _: EncodedForm) -> bool {
        true
    }

    fn encode_as(&mut self, texts: &[EncoderText<'_>], form: EncodedForm) -> Result<Vec<Vec<Vec<f32>>>, DecoderError> {
        self.computed(texts, form, &|| {})
    }

    fn encode_pausing(
        &mut self,
        texts: &[EncoderText<'_>],
        form: EncodedForm,
        at_pause: AtPause<'_>,
    ) -> Result<Vec<Vec<Vec<f32>>>, DecoderError> {
        let encoder: &Self = self;
        self.computed(texts, form, &|| at_pause(encoder))
    }
}

impl PausedEncoder for LoadedEncoder {
    fn encode_now(&self, texts: &[EncoderText<'_>], form: EncodedForm) -> Result<Vec<Vec<Vec<f32>>>, DecoderError> {
        self.computed(texts, form, &|| {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_1_every_type_that_the_coordinator_sends_here_is_known() {
        for kind in ENCODER_TYPES {
            let json = format!(
                r#"{{"model_type":"{kind}","hidden_size":12,"num_attention_heads":3,"num_hidden_layers":2,"vocab_size":9,
                "intermediate_size":8,"max_position_embeddings":40}}"#
            );
            assert!(family_of(json.as_bytes()).is_ok(), "{kind}");
        }
    }
}
