//! Descriptions of dense feed-forward parts, and of activations.

/// A feed-forward part with one inner layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpSpec {
    /// Width of the inner layer.
    pub intermediate: usize,
    /// Whether all projections have a bias.
    pub bias: bool,
    /// The activation.
    pub activation: Activation,
}

/// The activation of a feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// SiLU: `x * sigmoid(x)`.
    Silu,
    /// GELU, exact by the error function.
    GeluErf,
    /// GELU, approximated by tanh.
    GeluTanh,
    /// GELU, approximated by the logistic function: `x * sigmoid(1.702 x)`.
    GeluQuick,
    /// GELU by tanh of what is above a row's mean by so many standard deviations, less that bound.
    GeluTanhAbove {
        /// The distance of the bound from the mean, in standard deviations.
        deviations: f32,
    },
    /// ReLU: `max(x, 0)`.
    Relu,
    /// The square of ReLU (So et al., 2021, arXiv 2109.08668).
    ReluSquared,
    /// `g sigmoid(1.702 g) (up + 1)`, where the gate `g` is at most `limit`, and `up` is within it on both sides, as in
    /// gpt-oss.
    SwigluClamped {
        /// The bound of both.
        limit: f32,
    },
}
