//! Codebooks of residual vector quantisation (Zeghidour et al., 2021, arXiv 2107.03312): a frame's vector is the sum of
//! one of each.

use candle_core::{Result as CandleResult, Tensor};

use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::speech::weights::SpeechWeights;

/// The least use of a vector that its sum is divided by, as in the reference.
const LEAST_USE: f64 = 1e-5;

/// Some codebooks, and the product behind their sum.
pub(super) struct Codebooks {
    /// `[codes, width]` each.
    books: Vec<Tensor>,
    out: Option<Linear>,
}

impl Codebooks {
    /// Reads so many codebooks of `[codes, width]` below a path, whose sums become vectors of the width `outs`.
    pub(super) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        (count, codes, width): (usize, usize, usize),
        (hidden, outs): (usize, usize),
    ) -> Result<Self, ModelError> {
        let book = |at: usize| {
            let name = |part: &str| format!("{path}.layers.{at}.codebook.{part}");
            let sums = weights.tensor(&name("embed_sum"), &[codes, width])?;
            let uses = weights.tensor(&name("cluster_usage"), &[codes])?;
            let vectors = uses.maximum(LEAST_USE).and_then(|uses| sums.broadcast_div(&uses.unsqueeze(1)?));
            weights.made(vectors)
        };
        let books = (0..count).map(book).collect::<Result<Vec<_>, _>>()?;
        let out = match hidden == outs {
            true => None,
            false => Some(weights.pointwise(&format!("{path}.output_proj"), [outs, hidden])?),
        };
        Ok(Self { books, out })
    }

    /// The number of codebooks.
    pub(super) fn len(&self) -> usize {
        self.books.len()
    }

    /// The codes of each codebook, `[frames]` each, become `[frames, outs]`.
    pub(super) fn vectors(&self, codes: &[Tensor]) -> CandleResult<Tensor> {
        let mut sum: Option<Tensor> = None;
        for (book, codes) in self.books.iter().zip(codes) {
            let vectors = book.index_select(codes, 0)?;
            sum = Some(match sum {
                Some(sum) => (sum + vectors)?,
                None => vectors,
            });
        }
        let Some(sum) = sum else { candle_core::bail!("there are no codes") };
        self.out.as_ref().map_or(Ok(sum.clone()), |out| out.forward(&sum))
    }
}
