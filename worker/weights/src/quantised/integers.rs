//! Matrices of 4-bit and 8-bit integers with scales and zeros for groups of columns, in four packings.

use std::ops::Range;

use half::f16;

use super::error::QuantisedError;
use super::format::{GptqZeros, IntegerBits, QuantisedFormat};
use super::stored::{FLOATS, PackedTensor, TensorSource, need};
use crate::dtype::Dtype;
use crate::gguf::TensorType;

/// Elements of a block.
const BLOCK: usize = 32;

/// Rows that are written together. An AWQ file has 128 rows in a cache line.
const STRIP: usize = 128;

/// The place of each of 8 neighbouring columns in a word of AWQ.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A matrix of integers, `[outputs, inputs]`, whatever its packing. An element is `(q - zero) * scale`.
#[derive(Clone, Debug)]
pub struct IntegerMatrix<'a> {
    name: String,
    rows: usize,
    columns: usize,
    bits: IntegerBits,
    /// Columns of a group.
    group: usize,
    packing: Packing,
    quants: PackedTensor<'a>,
    zeros: StoredZeros<'a>,
    scales: PackedTensor<'a>,
    /// The stored column behind each column, where groups are not runs of columns.
    order: Option<Vec<u32>>,
}

/// The place of an integer in a tensor of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    /// GPTQ: a word has neighbours of one column of outputs, `[inputs / n, outputs]`.
    Depth,
    /// AWQ: a word has 8 outputs, interleaved, `[inputs, outputs / 8]`.
    Interleaved,
    /// compressed-tensors: a row is a stretch of bits, `[outputs, words]`.
    Rows,
    /// compressed-tensors: a signed byte each, `[outputs, inputs]`.
    Bytes,
}

/// The integers that mean zero, by group and row.
#[derive(Clone, Debug)]
enum StoredZeros<'a> {
    /// The middle of the range.
    Middle,
    /// Packed across rows, `[groups, rows / n]`; `more` is to be added.
    AcrossRows { words: PackedTensor<'a>, more: i32 },
    /// Packed across rows, interleaved.
    Interleaved(PackedTensor<'a>),
    /// Packed down the rows, `[words, groups]`.
    DownRows(PackedTensor<'a>),
    /// A signed byte each, `[rows, groups]`.
    Bytes(PackedTensor<'a>),
}

impl<'a> IntegerMatrix<'a> {
    /// Finds the matrix `name` (`model.layers.0.mlp.up_proj`). The answer is none where it is stored plainly.
    pub fn find(
        source: &'a dyn TensorSource,
        name: &str,
        format: &QuantisedFormat,
    ) -> Result<Option<Self>, QuantisedError> {
        let has = |part: &str| source.find(&format!("{name}.{part}")).is_some();
        match *format {
            QuantisedFormat::Gptq { bits, group, zeros } if has("qweight") => {
                gptq(source, name, bits, group, zeros).map(Some)
            }
            QuantisedFormat::Awq { group } if has("qweight") => awq(source, name, group).map(Some),
            QuantisedFormat::CompressedIntegers { bits } if has("weight_packed") || has("weight_scale") => {
                compressed(source, name, bits).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The width of the stored integers.
    pub fn bits(&self) -> IntegerBits {
        self.bits
    }

    /// The input that belongs to each column of the blocks, where groups are not runs of inputs (GPTQ's act order).
    pub fn column_order(&self) -> Option<&[u32]> {
        self.order.as_deref()
    }

    /// The block type that holds the matrix. Integers and scales stay as they are; a zero that is not the middle
    /// becomes the offset of Q4_1, which is rounded to 16 bits (by less than 1/256 of a step), or of `I8_AFFINE`.
    pub fn kind(&self) -> TensorType {
        match (self.bits, self.has_middle_zeros()) {
            (IntegerBits::Eight, true) => TensorType::Q8_0,
            (IntegerBits::Eight, false) => TensorType::I8_AFFINE,
            (IntegerBits::Four, true) => TensorType::Q4_0,
            (IntegerBits::Four, false) => TensorType::Q4_1,
        }
    }

    /// Writes some rows as blocks of [`Self::kind`], in the layout of GGUF. `into` has exactly their bytes.
    pub fn write_rows(&self, kind: TensorType, rows: Range<usize>, into: &mut [u8]) -> Result<(), QuantisedError> {
        let per_row = self.columns / BLOCK;
        let size = into.len() / (rows.len() * per_row).max(1);
        let mut strips = into.chunks_mut(STRIP * per_row * size.max(1));
        for first in rows.clone().step_by(STRIP) {
            let Some(strip) = strips.next() else { break };
            // Words of several rows share a cache line in most packings, so that rows are the inner loop.
            for block in 0..per_row {
                for row in first..rows.end.min(first + STRIP) {
                    let at = ((row - first) * per_row + block) * size;
                    let Some(into) = strip.get_mut(at..at + size) else { break };
                    self.write_block(kind, row, block * BLOCK, into)?;
                }
            }
        }
        Ok(())
    }

    fn write_block(&self, kind: TensorType, row: usize, first: usize, into: &mut [u8]) -> Result<(), QuantisedError> {
        let (scale, zero) = self.scale_and_zero(row, first)?;
        let quants = self.quants(row, first);
        let is_wide = self.bits == IntegerBits::Eight;
        let (head, body) = into.split_at_mut(into.len() - if is_wide { BLOCK } else { BLOCK / 2 });
        // Quants of 8 bits are written with their sign.
        let offset = -scale.to_f32() * (zero - if is_wide { self.middle() } else { 0 }) as f32;
        let first = f16::from_f32(offset);
        if kind != TensorType::Q4_0 && kind != TensorType::Q8_0 && !first.is_finite() {
            return Err(self.unusable(format!("the scale {scale} of row {row} is too large for its zeros")));
        }
        let parts = [scale, first, f16::from_f32(offset - first.to_f32())];
        for (bytes, part) in head.as_chunks_mut().0.iter_mut().zip(parts) {
            *bytes = part.to_le_bytes();
        }
        if is_wide {
            for (byte, quant) in body.iter_mut().zip(quants) {
                *byte = quant ^ 0x80;
            }
        } else {
            let (low, high) = quants.split_at(BLOCK / 2);
            for ((byte, low), high) in body.iter_mut().zip(low).zip(high) {
                *byte = low | high << 4;
            }
        }
        Ok(())
    }

    /// Whether all zeros are the middle of the range.
    fn has_middle_zeros(&self) -> bool {
        let groups = self.columns.div_ceil(self.group);
        match self.zeros {
            StoredZeros::Middle => true,
            _ => (0..groups).all(|group| (0..self.rows).all(|row| self.zero(row, group) == self.middle())),
        }
    }

    /// A row's integers in 32 columns of the blocks, as stored, with nothing below 0.
    fn quants(&self, row: usize, first: usize) -> [u8; BLOCK] {
        let mut quants = [0; BLOCK];
        if self.order.is_some() {
            for (i, quant) in quants.iter_mut().enumerate() {
                *quant = self.quant(row, first + i);
            }
            return quants;
        }
        let (bits, mask) = (self.bits.count(), self.mask());
        let per_word = 32 / bits;
        let (start, step) = match self.packing {
            Packing::Depth => (first / per_word * self.rows + row, self.rows),
            Packing::Rows => (row * self.columns.div_ceil(per_word) + first / per_word, 1),
            Packing::Interleaved => {
                let (across, shift) = (self.rows / 8, bits * awq_place(row));
                for (i, quant) in quants.iter_mut().enumerate() {
                    *quant = low_byte(self.quants.word((first + i) * across + row / 8) >> shift & mask);
                }
                return quants;
            }
            Packing::Bytes => {
                let stored = self.quants.bytes.get(row * self.columns + first..).unwrap_or_default();
                for (quant, byte) in quants.iter_mut().zip(stored) {
                    *quant = byte ^ 0x80;
                }
                return quants;
            }
        };
        for (number, quants) in quants.chunks_exact_mut(per_word).enumerate() {
            let mut word = self.quants.word(start + number * step);
            for quant in quants {
                *quant = low_byte(word & mask);
                word >>= bits;
            }
        }
        quants
    }

    /// The stored column behind a column of the blocks.
    fn stored_column(&self, column: usize) -> usize {
        match &self.order {
            Some(order) => order.get(column).map_or(0, |stored| *stored as usize),
            None => column,
        }
    }

    /// An integer as stored, with nothing below 0.
    fn quant(&self, row: usize, column: usize) -> u8 {
        let column = self.stored_column(column);
        let (bits, mask) = (self.bits.count(), self.mask());
        let per_word = 32 / bits;
        let (word, shift) = match self.packing {
            Packing::Depth => (column / per_word * self.rows + row, bits * (column % per_word)),
            Packing::Interleaved => (column * (self.rows / 8) + row / 8, bits * awq_place(row)),
            Packing::Rows => {
                let words = self.columns.div_ceil(per_word);
                (row * words + column / per_word, bits * (column % per_word))
            }
            Packing::Bytes => {
                return self.quants.bytes.get(row * self.columns + column).map_or(0, |byte| byte ^ 0x80);
            }
        };
        low_byte(self.quants.word(word) >> shift & mask)
    }

    /// The bits of one integer of a word.
    fn mask(&self) -> u32 {
        (1 << self.bits.count()) - 1
    }

    /// The middle of the range: the zero of symmetric matrices.
    fn middle(&self) -> i32 {
        1 << (self.bits.count() - 1)
    }

    /// The integer that means zero, of a row in a group.
    fn zero(&self, row: usize, group: usize) -> i32 {
        let groups = self.columns.div_ceil(self.group);
        let (bits, mask) = (self.bits.count(), self.mask());
        let per_word = 32 / bits;
        let field = |word: u32, place: usize| i32::from(low_byte(word >> (bits * place) & mask));
        match &self.zeros {
            StoredZeros::Middle => self.middle(),
            // AutoGPTQ and the kernels for its files do not wrap: 15 in 4 bits means 16.
            StoredZeros::AcrossRows { words, more } => {
                field(words.word(group * self.rows.div_ceil(per_word) + row / per_word), row % per_word) + more
            }
            StoredZeros::Interleaved(words) => field(words.word(group * (self.rows / 8) + row / 8), awq_place(row)),
            StoredZeros::DownRows(words) => field(words.word(row / per_word * groups + group), row % per_word),
            StoredZeros::Bytes(bytes) => bytes.bytes.get(row * groups + group).map_or(0, |byte| i32::from(byte ^ 0x80)),
        }
    }

    /// Scale and zero of a row in the group of a column of the blocks.
    fn scale_and_zero(&self, row: usize, column: usize) -> Result<(f16, i32), QuantisedError> {
        let group = column / self.group;
        let at = match (self.packing, self.scales.elements()) {
            (_, 1) => 0,
            (Packing::Depth | Packing::Interleaved, _) => group * self.rows + row,
            (Packing::Rows | Packing::Bytes, _) => row * self.columns.div_ceil(self.group) + group,
        };
        let stored = self.scales.float(at);
        let scale = f16::from_f32(stored);
        // Scales below f16's range, as of rows of zeros, lose bits that no weight shows.
        if !scale.is_finite() {
            return Err(self.unusable(format!("the scale {stored} of row {row} does not fit 16 bits")));
        }
        Ok((scale, self.zero(row, group)))
    }

    fn unusable(&self, why: String) -> QuantisedError {
        QuantisedError::Unusable { name: self.name.clone(), why }
    }

    /// Checks what all packings have in common.
    fn checked(self) -> Result<Self, QuantisedError> {
        if !self.columns.is_multiple_of(BLOCK) {
            return Err(self.unusable(format!("its {} inputs are no multiple of {BLOCK}", self.columns)));
        }
        if self.group < self.columns && !self.group.is_multiple_of(BLOCK) {
            return Err(self.unusable(format!("its groups of {} are no multiple of {BLOCK}", self.group)));
        }
        Ok(self)
    }
}

/// The place of a row's integer in a word of AWQ.
fn awq_place(row: usize) -> usize {
    AWQ_PLACES.get(row % 8).copied().unwrap_or_default()
}

/// A field of at most 8 bits.
fn low_byte(field: u32) -> u8 {
    field.to_le_bytes()[0]
}

fn gptq<'a>(
    source: &'a dyn TensorSource,
    name: &str,
    bits: IntegerBits,
    group: Option<usize>,
    zeros: GptqZeros,
) -> Result<IntegerMatrix<'a>, QuantisedError> {
    let part = |part: &str| format!("{name}.{part}");
    let per_word = 32 / bits.count();
    let quants = need(source, &part("qweight"))?;
    let [words, rows] = quants.matrix()?;
    let columns = words * per_word;
    let group = group.unwrap_or(columns).max(1);
    let groups = columns.div_ceil(group);
    let quants = quants.require(&[Dtype::I32], "I32", &[words, rows])?;
    let shape = [groups, rows.div_ceil(per_word)];
    let words = need(source, &part("qzeros"))?.require(&[Dtype::I32], "I32", &shape)?;
    let scales = need(source, &part("scales"))?.require(FLOATS, "F16, BF16 or F32", &[groups, rows])?;
    let order = match source.find(&part("g_idx")) {
        Some(index) => order_of(index, columns, group)?,
        None => None,
    };
    let more = i32::from(zeros == GptqZeros::LessOne);
    let zeros = StoredZeros::AcrossRows { words, more };
    let name = name.to_owned();
    IntegerMatrix { name, rows, columns, bits, group, packing: Packing::Depth, quants, zeros, scales, order }.checked()
}

/// The columns sorted by their group; none where they are.
fn order_of(index: PackedTensor<'_>, columns: usize, group: usize) -> Result<Option<Vec<u32>>, QuantisedError> {
    // Some writers leave an order empty that is not used.
    if index.elements() == 0 {
        return Ok(None);
    }
    let index = index.require(&[Dtype::I32, Dtype::I64], "I32 or I64", &[columns])?;
    let words = if index.dtype == Dtype::I64 { 2 } else { 1 };
    let group_at = |column: usize| index.word(column * words);
    // compressed-tensors' sign for an order that is not used.
    if (0..columns).all(|column| group_at(column) == u32::MAX) {
        return Ok(None);
    }
    let group_of = |column: u32| group_at(column as usize) as usize;
    let mut order: Vec<u32> = (0..u32::try_from(columns).unwrap_or(u32::MAX)).collect();
    order.sort_by_key(|column| group_of(*column));
    if let Some(place) = order.iter().enumerate().position(|(place, column)| group_of(*column) != place / group) {
        return Err(index.unusable(format!("group {} has not {group} columns", place / group)));
    }
    Ok((!order.is_sorted()).then_some(order))
}

fn awq<'a>(
    source: &'a dyn TensorSource,
    name: &str,
    group: Option<usize>,
) -> Result<IntegerMatrix<'a>, QuantisedError> {
    let part = |part: &str| format!("{name}.{part}");
    let quants = need(source, &part("qweight"))?;
    let [columns, words] = quants.matrix()?;
    let rows = words * 8;
    let group = group.unwrap_or(columns).max(1);
    let groups = columns.div_ceil(group);
    let quants = quants.require(&[Dtype::I32], "I32", &[columns, words])?;
    let zeros = need(source, &part("qzeros"))?.require(&[Dtype::I32], "I32", &[groups, words])?;
    let scales = need(source, &part("scales"))?.require(FLOATS, "F16, BF16 or F32", &[groups, rows])?;
    let (bits, packing, zeros) = (IntegerBits::Four, Packing::Interleaved, StoredZeros::Interleaved(zeros));
    let name = name.to_owned();
    IntegerMatrix { name, rows, columns, bits, group, packing, quants, zeros, scales, order: None }.checked()
}

fn compressed<'a>(
    source: &'a dyn TensorSource,
    name: &str,
    bits: IntegerBits,
) -> Result<IntegerMatrix<'a>, QuantisedError> {
    let part = |part: &str| format!("{name}.{part}");
    let per_word = 32 / bits.count();
    // Of integers that are not packed each has a byte, however few of its bits the folder says are used.
    let is_packed = source.find(&part("weight_packed")).is_some();
    let bits = if is_packed { bits } else { IntegerBits::Eight };
    let (quants, packing, [rows, columns]) = match source.find(&part("weight_packed")) {
        Some(packed) => {
            let shape = need(source, &part("weight_shape"))?;
            let shape = shape.require(&[Dtype::I64, Dtype::I32], "I64 or I32", &[2])?;
            let [rows, columns] = [0, 1].map(|at| {
                let words = if shape.dtype == Dtype::I64 { 2 } else { 1 };
                shape.word(at * words) as usize
            });
            let packed = packed.require(&[Dtype::I32], "I32", &[rows, columns.div_ceil(per_word)])?;
            (packed, Packing::Rows, [rows, columns])
        }
        None => {
            let bytes = need(source, &part("weight"))?;
            let [rows, columns] = bytes.matrix()?;
            (bytes.require(&[Dtype::I8], "I8", &[rows, columns])?, Packing::Bytes, [rows, columns])
        }
    };
    // A scale for the matrix, one for each row, or one for each group of a row.
    let scales = need(source, &part("weight_scale"))?;
    let groups = match scales.shape.as_slice() {
        [] | [1] | [1, 1] => 1,
        [count] if *count == rows => 1,
        [count, groups] if *count == rows && *groups > 0 => *groups,
        found => {
            return Err(QuantisedError::Shape {
                name: scales.name.clone(),
                found: found.to_vec(),
                wanted: vec![rows, 1],
            });
        }
    };
    let shape = scales.shape.clone();
    let scales = scales.require(FLOATS, "F16, BF16 or F32", &shape)?;
    let group = columns.div_ceil(groups).max(1);
    if group * groups != columns {
        return Err(scales.unusable(format!("{groups} groups do not divide {columns} inputs")));
    }
    let zeros = match (source.find(&part("weight_zero_point")), packing) {
        (None, _) => StoredZeros::Middle,
        (Some(zeros), Packing::Rows) => {
            StoredZeros::DownRows(zeros.require(&[Dtype::I32], "I32", &[rows.div_ceil(per_word), groups])?)
        }
        (Some(zeros), _) => {
            let shape = if zeros.elements() == rows * groups { zeros.shape.clone() } else { vec![rows, groups] };
            StoredZeros::Bytes(zeros.require(&[Dtype::I8], "I8", &shape)?)
        }
    };
    let order = match source.find(&part("weight_g_idx")) {
        Some(index) => order_of(index, columns, group)?,
        None => None,
    };
    IntegerMatrix { name: name.to_owned(), rows, columns, bits, group, packing, quants, zeros, scales, order }.checked()
}
