//! Layers in a file of their own (RS-5): in the order they compute, on whole pages, with bytes as products want them, so that
//! a pull has nothing to do but read. Written once by `model-boss-worker index`, found beside the model when it is streamed.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use model_boss_weights::layer_index::{FileStamp, IndexedPiece, LayerIndex, LayerIndexError};
use model_boss_weights::store::{DirectStore, Extent, HostBuffer, PAGE, Reads, read_all};

use super::table::{LayerTable, Piece};
use crate::files::Files;
use crate::load::ModelError;

/// An index could not be written.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor holds no numbers.
    #[error("tensor '{name}' {what}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// Nowhere to write.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// Writes the layers of the model in `source` into a file beside it, and the index that says where they lie; gives the index's
/// path. Bytes are arranged for machines like this one; others ignore them and read the model itself.
pub fn write_layer_index(source: &Path) -> Result<PathBuf, IndexError> {
    let (files, spec) = Files::open(source)?;
    let table = LayerTable::places(&spec, &files)?;
    let Some(first) = table.paths.first() else { return Err(ModelError::NoStreaming.into()) };
    let index_path = LayerIndex::beside(first);
    let data_path = index_path.with_extension("bin");
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| IndexError::Write { path, source }
    };
    let store = DirectStore::open(&table.paths).map_err(ModelError::from)?;
    let unfinished = data_path.with_extension("bin.part");
    let mut out = BufWriter::new(File::create(&unfinished).map_err(failed(&unfinished))?);
    let name = data_path.file_name().unwrap_or_default();
    let (mut index, mut offset) = (LayerIndex::default(), 0_u64);
    for (layer_id, pieces) in table.layers.iter().enumerate() {
        for piece in pieces {
            let reads = Reads::of(&[piece.extent]);
            let mut buffer = HostBuffer::new(reads.buffer()).map_err(failed(&unfinished))?;
            read_all(&store, &reads, &mut buffer).map_err(ModelError::from)?;
            let place = reads.places().first().cloned().unwrap_or_default();
            let bytes = buffer.get_mut(place).unwrap_or_default();
            let bad = |what| IndexError::Tensor { name: piece.name.clone(), what };
            piece.layout.check(bytes).map_err(bad)?;
            piece.layout.arrange(bytes);
            let padding = bytes.len().next_multiple_of(PAGE) - bytes.len();
            let written = out.write_all(bytes).and_then(|()| out.write_all(&vec![0; padding]));
            written.map_err(failed(&unfinished))?;
            index.layers.push(IndexedPiece {
                layer_id,
                name: piece.name.clone(),
                path: name.into(),
                offset,
                nbytes: bytes.len() as u64,
                dtype: Some(piece.layout.kind.name().to_owned()),
                scale: None,
                arrangement: Some(piece.layout.arrangement().to_owned()),
            });
            offset += (bytes.len() + padding) as u64;
        }
    }
    out.flush().map_err(failed(&unfinished))?;
    for path in &table.paths {
        index.made_from.push(FileStamp::of(path).map_err(failed(path))?);
    }
    fs::rename(&unfinished, &data_path).map_err(failed(&data_path))?;
    let json = index.to_json().map_err(|error| failed(&index_path)(error.into()))?;
    fs::write(&index_path, json).map_err(failed(&index_path))?;
    Ok(index_path)
}

/// Puts the places of an index into a table, if there is one beside the model and it is of this model and this machine. Gives
/// what to say about it: nothing where there is none.
pub(super) fn apply(table: &mut LayerTable) -> Option<String> {
    let path = LayerIndex::beside(table.paths.first()?);
    if !path.exists() {
        return None;
    }
    match LayerIndex::read(&path)
        .map_err(|error: LayerIndexError| error.to_string())
        .and_then(|index| fit(table, &index))
    {
        Ok(()) => Some("index".to_owned()),
        Err(why) => Some(format!("index ignored: {why}")),
    }
}

fn fit(table: &mut LayerTable, index: &LayerIndex) -> Result<(), String> {
    let now: Result<Vec<FileStamp>, std::io::Error> = table.paths.iter().map(|path| FileStamp::of(path)).collect();
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
            replace(piece, indexed, &mut paths)?;
        }
    }
    (table.paths, table.layers) = (paths, layers);
    Ok(())
}

fn replace(piece: &mut Piece, indexed: &IndexedPiece, paths: &mut Vec<PathBuf>) -> Result<(), String> {
    let (kind, name) = (piece.layout.kind.name(), &piece.name);
    let dtype = indexed.dtype.as_deref().unwrap_or(kind);
    if dtype != kind || indexed.nbytes != piece.extent.len {
        let (has, needs) = (indexed.nbytes, piece.extent.len);
        return Err(format!("'{name}' has {has} bytes of {dtype}, the model {needs} of {kind}"));
    }
    let wanted = piece.layout.arrangement();
    let arrangement = indexed.arrangement.as_deref().unwrap_or("rows");
    if arrangement != wanted && arrangement != "rows" {
        return Err(format!("'{name}' is arranged as {arrangement}, this machine wants {wanted}"));
    }
    let file = match paths.iter().position(|path| *path == indexed.path) {
        Some(file) => file,
        None => {
            paths.push(indexed.path.clone());
            paths.len() - 1
        }
    };
    piece.extent = Extent { file, offset: indexed.offset, len: indexed.nbytes };
    piece.arranged = arrangement == wanted && wanted != "rows";
    Ok(())
}
