//! The tensors of a safetensors header, one after another, for sums without an index. Memory does not grow with the
//! header. Overlaps and duplicate names are found by the reader of the index, not here.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::header::{LENGTH_BYTES, header_len, malformed};
use super::json::{JsonFault, JsonReader};
use crate::budget::HeaderBudget;
use crate::dtype::Dtype;
use crate::error::{WeightsError, file_name, printable};
use crate::limits::{LONGEST_DTYPE, LONGEST_NAME, MOST_DIMENSIONS, MOST_TENSORS};

/// A tensor as the header has it.
#[derive(Debug, PartialEq, Eq)]
pub struct OutlinedTensor<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// The type of the elements; `None` for a type that this build does not support.
    pub dtype: Option<Dtype>,
    /// Dimensions, slowest first.
    pub shape: &'a [u64],
    /// The number of stored bytes.
    pub bytes: u64,
}

/// Calls `each` with every tensor of a file, and returns the bytes of the file's data. The header's bytes are taken
/// from `budget`.
pub fn outline_safetensors(
    path: &Path,
    budget: &mut HeaderBudget,
    mut each: impl FnMut(&OutlinedTensor<'_>),
) -> Result<u64, WeightsError> {
    let unreadable = |source| WeightsError::Read { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(WeightsError::NotRegular { path: path.to_owned() });
    }
    let file = File::open(path).map_err(unreadable)?;
    let (file_len, name) = (file.metadata().map_err(unreadable)?.len(), file_name(path));
    let mut head = Vec::new();
    (&file).take(LENGTH_BYTES).read_to_end(&mut head).map_err(unreadable)?;
    let header_len = header_len(&head, file_len, &name)?;
    budget.take(header_len).map_err(|what| malformed(&name, what))?;
    let data = file_len - LENGTH_BYTES - header_len;
    outline(file.take(header_len), data, &mut each).map_err(|fault| match fault {
        JsonFault::Read(source) => WeightsError::Read { path: path.to_owned(), source },
        fault => malformed(&name, printable(&fault.to_string())),
    })?;
    Ok(data)
}

fn outline(header: impl Read, data: u64, each: &mut impl FnMut(&OutlinedTensor<'_>)) -> Result<(), JsonFault> {
    let mut json = JsonReader::new(header);
    let mut count = 0;
    json.table(LONGEST_NAME, |json, name| {
        if name == "__metadata__" {
            return json.table(LONGEST_NAME, |json, _| json.skip_text());
        }
        count += 1;
        if count > MOST_TENSORS {
            return Err(JsonFault::TooLong { what: "its list of tensors", most: MOST_TENSORS });
        }
        let tensor = OutlinedRecord::read(json)?;
        let missing = |what| JsonFault::Unexpected { wanted: what, at: 0 };
        let shape = tensor.shape.ok_or_else(|| missing("a tensor's 'shape'"))?;
        let (begin, end) = tensor.offsets.ok_or_else(|| missing("a tensor's 'data_offsets'"))?;
        let bytes =
            end.checked_sub(begin).filter(|_| end <= data).ok_or_else(|| missing("a tensor inside the file"))?;
        each(&OutlinedTensor { name, dtype: tensor.dtype, shape: &shape, bytes });
        Ok(())
    })?;
    json.end()
}

#[derive(Default)]
struct OutlinedRecord {
    dtype: Option<Dtype>,
    shape: Option<Vec<u64>>,
    offsets: Option<(u64, u64)>,
}

impl OutlinedRecord {
    fn read<R: Read>(json: &mut JsonReader<R>) -> Result<Self, JsonFault> {
        let mut tensor = Self::default();
        json.table(LONGEST_DTYPE, |json, field| {
            match field {
                "dtype" => {
                    let mut text = Vec::new();
                    json.string(&mut text, "the name of a type", LONGEST_DTYPE)?;
                    tensor.dtype = std::str::from_utf8(&text).ok().and_then(Dtype::from_safetensors);
                }
                "shape" => tensor.shape = Some(json.numbers("a shape", MOST_DIMENSIONS)?),
                "data_offsets" => {
                    let offsets = json.numbers("'data_offsets'", 2)?;
                    tensor.offsets = offsets.first().copied().zip(offsets.get(1).copied());
                }
                _ => json.skip()?,
            }
            Ok(())
        })?;
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    fn read(header: &str, data: usize) -> Result<(Vec<String>, u64), WeightsError> {
        let file = file(header, data);
        let mut seen = Vec::new();
        let see = |tensor: &OutlinedTensor<'_>| seen.push(format!("{} {:?}", tensor.name, tensor.shape));
        let data = outline_safetensors(file.path(), &mut HeaderBudget::default(), see)?;
        Ok((seen, data))
    }

    #[test]
    fn every_tensor_is_seen_and_metadata_is_not() {
        let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
            "b":{"data_offsets":[24,26],"shape":[],"dtype":"NEW","more":[{}]}}  "#;
        assert_eq!(read(header, 26).unwrap(), (vec!["a [2, 3]".to_owned(), "b []".to_owned()], 26));
    }

    #[test]
    fn what_lies_or_asks_for_too_much_is_refused() {
        let of = |shape: &str, offsets: &str| {
            format!(r#"{{"a":{{"dtype":"U8","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        for header in [
            of("[1]", "[0,5]"),
            of("[1]", "[2,1]"),
            of("[1]", "[0]"),
            of("[-1]", "[0,1]"),
            of("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]"),
            r#"{"a":{"dtype":"U8","shape":[1]}}"#.to_owned(),
            format!(r#"{{"a":{{"dtype":"{}","shape":[1],"data_offsets":[0,1]}}}}"#, "x".repeat(LONGEST_DTYPE + 1)),
            format!(r#"{{"{}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#, "x".repeat(LONGEST_NAME + 1)),
            r#"{"__metadata__":{"a":1}}"#.to_owned(),
            "[]".to_owned(),
            "{} x".to_owned(),
        ] {
            assert!(read(&header, 4).is_err(), "{}", header.chars().take(100).collect::<String>());
        }
        let many: Vec<String> =
            (0..=MOST_TENSORS).map(|n| format!(r#""{n}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#)).collect();
        let error = read(&format!("{{{}}}", many.join(",")), 0).unwrap_err().to_string();
        assert!(error.contains("its list of tensors"), "{error}");
    }

    #[test]
    fn the_headers_of_one_model_share_a_budget() {
        let header = format!("{{}}{}", " ".repeat(1_000));
        let file = file(&header, 0);
        let mut budget = HeaderBudget::new(1_500);
        outline_safetensors(file.path(), &mut budget, |_| ()).unwrap();
        let error = outline_safetensors(file.path(), &mut budget, |_| ()).unwrap_err().to_string();
        assert!(error.contains("the headers of one model"), "{error}");
    }
}
