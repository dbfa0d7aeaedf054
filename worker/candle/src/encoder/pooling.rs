//! The steps behind the layers of an encoder: the vectors of a text's tokens become one.

use std::path::PathBuf;

use candle_core::{D, Result as CandleResult, Tensor};

use crate::spec::Activation;

/// One part behind the layers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PoolStep {
    /// The vectors of the tokens become one, by each of these ways, one behind the other.
    Pool(Vec<Pooling>),
    /// A product and an activation.
    Dense { at: DenseFile, shape: [usize; 2], bias: bool, activation: DenseActivation },
    /// A length of 1.
    Normalise,
    /// The first numbers alone, however long they are.
    First(usize),
}

/// The place of a product's matrix.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DenseFile {
    /// A folder of its own.
    Folder(PathBuf),
    /// A tensor of the GGUF file, by its name without `.weight`.
    Gguf(PathBuf, &'static str),
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// That of the first token.
    First,
    /// That of the last token.
    Last,
    /// The greatest numbers.
    Max,
    /// The mean.
    Mean,
    /// The sum over the root of the number of tokens.
    MeanOfRoot,
    /// The mean, in which the n-th token counts n times.
    Weighted,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DenseActivation {
    Identity,
    Tanh,
    Relu,
    /// One that layers have, too.
    Of(Activation),
}

impl Pooling {
    /// The vector of a text's tokens, `[tokens, hidden]` → `[1, hidden]`.
    pub(crate) fn of(self, rows: &Tensor) -> CandleResult<Tensor> {
        let tokens = rows.dim(0)?;
        match self {
            Self::First => rows.narrow(0, 0, 1),
            Self::Last => rows.narrow(0, tokens - 1, 1),
            Self::Max => rows.max_keepdim(0),
            Self::Mean => rows.mean_keepdim(0),
            Self::MeanOfRoot => rows.sum_keepdim(0)? / (tokens as f64).sqrt(),
            Self::Weighted => {
                let all = (tokens * (tokens + 1) / 2) as f32;
                let weights: Vec<f32> = (1..=tokens).map(|token| token as f32 / all).collect();
                rows.broadcast_mul(&Tensor::from_vec(weights, (tokens, 1), rows.device())?)?.sum_keepdim(0)
            }
        }
    }
}

/// Rows of length 1. A row of zeros stays.
pub(crate) fn normalised(rows: &Tensor) -> CandleResult<Tensor> {
    let lengths = rows.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    rows.broadcast_div(&lengths.maximum(1e-12)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn em_1_tokens_become_one_vector() {
        let rows = Tensor::new(&[[1.0_f32, -2.0], [3.0, 4.0], [5.0, 1.0]], &Device::Cpu).unwrap();
        let of = |way: Pooling| way.of(&rows).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(
            (of(Pooling::First), of(Pooling::Last), of(Pooling::Max)),
            (vec![1.0, -2.0], vec![5.0, 1.0], vec![5.0, 4.0])
        );
        assert_eq!((of(Pooling::Mean), of(Pooling::Weighted)), (vec![3.0, 1.0], vec![3.666_666_5, 1.5]));
        assert!((of(Pooling::MeanOfRoot)[0] - 9.0 / 3.0_f32.sqrt()).abs() < 1e-6);
        let normal = normalised(&Tensor::new(&[[3.0_f32, 4.0], [0.0, 0.0]], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(normal.to_vec2::<f32>().unwrap(), [[0.6, 0.8], [0.0, 0.0]]);
    }
}
