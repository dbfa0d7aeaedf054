//! The index of layers (RS-5). Its file has the layers in the order in which they compute, on whole pages, with bytes
//! in the order of products. Streaming a layer is then one read. `model-boss convert index` writes it once, and it is
//! found beside the model.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use model_boss_kernels::{MatrixLayout, ROWS};
use model_boss_weights::layer_index::{FileStamp, IndexedPiece, LayerIndex, LayerIndexError};
use model_boss_weights::store::{Extent, HostBuffer, PAGE, Reads, WeightStoreChoice, read_all};

use super::table::{LayerTable, MatrixPiece};
use crate::error::ModelError;
use crate::files::ModelFiles;

/// The reason why an index could not be written.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor has elements that are infinity or NaN.
    #[error("tensor '{name}' {what}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// The fault, in words.
        what: String,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The order in which the bytes of each matrix are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexOrder {
    /// The order of products on this machine's CPU. Other machines, and GPUs, ignore such an index.
    #[default]
    Machine,
    /// The model's order, which GPUs copy. CPUs can use it too, and rearrange the bytes in each step.
    Rows,
}

/// Writes the layers of the model in `source` into a file beside it, and the index with their places; returns the
/// index's path. A worker that streams the model meanwhile keeps reading the files it has open.
pub fn write_layer_index(source: &Path, order: IndexOrder) -> Result<PathBuf, IndexError> {
    write_layer_index_told(source, order, &mut |_, _, _| {})
}

/// Writes as [`write_layer_index`] does. `told` is called before each matrix with the bytes that are written, the bytes
/// of all matrices, and the matrix' name.
pub fn write_layer_index_told(
    source: &Path,
    order: IndexOrder,
    told: &mut dyn FnMut(u64, u64, &str),
) -> Result<PathBuf, IndexError> {
    let (files, spec) = ModelFiles::open(source)?;
    let table = LayerTable::places(&spec, &files)?;
    let Some(first) = table.paths.first() else { return Err(ModelError::NoStreaming.into()) };
    let index_path = LayerIndex::beside(first);
    let data_path = index_path.with_extension("bin");
    // The stamps are taken before the files are read: a write during the read makes the index stale.
    let stamp = |path: &PathBuf| FileStamp::of(path).map_err(failed(path));
    let made_from = table.paths.iter().map(stamp).collect::<Result<_, _>>()?;
    let layers = whole(&data_path, &index_path, |out| write_layers(&files, &table, order, &data_path, out, told))?;
    let json = LayerIndex { layers, made_from }.to_json().map_err(|error| failed(&index_path)(error.into()))?;
    whole(&index_path, &index_path, |out| out.write_all(&json).map_err(failed(&index_path)))?;
    Ok(index_path)
}

/// Writes the matrices in the order in which they compute, each beginning on a page.
fn write_layers(
    files: &ModelFiles,
    table: &LayerTable,
    order: IndexOrder,
    path: &Path,
    out: &mut impl Write,
    told: &mut dyn FnMut(u64, u64, &str),
) -> Result<Vec<IndexedPiece>, IndexError> {
    let total = table.layers.iter().flatten().map(|piece| piece.extent.len).sum();
    let mut done = 0;
    let store = files.store(&table.paths, WeightStoreChoice::Auto).map_err(ModelError::from)?;
    let (mut layers, mut offset) = (Vec::new(), 0_u64);
    for (layer_id, pieces) in table.layers.iter().enumerate() {
        for piece in pieces {
            told(done, total, &piece.name);
            done += piece.extent.len;
            let reads = Reads::of(&[piece.extent]);
            let mut buffer = HostBuffer::new(reads.buffer()).map_err(failed(path))?;
            read_all(store.as_ref(), &reads, &mut buffer).map_err(ModelError::from)?;
            let place = reads.places().first().cloned().unwrap_or_default();
            let bytes = buffer.get_mut(place).unwrap_or_default();
            let bad = |what| IndexError::Tensor { name: piece.name.clone(), what };
            piece.layout.check(bytes).map_err(bad)?;
            let arrangement = match order {
                IndexOrder::Machine => {
                    piece.layout.arrange(bytes);
                    piece.layout.arrangement()
                }
                IndexOrder::Rows => ROWS,
            };
            let padding = bytes.len().next_multiple_of(PAGE) - bytes.len();
            let written = out.write_all(bytes).and_then(|()| out.write_all(&vec![0; padding]));
            written.map_err(failed(path))?;
            layers.push(IndexedPiece {
                layer_id,
                name: piece.name.clone(),
                path: path.file_name().unwrap_or_default().into(),
                offset,
                nbytes: bytes.len() as u64,
                dtype: Some(piece.layout.kind.name().to_owned()),
                scale: None,
                arrangement: Some(arrangement.to_owned()),
            });
            offset += (bytes.len() + padding) as u64;
        }
    }
    Ok(layers)
}

/// Writes a file completely and durably, or not at all. `stale`, an index of the file's earlier content, is removed
/// first. An interruption therefore leaves no index rather than a wrong one.
fn whole<T>(
    path: &Path,
    stale: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<T, IndexError>,
) -> Result<T, IndexError> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".part");
    let unfinished = PathBuf::from(unfinished);
    let written = || {
        let mut out = BufWriter::new(File::create(&unfinished).map_err(failed(&unfinished))?);
        let value = write(&mut out)?;
        let file = out.into_inner().map_err(|error| failed(&unfinished)(error.into_error()))?;
        file.sync_all().map_err(failed(&unfinished))?;
        match fs::remove_file(stale) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(stale)(error)),
            _ => {}
        }
        fs::rename(&unfinished, path).map_err(failed(path))?;
        Ok(value)
    };
    written().inspect_err(|_| {
        // The first error is reported; half a copy of a model would only waste disk space.
        let _ = fs::remove_file(&unfinished);
    })
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> IndexError {
    let path = path.to_owned();
    move |source| IndexError::Write { path, source }
}

/// Uses the places of an index beside the model, if it belongs to the model. Its bytes must have the order that is
/// wanted for each matrix, or the model's own. Returns a note for the log; empty without an index.
pub(super) fn apply(table: &mut LayerTable, wanted: impl Fn(&MatrixLayout) -> &'static str) -> Option<String> {
    let path = LayerIndex::beside(table.paths.first()?);
    if !path.exists() {
        return None;
    }
    match LayerIndex::read(&path)
        .map_err(|error: LayerIndexError| error.to_string())
        .and_then(|index| fit(table, &index, wanted))
    {
        Ok(()) => Some("index".to_owned()),
        Err(why) => Some(format!("index ignored: {why}")),
    }
}

fn fit(
    table: &mut LayerTable,
    index: &LayerIndex,
    wanted: impl Fn(&MatrixLayout) -> &'static str,
) -> Result<(), String> {
    let now: Result<Vec<FileStamp>, io::Error> = table.paths.iter().map(|path| FileStamp::of(path)).collect();
    if !index.made_from.is_empty() && index.made_from != now.map_err(|error| error.to_string())? {
        return Err("the model's files were changed since it was made".to_owned());
    }
    let mut paths = table.paths.clone();
    let mut layers = table.layers.clone();
    for (layer_id, pieces) in layers.iter_mut().enumerate() {
        for piece in pieces {
            let of_piece = |indexed: &&IndexedPiece| indexed.layer_id == layer_id && indexed.name == piece.name;
            let Some(indexed) = index.layers.iter().find(of_piece) else {
                return Err(format!("it has no '{}'", piece.name));
            };
            replace(piece, indexed, wanted(&piece.layout), &mut paths)?;
        }
    }
    let factors = layers.iter().flatten().filter_map(|piece| Some((piece.name.clone(), piece.factor?)));
    table.small.factors = factors.collect();
    (table.paths, table.layers) = (paths, layers);
    Ok(())
}

fn replace(
    piece: &mut MatrixPiece,
    indexed: &IndexedPiece,
    wanted: &str,
    paths: &mut Vec<PathBuf>,
) -> Result<(), String> {
    let (kind, name) = (piece.layout.kind.name(), &piece.name);
    let dtype = indexed.dtype.as_deref().unwrap_or(kind);
    if dtype != kind || indexed.nbytes != piece.extent.len {
        let (has, needs) = (indexed.nbytes, piece.extent.len);
        return Err(format!("'{name}' has {has} bytes of {dtype}, the model {needs} of {kind}"));
    }
    let arrangement = indexed.arrangement.as_deref().unwrap_or(ROWS);
    if arrangement != wanted && arrangement != ROWS {
        return Err(format!("'{name}' is arranged as {arrangement}, this device wants {wanted}"));
    }
    let file = match paths.iter().position(|path| *path == indexed.path) {
        Some(file) => file,
        None => {
            paths.push(indexed.path.clone());
            paths.len() - 1
        }
    };
    piece.extent = Extent { file, offset: indexed.offset, len: indexed.nbytes };
    piece.arranged = arrangement == wanted && wanted != ROWS;
    piece.factor = indexed.scale.filter(|scale| *scale != 1.0);
    Ok(())
}
