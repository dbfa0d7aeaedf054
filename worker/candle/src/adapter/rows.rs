//! The adapters of a step's rows. Knows rows and parts, no sequences.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::parts::DecoderAdapter;

/// The adapter of each row of a tensor. Most steps have none.
#[derive(Clone, Default)]
pub(crate) struct RowAdapters {
    /// Rows one behind the other with the same adapter; rows in no run have none.
    runs: Vec<AdaptedRun>,
}

#[derive(Clone)]
struct AdaptedRun {
    rows: Range<usize>,
    adapter: Arc<DecoderAdapter>,
}

/// Rows without adapters.
pub(crate) static NO_ADAPTERS: RowAdapters = RowAdapters { runs: Vec::new() };

impl RowAdapters {
    /// The next rows, behind all others, have this adapter. It is added to the last run where that goes on.
    pub(crate) fn push(&mut self, rows: Range<usize>, adapter: &Arc<DecoderAdapter>) {
        match self.runs.last_mut() {
            Some(last) if last.rows.end == rows.start && Arc::ptr_eq(&last.adapter, adapter) => {
                last.rows.end = rows.end;
            }
            _ => self.runs.push(AdaptedRun { rows, adapter: Arc::clone(adapter) }),
        }
    }

    /// Whether no row has an adapter.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The adapters of some of the rows, in this order.
    pub(crate) fn select(&self, rows: &[u32]) -> Self {
        let mut selected = Self::default();
        if self.is_empty() {
            return selected;
        }
        for (at, row) in rows.iter().enumerate() {
            if let Some(run) = self.runs.iter().find(|run| run.rows.contains(&(*row as usize))) {
                selected.push(at..at + 1, &run.adapter);
            }
        }
        selected
    }

    /// The results of a projection with the adapters: `y` are those of the rows `x` without, with this bias. They are
    /// nobody else's.
    pub(crate) fn project(&self, path: &str, x: &Tensor, y: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        self.each(path, y, |part, rows, y| {
            let tensors = part.on(x.device(), y.dtype())?;
            tensors.projected(&x.narrow(0, rows.start, rows.len())?, y, bias)
        })
    }

    /// The rows of an embedding with the adapters: `y` are those of the tokens without.
    pub(crate) fn look_up(&self, path: &str, tokens: &[u32], y: Tensor) -> Result<Tensor> {
        self.each(path, y, |part, rows, y| {
            let tokens = Tensor::new(&tokens[rows.clone()], y.device())?;
            part.on(y.device(), y.dtype())?.looked_up(&tokens, y)
        })
    }

    fn each(
        &self,
        path: &str,
        y: Tensor,
        adapted: impl Fn(&super::parts::AdapterPart, &Range<usize>, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut y = y;
        for run in &self.runs {
            let Some(part) = run.adapter.parts.get(path) else { continue };
            if run.rows == (0..y.dim(0)?) {
                y = adapted(part, &run.rows, &y)?;
                continue;
            }
            let own = adapted(part, &run.rows, &y.narrow(0, run.rows.start, run.rows.len())?.copy()?)?;
            y = y.contiguous()?;
            y.slice_set(&own.contiguous()?, 0, run.rows.start)?;
        }
        Ok(y)
    }
}
