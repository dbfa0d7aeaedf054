//! Commands that write model files: the weights by candle's crate, the text's metadata by the engine's. A file is
//! written whole or not at all.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use model_boss_candle::{
    Conversion, ConvertError, IndexError, IndexOrder, MatrixType, Synthetic, write_layer_index_told,
};
use model_boss_engine::text::{WriteVocabularyError, write_synthetic_vocabulary, write_vocabulary};
use model_boss_protocol::WorkerExit;
use model_boss_weights::gguf::{HeaderWriter, WriteError};
use model_boss_weights::model_folder;
use model_boss_worker::terminal::{file_progress, print};
use model_boss_worker::{Convert, Index, LayerOrder, LoadFailure, StoredType, Synth};

/// A file could not be written.
#[derive(Debug, thiserror::Error)]
enum WriteFileError {
    #[error("{model}: {source}")]
    Model { model: PathBuf, source: Box<ConvertError> },
    #[error("{model}: {source}")]
    Text { model: PathBuf, source: Box<WriteVocabularyError> },
    #[error(
        "there is no shape `{0}`; there are {known}, each also with a type behind it: {types}",
        known = Synthetic::SHAPES.join(", "),
        types = Synthetic::types().map(|name| format!("-{name}")).collect::<Vec<_>>().join(", ")
    )]
    Shape(String),
    #[error(transparent)]
    Header(#[from] WriteError),
    #[error("{path} exists already; remove it first or choose another name")]
    Exists { path: PathBuf },
    #[error("cannot write {path}: {source}")]
    Output { path: PathBuf, source: std::io::Error },
}

/// `model-boss-worker convert`.
pub(crate) fn convert(asked: &Convert) -> Result<(), LoadFailure> {
    converted(asked).map_err(|error| LoadFailure::new(WorkerExit::BadModel, &error))
}

/// `model-boss-worker index`.
pub(crate) fn index(asked: &Index) -> Result<(), LoadFailure> {
    let order = match asked.order {
        LayerOrder::Machine => IndexOrder::Machine,
        LayerOrder::Rows => IndexOrder::Rows,
    };
    let path = write_layer_index_told(&asked.model, order, &mut file_progress()).map_err(|error| match error {
        IndexError::Write { .. } => LoadFailure::new(WorkerExit::BadSpec, &error),
        IndexError::Model(_) | IndexError::Tensor { .. } => LoadFailure::new(WorkerExit::BadModel, &error),
    })?;
    print(path.display());
    Ok(())
}

/// `model-boss-worker synth`.
pub(crate) fn synth(asked: &Synth) -> Result<(), LoadFailure> {
    synthesised(asked).map_err(|error| LoadFailure::new(WorkerExit::BadSpec, &error))
}

fn converted(asked: &Convert) -> Result<(), WriteFileError> {
    let matrices = match asked.stored_as {
        StoredType::F16 => MatrixType::F16,
        StoredType::Bf16 => MatrixType::BF16,
        StoredType::Q8_0 => MatrixType::Q8_0,
    };
    let bad_model =
        |error: ConvertError| WriteFileError::Model { model: asked.folder.clone(), source: Box::new(error) };
    let model = Conversion::open(&asked.folder, matrices).map_err(bad_model)?;
    let folder = model_folder(&asked.folder);
    let mut header = named(folder.canonicalize().ok().as_deref().and_then(Path::file_name))?;
    write_vocabulary(folder, model.vocabulary(), &mut header)
        .map_err(|error| WriteFileError::Text { model: asked.folder.clone(), source: Box::new(error) })?;
    whole(&asked.out, |out| model.write_told(header, out, &mut file_progress()).map_err(bad_model))
}

fn synthesised(asked: &Synth) -> Result<(), WriteFileError> {
    let shape = Synthetic::of(&asked.shape).ok_or_else(|| WriteFileError::Shape(asked.shape.clone()))?;
    let mut header = named(Some(asked.shape.as_ref()))?;
    let model = || PathBuf::from(&asked.shape);
    write_synthetic_vocabulary(shape.vocabulary(), &mut header)
        .map_err(|error| WriteFileError::Text { model: model(), source: Box::new(error) })?;
    whole(&asked.out, |out| {
        let written = shape.write(asked.seed, header, out);
        written.map_err(|error| WriteFileError::Model { model: model(), source: Box::new(error) })
    })
}

fn named(name: Option<&std::ffi::OsStr>) -> Result<HeaderWriter, WriteError> {
    let mut header = HeaderWriter::new();
    header.set("general.name", name.unwrap_or_default().to_string_lossy().as_ref())?;
    Ok(header)
}

/// Writes beside `path` and moves the file there when it is complete.
fn whole(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), WriteFileError>,
) -> Result<(), WriteFileError> {
    if path.exists() {
        return Err(WriteFileError::Exists { path: path.to_owned() });
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".part");
    let unfinished = PathBuf::from(unfinished);
    let failed = |source| WriteFileError::Output { path: path.to_owned(), source };
    let mut out = BufWriter::new(File::create(&unfinished).map_err(failed)?);
    let written = write(&mut out).and_then(|()| out.flush().map_err(failed));
    match written {
        Ok(()) => fs::rename(&unfinished, path).map_err(failed),
        Err(error) => {
            // The error is reported; a piece that stays behind has a name that no model has.
            let _ = fs::remove_file(&unfinished);
            Err(error)
        }
    }
}
