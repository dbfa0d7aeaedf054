//! The header of a safetensors file: 8 bytes of little-endian length, that much JSON, then the data without holes.
//!
//! Format: <https://github.com/huggingface/safetensors#format>. The checks are the reference reader's (it allows
//! neither holes nor bytes after the last tensor) and a few more (duplicate names, absurd ranks). Other files are not
//! read here.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::index::TensorEntry;
use super::index::WeightFileId;
use crate::dtype::Dtype;
use crate::error::{WeightsError, file_name, printable};
use crate::limits::{LONGEST_HEADER, LONGEST_NAME, MOST_DIMENSIONS, MOST_TENSORS};

pub(crate) const LENGTH_BYTES: u64 = 8;

/// The checked header of a safetensors file.
#[derive(Debug)]
pub(crate) struct SafetensorsHeader {
    pub(crate) file_len: u64,
    pub(crate) tensors: BTreeMap<String, HeaderTensor>,
}

/// A checked tensor; its range counts from the first byte of the file.
#[derive(Debug)]
pub(crate) struct HeaderTensor {
    dtype: Dtype,
    shape: Vec<usize>,
    range: Range<u64>,
}

impl HeaderTensor {
    pub(crate) fn entry(self, file: WeightFileId) -> TensorEntry {
        TensorEntry { dtype: self.dtype, shape: self.shape, file, range: self.range }
    }
}

/// Reads and checks the header of a file.
pub(crate) fn read_header(path: &Path) -> Result<SafetensorsHeader, WeightsError> {
    let unreadable = |source| WeightsError::Read { path: path.to_owned(), source };
    // The type of the file is checked before opening, because opening a pipe would wait for its other end.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(WeightsError::NotRegular { path: path.to_owned() });
    }
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let (file_len, name) = (metadata.len(), file_name(path));

    let mut head = Vec::new();
    (&file).take(LENGTH_BYTES).read_to_end(&mut head).map_err(unreadable)?;
    let header_len = header_len(&head, file_len, &name)?;
    let mut json = Vec::new();
    (&file).take(header_len).read_to_end(&mut json).map_err(unreadable)?;
    if json.len() as u64 != header_len {
        return Err(WeightsError::Changed { file: name });
    }
    parse(&json, file_len, &name)
}

/// Checks the header of a file that is wholly in memory.
pub(crate) fn parse_file(file: &[u8], name: &str) -> Result<SafetensorsHeader, WeightsError> {
    let file_len = file.len() as u64;
    let header_len = header_len(file, file_len, name)?;
    let json = usize::try_from(header_len).ok().and_then(|len| file.get(LENGTH_BYTES as usize..)?.get(..len));
    parse(json.ok_or_else(|| WeightsError::Changed { file: name.to_owned() })?, file_len, name)
}

/// The header's length, not longer than the file.
pub(crate) fn header_len(head: &[u8], file_len: u64, file: &str) -> Result<u64, WeightsError> {
    let truncated = |end| WeightsError::Truncated {
        file: file.to_owned(),
        what: "the header".to_owned(),
        start: 0,
        end,
        len: file_len,
    };
    let Some(length) = head.first_chunk::<8>() else {
        return Err(truncated(LENGTH_BYTES));
    };
    if length == b"version " {
        return Err(malformed(file, "it is a Git LFS pointer; fetch the real file with 'git lfs pull'"));
    }
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER {
        return Err(malformed(file, format!("its header would have {length} bytes, more than {LONGEST_HEADER}")));
    }
    if length > file_len.saturating_sub(LENGTH_BYTES) {
        return Err(truncated(LENGTH_BYTES + length));
    }
    Ok(length)
}

/// Parses the JSON and checks every tensor against the file's length and against its neighbours.
fn parse(json: &[u8], file_len: u64, file: &str) -> Result<SafetensorsHeader, WeightsError> {
    if json.first() != Some(&b'{') {
        return Err(malformed(file, "its header does not begin with '{'"));
    }
    let RawHeader(raw) =
        serde_json::from_slice(json).map_err(|error| malformed(file, printable(&error.to_string())))?;
    let data_start = LENGTH_BYTES + json.len() as u64;
    let mut tensors = BTreeMap::new();
    for (name, raw) in raw {
        let tensor = check(&name, raw, data_start, file_len, file)?;
        tensors.insert(name, tensor);
    }
    check_layout(&tensors, data_start, file_len, file)?;
    Ok(SafetensorsHeader { file_len, tensors })
}

/// Checks one tensor by itself.
fn check(name: &str, raw: RawTensor, data_start: u64, file_len: u64, file: &str) -> Result<HeaderTensor, WeightsError> {
    let bad = |what: String| WeightsError::BadTensor { file: file.to_owned(), tensor: printable(name), what };
    let dtype = Dtype::from_safetensors(&raw.dtype)
        .ok_or_else(|| bad(format!("has the unknown type '{}'", printable(&raw.dtype))))?;
    let [begin, end] = raw.data_offsets;
    let stored = end.checked_sub(begin).ok_or_else(|| bad(format!("ends at {end}, before it begins at {begin}")))?;
    let needed = dtype
        .bytes_of(&raw.shape.0)
        .ok_or_else(|| bad(format!("of {dtype} {:?} has no size in whole bytes", raw.shape.0)))?;
    if stored != needed {
        return Err(bad(format!("of {dtype} {:?} takes {needed} bytes, but {stored} are stored", raw.shape.0)));
    }
    let (Some(start), Some(end)) = (data_start.checked_add(begin), data_start.checked_add(end)) else {
        return Err(bad(format!("lies at {begin}..{end}, outside of any file")));
    };
    if end > file_len {
        let what = format!("tensor '{}'", printable(name));
        return Err(WeightsError::Truncated { file: file.to_owned(), what, start, end, len: file_len });
    }
    Ok(HeaderTensor { dtype, shape: raw.shape.0, range: start..end })
}

/// Checks all tensors together: they follow each other without a gap, from the header to the end of the file.
fn check_layout(
    tensors: &BTreeMap<String, HeaderTensor>,
    data_start: u64,
    file_len: u64,
    file: &str,
) -> Result<(), WeightsError> {
    let mut by_place: Vec<_> = tensors.iter().map(|(name, tensor)| (tensor.range.clone(), name)).collect();
    by_place.sort_by_key(|(range, _)| (range.start, range.end));
    let mut expected = data_start;
    for (range, name) in by_place {
        if range.start != expected {
            let fault =
                if range.start < expected { "overlaps the tensor before it" } else { "leaves a hole before it" };
            let what = format!("{fault}: it begins at byte {}, that one ends at {expected}", range.start);
            return Err(WeightsError::BadTensor { file: file.to_owned(), tensor: printable(name), what });
        }
        expected = range.end;
    }
    if expected != file_len {
        let what = format!("its last tensor ends at byte {expected}, the file has {file_len}");
        return Err(malformed(file, what));
    }
    Ok(())
}

pub(crate) fn malformed(file: &str, what: impl Into<String>) -> WeightsError {
    WeightsError::Malformed { file: file.to_owned(), format: "safetensors", what: what.into() }
}

/// The header as written: tensors by name, no name twice, `__metadata__` left out.
struct RawHeader(BTreeMap<String, RawTensor>);

#[derive(serde::Deserialize)]
struct RawTensor {
    dtype: String,
    shape: RawShape,
    data_offsets: [u64; 2],
}

/// A table of texts that is checked and not kept.
struct Texts;

/// A text of limited length.
struct LimitedText;

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TensorTable;
        impl<'de> Visitor<'de> for TensorTable {
            type Value = Texts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("texts by name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                while map.next_entry::<LimitedText, LimitedText>()?.is_some() {}
                Ok(Texts)
            }
        }
        deserializer.deserialize_map(TensorTable)
    }
}

impl<'de> Deserialize<'de> for LimitedText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LimitedWords;
        impl Visitor<'_> for LimitedWords {
            type Value = LimitedText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }
            fn visit_str<E>(self, _: &str) -> Result<LimitedText, E> {
                Ok(LimitedText)
            }
        }
        deserializer.deserialize_str(LimitedWords)
    }
}

/// A shape of few dimensions.
struct RawShape(Vec<usize>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tensors;
        impl<'de> Visitor<'de> for Tensors {
            type Value = RawHeader;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tensors by name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut tensors = BTreeMap::new();
                let mut metadata_seen = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<Texts>()?;
                        if std::mem::replace(&mut metadata_seen, true) {
                            return Err(A::Error::custom("__metadata__ stands there twice"));
                        }
                        continue;
                    }
                    if name.len() > LONGEST_NAME {
                        let fault = format_args!("a tensor's name is longer than {LONGEST_NAME} bytes").to_string();
                        return Err(A::Error::custom(fault));
                    }
                    if tensors.len() == MOST_TENSORS {
                        return Err(A::Error::custom(format_args!("more than {MOST_TENSORS} tensors")));
                    }
                    let tensor = map
                        .next_value::<RawTensor>()
                        .map_err(|error| A::Error::custom(format_args!("tensor '{name}': {error}")))?;
                    match tensors.entry(name) {
                        Entry::Vacant(place) => place.insert(tensor),
                        Entry::Occupied(place) => {
                            let twice = format_args!("tensor '{}' stands there twice", place.key()).to_string();
                            return Err(A::Error::custom(twice));
                        }
                    };
                }
                Ok(RawHeader(tensors))
            }
        }
        deserializer.deserialize_map(Tensors)
    }
}

impl<'de> Deserialize<'de> for RawShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Dimensions;
        impl<'de> Visitor<'de> for Dimensions {
            type Value = RawShape;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MOST_DIMENSIONS} dimensions")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawShape, A::Error> {
                let mut shape = Vec::new();
                while let Some(dimension) = seq.next_element::<usize>()? {
                    if shape.len() == MOST_DIMENSIONS {
                        return Err(A::Error::custom(format_args!("more than {MOST_DIMENSIONS} dimensions")));
                    }
                    shape.push(dimension);
                }
                Ok(RawShape(shape))
            }
        }
        deserializer.deserialize_seq(Dimensions)
    }
}
