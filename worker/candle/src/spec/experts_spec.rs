//! Descriptions of mixtures of experts: the router, and the experts that it chooses among.

use crate::spec::mlp_spec::{Activation, MlpSpec};

/// A router, and the experts that it chooses among for each token.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// Number of experts.
    pub count: usize,
    /// Experts that compute on a token.
    pub used: usize,
    /// Width of an expert's inner layer.
    pub intermediate: usize,
    /// The activation of experts.
    pub activation: Activation,
    /// Whether experts have gates.
    pub gated: bool,
    /// Whether the projections of experts have biases.
    pub bias: bool,
    /// The choice of experts, and their weights.
    pub router: RouterSpec,
    /// The expert that computes on every token.
    pub shared: Option<SharedExpert>,
}

/// The choice of experts, and their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterSpec {
    /// The formula of an expert's weight from its logit.
    pub weighting: Weighting,
    /// Whether logits have a bias.
    pub bias: bool,
    /// Whether the choice, and it alone, adds a learned correction to weights.
    pub correction: bool,
    /// Groups of which some are chosen first.
    pub groups: Option<ExpertGroups>,
    /// Whether the weights of chosen experts are divided by their sum.
    pub normalised: bool,
    /// The factor on weights.
    pub scale: f64,
}

/// The formula of an expert's weight from its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weighting {
    /// The softmax over all experts.
    Softmax,
    /// The softmax over the chosen experts.
    SoftmaxOfChosen,
    /// The sigmoid of its logit.
    Sigmoid,
    /// One expert after the other, each with the softmax over those whose logits are close to its own, as in Phi-3.5's
    /// SparseMixer (Liu et al., 2024, arXiv 2409.12136).
    SparseMixer {
        /// Half of the relative distance of a logit that is close.
        jitter: f32,
    },
}

/// Groups of experts, consecutive and equal in size, of which some are chosen before experts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Groups that are chosen.
    pub used: usize,
    /// The value of a group.
    pub worth: GroupWorth,
}

/// The value that a group of experts is chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupWorth {
    /// That of its best expert, as in DeepSeek-V2.
    Best,
    /// The sum of its two best experts, as in DeepSeek-V3.
    TwoBest,
}

/// An expert that computes on every token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedExpert {
    /// Its projections.
    pub mlp: MlpSpec,
    /// Whether its result is multiplied with the sigmoid of a learned product.
    pub gate: bool,
}

impl RouterSpec {
    /// The softmax over all experts, without correction, groups or factor.
    pub fn softmax(normalised: bool) -> Self {
        Self { weighting: Weighting::Softmax, bias: false, correction: false, groups: None, normalised, scale: 1.0 }
    }
}
