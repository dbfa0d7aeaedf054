//! A matrix of floats in the host's memory.

use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};
use pulp::NullaryFnOnce;
use rayon::prelude::*;

use super::kinds::FloatKind;
use super::product::product_of;
use super::rows::widen;
use crate::kernel::{MatrixKernel, ProductInput, StoredFloats};
use crate::lanes::{Instructions, Lanes, WithLanes};

/// Bytes that are copied together.
const COPIED_BYTES: usize = 256 << 10;

/// A matrix `[outs, depth]` of floats, row by row as in files.
pub(crate) struct FloatMatrix<K> {
    values: Bytes,
    outs: usize,
    depth: usize,
    kind: PhantomData<K>,
}

impl<K: FloatKind> FloatMatrix<K> {
    /// Copies a file's bytes to memory of the same size, and checks them in the same pass. The error describes the
    /// bytes' fault.
    pub(crate) fn copied(shape: [usize; 2], bytes: &[u8], mut into: BytesMut) -> Result<Self, String> {
        // Parts are whole groups, which are checked one by one.
        let part = COPIED_BYTES.next_multiple_of(size_of::<K::Group>());
        let parts = into.par_chunks_mut(part).zip(bytes.par_chunks(part));
        let finite = parts.all(|(into, bytes)| {
            into.copy_from_slice(bytes);
            K::are_finite(bytes)
        });
        if !finite {
            return Err("holds NaN or infinity".to_owned());
        }
        Self::from_checked(shape, into.freeze())
    }

    /// A matrix of bytes that were checked before. They are not copied.
    pub(crate) fn from_checked([outs, depth]: [usize; 2], values: Bytes) -> Result<Self, String> {
        let whole = depth.is_multiple_of(K::UNIT) && depth.checked_mul(size_of::<K::Group>()).is_some();
        if !whole || outs.checked_mul(K::row_bytes(depth)) != Some(values.len()) {
            let bits = 8 * K::row_bytes(K::UNIT) / K::UNIT;
            return Err(format!("has {} bytes, which are no {outs} x {depth} of {bits} bits", values.len()));
        }
        Ok(Self { values, outs, depth, kind: PhantomData })
    }
}

impl<K: FloatKind> MatrixKernel for FloatMatrix<K> {
    fn outs(&self) -> usize {
        self.outs
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn bytes(&self) -> u64 {
        self.values.len() as u64
    }

    fn multiply(&self, x: &ProductInput<'_>) -> Vec<f32> {
        product_of::<K>(Instructions::current(), x.values, &self.values, [x.rows, self.outs, self.depth])
    }

    fn rows(&self, rows: &[u32]) -> Vec<f32> {
        let mut wide = vec![0.0; rows.len() * self.depth];
        let bytes = K::row_bytes(self.depth);
        for (row, wide) in rows.iter().zip(wide.chunks_mut(self.depth.max(1))) {
            if let Some(narrow) = self.values.get(*row as usize * bytes..).and_then(|rest| rest.get(..bytes)) {
                Instructions::current().run_floats(WidenRow::<K> { narrow, wide, kind: PhantomData });
            }
        }
        wide
    }

    fn floats(&self) -> Option<StoredFloats<'_>> {
        K::as_floats(&self.values)
    }
}

/// One row as f32.
struct WidenRow<'a, K> {
    narrow: &'a [u8],
    wide: &'a mut [f32],
    kind: PhantomData<K>,
}

impl<K: FloatKind> WithLanes for WidenRow<'_, K> {
    type Output = ();

    fn call<L: Lanes>(self, lanes: L) {
        lanes.vectorize(Widening { lanes, row: self });
    }
}

struct Widening<'a, L, K> {
    lanes: L,
    row: WidenRow<'a, K>,
}

impl<L: Lanes, K: FloatKind> NullaryFnOnce for Widening<'_, L, K> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        widen::<L, K>(self.lanes, self.row.narrow, self.row.wide);
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn copies_are_checked_and_those_that_are_no_matrix_refused() {
        let ones: Vec<u8> = (0..12).flat_map(|_| f16::ONE.to_le_bytes()).collect();
        let copied = |shape, bytes: &[u8]| FloatMatrix::<f16>::copied(shape, bytes, BytesMut::zeroed(bytes.len()));
        assert_eq!(copied([3, 4], &ones).ok().unwrap().product(&[1.0; 4], 1), [4.0; 3]);
        assert!(copied([3, 5], &ones).err().unwrap().contains("no 3 x 5"));
        let infinite = [&ones[2..], &f16::INFINITY.to_le_bytes()].concat();
        assert!(copied([3, 4], &infinite).err().unwrap().contains("infinity"));
    }
}
