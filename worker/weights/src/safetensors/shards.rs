//! Models in several files: `model.safetensors.index.json` maps tensors to shards. The shards themselves are ordinary
//! safetensors files, read by other modules.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::header::read_header;
use super::index::TensorIndex;
use crate::error::{WeightsError, file_name, printable};
use crate::limits::{LONGEST_INDEX, LONGEST_NAME, MOST_INDEXED};

/// Reads the index and the header of every shard it lists. Tensors of a shard that the index does not list are left
/// out.
pub(crate) fn open(path: &Path) -> Result<TensorIndex, WeightsError> {
    let index_name = file_name(path);
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut tensors_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, shard) in read_weight_map(path)? {
        tensors_of.entry(shard).or_default().push(tensor);
    }

    let mut index = TensorIndex::default();
    for (shard, tensors) in tensors_of {
        if !is_plain_name(&shard) {
            let what = format!("'{}' is not the name of a file beside it", printable(&shard));
            return Err(malformed(&index_name, what));
        }
        let shard_path = folder.join(&shard);
        if !shard_path.exists() {
            return Err(WeightsError::MissingShard { index: index_name, shard: printable(&shard) });
        }
        let mut header = read_header(&shard_path)?;
        let file = index.add_file(shard_path, header.file_len);
        for name in tensors {
            let Some(tensor) = header.tensors.remove(&name) else {
                let what = format!("is listed in {index_name} as part of this file, which does not have it");
                return Err(WeightsError::BadTensor { file: printable(&shard), tensor: printable(&name), what });
            };
            index.add_tensor(name, tensor.entry(file));
        }
    }
    Ok(index)
}

fn read_weight_map(path: &Path) -> Result<BTreeMap<String, String>, WeightsError> {
    let unreadable = |source| WeightsError::Read { path: path.to_owned(), source };
    let name = file_name(path);
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(WeightsError::NotRegular { path: path.to_owned() });
    }
    let mut json = Vec::new();
    File::open(path).map_err(unreadable)?.take(LONGEST_INDEX + 1).read_to_end(&mut json).map_err(unreadable)?;
    if json.len() as u64 > LONGEST_INDEX {
        return Err(malformed(&name, format!("it is longer than {LONGEST_INDEX} bytes")));
    }
    let RawIndex { weight_map: WeightMap(map) } =
        serde_json::from_slice(&json).map_err(|error| malformed(&name, printable(&error.to_string())))?;
    if map.is_empty() {
        return Err(malformed(&name, "its weight_map is empty"));
    }
    Ok(map)
}

/// Whether the name cannot lead out of the folder.
fn is_plain_name(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|last| last == name) && !name.contains(['/', '\\', '\0'])
}

fn malformed(file: &str, what: impl Into<String>) -> WeightsError {
    WeightsError::Malformed { file: file.to_owned(), format: "safetensors index", what: what.into() }
}

#[derive(serde::Deserialize)]
struct RawIndex {
    weight_map: WeightMap,
}

/// The shard of each tensor. No tensor is in two shards.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shards;
        impl<'de> Visitor<'de> for Shards {
            type Value = WeightMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("file names by tensor name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut shards = BTreeMap::new();
                while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
                    if shards.len() == MOST_INDEXED || tensor.len() > LONGEST_NAME {
                        let limits =
                            format_args!("more than {MOST_INDEXED} tensors, or a name of {LONGEST_NAME} bytes");
                        return Err(A::Error::custom(limits));
                    }
                    match shards.entry(tensor) {
                        Entry::Vacant(place) => place.insert(shard),
                        Entry::Occupied(place) => {
                            let twice = format!("tensor '{}' stands there twice", place.key());
                            return Err(A::Error::custom(twice));
                        }
                    };
                }
                Ok(WeightMap(shards))
            }
        }
        deserializer.deserialize_map(Shards)
    }
}
