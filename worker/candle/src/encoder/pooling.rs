//! The steps behind the layers of an encoder: the vectors of a text's tokens become one.

use std::path::PathBuf;

use candle_core::{D, Result as CandleResult, Tensor};

use crate::spec::Activation;

/// One part behind the layers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PoolStep {
    /// The vectors of the tokens become one, by each of these ways, one behind the other.
    Pool(Vec<Pooling>),
    /// A product and an activation. With a residual, the vector before it is added: through a product of its own, where
    /// the widths differ.
    Dense { at: DenseFile, shape: [usize; 2], bias: bool, activation: DenseActivation, residual: bool },
    /// A LayerNorm, in a folder of its own.
    Norm { at: PathBuf, width: usize },
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

/// The activation behind a product, with the defaults of torch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DenseActivation {
    Identity,
    Tanh,
    Sigmoid,
    LeakyRelu,
    Elu,
    ReluUpToSix,
    Softplus,
    Mish,
    Softsign,
    /// One that layers have, too.
    Of(Activation),
}

impl DenseActivation {
    /// Element by element.
    pub(crate) fn forward(self, x: &Tensor) -> CandleResult<Tensor> {
        // The logarithm of 1 + exp(x), without an overflow.
        let softplus = || x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?;
        match self {
            Self::Identity => Ok(x.clone()),
            Self::Tanh => x.tanh(),
            Self::Sigmoid => candle_nn::ops::sigmoid(x),
            Self::LeakyRelu => candle_nn::ops::leaky_relu(x, 0.01),
            Self::Elu => x.elu(1.0),
            Self::ReluUpToSix => x.clamp(0.0, 6.0),
            Self::Softplus => softplus(),
            Self::Mish => x * softplus()?.tanh()?,
            Self::Softsign => x / (x.abs()? + 1.0)?,
            Self::Of(activation) => activation.forward(x),
        }
    }
}

impl Pooling {
    /// The vector of a text's tokens behind those that are left out, `[tokens, hidden]` → `[1, hidden]`. Weights are by
    /// the places in the whole text.
    pub(crate) fn of(self, rows: &Tensor, left_out: usize) -> CandleResult<Tensor> {
        let tokens = rows.dim(0)?;
        if left_out >= tokens {
            // As sentence-transformers has it, but for the maximum of nothing.
            let first = rows.narrow(0, 0, 1)?;
            return if self == Self::First { Ok(first) } else { first.zeros_like() };
        }
        let count = tokens - left_out;
        let rows = rows.narrow(0, left_out, count)?;
        match self {
            Self::First => rows.narrow(0, 0, 1),
            Self::Last => rows.narrow(0, count - 1, 1),
            Self::Max => rows.max_keepdim(0),
            Self::Mean => rows.mean_keepdim(0),
            Self::MeanOfRoot => rows.sum_keepdim(0)? / (count as f64).sqrt(),
            Self::Weighted => {
                let all = (tokens * (tokens + 1) / 2 - left_out * (left_out + 1) / 2) as f32;
                let weights: Vec<f32> = (left_out + 1..=tokens).map(|token| token as f32 / all).collect();
                rows.broadcast_mul(&Tensor::from_vec(weights, (count, 1), rows.device())?)?.sum_keepdim(0)
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
        let behind = |way: Pooling, left_out| way.of(&rows, left_out).unwrap().to_vec2::<f32>().unwrap().remove(0);
        let of = |way: Pooling| behind(way, 0);
        assert_eq!((behind(Pooling::First, 1), behind(Pooling::Mean, 1)), (vec![3.0, 4.0], vec![4.0, 2.5]));
        assert_eq!(behind(Pooling::Max, 2), [5.0, 1.0]);
        let weighted = behind(Pooling::Weighted, 1);
        assert!((weighted[0] - 4.2).abs() < 1e-6 && (weighted[1] - 2.2).abs() < 1e-6, "{weighted:?}");
        assert_eq!((behind(Pooling::Mean, 3), behind(Pooling::First, 3)), (vec![0.0, 0.0], vec![1.0, -2.0]));
        assert_eq!(
            (of(Pooling::First), of(Pooling::Last), of(Pooling::Max)),
            (vec![1.0, -2.0], vec![5.0, 1.0], vec![5.0, 4.0])
        );
        assert_eq!((of(Pooling::Mean), of(Pooling::Weighted)), (vec![3.0, 1.0], vec![3.666_666_5, 1.5]));
        assert!((of(Pooling::MeanOfRoot)[0] - 9.0 / 3.0_f32.sqrt()).abs() < 1e-6);
        let normal = normalised(&Tensor::new(&[[3.0_f32, 4.0], [0.0, 0.0]], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(normal.to_vec2::<f32>().unwrap(), [[0.6, 0.8], [0.0, 0.0]]);
    }

    #[test]
    fn em_1_activations_are_those_of_torch() {
        let x = Tensor::new(&[[-3.0_f32, -0.5, 0.0, 2.0, 7.0]], &Device::Cpu).unwrap();
        // torch.nn of 2.x, in f32.
        let expected: [(DenseActivation, [f32; 5]); 7] = [
            (DenseActivation::Sigmoid, [0.04742587, 0.3775407, 0.5, 0.880797, 0.999089]),
            (DenseActivation::LeakyRelu, [-0.03, -0.005, 0.0, 2.0, 7.0]),
            (DenseActivation::Elu, [-0.950213, -0.3934693, 0.0, 2.0, 7.0]),
            (DenseActivation::ReluUpToSix, [0.0, 0.0, 0.0, 2.0, 6.0]),
            (DenseActivation::Softplus, [0.04858735, 0.474077, std::f32::consts::LN_2, 2.126928, 7.000912]),
            (DenseActivation::Mish, [-0.1456475, -0.2207438, 0.0, 1.943959, 6.999989]),
            (DenseActivation::Softsign, [-0.75, -0.3333333, 0.0, 0.6666667, 0.875]),
        ];
        for (activation, expected) in expected {
            let got = activation.forward(&x).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let near = got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-6);
            assert!(near, "{activation:?}: {got:?}");
        }
    }
}
