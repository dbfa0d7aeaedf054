//! A tensor of a model's files, and its bytes: as they are stored, blocks of a quantised matrix, or in another order.
//! Knows no names of parts.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use model_boss_weights::gguf::{TensorType, dequantise};
use model_boss_weights::quantised::QuantisedModel;
use rayon::prelude::*;

use crate::error::ModelError;

/// Rows of a quantised matrix that one thread puts into blocks at a time.
const ROWS_TOGETHER: usize = 128;

/// A tensor in its stored form, or the blocks of a quantised matrix.
pub(crate) struct FileTensor<'a> {
    pub(crate) kind: TensorType,
    pub(crate) shape: Vec<usize>,
    pub(crate) content: TensorContent<'a>,
}

/// The place of a tensor's bytes, or how they are made.
#[derive(Clone)]
pub(crate) enum TensorContent<'a> {
    Stored(&'a [u8]),
    /// Some rows of a quantised matrix.
    Blocks(&'a QuantisedModel, String, Range<usize>),
    /// A stored tensor whose bytes have to be put in another order.
    Remade(Box<Self>, Remaking),
    /// Blocks of MXFP4 and their scales, one beside the other.
    Mxfp4(&'a [u8], &'a [u8]),
}

/// The new order of a stored tensor's rows.
#[derive(Clone)]
pub(crate) struct Remaking {
    /// The type of the stored elements.
    stored: TensorType,
    /// Rows and columns that are stored.
    rows: usize,
    columns: usize,
    /// Whether rows and columns change places.
    turned: bool,
    /// The stored column of each row that results, where columns are not stored in order and change places with rows.
    columns_at: Option<Arc<[u32]>>,
    /// Of the rows that result, the first, and the distance to the next.
    every: (usize, usize),
    /// Rows that are taken.
    taken: usize,
}

impl<'a> FileTensor<'a> {
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> u64 {
        self.kind.bytes_of(self.elements()).unwrap_or(u64::MAX)
    }

    /// The bytes. Those that are not stored in this form are made by this call.
    pub(crate) fn bytes(&self) -> Result<Cow<'a, [u8]>, ModelError> {
        self.content.bytes(self.kind)
    }

    /// Elements of a row, which are those of the last dimension.
    pub(crate) fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Some of its rows, counted over all dimensions but the last.
    pub(crate) fn rows(mut self, rows: Range<usize>) -> Option<Self> {
        let row_bytes = usize::try_from(self.kind.bytes_of(self.columns() as u64)?).ok()?;
        self.content = match self.content {
            TensorContent::Stored(bytes) => {
                TensorContent::Stored(bytes.get(rows.start.checked_mul(row_bytes)?..rows.end.checked_mul(row_bytes)?)?)
            }
            TensorContent::Blocks(model, name, all) if rows.end <= all.len() => {
                TensorContent::Blocks(model, name, all.start + rows.start..all.start + rows.end)
            }
            _ => return None,
        };
        self.shape = vec![rows.len(), self.columns()];
        Some(self)
    }

    /// The same of MXFP4 in two tensors.
    pub(crate) fn mxfp4_rows(mut self, rows: Range<usize>) -> Option<Self> {
        let TensorContent::Mxfp4(blocks, scales) = self.content else { return None };
        let groups = self.columns() / 32;
        let scales = scales.get(rows.start.checked_mul(groups)?..rows.end.checked_mul(groups)?)?;
        let blocks = blocks.get(rows.start * groups * 16..rows.end * groups * 16)?;
        self.content = TensorContent::Mxfp4(blocks, scales);
        self.shape = vec![rows.len(), self.columns()];
        Some(self)
    }

    /// Some rows of a matrix in any form.
    pub(crate) fn part(self, rows: Range<usize>) -> Option<Self> {
        let Self { kind, shape, content } = self;
        match content {
            TensorContent::Mxfp4(..) => Self { kind, shape, content }.mxfp4_rows(rows),
            TensorContent::Remade(content, remaking) => {
                let (first, step) = remaking.every;
                let last = rows.len().checked_sub(1)?;
                let stored = first + rows.start * step..first + (rows.start + last) * step + 1;
                let columns = *shape.last()?;
                let (content, remaking) = if remaking.turned {
                    (content, Remaking { every: (stored.start, step), taken: rows.len(), ..remaking })
                } else {
                    let shape = vec![remaking.rows, remaking.columns];
                    let whole = Self { kind: remaking.stored, shape, content: *content };
                    let (count, content) = (stored.len(), whole.part(stored)?.content);
                    (Box::new(content), Remaking { every: (0, step), taken: rows.len(), rows: count, ..remaking })
                };
                Some(Self { kind, shape: vec![rows.len(), columns], content: TensorContent::Remade(content, remaking) })
            }
            content => Self { kind, shape, content }.rows(rows),
        }
    }

    /// Of a tensor whose order is remade, the first rows.
    pub(crate) fn first_rows(&mut self, rows: usize) {
        if let (TensorContent::Remade(_, remaking), Some(first)) = (&mut self.content, self.shape.first_mut()) {
            remaking.taken = remaking.taken.min(rows);
            *first = remaking.taken;
        }
    }

    /// The same bytes in another order, as a place says. `order` is the column that each stored column is.
    pub(crate) fn remade(self, turned: bool, every: Option<(usize, usize)>, order: Option<&[u32]>) -> Option<Self> {
        let (stored, columns) = (self.kind, self.columns());
        let rows = self.shape.iter().rev().skip(1).product::<usize>();
        // Numbers in blocks can only be turned over as floats.
        let floats = matches!(stored, TensorType::F32 | TensorType::F16 | TensorType::BF16);
        let kind = if floats || !turned { stored } else { TensorType::F32 };
        let (outs, depth) = if turned { (columns, rows) } else { (rows, columns) };
        let (outs, depth) = if outs == 1 && !turned { (depth, 1) } else { (outs, depth) };
        let every = every.unwrap_or((0, 1));
        let taken = outs.checked_sub(every.0)?.div_ceil(every.1.max(1));
        let (rows, columns) = if turned { (rows, columns) } else { (outs, depth) };
        let columns_at = match order.filter(|order| turned && order.len() == columns) {
            Some(order) => {
                let mut at: Vec<u32> = (0..u32::try_from(columns).ok()?).collect();
                at.sort_unstable_by_key(|stored| order[*stored as usize]);
                Some(at.into())
            }
            None => None,
        };
        let remaking = Remaking { stored, rows, columns, turned, columns_at, every, taken };
        Some(Self { kind, shape: vec![taken, depth], content: TensorContent::Remade(Box::new(self.content), remaking) })
    }
}

impl<'a> TensorContent<'a> {
    fn bytes(&self, kind: TensorType) -> Result<Cow<'a, [u8]>, ModelError> {
        match self {
            Self::Stored(bytes) => Ok(Cow::Borrowed(bytes)),
            Self::Blocks(model, name, all) => blocks(model, name, all).map(Cow::Owned),
            Self::Remade(content, remaking) => remaking.apply(&content.bytes(remaking.stored)?, kind).map(Cow::Owned),
            Self::Mxfp4(blocks, scales) => Ok(Cow::Owned(mxfp4(blocks, scales))),
        }
    }
}

/// Blocks of some rows, made on all threads.
fn blocks(model: &QuantisedModel, name: &str, all: &Range<usize>) -> Result<Vec<u8>, ModelError> {
    let matrix = model.get(name);
    let row_bytes = matrix.map_or(0, |matrix| matrix.bytes as usize / matrix.shape[0].max(1));
    let mut bytes = vec![0; all.len() * row_bytes];
    let write = |(at, into): (usize, &mut [u8])| {
        let first = all.start + at * ROWS_TOGETHER;
        let rows: Range<usize> = first..all.end.min(first + ROWS_TOGETHER);
        model.write_rows(name, rows, into)
    };
    bytes.par_chunks_mut((ROWS_TOGETHER * row_bytes).max(1)).enumerate().try_for_each(write)?;
    Ok(bytes)
}

impl Remaking {
    /// Puts bytes of the stored type in the new order, as elements of the new type.
    fn apply(&self, bytes: &[u8], kind: TensorType) -> Result<Vec<u8>, ModelError> {
        let (first, step) = self.every;
        let rows = (0..self.taken).map(|row| first + row * step);
        if !self.turned {
            let row_bytes = bytes.len() / self.rows.max(1);
            let taken = rows.filter_map(|row| bytes.get(row * row_bytes..(row + 1) * row_bytes));
            return Ok(taken.flatten().copied().collect());
        }
        let mut values = Vec::new();
        let (bytes, width) = if kind == self.stored {
            (bytes, usize::try_from(kind.bytes_of(1).unwrap_or(0)).unwrap_or(0))
        } else {
            let mut floats = vec![0.0; self.rows * self.columns];
            dequantise(self.stored, bytes, &mut floats)
                .map_err(|error| ModelError::Tensor { name: String::new(), what: error.to_string() })?;
            values.extend(floats.iter().flat_map(|value| value.to_le_bytes()));
            (&values[..], size_of::<f32>())
        };
        let mut turned = Vec::with_capacity(self.taken * self.rows * width);
        let stored_at = |column: usize| match &self.columns_at {
            Some(columns) => columns.get(column).map_or(column, |at| *at as usize),
            None => column,
        };
        for column in rows.map(stored_at) {
            for row in 0..self.rows {
                let at = (row * self.columns + column) * width;
                turned.extend_from_slice(bytes.get(at..at + width).unwrap_or_default());
            }
        }
        Ok(turned)
    }
}

/// Blocks of MXFP4 as GGUF has them: a scale, and 16 bytes of which each has an element of the first half in its low
/// bits, and one of the second half in its high bits. Safetensors have neighbours in a byte, and scales apart.
fn mxfp4(blocks: &[u8], scales: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(blocks.len() + scales.len());
    for (block, scale) in blocks.as_chunks::<16>().0.iter().zip(scales) {
        out.push(*scale);
        let element = |at: usize| block[at / 2] >> (4 * (at % 2)) & 15;
        out.extend((0..16).map(|at| element(at) | element(at + 16) << 4));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same bytes of some rows, made of these rows alone, as of the whole.
    fn check(tensor: &dyn Fn() -> FileTensor<'static>) {
        let whole = tensor();
        let (rows, all) = (whole.shape[0], whole.bytes().unwrap().into_owned());
        assert_eq!(all.len() as u64, whole.len());
        let row = all.len() / rows;
        for (first, behind) in (0..rows).flat_map(|first| (first + 1..=rows).map(move |behind| (first, behind))) {
            let part = tensor().part(first..behind).unwrap();
            assert_eq!(part.shape, [behind - first, whole.columns()]);
            assert_eq!(part.bytes().unwrap(), &all[first * row..behind * row], "rows {first} to {behind}");
        }
        assert!(tensor().part(0..0).is_none_or(|part| part.bytes().unwrap().is_empty()));
    }

    fn stored(kind: TensorType, shape: [usize; 2], bytes: &'static [u8]) -> FileTensor<'static> {
        let len = kind.bytes_of((shape[0] * shape[1]) as u64).unwrap() as usize;
        FileTensor { kind, shape: shape.to_vec(), content: TensorContent::Stored(&bytes[..len]) }
    }

    #[test]
    fn some_rows_are_made_of_no_others() {
        let bytes: &'static [u8] = (0..4_096_u32).map(|at| (at * 37 % 251) as u8).collect::<Vec<_>>().leak();
        let floats = || stored(TensorType::BF16, [6, 5], bytes);
        check(&floats);
        for (turned, every) in [(true, None), (true, Some((1, 2))), (false, Some((0, 2))), (false, Some((1, 3)))] {
            check(&|| floats().remade(turned, every, None).unwrap());
        }
        let experts = || {
            let content = TensorContent::Mxfp4(&bytes[..6 * 2 * 16], &bytes[1_000..1_000 + 6 * 2]);
            FileTensor { kind: TensorType::MXFP4, shape: vec![6, 64], content }
        };
        check(&experts);
        check(&|| experts().remade(false, Some((1, 2)), None).unwrap());
        check(&|| experts().mxfp4_rows(2..6).unwrap().remade(false, Some((0, 2)), None).unwrap());
        // Columns that are stored in an order of their own come back in theirs.
        let order = [3, 0, 4, 1, 2];
        check(&|| floats().remade(true, Some((1, 2)), Some(&order)).unwrap());
        let row = |order: Option<&[u32]>, row: usize| {
            let turned = floats().remade(true, None, order).unwrap().bytes().unwrap().into_owned();
            turned[row * 12..(row + 1) * 12].to_vec()
        };
        assert!(order.iter().enumerate().all(|(at, column)| row(Some(&order), *column as usize) == row(None, at)));
        // Blocks become floats when they are turned.
        check(&|| stored(TensorType::Q8_0, [4, 32], bytes).remade(true, Some((1, 2)), None).unwrap());
    }
}
