//! Any bytes as a GGUF file. A file that this repository's reader accepts is sound and can be dequantised. It reads the
//! same after this repository's writer wrote it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model_boss_weights::HeaderBudget;
use model_boss_weights::gguf::{
    ALIGNMENT_KEY, Array, HeaderFault, Header, HeaderWriter, Outline, Strings, TensorInfo, Value, ValueType, dequantise,
};

fuzz_target!(|file: &[u8]| {
    prefix_says_what_it_lacks(file);
    outline_agrees(file);
    let header = match Header::parse(file) {
        Ok(header) => header,
        Err(error) => {
            assert!(!matches!(error.fault, HeaderFault::Incomplete { .. }), "{error}: the whole file was there");
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    for (key, value) in header.metadata() {
        walk(&header, key, *value);
    }
    check_tensors(&header, file);
    dequantise_some(&header, file);
    survives_writing(&header, file);
});

/// Checks that a file which the whole reader accepts has an outline with the same tensors, unless it holds too many.
fn outline_agrees(file: &[u8]) {
    let mut tensors = Vec::new();
    let see = |tensor: &TensorInfo<'_>| tensors.push((tensor.name.to_owned(), tensor.kind, tensor.bytes));
    let outline = Outline::read(file, file.len() as u64, &mut HeaderBudget::default(), see);
    let (Ok(_), Ok(header)) = (outline, Header::parse(file)) else { return };
    let theirs: Vec<_> =
        header.tensors().iter().map(|tensor| (tensor.name.to_owned(), tensor.kind, tensor.bytes)).collect();
    assert_eq!(tensors, theirs);
}

/// A prefix of a file either is enough, or wants a number of bytes that the file has.
fn prefix_says_what_it_lacks(file: &[u8]) {
    let head = &file[..file.len() / 2];
    if let Err(error) = Header::parse_prefix(head, file.len() as u64)
        && let HeaderFault::Incomplete { until } = error.fault
    {
        assert!(until > head.len() as u64 && until <= file.len() as u64, "{until} of {}", file.len());
    }
}

fn walk(header: &Header<'_>, key: &str, value: Value<'_>) {
    assert!(header.get(key).is_some());
    // Each call returns a value or an error that names its key.
    let _ = (header.find::<bool>(key), header.find::<f32>(key), header.find::<i64>(key), header.find::<u32>(key));
    if let Err(error) = header.need::<&str>(key) {
        assert!(!error.to_string().is_empty());
    }
    let Value::Array(array) = value else { return };
    let elements = match array.kind() {
        ValueType::String => header.need::<Strings<'_>>(key).map(|strings| strings.count()).ok(),
        ValueType::F32 | ValueType::F64 => array.floats().map(|floats| floats.len()),
        ValueType::Bool | ValueType::Array => return,
        // This is an integer that does not fit in 63 bits.
        ValueType::U64 => array.integers().map_or(Some(array.len()), |integers| Some(integers.len())),
        _ => array.integers().map(|integers| integers.len()),
    };
    assert_eq!(elements, Some(array.len()), "{key}");
}

fn check_tensors(header: &Header<'_>, file: &[u8]) {
    let mut places = Vec::new();
    for tensor in header.tensors() {
        assert_eq!(header.tensor(tensor.name), Some(tensor));
        assert_eq!(tensor.kind.bytes_of(tensor.elements()), Some(tensor.bytes));
        assert!(tensor.offset >= header.data_start());
        assert!((tensor.offset - header.data_start()).is_multiple_of(header.alignment()));
        assert!(tensor.offset + tensor.bytes <= file.len() as u64, "{tensor:?}");
        places.push((tensor.offset, tensor.offset + tensor.bytes));
    }
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[0].1 <= pair[1].0), "overlaps: {places:?}");
}

fn dequantise_some(header: &Header<'_>, file: &[u8]) {
    for tensor in header.tensors().iter().take(8) {
        let stored = &file[tensor.offset as usize..][..tensor.bytes as usize];
        let mut values = vec![0.0; tensor.elements() as usize];
        let done = dequantise(tensor.kind, stored, &mut values);
        assert_eq!(done.is_ok(), tensor.kind.is_supported(), "{tensor:?}: {done:?}");
    }
}

fn survives_writing(header: &Header<'_>, file: &[u8]) {
    // The writer does not write empty names.
    let keys = header.metadata().iter().filter(|(key, _)| !key.is_empty() && *key != ALIGNMENT_KEY);
    let tensors: Vec<_> = header.tensors().iter().filter(|tensor| !tensor.name.is_empty()).collect();
    let mut writer = HeaderWriter::new();
    for (key, value) in keys.clone() {
        writer.set(key, value).expect("a key that was read");
    }
    for tensor in &tensors {
        writer.tensor(tensor.name, tensor.kind, tensor.shape()).expect("a tensor that was read");
    }
    let mut body = writer.begin(Vec::new()).expect("memory takes it");
    for tensor in &tensors {
        body.write(&file[tensor.offset as usize..][..tensor.bytes as usize]).expect("the tensor is due");
    }
    let written = body.finish().expect("all tensors were written");
    let again = Header::parse(&written).expect("what our writer wrote");
    for (key, value) in keys {
        assert!(same(again.get(key), *value), "{key}");
    }
    assert_eq!(again.tensors().len(), tensors.len());
    for (ours, tensor) in again.tensors().iter().zip(tensors) {
        assert_eq!((ours.name, ours.kind, ours.shape()), (tensor.name, tensor.kind, tensor.shape()));
        assert_eq!(
            written[ours.offset as usize..][..ours.bytes as usize],
            file[tensor.offset as usize..][..tensor.bytes as usize]
        );
    }
}

/// Whether two values are equal to the bit. A NaN is not equal to itself otherwise.
fn same(left: Option<Value<'_>>, right: Value<'_>) -> bool {
    let bytes = |array: Array<'_>| (array.kind(), array.len(), array.bytes().to_vec());
    match (left, right) {
        (Some(Value::F32(left)), Value::F32(right)) => left.to_bits() == right.to_bits(),
        (Some(Value::F64(left)), Value::F64(right)) => left.to_bits() == right.to_bits(),
        (Some(Value::Array(left)), Value::Array(right)) => bytes(left) == bytes(right),
        (left, right) => left == Some(right),
    }
}
