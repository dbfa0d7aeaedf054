//! A model's files, independent of their format: the model's description, and tensors by the names of safetensors. The
//! module computes nothing.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model_boss_weights::gguf::{GgufModel, TensorType};
use model_boss_weights::quantised::{BLOCKS_FILE, QuantisedMatrix, QuantisedModel, QuantisedStore, add_description};
use model_boss_weights::store::{self, Extent, WeightStore, WeightStoreChoice, WeightStoreError};
use model_boss_weights::{
    Dtype, MappedWeights, SmallFileError, TensorIndex, WeightsError, gguf_file, model_folder, read_small_file,
};

use crate::error::ModelError;
use crate::file_tensor::{FileTensor, TensorContent};
use crate::made_file::{MadeFile, MadeStore, UsedTensors};
use crate::spec::DecoderSpec;
use crate::spec::config::ConfigJsonError;
use crate::spec::part_names::{EMBEDDING, HEAD, Needed};
use crate::spec::spelling::{PartLocation, PlaceForm};
use crate::unread;

/// The limit on `config.json` in bytes. A longer file is no such configuration.
const LONGEST_CONFIG: u64 = 16 << 20;

/// The weight files of one model, and the places of its tensors in them. Clones share them.
#[derive(Clone)]
pub(crate) struct ModelFiles {
    weights: WeightFiles,
    places: Arc<HashMap<String, PartPlace>>,
    /// The tensors that are stored in another order than the one in which they are used.
    made: Arc<MadeFile>,
}

/// The weight files of one model, by their format.
#[derive(Clone)]
enum WeightFiles {
    Safetensors(Arc<MappedWeights>),
    /// Safetensors with quantised matrices, which are read as blocks.
    Quantised(Arc<QuantisedModel>),
    Gguf(Arc<GgufModel>),
}

/// A part's place, and the shape that the spec gives it.
struct PartPlace {
    place: PartLocation,
    shape: Vec<usize>,
}

impl ModelFiles {
    /// Finds and maps the weights of a source, and reads the model's description.
    pub(crate) fn open(source: &Path) -> Result<(Self, DecoderSpec), ModelError> {
        if let Some(file) = gguf_file(source)? {
            let model = GgufModel::open(&file)?;
            let spec = DecoderSpec::from_gguf(&model)?;
            return Ok((Self::new(WeightFiles::Gguf(Arc::new(model)), &spec), spec));
        }
        let (mut spec, format) = DecoderSpec::of_config(&decoder_config(source)?)?;
        let weights = MappedWeights::map(TensorIndex::open(source)?)?;
        let weights = match format {
            Some(format) => WeightFiles::Quantised(Arc::new(QuantisedModel::new(weights, format)?)),
            None => WeightFiles::Safetensors(Arc::new(weights)),
        };
        // The text of a model for several kinds of input is one of its parts.
        let embedding = spec.spelling.end(EMBEDDING);
        let inner = embedding.strip_prefix("model.").unwrap_or(&embedding).to_owned();
        let prefixes = ["model.", "model.language_model.", "language_model.model.", "model.text_model.", ""];
        if let Some(prefix) = prefixes.iter().find(|prefix| weights.has(&format!("{prefix}{inner}"))) {
            (*prefix).clone_into(&mut spec.spelling.outside);
            if *prefix == "language_model.model." {
                spec.spelling = spec.spelling.ending(&[(HEAD, "language_model.lm_head.weight")]);
            }
        }
        let layers = spec.layers.len();
        spec.spelling.decide(layers, |stored| weights.has(stored));
        Ok((Self::new(weights, &spec), spec))
    }

    /// The weights of a folder, by the names that they have there, and the text of its configuration.
    pub(crate) fn plain(source: &Path) -> Result<(Self, Vec<u8>), ModelError> {
        let config = read_config(source)?;
        let weights = WeightFiles::Safetensors(Arc::new(MappedWeights::map(TensorIndex::open(source)?)?));
        Ok((Self { weights, places: Arc::default(), made: Arc::default() }, config))
    }

    /// The tensors of a GGUF model by the names that they have there.
    pub(crate) fn of_gguf(model: GgufModel) -> Self {
        let weights = WeightFiles::Gguf(Arc::new(model));
        Self { weights, places: Arc::default(), made: Arc::default() }
    }

    /// The same files with tensors that have other names, or are parts of stored ones: the name of each, its place, and
    /// its shape.
    pub(crate) fn placing(self, parts: impl IntoIterator<Item = (String, PartLocation, Vec<usize>)>) -> Self {
        let placed = parts.into_iter().map(|(name, place, shape)| (name, PartPlace { place, shape }));
        Self { places: Arc::new(placed.collect()), ..self }
    }

    /// A stored tensor of a GGUF model that none of the placed ones is made of.
    pub(crate) fn unplaced(&self) -> Option<&str> {
        let WeightFiles::Gguf(model) = &self.weights else { return None };
        let used: HashSet<&str> = self.places.values().map(|part| part.place.stored.as_str()).collect();
        model.tensors().map(|(name, _)| name).find(|name| !used.contains(name))
    }

    fn new(weights: WeightFiles, spec: &DecoderSpec) -> Self {
        let mut places = HashMap::new();
        let mut ends = spec.needed_outside();
        let shape = spec.embedding_shape();
        ends.extend([EMBEDDING, HEAD].map(|name| Needed { name: name.to_owned(), shape: shape.clone() }));
        for needed in ends {
            let place = spec.spelling.end_place(&needed);
            places.insert(needed.name, PartPlace { place, shape: needed.shape });
        }
        for layer in 0..spec.layers.len() {
            let needed = spec.needed_by_layer(layer);
            let place = |part: &Needed| spec.spelling.place(layer, part.part(), &needed);
            // A configuration may claim more layers than there are. The first part that is missing is named.
            let there = needed.iter().any(|part| weights.has_any(&place(part).stored));
            for part in needed.iter().take(if there { usize::MAX } else { 1 }) {
                places.insert(part.name.clone(), PartPlace { place: place(part), shape: part.shape.clone() });
            }
            if !there {
                break;
            }
        }
        let mut files = Self { weights, places: Arc::new(places), made: Arc::default() };
        // Those that are not there, or have a wrong shape, get no place: a check reports them.
        let matrices = (0..spec.layers.len()).flat_map(|layer| spec.needed_by_layer(layer));
        let made = matrices.filter(|needed| needed.is_matrix() && !files.is_stored(&needed.name));
        let made = made.filter_map(|needed| Some((files.get(&needed.name).ok()?.len(), needed.name)));
        files.made = Arc::new(MadeFile::of(made.map(|(len, name)| (name, len))));
        files
    }

    /// A tensor's name in these files.
    pub(crate) fn spelled<'n>(&'n self, name: &'n str) -> Cow<'n, str> {
        self.places.get(name).map_or(name.into(), |part| part.place.stored.as_str().into())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.weights.has(&self.spelled(name))
    }

    /// The architecture that a GGUF file names; none of other files.
    pub(crate) fn architecture(&self) -> Option<String> {
        let WeightFiles::Gguf(model) = &self.weights else { return None };
        let header = model.header().ok()?;
        header.find::<&str>("general.architecture").ok().flatten().map(str::to_owned)
    }

    /// Whether the files are GGUF.
    pub(crate) fn is_gguf(&self) -> bool {
        matches!(self.weights, WeightFiles::Gguf(_))
    }

    /// Whether the bytes of the tensor of this name are in the files as they are used.
    pub(crate) fn is_stored(&self, name: &str) -> bool {
        self.places.get(name).is_none_or(|part| part.place.is_stored())
    }

    /// Whether all tensors are in the files in the form in which they are used.
    pub(crate) fn are_as_used(&self) -> bool {
        !matches!(self.weights, WeightFiles::Quantised(_)) && self.places.values().all(|part| part.place.is_stored())
    }

    pub(crate) fn get(&self, name: &str) -> Result<FileTensor<'_>, ModelError> {
        let Some(PartPlace { place, shape }) = self.places.get(name) else { return self.weights.whole(name) };
        let wrong = |stored: &FileTensor<'_>| {
            let what = format!("has the shape {:?}, which has no place for {shape:?}", stored.shape);
            ModelError::Tensor { name: place.stored.clone(), what }
        };
        let mut found = match place.form {
            PlaceForm::Mxfp4 => self.weights.mxfp4(&place.stored)?,
            PlaceForm::AsStored | PlaceForm::Turned => self.weights.whole(&place.stored)?,
        };
        if let Some(rows) = &place.rows {
            // A list's rows are its numbers.
            if found.shape.len() == 1 {
                found.shape.push(1);
            }
            let whole = FileTensor { kind: found.kind, shape: found.shape.clone(), content: found.content.clone() };
            found = match place.form {
                PlaceForm::Mxfp4 => found.mxfp4_rows(rows.clone()),
                PlaceForm::AsStored | PlaceForm::Turned => found.rows(rows.clone()),
            }
            .ok_or_else(|| wrong(&whole))?;
        }
        if !place.is_stored() && (place.form == PlaceForm::Turned || place.every.is_some()) {
            let whole = found.shape.clone();
            let turned = place.form == PlaceForm::Turned;
            let order = self.stored_order(&place.stored);
            let made = found.remade(turned, place.every, order.as_deref());
            let what = || format!("has the shape {whole:?}, which has no place for {shape:?}");
            found = made.ok_or_else(|| ModelError::Tensor { name: place.stored.clone(), what: what() })?;
            // Of parts whose columns lie one behind the other, the first of these are meant.
            found.first_rows(shape.first().copied().unwrap_or(0));
        }
        // Dimensions of 1 have no effect, and neither has the division of a list into groups.
        let long = |shape: &[usize]| shape.iter().copied().filter(|length| *length != 1).collect::<Vec<_>>();
        let grouped = shape.len() == 1 && found.shape.iter().product::<usize>() == shape[0];
        if found.shape != *shape && (grouped || long(&found.shape) == long(shape)) {
            found.shape.clone_from(shape);
        }
        Ok(found)
    }

    /// The column of inputs that belongs to each column of a matrix; none where they are in order.
    pub(crate) fn order(&self, name: &str) -> Option<Arc<[u32]>> {
        // Where columns are rows they are put in order when the bytes are made.
        let is_turned = self.places.get(name).is_some_and(|part| part.place.form == PlaceForm::Turned);
        if is_turned { None } else { self.stored_order(&self.spelled(name)) }
    }

    fn stored_order(&self, stored: &str) -> Option<Arc<[u32]>> {
        match &self.weights {
            WeightFiles::Quantised(model) => model.get(stored)?.order.clone(),
            WeightFiles::Safetensors(_) | WeightFiles::Gguf(_) => None,
        }
    }

    /// The place of the tensor of this name for [`Self::store`]: the number of the file, and the range in it.
    pub(crate) fn extent(&self, name: &str) -> Result<Extent, ModelError> {
        let part = self.places.get(name);
        if part.is_some_and(|part| !part.place.is_stored()) {
            let missing = || WeightsError::MissingTensor { tensor: self.spelled(name).into_owned() };
            return Ok(self.made.extent(name).ok_or_else(missing)?);
        }
        let whole = self.weights.extent(&self.spelled(name))?;
        let Some((rows, stored)) = part.and_then(|part| Some((part.place.rows.clone()?, self.get(name)))) else {
            return Ok(whole);
        };
        let stored = stored?;
        let row_bytes = stored.len() / (rows.len() as u64).max(1);
        Ok(Extent { offset: whole.offset + rows.start as u64 * row_bytes, len: stored.len(), ..whole })
    }

    /// The place of the stored tensor that has the tensor of this name, to read in the file's order.
    pub(crate) fn near(&self, name: &str) -> Result<Extent, ModelError> {
        if self.is_stored(name) {
            return self.extent(name);
        }
        self.weights.extent(&self.weights.stored_name(&self.spelled(name)))
    }

    /// The places in [`Self::paths`] of the bytes that the tensor of this name is made of.
    pub(crate) fn stored(&self, name: &str) -> Result<Vec<Extent>, ModelError> {
        match &self.weights {
            WeightFiles::Quantised(model) if model.get(&self.spelled(name)).is_some() => {
                Ok(model.stored(&self.spelled(name)))
            }
            _ => Ok(vec![self.near(name)?]),
        }
    }

    /// Opens a store of these files. `paths` are [`Self::paths`], and may have others behind them.
    pub(crate) fn store(
        &self,
        paths: &[PathBuf],
        choice: WeightStoreChoice,
    ) -> Result<Arc<dyn WeightStore>, WeightStoreError> {
        let files = store::open(paths, choice)?;
        let files = match &self.weights {
            WeightFiles::Quantised(model) => Arc::new(QuantisedStore::new(Arc::clone(model), files)),
            WeightFiles::Safetensors(_) | WeightFiles::Gguf(_) => files,
        };
        if self.made.is_empty() {
            return Ok(files);
        }
        Ok(Arc::new(MadeStore::new(Arc::clone(&self.made), Box::new(self.clone()), files)))
    }

    /// The smallest share of any file that is in the page cache, from 0 to 1, as far as the system reports it.
    pub(crate) fn cached_share(&self) -> f64 {
        match &self.weights {
            WeightFiles::Safetensors(weights) => weights.cached_share(),
            WeightFiles::Quantised(model) => model.weights().cached_share(),
            WeightFiles::Gguf(model) => model.cached_share(),
        }
    }

    /// Requests that a piece of a file be read ahead. It has at most [`model_boss_weights::ASKED_AT_ONCE`] bytes.
    pub(crate) fn will_need(&self, piece: Extent) {
        match &self.weights {
            WeightFiles::Safetensors(weights) => weights.will_need(piece),
            WeightFiles::Quantised(model) => model.weights().will_need(piece),
            WeightFiles::Gguf(model) => model.will_need(piece),
        }
    }

    /// A warning about tensors of layers that nothing reads; none without any.
    pub(crate) fn unread(&self) -> Option<String> {
        let mut used: HashSet<&str> = self.places.values().map(|part| part.place.stored.as_str()).collect();
        let stored: Vec<&str> = match &self.weights {
            WeightFiles::Safetensors(weights) => weights.index().iter().map(|(name, _)| name).collect(),
            // The tensors that blocks are made of have names that the format knows.
            WeightFiles::Quantised(_) => return None,
            WeightFiles::Gguf(model) => model.tensors().map(|(name, _)| name).collect(),
        };
        let apart = |name: &&str| {
            let whole = name.strip_suffix("_blocks").or_else(|| name.strip_suffix("_scales"));
            whole.is_some_and(|whole| used.contains(whole))
        };
        let apart: Vec<&str> = stored.iter().copied().filter(apart).collect();
        used.extend(apart);
        unread::warning(&unread::unread(stored.into_iter(), &used))
    }

    /// The paths of the weight files.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        match &self.weights {
            WeightFiles::Safetensors(weights) => paths_of(weights),
            WeightFiles::Quantised(model) => paths_of(model.weights()),
            WeightFiles::Gguf(model) => model.files().iter().map(|file| file.path().to_owned()).collect(),
        }
    }

    /// A tensor that the spec needs, after a check of its shape.
    pub(crate) fn check(&self, needed: &Needed) -> Result<FileTensor<'_>, ModelError> {
        let stored = self.get(&needed.name)?;
        if stored.shape == needed.shape {
            return Ok(stored);
        }
        let origin = if self.is_gguf() { "the metadata make" } else { "config.json makes" };
        let what = format!("has the shape {:?}, {origin} it {:?}", stored.shape, needed.shape);
        Err(ModelError::Tensor { name: self.spelled(&needed.name).into_owned(), what })
    }
}

impl UsedTensors for ModelFiles {
    fn tensor(&self, name: &str) -> Result<FileTensor<'_>, ModelError> {
        self.get(name)
    }
}

impl WeightFiles {
    fn has(&self, stored: &str) -> bool {
        match self {
            Self::Safetensors(weights) => weights.index().get(stored).is_some(),
            Self::Quantised(model) => model.get(stored).is_some() || model.weights().index().get(stored).is_some(),
            Self::Gguf(model) => model.get(stored).is_some(),
        }
    }

    /// Whether there is a tensor of that name, or its blocks and scales.
    fn has_any(&self, stored: &str) -> bool {
        self.has(stored) || self.has(&format!("{stored}_blocks"))
    }

    /// The name of a tensor, or that of its blocks.
    fn stored_name(&self, stored: &str) -> String {
        if self.has(stored) { stored.to_owned() } else { format!("{stored}_blocks") }
    }

    /// A stored tensor.
    fn whole(&self, stored: &str) -> Result<FileTensor<'_>, ModelError> {
        match self {
            Self::Safetensors(weights) => plain(weights, stored),
            Self::Quantised(model) => match model.get(stored) {
                Some(QuantisedMatrix { kind, shape, .. }) => {
                    let content = TensorContent::Blocks(model, stored.to_owned(), 0..shape[0]);
                    Ok(FileTensor { kind: *kind, shape: shape.to_vec(), content })
                }
                None => plain(model.weights(), stored),
            },
            Self::Gguf(model) => match model.get(stored) {
                Some(tensor) => {
                    let content = TensorContent::Stored(model.bytes(tensor));
                    Ok(FileTensor { kind: tensor.kind, shape: tensor.shape.clone(), content })
                }
                None => Err(WeightsError::MissingTensor { tensor: stored.to_owned() }.into()),
            },
        }
    }

    /// A matrix whose blocks and scales of MXFP4 are two tensors.
    fn mxfp4(&self, stored: &str) -> Result<FileTensor<'_>, ModelError> {
        let Self::Safetensors(weights) = self else {
            return Err(WeightsError::MissingTensor { tensor: format!("{stored}_blocks") }.into());
        };
        let bytes = |part: &str| -> Result<(&[usize], &[u8]), ModelError> {
            let name = format!("{stored}_{part}");
            let entry = weights.index().require(&name)?;
            if entry.dtype != Dtype::U8 {
                let what = format!("is stored as {}; {part} of MXFP4 are U8", entry.dtype);
                return Err(ModelError::Tensor { name, what });
            }
            Ok((&entry.shape, weights.bytes(&name)?))
        };
        let ((shape, blocks), (scaled, scales)) = (bytes("blocks")?, bytes("scales")?);
        let (Some((16, whole)), true) =
            (shape.split_last().map(|(last, whole)| (*last, whole)), blocks.len() == 16 * scales.len())
        else {
            let what = format!("has blocks of {shape:?} and scales of {scaled:?}");
            return Err(ModelError::Tensor { name: stored.to_owned(), what });
        };
        let mut shape = whole.to_vec();
        if let Some(columns) = shape.last_mut() {
            *columns *= 32;
        }
        Ok(FileTensor { kind: TensorType::MXFP4, shape, content: TensorContent::Mxfp4(blocks, scales) })
    }

    fn extent(&self, stored: &str) -> Result<Extent, ModelError> {
        let plain = |weights: &MappedWeights| -> Result<Extent, ModelError> {
            let entry = weights.index().require(stored)?;
            Ok(Extent { file: entry.file.index(), offset: entry.range.start, len: entry.bytes() })
        };
        match self {
            Self::Safetensors(weights) => plain(weights),
            Self::Quantised(model) => model.extent(stored, BLOCKS_FILE).map_or_else(|| plain(model.weights()), Ok),
            Self::Gguf(model) => match model.get(stored) {
                Some(tensor) => Ok(tensor.extent()),
                None => Err(WeightsError::MissingTensor { tensor: stored.to_owned() }.into()),
            },
        }
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
    Ok(FileTensor { kind, shape: entry.shape.clone(), content: TensorContent::Stored(weights.bytes(name)?) })
}

/// The configuration of a decoder, with the description of its quantisation, wherever that is.
fn decoder_config(source: &Path) -> Result<serde_json::Value, ModelError> {
    let malformed = |error: serde_json::Error| ConfigJsonError::Malformed(error.to_string());
    let mut config = serde_json::from_slice(&read_config(source)?).map_err(malformed)?;
    add_description(&mut config, model_folder(source)).map_err(ConfigJsonError::from)?;
    Ok(config)
}

/// The text of a model's `config.json`.
pub(crate) fn read_config(source: &Path) -> Result<Vec<u8>, ModelError> {
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
