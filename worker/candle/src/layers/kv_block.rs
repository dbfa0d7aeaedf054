//! A block's keys and values as bytes, and back: the page in the host's memory, and behind it the parts of each layer's
//! tensors.

use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};
use model_boss_engine::{BLOCK_TOKENS, BlockId};

use crate::layers::kv::{DeviceStore, KvStore, LayerStore, first_token};

impl KvStore {
    /// Appends all that a block holds: its page in the host's memory, then its part of each layer's tensors.
    pub(crate) fn read_block(&self, block: BlockId, contents: &mut Vec<u8>) -> Result<()> {
        if !self.held.contains(&block) {
            candle_core::bail!("block {} holds nothing", block.0);
        }
        let page = self.host.get(block.0 as usize).and_then(Option::as_ref);
        contents.extend_from_slice(page.and_then(|page| page.get(..self.host_bytes)).unwrap_or_default());
        for tensor in self.tensors() {
            read_tensor(tensor, first_token(block), contents)?;
        }
        Ok(())
    }

    /// Writes what [`Self::read_block`] gave to a block that holds nothing. Returns the bytes behind it.
    pub(crate) fn write_block<'c>(&mut self, block: BlockId, contents: &'c [u8]) -> Result<&'c [u8]> {
        self.reserve([block].into_iter())?;
        let written = self.fill(block, contents);
        if written.is_err() {
            self.free(&[block]);
        }
        written
    }

    fn fill<'c>(&mut self, block: BlockId, contents: &'c [u8]) -> Result<&'c [u8]> {
        let short = || candle_core::Error::Msg("a block has fewer bytes than this model's".to_owned());
        let (page, mut rest) = contents.split_at_checked(self.host_bytes).ok_or_else(short)?;
        if let Some(memory) = self.host.get_mut(block.0 as usize).and_then(Option::as_mut) {
            memory[..page.len()].copy_from_slice(page);
        }
        for tensor in self.tensors() {
            let (part, behind) = rest.split_at_checked(tensor_bytes(tensor)?).ok_or_else(short)?;
            write_tensor(tensor, first_token(block), part)?;
            rest = behind;
        }
        Ok(rest)
    }

    /// The tensors of all layers that have some.
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flat_map(|layer| match layer {
            LayerStore::Device(DeviceStore { tensors: Some((keys, values)), .. }) => vec![keys, values],
            LayerStore::Device(_) | LayerStore::Host { .. } | LayerStore::None => Vec::new(),
        })
    }

    /// A text of what a block's bytes are, layer by layer.
    pub(crate) fn block_layout(&self) -> String {
        let of_layer = |layer: &LayerStore| match layer {
            LayerStore::None => "-".to_owned(),
            LayerStore::Host { offset, shape } => format!("{offset} {shape:?}"),
            LayerStore::Device(DeviceStore { home, dtype, shape, .. }) => format!("{home:?} {dtype:?} {shape:?}"),
        };
        self.layers.iter().map(of_layer).collect::<Vec<_>>().join(";")
    }
}

/// Bytes of one block in one of a layer's tensors, `[kv_heads, tokens, width]`.
fn tensor_bytes(tensor: &Tensor) -> Result<usize> {
    let (heads, _, width) = tensor.dims3()?;
    Ok(heads * BLOCK_TOKENS * width * tensor.dtype().size_in_bytes())
}

/// Appends the part of a block, which begins at this token of the tensor.
fn read_tensor(tensor: &Tensor, first: usize, contents: &mut Vec<u8>) -> Result<()> {
    if tensor.elem_count() == 0 {
        return Ok(());
    }
    let part = tensor.narrow(1, first, BLOCK_TOKENS)?.contiguous()?.to_device(&Device::Cpu)?.flatten_all()?;
    match part.dtype() {
        DType::F32 => contents.extend(part.to_vec1::<f32>()?.iter().flat_map(|value| value.to_le_bytes())),
        DType::F16 => contents.extend(part.to_vec1::<f16>()?.iter().flat_map(|value| value.to_le_bytes())),
        DType::BF16 => contents.extend(part.to_vec1::<bf16>()?.iter().flat_map(|value| value.to_le_bytes())),
        other => candle_core::bail!("keys and values of type {other:?} cannot be taken out"),
    }
    Ok(())
}

/// Writes the part of a block, of [`tensor_bytes`], to where it begins in the tensor.
fn write_tensor(tensor: &Tensor, first: usize, contents: &[u8]) -> Result<()> {
    if tensor.elem_count() == 0 {
        return Ok(());
    }
    let (heads, _, width) = tensor.dims3()?;
    let shape = (heads, BLOCK_TOKENS, width);
    let halves = || contents.as_chunks::<2>().0.iter();
    let part = match tensor.dtype() {
        DType::F32 => {
            let values: Vec<f32> = contents.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            Tensor::from_vec(values, shape, &Device::Cpu)
        }
        DType::F16 => {
            Tensor::from_vec(halves().map(|b| f16::from_le_bytes(*b)).collect::<Vec<_>>(), shape, &Device::Cpu)
        }
        DType::BF16 => {
            Tensor::from_vec(halves().map(|b| bf16::from_le_bytes(*b)).collect::<Vec<_>>(), shape, &Device::Cpu)
        }
        other => candle_core::bail!("keys and values of type {other:?} cannot be put in"),
    };
    tensor.slice_set(&part?.to_device(tensor.device())?, 1, first)
}
