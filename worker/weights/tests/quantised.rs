//! Quantised matrices give the floats that their formats' own packages make of them, in blocks and as stored.
//! `scripts/reference/quantised_matrices.py` writes the files.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use model_boss_weights::gguf::{TensorType, dequantise};
use model_boss_weights::quantised::{Fp8Matrix, IntegerMatrix, PackedTensor, QuantisedFormat, TensorSource};
use model_boss_weights::{Dtype, MappedWeights, TensorIndex};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn cases() -> BTreeMap<String, QuantisedFormat> {
    let configs: BTreeMap<String, Value> =
        serde_json::from_slice(&std::fs::read(fixture("quantised.json")).unwrap()).unwrap();
    configs.into_iter().map(|(name, config)| (name, QuantisedFormat::read(&config).unwrap().unwrap())).collect()
}

fn floats(tensor: &PackedTensor<'_>) -> Vec<f32> {
    tensor.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The floats of a matrix, row after row in the order of the inputs, by way of its blocks.
fn ours(source: &dyn TensorSource, name: &str, format: &QuantisedFormat) -> Option<(Vec<f32>, [usize; 2])> {
    let blocks = |kind: TensorType, [rows, columns]: [usize; 2]| {
        let row = usize::try_from(kind.bytes_of(columns as u64).unwrap()).unwrap();
        (vec![0; rows * row], row)
    };
    let (kind, shape, order, stored) = if let QuantisedFormat::Fp8 { block } = format {
        let matrix = Fp8Matrix::find(source, name, *block).unwrap()?;
        let (kind, shape) = (TensorType::F8_E4M3, [matrix.rows, matrix.columns]);
        let (mut stored, _) = blocks(kind, shape);
        matrix.write_rows(0..shape[0], &mut stored);
        (kind, shape, None, stored)
    } else {
        let matrix = IntegerMatrix::find(source, name, format).unwrap()?;
        let (kind, shape) = (matrix.kind(), [matrix.rows(), matrix.columns()]);
        let (mut stored, row) = blocks(kind, shape);
        // In two parts, as a reader of a part of the matrix has them.
        let (first, second) = stored.split_at_mut(3 * row);
        matrix.write_rows(kind, 0..3, first).unwrap();
        matrix.write_rows(kind, 3..shape[0], second).unwrap();
        (kind, shape, matrix.column_order().map(<[u32]>::to_vec), stored)
    };
    let mut elements = vec![f32::NAN; shape[0] * shape[1]];
    dequantise(kind, &stored, &mut elements).unwrap();
    let Some(order) = order else { return Some((elements, shape)) };
    let mut floats = vec![f32::NAN; elements.len()];
    for (elements, floats) in elements.chunks(shape[1]).zip(floats.chunks_mut(shape[1])) {
        for (element, column) in elements.iter().zip(&order) {
            floats[*column as usize] = *element;
        }
    }
    Some((floats, shape))
}

#[test]
fn fa_2_every_packing_gives_the_floats_of_its_own_package() {
    let index = TensorIndex::open(&fixture("quantised.safetensors")).unwrap();
    let weights = MappedWeights::map(index).unwrap();
    let cases = cases();
    assert!(cases.len() > 10);
    for (name, format) in cases {
        let expected = weights.find(&format!("{name}.expected")).unwrap();
        let (ours, shape) = ours(&weights, &name, &format).unwrap();
        assert_eq!(shape.as_slice(), expected.shape, "{name}");
        let largest = floats(&expected).iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        for (at, (ours, theirs)) in ours.iter().zip(floats(&expected)).enumerate() {
            // Scales are rounded to 16 bits, and so are the zeros of 4 bits: by 1/256 of a step and less.
            let most = theirs.abs() / 1024.0 + largest / 3_000.0;
            assert!((ours - theirs).abs() <= most, "{name} at {at}: {ours} and {theirs}");
        }
    }
}

/// Tensors of a case that a test changes.
struct ChangedTensors(HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>);

impl TensorSource for ChangedTensors {
    fn find(&self, name: &str) -> Option<PackedTensor<'_>> {
        let (dtype, shape, bytes) = self.0.get(name)?;
        Some(PackedTensor { name: name.to_owned(), dtype: *dtype, shape: shape.clone(), bytes })
    }
}

/// The message about a case's matrix after a change of its tensors.
fn refused(name: &str, change: impl FnOnce(&mut HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>)) -> String {
    let index = TensorIndex::open(&fixture("quantised.safetensors")).unwrap();
    let weights = MappedWeights::map(index).unwrap();
    let prefix = format!("{name}.");
    let names: Vec<String> = weights.index().iter().map(|(name, _)| name.to_owned()).collect();
    let mut tensors: HashMap<_, _> = names
        .into_iter()
        .filter(|tensor| tensor.starts_with(&prefix))
        .map(|tensor| {
            let found = weights.find(&tensor).unwrap();
            (tensor, (found.dtype, found.shape, found.bytes.to_vec()))
        })
        .collect();
    change(&mut tensors);
    let (source, format) = (ChangedTensors(tensors), cases().remove(name).unwrap());
    let error = match format {
        QuantisedFormat::Fp8 { block } => Fp8Matrix::find(&source, name, block).map(|_| ()).unwrap_err(),
        _ => match IntegerMatrix::find(&source, name, &format) {
            Ok(matrix) => {
                let matrix = matrix.unwrap();
                let row = matrix.kind().bytes_of(matrix.columns() as u64).unwrap();
                matrix.write_rows(matrix.kind(), 0..1, &mut vec![0; row as usize]).unwrap_err()
            }
            Err(error) => error,
        },
    };
    error.to_string()
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let missing = refused("gptq-4", |tensors| drop(tensors.remove("gptq-4.scales")));
    assert!(missing.contains("lacks the tensor `gptq-4.scales`"), "{missing}");
    let shape = refused("awq", |tensors| tensors.get_mut("awq.qzeros").unwrap().1 = vec![1, 2]);
    assert!(shape.contains("`awq.qzeros` has the shape [1, 2], and [2, 2]"), "{shape}");
    let kind = refused("packed-4", |tensors| tensors.get_mut("packed-4.weight_packed").unwrap().0 = Dtype::F32);
    assert!(kind.contains("holds F32, and I32"), "{kind}");
    let order = refused("gptq-4", |tensors| tensors.get_mut("gptq-4.g_idx").unwrap().2[0] = 1);
    assert!(order.contains("group 0 has not 32 columns"), "{order}");
    let scale = refused("bytes-8", |tensors| {
        tensors.get_mut("bytes-8.weight_scale").unwrap().2[..4].copy_from_slice(&1e9_f32.to_le_bytes());
    });
    assert!(scale.contains("scale 1000000000 of row 0 does not fit 16 bits"), "{scale}");
    let blocks =
        refused("fp8-blocks", |tensors| tensors.get_mut("fp8-blocks.weight_scale_inv").unwrap().1 = vec![4, 1]);
    assert!(blocks.contains("has the shape [4, 1], and [2, 2]"), "{blocks}");
}

#[test]
fn a_matrix_that_is_stored_plainly_is_none() {
    let index = TensorIndex::open(&fixture("quantised.safetensors")).unwrap();
    let weights = MappedWeights::map(index).unwrap();
    for format in cases().into_values() {
        assert_eq!(ours(&weights, "lm_head", &format), None);
    }
}
