//! A model's weights as a GGUF file: from safetensors to the layout and the number types of GGUF, one tensor at a time.
//! Only the tensors that a [`DecoderSpec`] needs are written; the caller adds the tokenizer's metadata.

use std::io::Write;
use std::path::Path;

use half::{bf16, f16};
use model_boss_weights::gguf::{HeaderWriter, TensorType, WriteError, dequantise, quantise_q8_0};

use super::gguf_keys::{self, GgufKeysError};
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::spec::gguf::ROPE_FACTORS;
use crate::spec::part_names::{EMBEDDING, HEAD, Needed};
use crate::spec::{DecoderSpec, RopePlanes, TensorSpelling};

/// Elements of a block of [`MatrixType::Q8_0`].
const BLOCK: usize = 32;

/// The type of stored matrices. All other tensors are f32: they are small, and readers expect f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixType {
    /// Elements of 16 bits, which is exact for models stored in f16.
    F16,
    /// Elements of 16 bits with the range of f32.
    BF16,
    /// Elements of 8 bits with a scale for each 32 of them. Matrices whose rows are no multiple of 32 stay in f16.
    Q8_0,
}

/// An opened model whose tensors can be written as GGUF.
pub struct Conversion {
    files: ModelFiles,
    spec: DecoderSpec,
    tensors: Vec<Needed>,
    matrices: MatrixType,
}

/// The reason why a model cannot be written as GGUF.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model is GGUF already.
    #[error("it is a GGUF file already; llama-quantize turns one type into another")]
    Already,
    /// GGUF has no keys for a property of the model.
    #[error(transparent)]
    Keys(#[from] GgufKeysError),
    /// A tensor cannot be stored in the wanted type.
    #[error("tensor `{name}` {what}")]
    Tensor {
        /// The tensor's name in the model's files.
        name: String,
        /// The fault, in words.
        what: String,
    },
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Conversion {
    /// Reads the description of the model in `source`, and checks that all its tensors exist.
    pub fn open(source: &Path, matrices: MatrixType) -> Result<Self, ConvertError> {
        let (files, mut spec) = ModelFiles::open(source)?;
        if files.is_gguf() {
            return Err(ConvertError::Already);
        }
        gguf_keys::architecture(&spec)?;
        // A head that is the same tensor as the embedding is not stored twice.
        spec.tied_head |= !files.has(HEAD);
        let ends = [Some(EMBEDDING), (!spec.tied_head).then_some(HEAD)];
        let shape = spec.embedding_shape();
        let ends = ends.into_iter().flatten().map(|name| Needed { name: name.to_owned(), shape: shape.clone() });
        let mut tensors = Vec::new();
        for needed in ends.chain(spec.needed()) {
            files.check(&needed)?;
            tensors.push(needed);
        }
        Ok(Self { files, spec, tensors, matrices })
    }

    /// Rows of the embedding. The vocabulary must have as many tokens.
    pub fn vocabulary(&self) -> usize {
        self.spec.vocab
    }

    /// Writes the file: `header` with the model's metadata, and all tensors.
    pub fn write(&self, header: HeaderWriter, out: impl Write) -> Result<(), ConvertError> {
        self.write_told(header, out, &mut |_, _, _| {})
    }

    /// Writes the file. `told` is called before each tensor with the bytes that are written, the bytes of all tensors,
    /// and the tensor's name.
    pub fn write_told(
        &self,
        mut header: HeaderWriter,
        out: impl Write,
        told: &mut dyn FnMut(u64, u64, &str),
    ) -> Result<(), ConvertError> {
        let factors = gguf_keys::write(&self.spec, &mut header)?;
        // These are llama.cpp's numbers for files of mostly one type.
        let file_type: u32 = match self.matrices {
            MatrixType::F16 => 1,
            MatrixType::Q8_0 => 7,
            MatrixType::BF16 => 32,
        };
        header.set("general.file_type", &file_type)?;
        header.set("general.quantization_version", &2_u32)?;
        if let Some(factors) = &factors {
            header.tensor(ROPE_FACTORS, TensorType::F32, &[factors.len() as u64])?;
        }
        let names = TensorSpelling::gguf();
        for tensor in &self.tensors {
            let shape: Vec<u64> = tensor.shape.iter().map(|length| *length as u64).collect();
            header.tensor(&names.name(tensor), self.kind(tensor), &shape)?;
        }
        let mut body = header.begin(out)?;
        if let Some(factors) = &factors {
            body.write(&factors.iter().flat_map(|factor| factor.to_le_bytes()).collect::<Vec<u8>>())?;
        }
        let bytes = |tensor: &Needed| {
            let elements = tensor.shape.iter().map(|length| *length as u64).product();
            self.kind(tensor).bytes_of(elements).unwrap_or(0)
        };
        let (total, mut written) = (self.tensors.iter().map(bytes).sum(), 0);
        for tensor in &self.tensors {
            told(written, total, &tensor.name);
            body.write(&self.stored(tensor)?)?;
            written += bytes(tensor);
        }
        body.finish()?;
        Ok(())
    }

    fn kind(&self, tensor: &Needed) -> TensorType {
        match (tensor.shape.as_slice(), self.matrices) {
            ([_, depth], MatrixType::Q8_0) if depth.is_multiple_of(BLOCK) => TensorType::Q8_0,
            ([_, _], MatrixType::BF16) => TensorType::BF16,
            ([_, _], _) => TensorType::F16,
            _ => TensorType::F32,
        }
    }

    fn stored(&self, tensor: &Needed) -> Result<Vec<u8>, ConvertError> {
        let refuse = |what: String| ConvertError::Tensor { name: tensor.name.clone(), what };
        let stored = self.files.check(tensor)?;
        let mut values = vec![0.0; stored.elements() as usize];
        dequantise(stored.kind, &stored.bytes()?, &mut values).map_err(|error| refuse(error.to_string()))?;
        if let (Some(order), Some(depth)) = (self.files.order(&tensor.name), tensor.shape.get(1)) {
            values = in_order(&values, &order, *depth);
        }
        if !values.iter().all(|value| value.is_finite()) {
            return Err(refuse("holds NaN or infinity".to_owned()));
        }
        let turns = ["q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias"];
        let (architecture, head_dim) = (gguf_keys::architecture(&self.spec)?, gguf_keys::head_dim(&self.spec));
        if gguf_keys::planes(architecture) == RopePlanes::Neighbours
            && turns.iter().any(|end| tensor.name.ends_with(end))
        {
            values = neighbours(&values, head_dim, tensor.shape.get(1).copied().unwrap_or(1));
        }
        Ok(match self.kind(tensor) {
            TensorType::Q8_0 => {
                let mut blocks = Vec::new();
                quantise_q8_0(&values, &mut blocks).map_err(|error| refuse(error.to_string()))?;
                blocks
            }
            TensorType::F16 => {
                let halves: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
                if !halves.iter().all(|value| value.is_finite()) {
                    return Err(refuse("has numbers that are too large for f16; bf16 holds them".to_owned()));
                }
                halves.iter().flat_map(|value| value.to_le_bytes()).collect()
            }
            TensorType::BF16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        })
    }
}

/// Puts a matrix's columns in the order of the inputs.
fn in_order(values: &[f32], order: &[u32], depth: usize) -> Vec<f32> {
    let mut ordered = vec![0.0; values.len()];
    for (row, ordered) in values.chunks(depth.max(1)).zip(ordered.chunks_mut(depth.max(1))) {
        for (value, column) in row.iter().zip(order) {
            if let Some(place) = ordered.get_mut(*column as usize) {
                *place = *value;
            }
        }
    }
    ordered
}

/// Reorders the rows of each head from planes in halves to planes of neighbours. Row `i` of the first half is then
/// followed by row `i` of the second.
fn neighbours(values: &[f32], head_dim: usize, row: usize) -> Vec<f32> {
    let mut turned = Vec::with_capacity(values.len());
    for head in values.chunks(head_dim * row) {
        let (first, second) = head.split_at(head.len() / 2);
        for (first, second) in first.chunks(row).zip(second.chunks(row)) {
            turned.extend_from_slice(first);
            turned.extend_from_slice(second);
        }
    }
    turned
}
