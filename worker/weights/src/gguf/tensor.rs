//! The record of a tensor: its place, shape and type. Tensor data is not read here.

use super::TensorType;
use super::cursor::Cursor;
use super::error::HeaderFault;

/// The most dimensions a tensor can have.
const MAX_RANK: usize = 4;

/// A tensor of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// The tensor's name, unique in the file.
    pub name: &'a str,
    /// The type of the tensor's elements.
    pub kind: TensorType,
    /// The offset of the tensor's bytes in the file.
    pub offset: u64,
    /// The number of the tensor's bytes.
    pub bytes: u64,
    shape: [u64; MAX_RANK],
    rank: usize,
}

impl<'a> TensorInfo<'a> {
    /// The tensor's dimensions, slowest first (row-major; the file has them fastest first). The list is empty for a
    /// single number.
    pub fn shape(&self) -> &[u64] {
        self.shape.get(..self.rank).unwrap_or_default()
    }

    /// The product of the tensor's dimensions.
    pub fn elements(&self) -> u64 {
        // The product cannot overflow: it was checked when the record was read.
        self.shape().iter().product()
    }

    /// Reads the record at the cursor, from the byte after the name. `offset` is still relative to the data.
    pub(super) fn read(cursor: &mut Cursor<'a>, name: &'a str) -> Result<Self, HeaderFault> {
        let claimed = cursor.u32("a tensor's rank")?;
        let rank = usize::try_from(claimed).ok().filter(|rank| *rank <= MAX_RANK).ok_or(HeaderFault::Rank(claimed))?;
        let mut shape = [1; MAX_RANK];
        for (index, length) in shape.iter_mut().take(rank).enumerate() {
            *length = cursor.u64("a tensor's dimension")?;
            if *length == 0 {
                return Err(HeaderFault::ZeroDimension(index));
            }
        }
        let kind = TensorType::from_id(cursor.u32("a tensor's type")?)?;
        let offset = cursor.u64("a tensor's offset")?;
        let row = shape[0];
        let bytes = size(kind, row, &shape[..rank])?;
        if let Some(used) = shape.get_mut(..rank) {
            used.reverse();
        }
        Ok(Self { name, kind, offset, bytes, shape, rank })
    }
}

/// Bytes of a tensor with rows of `row` elements: every row is a whole number of blocks.
pub(super) fn size(kind: TensorType, row: u64, shape: &[u64]) -> Result<u64, HeaderFault> {
    let elements = shape
        .iter()
        .try_fold(1_u64, |product, length| product.checked_mul(*length))
        .ok_or(HeaderFault::SizeOverflow)?;
    let block = kind.block_len();
    if !row.is_multiple_of(block) {
        return Err(HeaderFault::PartialBlock { kind, row, block });
    }
    kind.bytes_of(elements).ok_or(HeaderFault::SizeOverflow)
}
