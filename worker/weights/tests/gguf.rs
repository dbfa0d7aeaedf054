//! GGUF files of an independent writer, with its dequantiser, with real vocabularies, and with damage.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use model_boss_weights::gguf::{
    Array, GgufFile, Header, HeaderFault, HeaderWriter, TensorType, dequantise, quantise_q8_0,
};
use proptest::prelude::*;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf-blocks.gguf")
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn an_independent_writers_header_is_read() {
    let file = GgufFile::open(&fixture()).unwrap();
    let header = file.computable_header().unwrap();
    assert_eq!(header.need::<&str>("general.architecture"), Ok("none"));
    assert_eq!(header.need::<Array<'_>>("test.integers").unwrap().integers(), Some(vec![1, -2, 3]));
    let strings: Vec<_> = header.need::<Array<'_>>("test.strings").unwrap().strings().unwrap().collect();
    assert_eq!(strings, ["".as_bytes(), b"a", "übung".as_bytes()]);
    assert_eq!(header.need::<f32>("test.double"), Ok(0.1));
    assert_eq!(header.need::<bool>("test.yes"), Ok(true));
    assert_eq!(header.tensors().len(), 35);
    assert_eq!(header.tensor("Q4_0").unwrap().shape(), [2, 64]);
}

#[test]
fn fa_2_every_block_type_gives_the_floats_of_an_independent_implementation() {
    let file = GgufFile::open(&fixture()).unwrap();
    let header = file.header().unwrap();
    let mut kinds = 0;
    for stored in header.tensors() {
        let Some(expected) = header.tensor(&format!("{}.values", stored.name)) else {
            continue;
        };
        assert_eq!(stored.kind.name(), stored.name);
        assert_eq!(stored.shape(), expected.shape());
        let expected = floats(file.bytes(expected));
        let mut values = vec![f32::NAN; expected.len()];
        dequantise(stored.kind, file.bytes(stored), &mut values).unwrap();
        for (i, (ours, theirs)) in values.iter().zip(&expected).enumerate() {
            // The two sides may differ only by the order of their multiplications.
            assert!((ours - theirs).abs() <= theirs.abs() * 4e-7 + 1e-7, "{} [{i}]: {ours} {theirs}", stored.name);
        }
        kinds += 1;
    }
    assert_eq!(kinds, 17);
}

#[test]
fn q8_0_is_quantised_to_the_same_bytes_as_by_an_independent_implementation() {
    let file = GgufFile::open(&fixture()).unwrap();
    let header = file.header().unwrap();
    let source = floats(file.bytes(header.tensor("q8_0.source").unwrap()));
    let mut stored = Vec::new();
    quantise_q8_0(&source, &mut stored).unwrap();
    assert_eq!(stored, file.bytes(header.tensor("Q8_0").unwrap()));
}

#[test]
fn fa_2_types_without_products_and_wrong_lengths_are_refused() {
    // Types without code, among them those of activations, and wrong lengths are refused.
    let mut values = [0.0; 256];
    assert!(dequantise(TensorType::IQ2_XS, &[0; 74], &mut values).is_err());
    assert!(dequantise(TensorType::Q8_1, &[0; 36], &mut values[..32]).is_err());
    assert!(dequantise(TensorType::Q8_K, &[0; 292], &mut values).is_err());
    assert!(dequantise(TensorType::Q6_K, &[0; 209], &mut values).is_err());
    assert!(dequantise(TensorType::Q6_K, &[0; 210], &mut values[..255]).is_err());
    assert!(quantise_q8_0(&[0.0; 31], &mut Vec::new()).is_err());
}

/// Real vocabularies are beside the repository on machines that have them.
#[test]
fn real_vocabulary_files_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/vocab");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        eprintln!("skipped: no ../shared/data/vocab beside the repository");
        return;
    };
    for path in entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "gguf"))
    {
        let file = GgufFile::open(&path).unwrap();
        let header = file.header().unwrap();
        let tokens: Array<'_> = header.need("tokenizer.ggml.tokens").unwrap();
        assert!(tokens.len() > 10_000);
        assert_eq!(tokens.strings().unwrap().count(), tokens.len());
        assert!(tokens.strings().unwrap().all(|token| std::str::from_utf8(token).is_ok()));
    }
}

/// A file with some of everything.
fn valid() -> Vec<u8> {
    let mut header = HeaderWriter::new();
    header.set("general.architecture", "llama").unwrap();
    header.set("a.u8", &1_u8).unwrap();
    header.set("a.f64", &1.0_f64).unwrap();
    header.set("a.yes", &true).unwrap();
    header.set("a.strings", &["one", "two", ""][..]).unwrap();
    header.set("a.floats", &[1.0_f32; 5][..]).unwrap();
    header.tensor("f32", TensorType::F32, &[3, 2]).unwrap();
    header.tensor("q4_k", TensorType::Q4_K, &[1, 2, 256]).unwrap();
    header.tensor("scalar", TensorType::F16, &[]).unwrap();
    let mut body = header.begin(Vec::new()).unwrap();
    while body.due().is_some() {
        body.write(&[0]).unwrap();
    }
    body.finish().unwrap()
}

/// Reads all parts of a header; every tensor must lie inside the file.
fn exhaust(bytes: &[u8]) {
    let Ok(header) = Header::parse(bytes) else {
        return;
    };
    for (key, value) in header.metadata() {
        assert!(header.get(key).is_some());
        let _ = value.integer();
        if let Ok(Some(array)) = header.find::<Array<'_>>(key) {
            let _ = (array.integers(), array.floats());
            assert!(array.strings().is_none_or(|strings| strings.count() == array.len()));
        }
    }
    for tensor in header.tensors() {
        assert!(tensor.offset + tensor.bytes <= bytes.len() as u64);
        assert_eq!(tensor.kind.bytes_of(tensor.elements()), Some(tensor.bytes));
    }
}

#[test]
fn every_truncation_is_an_error_that_says_so() {
    let file = valid();
    exhaust(&file);
    let last = Header::parse(&file).unwrap().tensors().iter().map(|t| t.offset + t.bytes).max().unwrap();
    for len in 0..last as usize {
        let error = Header::parse(&file[..len]).unwrap_err();
        assert!(
            matches!(
                error.fault,
                HeaderFault::Truncated { .. } | HeaderFault::OutsideFile { .. } | HeaderFault::TooMany { .. }
            ),
            "{len}: {error}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn damaged_files_never_panic(
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        whole in any::<bool>(),
    ) {
        let mut file = valid();
        let header = Header::parse(&file).unwrap().data_start() as usize;
        for (at, byte) in hits {
            file[at.index(header)] = byte;
        }
        if !whole {
            file.truncate(cut.index(file.len()));
        }
        exhaust(&file);
    }

    #[test]
    fn words_replaced_by_extremes_never_panic(
        at in any::<prop::sample::Index>(),
        word in prop::sample::select(vec![0, 1, 31, 0x7fff_ffff, 0xffff_ffff, 1 << 32, 1 << 61, 1 << 63, u64::MAX, u64::MAX - 31]),
        wide in any::<bool>(),
    ) {
        let mut file = valid();
        let bytes = word.to_le_bytes();
        let width = if wide { 8 } else { 4 };
        let at = at.index(file.len() - width);
        file[at..at + width].copy_from_slice(&bytes[..width]);
        exhaust(&file);
    }

    #[test]
    fn noise_behind_the_magic_never_panics(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(noise);
        exhaust(&file);
    }

    #[test]
    fn q8_0_is_within_half_a_step(values in prop::collection::vec(-1e4_f32..1e4, 64)) {
        let mut stored = Vec::new();
        quantise_q8_0(&values, &mut stored).unwrap();
        let mut back = vec![0.0; 64];
        dequantise(TensorType::Q8_0, &stored, &mut back).unwrap();
        for (block, restored) in values.chunks(32).zip(back.chunks(32)) {
            let step = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs())) / 127.0;
            for (x, y) in block.iter().zip(restored) {
                // The bound is half a step, plus the most that rounding the scale to f16 changes the largest value.
                prop_assert!((x - y).abs() <= step * 0.5 + step * 127.0 / 2048.0 + 1e-6, "{x} {y} {step}");
            }
        }
    }
}
