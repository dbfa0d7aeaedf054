//! The index of layers (RS-5): a JSON file with the place of each matrix of each layer, in the order they compute.
//! The matrices themselves are not read here.
//!
//! `{"layers":[{"layer_id","name","path","offset","nbytes","dtype"?,"scale"?}]}`. Two fields are additions:
//! `arrangement`, if the bytes have the order that a machine's products want, and `made_from`, the files it was made
//! from.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The longest file that is read as an index.
const LONGEST: u64 = 256 << 20;

/// The places of a model's layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerIndex {
    /// The pieces, in the order in which their layers compute.
    pub layers: Vec<IndexedPiece>,
    /// The files the index was made from; empty where its maker did not record them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub made_from: Vec<FileStamp>,
}

/// One matrix of one layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IndexedPiece {
    /// The index of the layer, from 0.
    pub layer_id: usize,
    /// The matrix, by the names of safetensors.
    pub name: String,
    /// The file with its bytes; relative paths start at the index's folder.
    pub path: PathBuf,
    /// The offset of the first byte in the file.
    pub offset: u64,
    /// The number of bytes of the piece.
    pub nbytes: u64,
    /// The type of elements, by ggml's names; absent where it is the model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// A factor on all elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    /// The order of the bytes; that of the model's file where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrangement: Option<String>,
}

/// A file as it was when an index was made from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    /// The tensor's name.
    pub name: String,
    /// The length in bytes.
    pub bytes: u64,
    /// The time of the file's last change: seconds and nanoseconds since 1970.
    pub modified: (i64, i64),
}

impl FileStamp {
    /// The stamp of a file as it is now.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let about = fs::metadata(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, bytes: about.len(), modified: (about.mtime(), about.mtime_nsec()) })
    }
}

/// An index that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LayerIndexError {
    /// The index cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// The index, or a file it names.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file is not an index.
    #[error("{} is no index of layers: {what}", path.display())]
    Malformed {
        /// The path of the index.
        path: PathBuf,
        /// The fault, in words.
        what: String,
    },
}

impl LayerIndex {
    /// The path of the index for a model's first weight file: beside it.
    pub fn beside(weights: &Path) -> PathBuf {
        let mut path = weights.as_os_str().to_owned();
        path.push(".layers.json");
        path.into()
    }

    /// Reads an index and checks it against the files it names. Relative paths are
    /// returned joined to the index's own folder.
    pub fn read(path: &Path) -> Result<Self, LayerIndexError> {
        let unreadable = |path: &Path| {
            let path = path.to_owned();
            move |source| LayerIndexError::Read { path, source }
        };
        let malformed = |what: String| LayerIndexError::Malformed { path: path.to_owned(), what };
        let mut text = Vec::new();
        let file = fs::File::open(path).map_err(unreadable(path))?;
        file.take(LONGEST + 1).read_to_end(&mut text).map_err(unreadable(path))?;
        if text.len() as u64 > LONGEST {
            return Err(malformed(format!("it is longer than {LONGEST} bytes")));
        }
        let mut index: Self = serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut lengths: Vec<(PathBuf, u64)> = Vec::new();
        let mut before = 0;
        for piece in &mut index.layers {
            piece.path = folder.join(&piece.path);
            let known = lengths.iter().find(|(path, _)| *path == piece.path).map(|(_, len)| *len);
            let len = match known {
                Some(len) => len,
                None => {
                    let len = fs::metadata(&piece.path).map_err(unreadable(&piece.path))?.len();
                    lengths.push((piece.path.clone(), len));
                    len
                }
            };
            if piece.offset.checked_add(piece.nbytes).is_none_or(|end| end > len) {
                let (name, layer, offset, nbytes) = (&piece.name, piece.layer_id, piece.offset, piece.nbytes);
                let file = piece.path.display();
                let what = format!("'{name}' of layer {layer} is at {offset} with {nbytes} bytes, {file} has {len}");
                return Err(malformed(what));
            }
            if piece.layer_id < before {
                return Err(malformed(format!("layer {} stands behind layer {before}", piece.layer_id)));
            }
            before = piece.layer_id;
            if piece.scale.is_some_and(|scale| !scale.is_finite() || scale == 0.0) {
                return Err(malformed(format!("the scale of '{}' is no factor that could be undone", piece.name)));
            }
        }
        Ok(index)
    }

    /// The JSON of the index.
    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec_pretty(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(folder: &Path, json: &str) -> Result<LayerIndex, LayerIndexError> {
        fs::write(folder.join("data.bin"), [7; 10_000]).unwrap();
        let path = LayerIndex::beside(&folder.join("m.gguf"));
        fs::write(&path, json).unwrap();
        LayerIndex::read(&path)
    }

    #[test]
    fn rs_5_the_fields_of_the_format_are_enough() {
        let folder = tempfile::tempdir().unwrap();
        let json = r#"{"layers":[
            {"layer_id":0,"name":"a","path":"data.bin","offset":4096,"nbytes":100},
            {"layer_id":1,"name":"b","path":"data.bin","offset":8192,"nbytes":1808,"dtype":"Q8_0","scale":0.5}]}"#;
        let index = written(folder.path(), json).unwrap();
        assert_eq!((index.layers.len(), index.made_from.len()), (2, 0));
        assert_eq!(index.layers[1].path, folder.path().join("data.bin"));
        let again: LayerIndex = serde_json::from_slice(&index.to_json().unwrap()).unwrap();
        assert_eq!(again, index);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let piece = |fields: &str| {
            format!(
                r#"{{"layers":[{{"layer_id":3,"name":"a","path":"data.bin","offset":1,"nbytes":2}},{{{fields}}}]}}"#
            )
        };
        for (json, said) in [
            (piece(r#""layer_id":4,"name":"b","path":"data.bin","offset":9999,"nbytes":2"#), "has 10000"),
            (
                piece(r#""layer_id":4,"name":"b","path":"data.bin","offset":18446744073709551615,"nbytes":2"#),
                "has 10000",
            ),
            (piece(r#""layer_id":4,"name":"b","path":"other.bin","offset":0,"nbytes":2"#), "other.bin"),
            (
                piece(r#""layer_id":2,"name":"b","path":"data.bin","offset":0,"nbytes":2"#),
                "layer 2 stands behind layer 3",
            ),
            (piece(r#""layer_id":4,"name":"b","path":"data.bin","offset":0,"nbytes":2,"scale":0.0"#), "scale"),
            ("[]".to_owned(), "no index"),
        ] {
            let error = written(folder.path(), &json).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
