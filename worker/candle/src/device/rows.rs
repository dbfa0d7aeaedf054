//! The arguments of operations on a step's rows that a device may have whole. Where it has not, those of candle do the
//! same in parts. Knows shapes, no layers.

#![cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "read by the kernels of GPUs only"))]

use candle_core::{Device, Result, Tensor};

/// Rows of a sequence that attention by single rows is worth for.
const SHORT: usize = 8;
/// The place of a row whose keys and values are not kept, as in `kernels/place.cuh`.
const NOWHERE: u32 = u32::MAX;

/// The form of a layer's attention. 0 stands for no window and no bound.
pub(crate) struct AttendedHeads {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) window: usize,
    pub(crate) softcap: f32,
    pub(crate) scale: f32,
}

/// The work that is done in one launch with products of rows with matrices.
#[derive(Clone, Copy, Default)]
pub(crate) struct Beside<'a> {
    /// A root-mean-square norm that the rows pass before: its weight `[depth]` and epsilon.
    pub(crate) norm: Option<(&'a Tensor, f32)>,
    /// Of each matrix `[outs]`; empty without any.
    pub(crate) biases: &'a [Option<&'a Tensor>],
    /// Is added to the result of a single matrix, `[rows, outs]`.
    pub(crate) residual: Option<&'a Tensor>,
    /// Of two matrices the first makes the gate of the second, and the one result is what passes.
    pub(crate) gate: Option<SiluForm>,
}

/// `silu(gate) * up`, or gpt-oss' form with a bound and a slope; both 0 for the former.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SiluForm {
    pub(crate) limit: f32,
    pub(crate) slope: f32,
}

/// A step's rows behind their projections.
pub(crate) struct NewRows<'a> {
    /// `[rows, heads * head_dim]`
    pub(crate) query: &'a Tensor,
    /// `[rows, kv_heads * head_dim]`
    pub(crate) key: &'a Tensor,
    /// `[rows, kv_heads * value_dim]`; none where values are in the keys.
    pub(crate) value: Option<&'a Tensor>,
    pub(crate) norms: Option<NewRowNorms<'a>>,
    pub(crate) angles: Option<NewRowAngles<'a>>,
}

/// Norms of each head: a weight `[head_dim]` and its epsilon.
#[derive(Clone, Copy)]
pub(crate) struct NewRowNorms<'a> {
    pub(crate) query: (&'a Tensor, f32),
    pub(crate) key: (&'a Tensor, f32),
    pub(crate) behind_rotation: bool,
}

/// Angles `[rows, planes]`, and the first element of a head that turns.
#[derive(Clone, Copy)]
pub(crate) struct NewRowAngles<'a> {
    pub(crate) cos: &'a Tensor,
    pub(crate) sin: &'a Tensor,
    pub(crate) first: usize,
    /// Whether halves of the turned part are planes, and not neighbours.
    pub(crate) halves: bool,
}

/// One sequence of a step for [`StepTables`].
pub(crate) struct TableSequence {
    /// The numbers of its blocks.
    pub(crate) blocks: Vec<u32>,
    pub(crate) past: usize,
    pub(crate) new: usize,
}

/// The places of a step's tokens on a device.
pub(crate) struct StepTables {
    /// Of each row its place, its sequence, and the tokens that it sees, if its sequence has few rows; then each
    /// sequence's blocks.
    pub(crate) numbers: Tensor,
    pub(crate) rows: usize,
    /// Blocks of a sequence there is room for.
    pub(crate) table: usize,
    /// The most tokens that a row of a sequence of few rows sees; 0 without any.
    pub(crate) most_seen: usize,
}

impl StepTables {
    /// The places in blocks of `block` tokens.
    pub(crate) fn new(sequences: Vec<TableSequence>, block: usize, device: &Device) -> Result<Self> {
        let table = sequences.iter().map(|sequence| sequence.blocks.len()).max().unwrap_or(0);
        let rows = sequences.iter().map(|sequence| sequence.new).sum();
        let short = sequences.iter().filter(|sequence| is_short(sequence.new));
        let most_seen = short.map(|sequence| sequence.past + sequence.new).max().unwrap_or(0);
        Ok(Self { numbers: Tensor::new(Self::cells(sequences, block, (rows, table)), device)?, rows, table, most_seen })
    }

    /// The numbers of tables with room for so many rows, and for `table` blocks of each sequence. Rows behind those of
    /// the sequences are sequences of their own that see nothing and leave nothing.
    pub(crate) fn cells(sequences: Vec<TableSequence>, block: usize, (rows, table): (usize, usize)) -> Vec<u32> {
        let (mut places, mut of, mut seen) = (Vec::new(), Vec::new(), Vec::new());
        let mut tables: Vec<Vec<u32>> = Vec::new();
        for (index, TableSequence { blocks, past, new }) in sequences.into_iter().enumerate() {
            for at in past..past + new {
                let first = blocks.get(at / block).copied().unwrap_or(0);
                places.push(first * block as u32 + (at % block) as u32);
                of.push(index as u32);
                seen.push(if is_short(new) { at as u32 + 1 } else { 0 });
            }
            tables.push(blocks);
        }
        let more = rows.saturating_sub(places.len());
        places.resize(places.len() + more, NOWHERE);
        of.resize(of.len() + more, 0);
        seen.resize(seen.len() + more, 0);
        tables.resize(tables.len() + more, Vec::new());
        let mut numbers = [places, of, seen].concat();
        for mut blocks in tables {
            blocks.resize(table, 0);
            numbers.extend(blocks);
        }
        numbers
    }
}

/// Whether a sequence's rows in a step are attended one by one.
pub(crate) fn is_short(new: usize) -> bool {
    new <= SHORT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_each_rows_place_and_what_it_sees() {
        let sequences = vec![
            TableSequence { blocks: vec![3, 7], past: 31, new: 2 },
            TableSequence { blocks: vec![1], past: 0, new: 9 },
            TableSequence { blocks: vec![0], past: 4, new: 1 },
        ];
        let tables = StepTables::new(sequences, 32, &Device::Cpu).unwrap();
        assert_eq!((tables.rows, tables.table, tables.most_seen), (12, 2, 33));
        let numbers = tables.numbers.to_vec1::<u32>().unwrap();
        assert_eq!(numbers[..12], [127, 224, 32, 33, 34, 35, 36, 37, 38, 39, 40, 4]);
        assert_eq!(numbers[12..24], [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2]);
        assert_eq!(numbers[24..36], [32, 33, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(numbers[36..], [3, 7, 1, 0, 0, 0]);
    }

    #[test]
    fn rows_that_fill_a_form_see_nothing_and_leave_nothing() {
        let sequences = vec![TableSequence { blocks: vec![3], past: 9, new: 1 }];
        let cells = StepTables::cells(sequences, 32, (3, 2));
        assert_eq!(cells, [105, NOWHERE, NOWHERE, 0, 0, 0, 10, 0, 0, 3, 0, 0, 0, 0, 0]);
    }
}
