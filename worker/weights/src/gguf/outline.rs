//! A GGUF header in outline, in memory that does not grow with it. Numbers and short texts are kept, lists and long
//! texts are skipped, tensors are shown one after another. It serves sums of sizes. [`super::Header`] checks whether
//! tensors overlap or names occur twice.

use std::collections::HashMap;
use std::io::{self, Read};

use super::alignment::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT};
use super::cursor::Cursor;
use super::error::{HeaderError, HeaderFault, HeaderPlace};
use super::header::{MAX_KEYS, MAX_NAME, MAX_TENSORS, check_alignment, check_count, read_name, read_version};
use super::tensor::TensorInfo;
use super::value::Value;
use super::value_type::ValueType;
use crate::HeaderBudget;

/// The most bytes of a text that is kept. A chat template has a tenth of that.
const LONGEST_TEXT: u64 = 256 << 10;
/// The most bytes of all names and texts that are kept.
const KEPT: usize = 1 << 20;
/// The bytes read for one record, in which a record with the longest name fits.
const RECORD: usize = MAX_NAME + 256;
/// Bytes that are read at once.
const AT_ONCE: usize = 2 * RECORD;
/// The longest header that is read.
const LONGEST_HEADER: u64 = 128 << 20;

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// A truth value.
    Bool(bool),
    /// An integer of any width that fits.
    Integer(i64),
    /// An integer that needs 64 unsigned bits.
    Large(u64),
    /// A 32-bit float.
    F32(f32),
    /// A 64-bit float.
    F64(f64),
    /// A text; invalid UTF-8 in it is replaced.
    Text(String),
    /// A list, or a long text.
    PassedOver,
}

/// The keys of a header.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outline {
    facts: Vec<(String, Fact)>,
    places: HashMap<String, usize>,
}

/// The reason why a header's outline cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OutlineError {
    /// The file could not be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The header is invalid.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The headers of one model.
    #[error("{0}")]
    Budget(String),
}

impl Outline {
    /// Reads the header of a file of `file_len` bytes, and calls `each` with every tensor (offsets count from the
    /// data). Its bytes are taken from `budget`.
    pub fn read(
        file: impl Read,
        file_len: u64,
        budget: &mut HeaderBudget,
        mut each: impl FnMut(&TensorInfo<'_>),
    ) -> Result<Self, OutlineError> {
        let mut window = HeaderWindow { file, buffer: Vec::new(), at: 0, before: 0, file_len, budget };
        let start = |fault| OutlineError::from(HeaderPlace::Start.fault(fault));
        let (tensors, keys) = window
            .record(|cursor| {
                read_version(cursor)?;
                Ok((cursor.u64("the tensor count")?, cursor.u64("the key count")?))
            })?
            .map_err(start)?;
        let left = file_len.saturating_sub(window.position());
        check_count("metadata keys", keys, (left / 13).min(MAX_KEYS)).map_err(start)?;
        check_count("tensors", tensors, (left / 24).min(MAX_TENSORS)).map_err(start)?;
        let (mut outline, mut alignment, mut kept) = (Self::default(), DEFAULT_ALIGNMENT, 0);
        for number in 0..keys {
            let (key, fact) = window.key(number)?;
            if key == ALIGNMENT_KEY {
                alignment = match fact {
                    Fact::Integer(value) => check_alignment(u64::try_from(value).unwrap_or(0))
                        .map_err(|fault| HeaderPlace::Key(key.clone()).fault(fault))?,
                    _ => return Err(HeaderPlace::Key(key).fault(HeaderFault::Alignment(0)).into()),
                };
            }
            kept += key.len() + if let Fact::Text(text) = &fact { text.len() } else { 0 };
            if kept > KEPT {
                let too_many =
                    HeaderFault::TooMany { what: "bytes of metadata", claimed: kept as u64, most: KEPT as u64 };
                return Err(HeaderPlace::Key(key).fault(too_many).into());
            }
            outline.places.insert(key.clone(), outline.facts.len());
            outline.facts.push((key, fact));
        }
        let (mut end, mut sum) = (0_u64, 0_u64);
        for number in 0..tensors {
            let read = window.record(|cursor| {
                let name = read_name(cursor, "a tensor's name")?;
                let tensor = TensorInfo::read(cursor, name)?;
                if !tensor.offset.is_multiple_of(alignment) {
                    return Err(HeaderFault::Unaligned { offset: tensor.offset, alignment });
                }
                each(&tensor);
                Ok((tensor.offset.checked_add(tensor.bytes).ok_or(HeaderFault::SizeOverflow)?, tensor.bytes))
            })?;
            let (tensor_end, bytes) = read.map_err(|fault| HeaderPlace::TensorName(number).fault(fault))?;
            end = end.max(tensor_end);
            sum = sum.saturating_add(bytes);
        }
        let data = file_len.saturating_sub(window.position().next_multiple_of(alignment));
        if end > data || sum > data {
            return Err(start(HeaderFault::OutsideFile { offset: 0, size: end.max(sum), data }));
        }
        Ok(outline)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Fact> {
        self.facts.get(*self.places.get(key)?).map(|(_, fact)| fact)
    }

    /// The value of a key, if it is a text.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Fact::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value of a key, if it is an integer of at least 0.
    pub fn number(&self, key: &str) -> Option<u64> {
        match *self.get(key)? {
            Fact::Integer(number) => u64::try_from(number).ok(),
            Fact::Large(number) => Some(number),
            _ => None,
        }
    }

    /// All keys that were read, in the file's order.
    pub fn facts(&self) -> impl Iterator<Item = (&str, &Fact)> {
        self.facts.iter().map(|(key, fact)| (key.as_str(), fact))
    }
}

/// The part of a file that is being read.
struct HeaderWindow<'a, R> {
    file: R,
    buffer: Vec<u8>,
    at: usize,
    /// Bytes of the file before the buffer.
    before: u64,
    file_len: u64,
    budget: &'a mut HeaderBudget,
}

impl<R: Read> HeaderWindow<'_, R> {
    fn position(&self) -> u64 {
        self.before + self.at as u64
    }

    /// Reads until at least `needs` bytes after the position are buffered, or the file ends.
    fn have(&mut self, needs: usize) -> Result<(), OutlineError> {
        if self.buffer.len() - self.at >= needs {
            return Ok(());
        }
        self.before += self.at as u64;
        drop(self.buffer.drain(..self.at));
        self.at = 0;
        let more = needs.max(AT_ONCE) - self.buffer.len();
        let read = (&mut self.file).take(more as u64).read_to_end(&mut self.buffer)?;
        self.pay(read as u64)
    }

    /// Bytes read of a file count against the budget, which is small for one file.
    fn pay(&mut self, read: u64) -> Result<(), OutlineError> {
        let claimed = self.position();
        if claimed > LONGEST_HEADER {
            let fault = HeaderFault::TooMany { what: "bytes of header", claimed, most: LONGEST_HEADER };
            return Err(HeaderPlace::Start.fault(fault).into());
        }
        self.budget.take(read).map_err(OutlineError::Budget)
    }

    /// Reads something short at the position, and passes it.
    fn record<T>(
        &mut self,
        read: impl FnOnce(&mut Cursor<'_>) -> Result<T, HeaderFault>,
    ) -> Result<Result<T, HeaderFault>, OutlineError> {
        self.have(RECORD)?;
        let left = self.file_len.saturating_sub(self.position());
        let mut cursor = Cursor::new(self.buffer.get(self.at..).unwrap_or_default(), left);
        let done = read(&mut cursor);
        let passed = cursor.position();
        self.at += usize::try_from(passed).unwrap_or(usize::MAX);
        // A record that reaches beyond the window is longer than its format allows.
        Ok(done.map_err(|fault| match fault {
            HeaderFault::Incomplete { until } => HeaderFault::NameTooLong(until),
            other => other,
        }))
    }

    /// Skips bytes without keeping them.
    fn skip(&mut self, bytes: u64) -> Result<Result<(), HeaderFault>, OutlineError> {
        let left = self.file_len.saturating_sub(self.position());
        if bytes > left {
            let at = self.position();
            return Ok(Err(HeaderFault::Truncated { what: "a value", at, needs: bytes, file_len: self.file_len }));
        }
        let here = (self.buffer.len() - self.at) as u64;
        if bytes <= here {
            self.at += usize::try_from(bytes).unwrap_or(usize::MAX);
            return Ok(Ok(()));
        }
        let beyond = bytes - here;
        self.before = self.position() + here;
        self.buffer.clear();
        self.at = 0;
        self.pay(beyond)?;
        let passed = io::copy(&mut (&mut self.file).take(beyond), &mut io::sink())?;
        self.before += passed;
        Ok(if passed == beyond {
            Ok(())
        } else {
            Err(HeaderFault::Truncated { what: "a value", at: self.before, needs: beyond, file_len: self.file_len })
        })
    }

    fn key(&mut self, number: u64) -> Result<(String, Fact), OutlineError> {
        let read = self.record(|cursor| {
            let name = read_name(cursor, "a key's name")?.to_owned();
            let kind = cursor.u32("a value's type").and_then(ValueType::from_id)?;
            let value = match kind {
                ValueType::String | ValueType::Array => None,
                number => Some(scalar(&Value::read(cursor, number)?)),
            };
            Ok((name, kind, value))
        })?;
        let (name, kind, value) = read.map_err(|fault| HeaderPlace::KeyName(number).fault(fault))?;
        let fact = match value {
            Some(value) => Ok(value),
            None if kind == ValueType::String => self.text()?,
            None => self.list()?,
        };
        let fact = fact.map_err(|fault| HeaderPlace::Key(name.clone()).fault(fault))?;
        Ok((name, fact))
    }

    fn text(&mut self) -> Result<Result<Fact, HeaderFault>, OutlineError> {
        let length = match self.record(|cursor| cursor.u64("a string"))? {
            Ok(length) => length,
            Err(fault) => return Ok(Err(fault)),
        };
        if length > LONGEST_TEXT {
            return Ok(self.skip(length)?.map(|()| Fact::PassedOver));
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        self.have(length)?;
        let Some(text) = self.buffer.get(self.at..).and_then(|rest| rest.get(..length)) else {
            let (at, needs) = (self.position(), length as u64);
            return Ok(Err(HeaderFault::Truncated { what: "a string", at, needs, file_len: self.file_len }));
        };
        let text = String::from_utf8_lossy(text).into_owned();
        self.at += length;
        Ok(Ok(Fact::Text(text)))
    }

    fn list(&mut self) -> Result<Result<Fact, HeaderFault>, OutlineError> {
        let head = self.record(|cursor| {
            let kind = ValueType::from_id(cursor.u32("an array's type")?)?;
            let claimed = cursor.u64("an array's length")?;
            let least = match kind {
                ValueType::Array => return Err(HeaderFault::NestedArray),
                kind => kind.size().unwrap_or(8),
            };
            let most = cursor.left_in_file() / least;
            check_count("array elements", claimed, most)?;
            Ok((kind, claimed))
        })?;
        let (kind, length) = match head {
            Ok(head) => head,
            Err(fault) => return Ok(Err(fault)),
        };
        if let Some(size) = kind.size() {
            return Ok(self.skip(length.saturating_mul(size))?.map(|()| Fact::PassedOver));
        }
        for _ in 0..length {
            let text = match self.record(|cursor| cursor.u64("a string of an array"))? {
                Ok(text) => text,
                Err(fault) => return Ok(Err(fault)),
            };
            if let Err(fault) = self.skip(text)? {
                return Ok(Err(fault));
            }
        }
        Ok(Ok(Fact::PassedOver))
    }
}

fn scalar(value: &Value<'_>) -> Fact {
    match *value {
        Value::Bool(value) => Fact::Bool(value),
        Value::F32(value) => Fact::F32(value),
        Value::F64(value) => Fact::F64(value),
        Value::U64(value) => i64::try_from(value).map_or(Fact::Large(value), Fact::Integer),
        ref other => other.integer().map_or(Fact::PassedOver, Fact::Integer),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Header, HeaderWriter, TensorType};
    use super::*;

    fn file() -> Vec<u8> {
        let mut writer = HeaderWriter::new();
        writer.set("general.architecture", "llama").unwrap();
        writer.set("llama.block_count", &7_u32).unwrap();
        writer.set("big", &u64::MAX).unwrap();
        writer.set("scale", &0.5_f32).unwrap();
        writer.set("yes", &true).unwrap();
        let tokens: Vec<String> = (0..20_000).map(|n| format!("token number {n}")).collect();
        writer.set("tokens", tokens.as_slice()).unwrap();
        writer.set("template", "x".repeat(300_000).as_str()).unwrap();
        writer.set("last", "end").unwrap();
        writer.tensor("a", TensorType::F32, &[2, 8]).unwrap();
        writer.tensor(&"long".repeat(100), TensorType::F16, &[8]).unwrap();
        let mut body = writer.begin(Vec::new()).unwrap();
        body.write(&[0; 64]).unwrap();
        body.write(&[0; 16]).unwrap();
        body.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<(Outline, Vec<(String, u64)>), OutlineError> {
        let mut tensors = Vec::new();
        let see = |tensor: &TensorInfo<'_>| tensors.push((tensor.name.to_owned(), tensor.bytes));
        let outline = Outline::read(bytes, bytes.len() as u64, &mut HeaderBudget::default(), see)?;
        Ok((outline, tensors))
    }

    #[test]
    fn it_says_what_the_whole_header_says() {
        let bytes = file();
        let (outline, tensors) = read(&bytes).unwrap();
        let header = Header::parse(&bytes).unwrap();
        let own: Vec<_> = header.tensors().iter().map(|tensor| (tensor.name.to_owned(), tensor.bytes)).collect();
        assert_eq!(tensors, own);
        let keys: Vec<&str> = outline.facts().map(|(key, _)| key).collect();
        assert_eq!(keys, header.metadata().iter().map(|(key, _)| *key).collect::<Vec<_>>());
        assert_eq!(
            (outline.text("general.architecture"), outline.number("llama.block_count")),
            (Some("llama"), Some(7))
        );
        assert_eq!((outline.number("big"), outline.text("last")), (Some(u64::MAX), Some("end")));
        assert_eq!((outline.get("scale"), outline.get("yes")), (Some(&Fact::F32(0.5)), Some(&Fact::Bool(true))));
        assert_eq!(
            (outline.get("tokens"), outline.get("template")),
            (Some(&Fact::PassedOver), Some(&Fact::PassedOver))
        );
    }

    #[test]
    fn a_file_that_ends_early_anywhere_has_none() {
        let bytes = file();
        // The last cut is inside the last tensor, which ends before the padding.
        for length in (0..bytes.len()).step_by(19_997).chain([bytes.len() - 17]) {
            assert!(read(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn what_is_kept_has_a_limit_and_what_is_read_has_one() {
        let mut writer = HeaderWriter::new();
        for n in 0..8 {
            writer.set(&format!("text {n}"), "x".repeat(200_000).as_str()).unwrap();
        }
        let bytes = writer.begin(Vec::new()).unwrap().finish().unwrap();
        assert!(read(&bytes).unwrap_err().to_string().contains("bytes of metadata"));
        let bytes = file();
        let error = Outline::read(&bytes[..], bytes.len() as u64, &mut HeaderBudget::new(100_000), |_| ());
        assert!(matches!(error, Err(OutlineError::Budget(_))), "{error:?}");
    }
}
