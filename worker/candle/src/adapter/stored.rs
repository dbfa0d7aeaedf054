//! An adapter as its files have it: matrices in f32 in the host's memory, by the names that the file gives to the
//! modules of its model. Knows no decoder.

use std::collections::BTreeMap;

use model_boss_engine::AdapterError;
use model_boss_weights::gguf::{TensorType, dequantise};

/// An adapter of a file or folder.
pub(crate) struct StoredAdapter {
    pub(crate) modules: BTreeMap<String, StoredModule>,
    /// The architecture that a GGUF file names; none of PEFT's folders.
    pub(crate) architecture: Option<String>,
    pub(crate) warnings: Vec<String>,
}

/// The tensors of one module.
pub(crate) enum StoredModule {
    /// Of a projection.
    Projection(StoredLowRank),
    /// Of an embedding: `down` is `[tokens, rank]`.
    Embedding(StoredLowRank),
    /// The module's weight itself.
    Whole(HostMatrix),
}

/// Two narrow matrices, and what PEFT has beside them.
#[derive(Clone)]
pub(crate) struct StoredLowRank {
    /// `[rank, in]`
    pub(crate) down: HostMatrix,
    /// `[out, rank]`
    pub(crate) up: HostMatrix,
    pub(crate) scale: f64,
    /// DoRA's lengths of the rows of the adapted matrix, `[out]`.
    pub(crate) lengths: Option<Vec<f32>>,
    /// `[out]`
    pub(crate) bias: Option<Vec<f32>>,
}

/// A matrix in f32.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HostMatrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) values: Vec<f32>,
}

impl HostMatrix {
    /// The matrix of a file's tensor, whose shape has two dimensions.
    pub(crate) fn of(name: &str, kind: TensorType, shape: &[usize], bytes: &[u8]) -> Result<Self, AdapterError> {
        let wrong = |what: String| AdapterError::Tensor { name: name.to_owned(), what };
        let [rows, columns] = *shape else {
            return Err(wrong(format!("has the shape {shape:?}; matrices of adapters have two dimensions")));
        };
        let values = floats(name, kind, rows.saturating_mul(columns), bytes)?;
        Ok(Self { rows, columns, values })
    }

    /// Some of the rows, in this order.
    pub(crate) fn picked(&self, rows: impl Iterator<Item = usize>) -> Self {
        let mut values = Vec::new();
        let mut count = 0;
        for row in rows {
            values.extend_from_slice(self.values.get(row * self.columns..(row + 1) * self.columns).unwrap_or_default());
            count += 1;
        }
        Self { rows: count, columns: self.columns, values }
    }

    /// Rows and columns in each other's place.
    pub(crate) fn turned(&self) -> Self {
        let columns = 0..self.columns;
        let column = |at: usize| self.values.iter().skip(at).step_by(self.columns.max(1)).copied();
        Self { rows: self.columns, columns: self.rows, values: columns.flat_map(column).collect() }
    }

    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }
}

/// The numbers of a file's tensor, which are finite.
pub(crate) fn floats(name: &str, kind: TensorType, count: usize, bytes: &[u8]) -> Result<Vec<f32>, AdapterError> {
    let wrong = |what: String| AdapterError::Tensor { name: name.to_owned(), what };
    let mut values = vec![0.0; count];
    dequantise(kind, bytes, &mut values).map_err(|error| wrong(error.to_string()))?;
    if values.iter().all(|value| value.is_finite()) { Ok(values) } else { Err(wrong("holds NaN or infinity".into())) }
}
