//! The layout of a stored matrix in host memory for its product. Resident and streamed layers share it, so that both
//! compute with the same bytes in the same order. Files are read elsewhere in the crate.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use half::{bf16, f16};
use model_boss_weights::gguf::TensorType;

use crate::floats::kinds::{E4m3, FloatKind};
use crate::floats::matrix::FloatMatrix;
use crate::kernel::{MatrixKernel, ROWS};
use crate::quantised::Quantised;

/// The type and the shape `[outs, depth]` of a stored matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixLayout {
    /// The type of its elements or blocks.
    pub kind: TensorType,
    /// `[outs, depth]`.
    pub shape: [usize; 2],
}

impl MatrixLayout {
    /// Checks that products can use a file's bytes. The error describes the bytes' fault.
    pub fn check(&self, bytes: &[u8]) -> Result<(), String> {
        match self.kind {
            kind if is_float(kind) && floats_are_finite(kind, bytes) => Ok(()),
            kind if is_float(kind) => Err("holds NaN or infinity".to_owned()),
            kind => Quantised::check(kind, self.shape, bytes).map(|_| ()),
        }
    }

    /// Copies a file's bytes to memory of the same size, with check and reordering in the same pass. The error
    /// describes the bytes' fault.
    pub fn copied(&self, bytes: &[u8], into: BytesMut) -> Result<Arc<dyn MatrixKernel>, String> {
        Ok(match self.kind {
            TensorType::F32 => Arc::new(FloatMatrix::<f32>::copied(self.shape, bytes, into)?),
            TensorType::F16 => Arc::new(FloatMatrix::<f16>::copied(self.shape, bytes, into)?),
            TensorType::BF16 => Arc::new(FloatMatrix::<bf16>::copied(self.shape, bytes, into)?),
            TensorType::F8_E4M3 => Arc::new(FloatMatrix::<E4m3>::copied(self.shape, bytes, into)?),
            kind => Arc::new(Quantised::copied(kind, self.shape, bytes, into)?),
        })
    }

    /// The name of the order of bytes that products need; [`ROWS`] is the file's.
    pub fn arrangement(&self) -> &'static str {
        match self.kind {
            kind if is_float(kind) => ROWS,
            _ => Quantised::arrangement(),
        }
    }

    /// Reorders a file's bytes in place, from the file's order to the one that products need.
    pub fn arrange(&self, bytes: &mut [u8]) {
        match self.kind {
            kind if is_float(kind) => {}
            kind => Quantised::arrange(kind, self.shape, bytes),
        }
    }

    /// The matrix of bytes that were checked and reordered. They are not copied.
    pub fn kernel(&self, bytes: Bytes) -> Result<Arc<dyn MatrixKernel>, String> {
        Ok(match self.kind {
            TensorType::F32 => Arc::new(FloatMatrix::<f32>::from_checked(self.shape, bytes)?),
            TensorType::F16 => Arc::new(FloatMatrix::<f16>::from_checked(self.shape, bytes)?),
            TensorType::BF16 => Arc::new(FloatMatrix::<bf16>::from_checked(self.shape, bytes)?),
            TensorType::F8_E4M3 => Arc::new(FloatMatrix::<E4m3>::from_checked(self.shape, bytes)?),
            kind => Arc::new(Quantised::from_arranged(kind, self.shape, bytes)?),
        })
    }
}

/// Whether elements are floats, which are multiplied in the order of the file.
fn is_float(kind: TensorType) -> bool {
    matches!(kind, TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::F8_E4M3)
}

/// Whether floats, of 32 bits, 16 or 8, have neither infinity nor NaN.
pub fn floats_are_finite(kind: TensorType, bytes: &[u8]) -> bool {
    match kind {
        TensorType::F16 => f16::are_finite(bytes),
        TensorType::BF16 => bf16::are_finite(bytes),
        TensorType::F8_E4M3 => E4m3::are_finite(bytes),
        _ => f32::are_finite(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floats::product::{Sizes, product};

    /// Every type is tested in a size that is whole tiles, and in one that is not.
    #[test]
    fn rs_8_arranged_in_place_or_made_resident_it_is_the_same_matrix_to_the_bit() {
        let kinds = [TensorType::Q4_0, TensorType::Q5_1, TensorType::Q8_0, TensorType::Q4_K, TensorType::MXFP4];
        for kind in kinds {
            for outs in [48, 40] {
                let layout = MatrixLayout { kind, shape: [outs, 512] };
                let mut state = 7_u32;
                let mut byte = || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Small exponents: any two bytes are then a finite f16, also those read as a scale.
                    (state >> 24) as u8 & 0x3B
                };
                let file: Vec<u8> = (0..kind.bytes_of(outs as u64 * 512).unwrap()).map(|_| byte()).collect();
                layout.check(&file).unwrap();
                let resident = Quantised::new(kind, layout.shape, &file).unwrap();
                let mut arranged = file.clone();
                layout.arrange(&mut arranged);
                assert_eq!(layout.arrangement() == "rows", arranged == file, "{kind}");
                let streamed = layout.kernel(arranged.into()).unwrap();
                let x: Vec<f32> = (0..3 * 512).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
                assert_eq!(resident.product(&x, 3), streamed.product(&x, 3), "{kind}");
                assert_eq!(resident.rows(&[5, 0]), streamed.rows(&[5, 0]), "{kind}");
            }
        }
    }

    #[test]
    fn floats_and_halves_lie_as_they_are_even_askew() {
        let values: Vec<f32> = (0..6 * 40).map(|i| (i % 23) as f32 - 11.0).collect();
        let x: Vec<f32> = (0..80).map(|i| i as f32 / 7.0).collect();
        let expected = product(&x, &values, Sizes { rows: 2, outs: 6, depth: 40 });
        let spelled: [(TensorType, Vec<u8>); 3] = [
            (TensorType::F32, values.iter().flat_map(|value| value.to_le_bytes()).collect()),
            (TensorType::F16, values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect()),
            (TensorType::BF16, values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect()),
        ];
        for (kind, file) in spelled {
            let layout = MatrixLayout { kind, shape: [6, 40] };
            let mut askew = vec![0; 1];
            askew.extend(&file);
            for bytes in [Bytes::from(file), Bytes::from(askew).slice(1..)] {
                assert_eq!(layout.kernel(bytes).unwrap().product(&x, 2), expected, "{kind}");
            }
            assert!(layout.kernel(Bytes::from_static(&[0; 9])).is_err());
            assert!(layout.check(&[0xFF; 8]).unwrap_err().contains("NaN"));
        }
    }
}
