//! The places of a layer's matrices in the model's files, and their layout in memory. They do not depend on the device.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use candle_core::Tensor;
use model_boss_kernels::{MatrixLayout, ROWS};
use model_boss_weights::store::{Extent, Reads};

use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layers::named_weights::NamedWeights;
use crate::read::reader::WeightReader;
use crate::spec::DecoderSpec;

/// One matrix of a layer.
#[derive(Clone, Debug)]
pub(crate) struct MatrixPiece {
    pub(crate) name: String,
    pub(crate) layout: MatrixLayout,
    pub(crate) extent: Extent,
    /// Whether the bytes are in the order of products already.
    pub(crate) arranged: bool,
    /// A factor on all elements, from an index whose bytes are not the model's own (RS-5).
    pub(crate) factor: Option<f64>,
}

impl MatrixPiece {
    /// Whether the bytes have to be rearranged before products use them.
    pub(crate) fn moves(&self) -> bool {
        !self.arranged && self.layout.arrangement() != ROWS
    }
}

/// The small tensors of layers that every device keeps, by the names of safetensors.
#[derive(Clone, Default)]
pub(crate) struct SmallTensors {
    /// Norms and biases by name.
    pub(crate) tensors: HashMap<String, Tensor>,
    /// The order of a matrix's columns, by the matrices' names.
    pub(crate) orders: HashMap<String, Tensor>,
    /// Factors on matrices, by the matrices' names.
    pub(crate) factors: HashMap<String, f64>,
}

/// All matrices of all layers, and the tensors that are small enough to be resident.
pub(crate) struct LayerTable {
    /// The files that the places refer to, by number.
    pub(crate) paths: Vec<PathBuf>,
    /// The matrices of each layer.
    pub(crate) layers: Vec<Vec<MatrixPiece>>,
    pub(crate) small: SmallTensors,
}

impl LayerTable {
    /// A table of the model's own files, with the small tensors of some layers.
    pub(crate) fn read(
        spec: &DecoderSpec,
        files: &ModelFiles,
        reader: &mut WeightReader<'_>,
        layers: Range<usize>,
    ) -> Result<Self, ModelError> {
        let mut table = Self::places(spec, files)?;
        for needed in layers.flat_map(|layer| spec.needed_by_layer(layer)) {
            if let Some(order) = reader.order(&needed.name)? {
                table.small.orders.insert(needed.name.clone(), order);
            }
            if !needed.is_matrix() || !files.is_stored(&needed.name) {
                let tensor = reader.tensor(&needed.name)?;
                table.small.tensors.insert(needed.name, tensor);
            }
        }
        Ok(table)
    }

    /// The places of the matrices in the model's own files.
    pub(crate) fn places(spec: &DecoderSpec, files: &ModelFiles) -> Result<Self, ModelError> {
        let mut layers = Vec::new();
        for layer in 0..spec.layers.len() {
            let mut pieces = Vec::new();
            for needed in spec.needed_by_layer(layer) {
                let stored = files.check(&needed)?;
                let matrix = <[usize; 2]>::try_from(stored.shape.as_slice()).ok().filter(|_| needed.is_matrix());
                // The matrices of latent vectors are small. Experts that are not stored as they are used are not.
                if !files.is_stored(&needed.name) && !needed.part().contains(".experts.") {
                    continue;
                }
                if let Some(shape) = matrix {
                    pieces.push(MatrixPiece {
                        extent: files.extent(&needed.name)?,
                        layout: MatrixLayout { kind: stored.kind, shape },
                        name: needed.name,
                        arranged: false,
                        factor: None,
                    });
                }
            }
            layers.push(pieces);
        }
        Ok(Self { paths: files.paths(), layers, small: SmallTensors::default() })
    }

    /// The reads of some layers into one buffer, and their pieces in the order of the places.
    pub(crate) fn reads(&self, layers: &[usize]) -> (Reads, Vec<MatrixPiece>) {
        let pieces: Vec<MatrixPiece> = layers.iter().flat_map(|layer| self.layers[*layer].iter()).cloned().collect();
        let extents: Vec<Extent> = pieces.iter().map(|piece| piece.extent).collect();
        (Reads::of(&extents), pieces)
    }
}
