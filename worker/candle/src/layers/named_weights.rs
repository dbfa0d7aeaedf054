//! The parts that layers are made of, by name, wherever their weights come from.

use candle_core::Tensor;

use crate::error::ModelError;
use crate::matrix::Matrix;

/// A source of a model's parts, by the names of safetensors.
pub(crate) trait NamedWeights {
    /// The matrix of that name.
    fn matrix(&mut self, name: &str) -> Result<Matrix, ModelError>;

    /// A factor that all elements of that matrix are still to be multiplied with.
    fn factor(&self, _name: &str) -> Option<f64> {
        None
    }

    /// The columns of inputs that the columns of that matrix belong to; none where they are in order.
    fn order(&self, _name: &str) -> Result<Option<Tensor>, ModelError> {
        Ok(None)
    }

    /// The tensor of that name, in its stored shape.
    fn tensor(&mut self, name: &str) -> Result<Tensor, ModelError>;
}
