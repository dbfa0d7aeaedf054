//! A model's files, independent of their format: the model's description, and tensors by the names of safetensors. The
//! module computes nothing.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model_boss_weights::gguf::{GgufModel, TensorType};
use model_boss_weights::quantised::{BLOCKS_FILE, QuantisedMatrix, QuantisedModel, QuantisedStore};
use model_boss_weights::store::{self, Extent, WeightStore, WeightStoreChoice, WeightStoreError};
use model_boss_weights::{
    Dtype, MappedWeights, SmallFileError, TensorIndex, WeightsError, gguf_file, model_folder, read_small_file,
};

use rayon::prelude::*;

use crate::error::ModelError;
use crate::spec::DecoderSpec;
use crate::spec::config::ConfigJsonError;
use crate::spec::tensors::{Needed, in_gguf};

/// The limit on `config.json` in bytes. A longer file is no such configuration.
const LONGEST_CONFIG: u64 = 16 << 20;

/// The weight files of one model.
pub(crate) enum ModelFiles {
    Safetensors(MappedWeights),
    /// Safetensors with quantised matrices, which are read as blocks.
    Quantised(Arc<QuantisedModel>),
    Gguf(GgufModel),
}

/// Rows of a quantised matrix that one thread puts into blocks at a time.
const ROWS_TOGETHER: usize = 128;

/// A tensor in its stored form, or the blocks of a quantised matrix.
pub(crate) struct FileTensor<'a> {
    pub(crate) kind: TensorType,
    pub(crate) shape: &'a [usize],
    content: TensorContent<'a>,
}

#[derive(Clone)]
enum TensorContent<'a> {
    Stored(&'a [u8]),
    Blocks(&'a QuantisedModel, String, u64),
}

impl<'a> FileTensor<'a> {
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> u64 {
        match &self.content {
            TensorContent::Stored(bytes) => bytes.len() as u64,
            TensorContent::Blocks(.., len) => *len,
        }
    }

    /// The bytes. Those of a quantised matrix are made by this call, on all threads.
    pub(crate) fn bytes(&self) -> Result<Cow<'a, [u8]>, ModelError> {
        let (model, name, len) = match &self.content {
            TensorContent::Stored(bytes) => return Ok(Cow::Borrowed(bytes)),
            TensorContent::Blocks(model, name, len) => (model, name, *len),
        };
        let rows = self.shape.first().copied().unwrap_or(0);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let row_bytes = bytes.len() / rows.max(1);
        let write = |(at, into): (usize, &mut [u8])| {
            let first = at * ROWS_TOGETHER;
            let rows: Range<usize> = first..rows.min(first + ROWS_TOGETHER);
            model.write_rows(name, rows, into)
        };
        bytes.par_chunks_mut((ROWS_TOGETHER * row_bytes).max(1)).enumerate().try_for_each(write)?;
        Ok(bytes.into())
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
        let (spec, format) = DecoderSpec::from_config(&read_config(source)?)?;
        let weights = MappedWeights::map(TensorIndex::open(source)?)?;
        let files = match format {
            Some(format) => Self::Quantised(Arc::new(QuantisedModel::new(weights, format)?)),
            None => Self::Safetensors(weights),
        };
        Ok((files, spec))
    }

    /// A tensor's name in these files.
    pub(crate) fn spelled<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match self {
            Self::Safetensors(_) | Self::Quantised(_) => name.into(),
            Self::Gguf(_) => in_gguf(name).into(),
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        let name = self.spelled(name);
        match self {
            Self::Safetensors(weights) => weights.index().get(&name).is_some(),
            Self::Quantised(model) => model.get(&name).is_some() || model.weights().index().get(&name).is_some(),
            Self::Gguf(model) => model.get(&name).is_some(),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Result<FileTensor<'_>, ModelError> {
        let name = self.spelled(name);
        match self {
            Self::Safetensors(weights) => plain(weights, &name),
            Self::Quantised(model) => match model.get(&name) {
                Some(QuantisedMatrix { kind, shape, bytes, .. }) => {
                    let content = TensorContent::Blocks(model, name.into_owned(), *bytes);
                    Ok(FileTensor { kind: *kind, shape, content })
                }
                None => plain(model.weights(), &name),
            },
            Self::Gguf(model) => match model.get(&name) {
                Some(tensor) => {
                    let content = TensorContent::Stored(model.bytes(tensor));
                    Ok(FileTensor { kind: tensor.kind, shape: &tensor.shape, content })
                }
                None => Err(WeightsError::MissingTensor { tensor: name.into_owned() }.into()),
            },
        }
    }

    /// The column of inputs that belongs to each column of a matrix; none where they are in order.
    pub(crate) fn order(&self, name: &str) -> Option<Arc<[u32]>> {
        match self {
            Self::Quantised(model) => model.get(name)?.order.clone(),
            Self::Safetensors(_) | Self::Gguf(_) => None,
        }
    }

    /// The place of the tensor of this name for [`Self::store`]: the number of the file, and the range in it.
    pub(crate) fn extent(&self, name: &str) -> Result<Extent, ModelError> {
        let name = self.spelled(name);
        let plain = |weights: &MappedWeights| -> Result<Extent, ModelError> {
            let entry = weights.index().require(&name)?;
            Ok(Extent { file: entry.file.index(), offset: entry.range.start, len: entry.bytes() })
        };
        match self {
            Self::Safetensors(weights) => plain(weights),
            Self::Quantised(model) => model.extent(&name, BLOCKS_FILE).map_or_else(|| plain(model.weights()), Ok),
            Self::Gguf(model) => match model.get(&name) {
                Some(tensor) => Ok(tensor.extent()),
                None => Err(WeightsError::MissingTensor { tensor: name.into_owned() }.into()),
            },
        }
    }

    /// The places in [`Self::paths`] of the bytes that the tensor of this name is made of.
    pub(crate) fn stored(&self, name: &str) -> Result<Vec<Extent>, ModelError> {
        match self {
            Self::Quantised(model) if model.get(name).is_some() => Ok(model.stored(name)),
            _ => Ok(vec![self.extent(name)?]),
        }
    }

    /// Opens a store of these files. `paths` are [`Self::paths`], and may have others behind them.
    pub(crate) fn store(
        &self,
        paths: &[PathBuf],
        choice: WeightStoreChoice,
    ) -> Result<Arc<dyn WeightStore>, WeightStoreError> {
        let files = store::open(paths, choice)?;
        Ok(match self {
            Self::Quantised(model) => Arc::new(QuantisedStore::new(Arc::clone(model), files)),
            Self::Safetensors(_) | Self::Gguf(_) => files,
        })
    }

    /// The smallest share of any file that is in the page cache, from 0 to 1, as far as the system reports it.
    pub(crate) fn cached_share(&self) -> f64 {
        match self {
            Self::Safetensors(weights) => weights.cached_share(),
            Self::Quantised(model) => model.weights().cached_share(),
            Self::Gguf(model) => model.cached_share(),
        }
    }

    /// Requests that a piece of a file be read ahead. It has at most [`model_boss_weights::ASKED_AT_ONCE`] bytes.
    pub(crate) fn will_need(&self, piece: Extent) {
        match self {
            Self::Safetensors(weights) => weights.will_need(piece),
            Self::Quantised(model) => model.weights().will_need(piece),
            Self::Gguf(model) => model.will_need(piece),
        }
    }

    /// The paths of the weight files.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::Safetensors(weights) => paths_of(weights),
            Self::Quantised(model) => paths_of(model.weights()),
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
            Self::Safetensors(_) | Self::Quantised(_) => "config.json makes",
            Self::Gguf(_) => "the metadata make",
        };
        let what = format!("has the shape {:?}, {origin} it {:?}", stored.shape, needed.shape);
        Err(ModelError::Tensor { name: self.spelled(&needed.name).into_owned(), what })
    }
}

fn paths_of(weights: &MappedWeights) -> Vec<PathBuf> {
    weights.index().files().iter().map(|file| file.path.clone()).collect()
}

/// A tensor of floats of a safetensors file.
fn plain<'a>(weights: &'a MappedWeights, name: &str) -> Result<FileTensor<'a>, ModelError> {
    let entry = weights.index().require(name)?;
    let kind = match entry.dtype {
        Dtype::F32 => TensorType::F32,
        Dtype::F16 => TensorType::F16,
        Dtype::BF16 => TensorType::BF16,
        other => {
            let what = format!(
                "is stored as {other}; this build reads F32, F16 and BF16, and matrices that config.json says are quantised"
            );
            return Err(ModelError::Tensor { name: name.to_owned(), what });
        }
    };
    Ok(FileTensor { kind, shape: &entry.shape, content: TensorContent::Stored(weights.bytes(name)?) })
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
