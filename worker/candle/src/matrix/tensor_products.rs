//! Products of this project's kernels as operations on candle's tensors in the host's memory.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, InplaceOp2, Layout, Result, Shape, bail};
use model_boss_kernels::{MatrixKernel, Sizes, add_to_rows, product};

/// `[rows, depth]` by `[outs, depth]` → `[rows, outs]`, in f32.
pub(crate) struct RowsByRows;

impl CustomOp2 for RowsByRows {
    fn name(&self) -> &'static str {
        "rows-by-rows"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, depth) = l1.shape().dims2()?;
        let (outs, weight_depth) = l2.shape().dims2()?;
        if depth != weight_depth {
            bail!("rows of {depth} cannot meet rows of {weight_depth}");
        }
        let y = product(contiguous(s1, l1)?, contiguous(s2, l2)?, Sizes { rows, outs, depth });
        Ok((CpuStorage::F32(y), Shape::from((rows, outs))))
    }
}

/// The elements of a contiguous tensor in f32.
pub(crate) fn contiguous<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let Some((start, end)) = layout.contiguous_offsets() else { bail!("the product needs contiguous operands") };
    match storage.as_slice::<f32>()?.get(start..end) {
        Some(values) => Ok(values),
        None => bail!("a layout reaches outside of its storage"),
    }
}

/// The same, to be changed.
pub(crate) fn contiguous_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    let (Some((start, end)), CpuStorage::F32(values)) = (layout.contiguous_offsets(), storage) else {
        bail!("numbers that are changed in place have to lie one behind the other, in f32");
    };
    match values.get_mut(start..end) {
        Some(values) => Ok(values),
        None => bail!("a layout reaches outside of its storage"),
    }
}

/// A custom operation of candle that runs a kernel of this crate on a tensor's memory.
pub(crate) struct ByKernel<'a>(pub(crate) &'a dyn MatrixKernel);

impl CustomOp1 for ByKernel<'_> {
    fn name(&self) -> &'static str {
        "by-kernel"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, _) = layout.shape().dims2()?;
        let y = self.0.product(contiguous(storage, layout)?, rows);
        if y.len() != rows * self.0.outs() {
            bail!("a product has {} results for {rows} rows of {}", y.len(), self.0.outs());
        }
        Ok((CpuStorage::F32(y), Shape::from((rows, self.0.outs()))))
    }
}

/// Adds a bias `[width]` to rows `[rows, width]` in f32, in place.
pub(crate) struct AddToRows;

impl InplaceOp2 for AddToRows {
    fn name(&self) -> &'static str {
        "add-to-rows"
    }

    fn cpu_fwd(&self, s1: &mut CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<()> {
        let bias = contiguous(s2, l2)?;
        if l1.dims().last() != Some(&bias.len()) {
            bail!("a bias of {} numbers cannot be added to rows of {:?}", bias.len(), l1.dims());
        }
        add_to_rows(contiguous_mut(s1, l1)?, bias);
        Ok(())
    }
}
