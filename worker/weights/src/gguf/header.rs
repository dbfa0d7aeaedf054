//! A checked GGUF header: metadata by key, tensors by name. It borrows from the file's bytes.

use std::collections::HashMap;

use super::alignment::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT};
use super::cursor::Cursor;
use super::error::{HeaderError, HeaderFault, HeaderPlace, KeyError};
use super::tensor::TensorInfo;
use super::value::{FromValue, Value};
use super::value_type::ValueType;

/// The limit on keys. Real files have fewer than a hundred; the limit bounds the memory that an invented header can
/// cost.
pub(super) const MAX_KEYS: u64 = 1 << 16;

/// The limit on tensors. The largest real files have some thousands.
pub(super) const MAX_TENSORS: u64 = 1 << 18;

/// The limit on the length of a name in bytes, which fits in 16 bits.
pub(super) const MAX_NAME: usize = u16::MAX as usize;

const MAX_ALIGNMENT: u64 = 1 << 20;

/// The checked header of a GGUF file. Every tensor is aligned, inside the file, and shares no byte with another.
#[derive(Clone, Debug)]
pub struct Header<'a> {
    version: u32,
    alignment: u64,
    data_start: u64,
    metadata: Vec<(&'a str, Value<'a>)>,
    keys: HashMap<&'a str, usize>,
    tensors: Vec<TensorInfo<'a>>,
    names: HashMap<&'a str, usize>,
}

impl<'a> Header<'a> {
    /// Reads the header of a file that is completely in memory, or mapped.
    pub fn parse(file: &'a [u8]) -> Result<Self, HeaderError> {
        Self::parse_prefix(file, file.len() as u64)
    }

    /// Reads the header of a file of `file_len` bytes from its first bytes. If they are too few, the fault is
    /// [`HeaderFault::Incomplete`], with the number of bytes to read at least.
    pub fn parse_prefix(head: &'a [u8], file_len: u64) -> Result<Self, HeaderError> {
        let mut cursor = Cursor::new(head, file_len);
        let start = |fault| HeaderPlace::Start.fault(fault);
        let version = read_version(&mut cursor).map_err(start)?;
        let tensor_count = cursor.u64("the tensor count").map_err(start)?;
        let key_count = cursor.u64("the key count").map_err(start)?;
        // Sizes of the shortest key (a length, no name, a type, a byte) and of the shortest tensor. A tensor has a
        // length, no name, no dimension, a type and an offset.
        let left = cursor.left_in_file();
        check_count("metadata keys", key_count, (left / 13).min(MAX_KEYS)).map_err(start)?;
        check_count("tensors", tensor_count, (left / 24).min(MAX_TENSORS)).map_err(start)?;

        let (metadata, keys) = read_metadata(&mut cursor, key_count)?;
        let alignment = read_alignment(keys.get(ALIGNMENT_KEY).and_then(|index| metadata.get(*index)))?;
        let mut tensors = read_tensors(&mut cursor, tensor_count)?;
        let data_start = cursor.position().next_multiple_of(alignment);
        place_tensors(&mut tensors, data_start, file_len, alignment)?;

        let mut names = HashMap::with_capacity(tensors.len());
        for (index, tensor) in tensors.iter().enumerate() {
            if names.insert(tensor.name, index).is_some() {
                return Err(HeaderPlace::Tensor(tensor.name.to_owned()).fault(HeaderFault::Duplicate));
            }
        }
        Ok(Self { version, alignment, data_start, metadata, keys, tensors, names })
    }

    /// The format's version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment in bytes: tensors begin at multiples of it after [`Self::data_start`].
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The offset of the tensors' bytes in the file. Without tensors it may be after the file's end.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// All metadata, in the file's order.
    pub fn metadata(&self) -> &[(&'a str, Value<'a>)] {
        &self.metadata
    }

    /// A key's value.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.metadata.get(*self.keys.get(key)?).map(|(_, value)| *value)
    }

    /// The value of a key as a `T`, or `None` if the file lacks the key. A value of another type is an error.
    pub fn find<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>, KeyError> {
        self.get(key).map(|value| T::from_value(key, value)).transpose()
    }

    /// A key's value as a `T`; an error where the file lacks it.
    pub fn need<T: FromValue<'a>>(&self, key: &str) -> Result<T, KeyError> {
        self.find(key)?.ok_or_else(|| KeyError::Missing(key.to_owned()))
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo<'a>] {
        &self.tensors
    }

    /// A tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo<'a>> {
        self.tensors.get(*self.names.get(name)?)
    }

    /// The first tensor of a type this project cannot compute with.
    pub fn first_unsupported(&self) -> Option<&TensorInfo<'a>> {
        self.tensors.iter().find(|tensor| !tensor.kind.is_supported())
    }
}

pub(super) fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, HeaderFault> {
    let magic = cursor.word::<4>("the magic")?;
    match &magic {
        b"GGUF" => {}
        b"lmgg" => return Err(HeaderFault::BeforeGguf("GGML")),
        b"fmgg" => return Err(HeaderFault::BeforeGguf("GGMF")),
        b"tjgg" => return Err(HeaderFault::BeforeGguf("GGJT")),
        b"algg" => return Err(HeaderFault::BeforeGguf("GGLA")),
        other => return Err(HeaderFault::NotGguf(other.to_vec())),
    }
    match cursor.u32("the version")? {
        version @ (2 | 3) => Ok(version),
        // The version of a big-endian file reads as a number whose low half is zero.
        swapped if swapped != 0 && swapped & 0xffff == 0 => Err(HeaderFault::BigEndian),
        other => Err(HeaderFault::Version(other)),
    }
}

pub(super) fn check_count(what: &'static str, claimed: u64, most: u64) -> Result<(), HeaderFault> {
    if claimed > most { Err(HeaderFault::TooMany { what, claimed, most }) } else { Ok(()) }
}

pub(super) fn read_name<'a>(cursor: &mut Cursor<'a>, what: &'static str) -> Result<&'a str, HeaderFault> {
    let name = cursor.string(what)?;
    if name.len() > MAX_NAME {
        return Err(HeaderFault::NameTooLong(name.len() as u64));
    }
    std::str::from_utf8(name).map_err(|_| HeaderFault::NameNotUtf8)
}

type Metadata<'a> = (Vec<(&'a str, Value<'a>)>, HashMap<&'a str, usize>);

fn read_metadata<'a>(cursor: &mut Cursor<'a>, count: u64) -> Result<Metadata<'a>, HeaderError> {
    let (mut metadata, mut keys) = (Vec::new(), HashMap::new());
    for number in 0..count {
        let key = read_name(cursor, "a key's name").map_err(|fault| HeaderPlace::KeyName(number).fault(fault))?;
        let value = cursor
            .u32("a value's type")
            .and_then(ValueType::from_id)
            .and_then(|kind| Value::read(cursor, kind))
            .map_err(|fault| HeaderPlace::Key(key.to_owned()).fault(fault))?;
        if keys.insert(key, metadata.len()).is_some() {
            return Err(HeaderPlace::Key(key.to_owned()).fault(HeaderFault::Duplicate));
        }
        metadata.push((key, value));
    }
    Ok((metadata, keys))
}

fn read_alignment(entry: Option<&(&str, Value<'_>)>) -> Result<u64, HeaderError> {
    let Some((key, value)) = entry else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let checked = match value {
        Value::U32(alignment) => check_alignment(u64::from(*alignment)),
        Value::U64(alignment) => check_alignment(*alignment),
        other => Err(HeaderFault::AlignmentType(other.kind())),
    };
    checked.map_err(|fault| HeaderPlace::Key((*key).to_owned()).fault(fault))
}

/// Accepts an alignment that is a power of two within the limit.
pub(super) fn check_alignment(alignment: u64) -> Result<u64, HeaderFault> {
    if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
        Ok(alignment)
    } else {
        Err(HeaderFault::Alignment(alignment))
    }
}

fn read_tensors<'a>(cursor: &mut Cursor<'a>, count: u64) -> Result<Vec<TensorInfo<'a>>, HeaderError> {
    (0..count)
        .map(|number| {
            let name =
                read_name(cursor, "a tensor's name").map_err(|fault| HeaderPlace::TensorName(number).fault(fault))?;
            TensorInfo::read(cursor, name).map_err(|fault| HeaderPlace::Tensor(name.to_owned()).fault(fault))
        })
        .collect()
}

/// Turns offsets in the data into offsets in the file, checked.
fn place_tensors(
    tensors: &mut [TensorInfo<'_>],
    data_start: u64,
    file_len: u64,
    alignment: u64,
) -> Result<(), HeaderError> {
    let data = file_len.saturating_sub(data_start);
    for tensor in &mut *tensors {
        let (offset, size) = (tensor.offset, tensor.bytes);
        let place = || HeaderPlace::Tensor(tensor.name.to_owned());
        if offset.checked_add(size).is_none_or(|end| end > data) {
            return Err(place().fault(HeaderFault::OutsideFile { offset, size, data }));
        }
        if !offset.is_multiple_of(alignment) {
            return Err(place().fault(HeaderFault::Unaligned { offset, alignment }));
        }
        tensor.offset += data_start;
    }
    let mut by_offset: Vec<_> = tensors.iter().collect();
    by_offset.sort_unstable_by_key(|tensor| (tensor.offset, tensor.name));
    for pair in by_offset.windows(2) {
        if let [first, second] = pair
            && first.offset + first.bytes > second.offset
        {
            return Err(HeaderPlace::Tensor(second.name.to_owned()).fault(HeaderFault::Overlap(first.name.to_owned())));
        }
    }
    Ok(())
}
