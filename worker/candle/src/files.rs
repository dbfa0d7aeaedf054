//! A model's files, independent of their format: the model's description, and tensors by the names of safetensors. The
//! module computes nothing.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use model_boss_weights::gguf::{GgufModel, TensorType};
use model_boss_weights::store::Extent;
use model_boss_weights::{
    Dtype, MappedWeights, SmallFileError, TensorIndex, WeightsError, gguf_file, model_folder, read_small_file,
};

use crate::error::ModelError;
use crate::spec::DecoderSpec;
use crate::spec::config::ConfigJsonError;
use crate::spec::tensors::{Needed, in_gguf};

/// The limit on `config.json` in bytes. A longer file is no such configuration.
const LONGEST_CONFIG: u64 = 16 << 20;

/// The weight files of one model.
pub(crate) enum ModelFiles {
    Safetensors(MappedWeights),
    Gguf(GgufModel),
}

/// A tensor in its stored form.
pub(crate) struct FileTensor<'a> {
    pub(crate) kind: TensorType,
    pub(crate) shape: &'a [usize],
    pub(crate) bytes: &'a [u8],
}

impl FileTensor<'_> {
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64
    }
}

impl ModelFiles {
    /// Finds and maps the weights of a source, and reads the model's description.
    pub(crate) fn open(source: &Path) -> Result<(Self, DecoderSpec), ModelError> {
        if let Some(file) = gguf_file(source)? {
            let model = GgufModel::open(&file)?;
            let spec = DecoderSpec::from_gguf(&model)?;
            return Ok((Self::Gguf(model), spec));
        }
        let spec = DecoderSpec::from_config(&read_config(source)?)?;
        Ok((Self::Safetensors(MappedWeights::map(TensorIndex::open(source)?)?), spec))
    }

    /// A tensor's name in these files.
    pub(crate) fn spelled<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match self {
            Self::Safetensors(_) => name.into(),
            Self::Gguf(_) => in_gguf(name).into(),
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        let name = self.spelled(name);
        match self {
            Self::Safetensors(weights) => weights.index().get(&name).is_some(),
            Self::Gguf(model) => model.get(&name).is_some(),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Result<FileTensor<'_>, ModelError> {
        let name = self.spelled(name);
        match self {
            Self::Safetensors(weights) => {
                let entry = weights.index().require(&name)?;
                let kind = match entry.dtype {
                    Dtype::F32 => TensorType::F32,
                    Dtype::F16 => TensorType::F16,
                    Dtype::BF16 => TensorType::BF16,
                    other => {
                        let what = format!("is stored as {other}; this build reads F32, F16 and BF16");
                        return Err(ModelError::Tensor { name: name.into_owned(), what });
                    }
                };
                Ok(FileTensor { kind, shape: &entry.shape, bytes: weights.bytes(&name)? })
            }
            Self::Gguf(model) => match model.get(&name) {
                Some(tensor) => Ok(FileTensor { kind: tensor.kind, shape: &tensor.shape, bytes: model.bytes(tensor) }),
                None => Err(WeightsError::MissingTensor { tensor: name.into_owned() }.into()),
            },
        }
    }

    /// The place of the tensor of this name: the index in [`Self::paths`], and the range in that file.
    pub(crate) fn extent(&self, name: &str) -> Result<Extent, ModelError> {
        let name = self.spelled(name);
        match self {
            Self::Safetensors(weights) => {
                let entry = weights.index().require(&name)?;
                Ok(Extent { file: entry.file.index(), offset: entry.range.start, len: entry.bytes() })
            }
            Self::Gguf(model) => match model.get(&name) {
                Some(tensor) => Ok(tensor.extent()),
                None => Err(WeightsError::MissingTensor { tensor: name.into_owned() }.into()),
            },
        }
    }

    /// The smallest share of any file that is in the page cache, from 0 to 1, as far as the system reports it.
    pub(crate) fn cached_share(&self) -> f64 {
        match self {
            Self::Safetensors(weights) => weights.cached_share(),
            Self::Gguf(model) => model.cached_share(),
        }
    }

    /// Requests that a piece of a file be read ahead. It has at most [`model_boss_weights::ASKED_AT_ONCE`] bytes.
    pub(crate) fn will_need(&self, piece: Extent) {
        match self {
            Self::Safetensors(weights) => weights.will_need(piece),
            Self::Gguf(model) => model.will_need(piece),
        }
    }

    /// The paths of the weight files.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::Safetensors(weights) => weights.index().files().iter().map(|file| file.path.clone()).collect(),
            Self::Gguf(model) => model.files().iter().map(|file| file.path().to_owned()).collect(),
        }
    }

    /// A tensor that the spec needs, after a check of its shape.
    pub(crate) fn check(&self, needed: &Needed) -> Result<FileTensor<'_>, ModelError> {
        let stored = self.get(&needed.name)?;
        if stored.shape == needed.shape {
            return Ok(stored);
        }
        let origin = match self {
            Self::Safetensors(_) => "config.json makes",
            Self::Gguf(_) => "the metadata make",
        };
        let what = format!("has the shape {:?}, {origin} it {:?}", stored.shape, needed.shape);
        Err(ModelError::Tensor { name: self.spelled(&needed.name).into_owned(), what })
    }
}

fn read_config(source: &Path) -> Result<Vec<u8>, ModelError> {
    let path = model_folder(source).join("config.json");
    let missing = || ModelError::ReadConfig { path: path.clone(), source: io::ErrorKind::NotFound.into() };
    match read_small_file(&path, LONGEST_CONFIG) {
        Ok(json) => json.ok_or_else(missing),
        Err(SmallFileError::Read { path, source }) => Err(ModelError::ReadConfig { path, source }),
        Err(error @ (SmallFileError::NotRegular(_) | SmallFileError::TooLarge { .. })) => {
            Err(ConfigJsonError::Malformed(error.to_string()).into())
        }
    }
}
