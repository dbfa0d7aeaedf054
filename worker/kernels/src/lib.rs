//! Products and attention on the CPU, with matrices, keys and values in their stored form: the layouts, and the inner
//! loops for each instruction set. Slices and numbers only: models, files and tensors are elsewhere.
#![allow(clippy::arithmetic_side_effects, reason = "sizes and lanes; nothing here adds to a clock's moment")]

mod activations;
mod attention;
mod convolution;
mod cores;
mod exp;
mod floats;
mod group_norm;
mod kernel;
mod lanes;
mod layout;
mod panels;
mod plane_convolution;
mod quantised;
mod ran;
mod rows;
#[cfg(test)]
mod table_of_kernels;

pub use attention::{
    AttentionHeads, AttentionRows, HeadNorm, HostKv, KvElement, KvValues, NormOrder, PAGE, PageShape, RopePlanes,
    Rotation, SequenceRows, TextBiases, WholeTexts,
};
pub use convolution::{Convolution, ConvolutionShape};
pub use cores::{WORTH_SHARING, alone, cores};
pub use exp::exp;
pub use floats::product::{Sizes, product};
pub use group_norm::GroupNorm;
pub use kernel::{MatrixKernel, ProductInput, ROWS, StoredFloats};
pub use lanes::{choose_instructions, current_instructions};
pub use layout::{MatrixLayout, floats_are_finite};
pub use panels::{in_panels, panels_of};
pub use plane_convolution::{PlaneConvolution, PlaneShape};
pub use rows::{SumNorm, add_to_rows, vectorized};
