//! Damaged safetensors files: each fault has its own message, and random damage never panics.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

use std::fs;
use std::path::Path;

use model_boss_weights::{Dtype, MappedWeights, TensorIndex, WeightsError};
use proptest::prelude::*;

const FILE: &str = "model.safetensors";

/// A file of this header and data.
fn file_of(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// A valid file with two tensors, the second directly after the first.
fn sound() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},
        "a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
        "b.weight":{"dtype":"F16","shape":[4],"data_offsets":[24,32]}}  "#;
    file_of(header, &(0..32).collect::<Vec<u8>>())
}

fn folder_with(bytes: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(FILE), bytes).unwrap();
    folder
}

fn open(bytes: &[u8]) -> Result<TensorIndex, WeightsError> {
    TensorIndex::open(folder_with(bytes).path())
}

#[track_caller]
fn assert_refused(bytes: &[u8], parts: &[&str]) {
    let words = open(bytes).expect_err("read all the same").to_string();
    for part in [FILE].iter().chain(parts) {
        assert!(words.contains(part), "'{part}' is not in: {words}");
    }
}

/// A file with one tensor and these words in its description, over 24 bytes of data.
fn one(description: &str) -> Vec<u8> {
    file_of(&format!(r#"{{"x":{{{description}}}}}"#), &[0; 24])
}

#[test]
fn a_sound_file_gives_types_shapes_ranges_and_bytes() {
    let folder = folder_with(&sound());
    let index = TensorIndex::open(folder.path()).unwrap();
    assert_eq!((index.len(), index.total_bytes()), (2, 32));
    let a = index.get("a").unwrap();
    assert_eq!((a.dtype, a.shape.as_slice(), a.bytes()), (Dtype::F32, [2, 3].as_slice(), 24));
    let weights = MappedWeights::map(index).unwrap();
    assert_eq!(weights.bytes("a").unwrap(), (0..24).collect::<Vec<u8>>());
    assert_eq!(weights.bytes("b.weight").unwrap(), (24..32).collect::<Vec<u8>>());
    let missing = weights.bytes("c").unwrap_err();
    assert!(missing.to_string().contains("'c'"), "{missing}");
}

#[test]
fn scalars_and_empty_tensors_are_tensors() {
    let header = r#"{"empty":{"dtype":"F32","shape":[0,9],"data_offsets":[4,4]},
        "scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;
    assert_eq!(open(&file_of(header, &[0; 4])).unwrap().len(), 2);
    assert!(open(&file_of("{}", &[])).unwrap().is_empty());
}

#[test]
fn the_header_length_is_not_believed() {
    for length in [u64::MAX, u64::MAX - 7, 1 << 40, 100_000_001] {
        let mut bytes = sound();
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        assert_refused(&bytes, &["header", &length.to_string()]);
    }
    let mut bytes = sound();
    let too_long = bytes.len() as u64 - 7;
    bytes[..8].copy_from_slice(&too_long.to_le_bytes());
    assert_refused(&bytes, &["truncated", "the header"]);
    bytes[..8].copy_from_slice(&20u64.to_le_bytes());
    assert_refused(&bytes, &["not a valid safetensors file"]);
    bytes[..8].copy_from_slice(&0u64.to_le_bytes());
    assert_refused(&bytes, &["not a valid safetensors file"]);
    assert_refused(b"version https://git-lfs.github.com/spec/v1\n", &["Git LFS pointer"]);
}

#[test]
fn truncation_names_the_tensor_and_the_bytes_it_lacks() {
    let sound = sound();
    let len = sound.len();
    let needs = format!("bytes {}..{len}, the file has {}", len - 8, len - 1);
    assert_refused(&sound[..len - 1], &["is truncated: tensor 'b.weight' needs", &needs]);
    assert_refused(&sound[..len - 30], &["is truncated: tensor 'a' needs"]);
    assert_refused(&sound[..3], &["is truncated: the header needs bytes 0..8, the file has 3"]);
    for keep in 0..len {
        assert!(open(&sound[..keep]).is_err(), "{keep} bytes");
    }
}

#[test]
fn tensors_must_fill_the_file_without_overlap() {
    let two = |one: &str, other: &str| {
        let header = format!(
            r#"{{"one":{{"dtype":"U8","shape":[8],"data_offsets":[{one}]}},"other":{{"dtype":"U8","shape":[8],"data_offsets":[{other}]}}}}"#
        );
        file_of(&header, &[0; 16])
    };
    assert!(open(&two("8,16", "0,8")).is_ok(), "the order of names says nothing");
    assert_refused(&two("0,8", "4,12"), &["'other'", "overlaps"]);
    assert_refused(&two("0,8", "0,8"), &["overlaps"]);
    assert_refused(&two("0,8", "9,17"), &["truncated", "'other'"]);
    assert_refused(&file_of(r#"{"x":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#, &[0; 8]), &["'x'", "hole"]);
    assert_refused(&file_of(r#"{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#, &[0; 8]), &["last tensor"]);
}

#[test]
fn a_tensor_must_be_as_large_as_type_and_shape_say() {
    assert!(open(&one(r#""dtype":"F32","shape":[6],"data_offsets":[0,24]"#)).is_ok());
    for (description, said) in [
        (r#""dtype":"F16","shape":[6],"data_offsets":[0,24]"#, "takes 12 bytes, but 24 are stored"),
        (r#""dtype":"F32","shape":[7],"data_offsets":[0,24]"#, "takes 28 bytes"),
        (r#""dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,24]"#, "no size"),
        (r#""dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,24]"#, "no size"),
        (r#""dtype":"F4","shape":[47],"data_offsets":[0,24]"#, "no size in whole bytes"),
        (r#""dtype":"F32","shape":[6],"data_offsets":[24,0]"#, "before it begins"),
        (
            r#""dtype":"U8","shape":[8],"data_offsets":[18446744073709551607,18446744073709551615]"#,
            "outside of any file",
        ),
        (r#""dtype":"Q4","shape":[6],"data_offsets":[0,24]"#, "unknown type 'Q4'"),
    ] {
        assert_refused(&one(description), &["'x'", said]);
    }
}

#[test]
fn the_header_must_be_what_the_format_says() {
    for description in [
        r#""dtype":"F32","shape":[6]"#,
        r#""dtype":"F32","shape":[-6],"data_offsets":[0,24]"#,
        r#""dtype":"F32","shape":[6.5],"data_offsets":[0,24]"#,
        r#""dtype":"F32","shape":6,"data_offsets":[0,24]"#,
        r#""dtype":"F32","shape":[6],"data_offsets":[0,24,30]"#,
        r#""dtype":4,"shape":[6],"data_offsets":[0,24]"#,
        r#""dtype":"F32","dtype":"F16","shape":[6],"data_offsets":[0,24]"#,
        r#""dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,6],"data_offsets":[0,24]"#,
    ] {
        assert_refused(&one(description), &["not a valid safetensors file", "'x'"]);
    }
    let twice =
        r#"{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"x":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#;
    assert_refused(&file_of(twice, &[0; 8]), &["'x' stands there twice"]);
    let deep = format!(r#"{{"__metadata__":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    for header in ["", "[]", "{", "\u{feff}{}", "nul", deep.as_str()] {
        assert_refused(&file_of(header, &[]), &["not a valid safetensors file"]);
    }
}

#[test]
fn a_name_cannot_break_the_line_it_is_printed_in() {
    let name = format!("a\\n\\u001b[31m{}", "x".repeat(5_000));
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[6],"data_offsets":[0,4]}}}}"#);
    let words = open(&file_of(&header, &[0; 4])).unwrap_err().to_string();
    assert!(words.len() < 500 && !words.contains(['\n', '\u{1b}']), "{words}");
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join(FILE)).unwrap();
    assert!(matches!(TensorIndex::open(folder.path()), Err(WeightsError::NotRegular { .. })));

    let real = folder_with(&sound());
    let linked = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(real.path().join(FILE), linked.path().join(FILE)).unwrap();
    assert_eq!(TensorIndex::open(linked.path()).unwrap().len(), 2, "hub caches are made of links");
}

#[test]
fn a_file_that_changed_since_its_header_was_read_is_not_mapped() {
    let folder = folder_with(&sound());
    let index = TensorIndex::open(folder.path()).unwrap();
    fs::write(folder.path().join(FILE), &sound()[..50]).unwrap();
    let error = MappedWeights::map(index).unwrap_err();
    assert!(error.to_string().contains("changed"), "{error}");
}

/// A folder with two sound shards and this index.
fn shards(index: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}}}"#);
        fs::write(folder.path().join(format!("{name}.safetensors")), file_of(&header, &[0; 4])).unwrap();
    }
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    folder
}

#[track_caller]
fn assert_index_refused(folder: &Path, parts: &[&str]) {
    let words = TensorIndex::open(folder).expect_err("read all the same").to_string();
    for part in parts {
        assert!(words.contains(part), "'{part}' is not in: {words}");
    }
}

#[test]
fn shards_are_read_through_their_index() {
    let folder =
        shards(r#"{"metadata":{"total_size":8},"weight_map":{"one":"one.safetensors","two":"two.safetensors"}}"#);
    let index = TensorIndex::open(folder.path()).unwrap();
    assert_eq!((index.len(), index.files().len(), index.total_bytes()), (2, 2, 8));
    let part = shards(r#"{"weight_map":{"one":"one.safetensors"}}"#);
    assert_eq!(TensorIndex::open(part.path()).unwrap().files().len(), 1, "what is not listed is not read");
}

#[test]
fn an_index_that_lies_is_refused() {
    for (index, parts) in [
        (r#"{"weight_map":{"one":"three.safetensors"}}"#, ["three.safetensors", "missing"].as_slice()),
        (r#"{"weight_map":{"one":"two.safetensors"}}"#, &["two.safetensors", "'one'", "does not have it"]),
        (r#"{"weight_map":{"one":"../one.safetensors"}}"#, &["../one.safetensors", "beside it"]),
        (r#"{"weight_map":{"one":"/etc/passwd"}}"#, &["/etc/passwd", "beside it"]),
        (r#"{"weight_map":{"one":".."}}"#, &["beside it"]),
        (r#"{"weight_map":{"one":""}}"#, &["beside it"]),
        (r#"{"weight_map":{"one":"one.safetensors","one":"two.safetensors"}}"#, &["'one' stands there twice"]),
        (r#"{"weight_map":{}}"#, &["empty"]),
        (r#"{"weight_map":["one"]}"#, &["not a valid safetensors index"]),
        (r#"{}"#, &["weight_map"]),
        ("", &["not a valid safetensors index"]),
    ] {
        assert_index_refused(shards(index).path(), parts);
    }
    let folder = shards(r#"{"weight_map":{"one":"one.safetensors"}}"#);
    fs::write(folder.path().join("one.safetensors"), b"short").unwrap();
    assert_index_refused(folder.path(), &["one.safetensors is truncated"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn random_damage_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = sound();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let folder = folder_with(&bytes);
        // An index that still counts as sound can be read to the last byte.
        if let Ok(index) = TensorIndex::open(folder.path()) {
            let names: Vec<String> = index.iter().map(|(name, _)| name.to_owned()).collect();
            let weights = MappedWeights::map(index).unwrap();
            for name in names {
                let entry = weights.index().get(&name).unwrap();
                prop_assert_eq!(weights.bytes(&name).unwrap().len() as u64, entry.dtype.bytes_of(&entry.shape).unwrap());
            }
        }
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = open(&bytes);
    }

    #[test]
    fn any_header_text_never_panics(text in "\\{\"[a-z]\":\\{[\"a-zA-Z0-9:,\\[\\]{} -]{0,80}", data in 0usize..40) {
        let _ = open(&file_of(&text, &vec![0; data]));
    }
}
