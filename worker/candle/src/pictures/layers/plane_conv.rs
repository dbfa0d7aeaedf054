//! Convolutions of pictures.

use candle_core::{Device, Result, Storage, Tensor, bail};
use model_boss_kernels::{PlaneConvolution, PlaneShape};

use super::planes::Planes;
use crate::matrix::tensor_products::contiguous;

/// Pixels of zeros around a picture: in front of the first rows and columns, and behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pictures) struct Border {
    pub(in crate::pictures) before: usize,
    pub(in crate::pictures) behind: usize,
}

impl Border {
    pub(in crate::pictures) const ONE: Self = Self { before: 1, behind: 1 };
    pub(in crate::pictures) const BEHIND: Self = Self { before: 0, behind: 1 };
}

/// A convolution with its weights.
pub(in crate::pictures) struct PlaneConv {
    form: ConvForm,
    border: Border,
}

enum ConvForm {
    /// In the host's memory.
    Host(PlaneConvolution),
    /// On a device with memory of its own: a weight `[outs, ins, taps, taps]` and a bias `[1, outs, 1, 1]`.
    Device { weight: Tensor, bias: Option<Tensor>, stride: usize },
}

impl PlaneConv {
    /// Of a weight `[outs, ins, taps, taps]` as files have it, and a bias `[outs]`.
    pub(in crate::pictures) fn new(
        weight: &Tensor,
        bias: Option<&Tensor>,
        (stride, border): (usize, Border),
    ) -> Result<Self> {
        let (outs, ins, taps, columns) = weight.dims4()?;
        if taps != columns || taps == 0 || outs == 0 || ins == 0 || stride == 0 {
            bail!("a convolution of {outs} x {ins} x {taps} x {columns} is none");
        }
        if !weight.device().is_cpu() {
            let bias = bias.map(|bias| bias.reshape((1, outs, 1, 1))).transpose()?;
            return Ok(Self { form: ConvForm::Device { weight: weight.clone(), bias, stride }, border });
        }
        let weight = weight.permute((0, 2, 3, 1))?.contiguous()?.flatten_all()?.to_vec1::<f32>()?;
        let bias = bias.map(Tensor::to_vec1::<f32>).transpose()?;
        let shape = PlaneShape { outs, ins, taps, stride };
        Ok(Self { form: ConvForm::Host(PlaneConvolution::new(&weight, bias, shape)), border })
    }

    pub(in crate::pictures) fn forward(&self, x: &Planes) -> Result<Planes> {
        self.enlarged(x, [x.height, x.width])
    }

    /// The same of pictures whose pixels are repeated before, to twice the size or one pixel less.
    pub(in crate::pictures) fn enlarged(&self, x: &Planes, [height, width]: [usize; 2]) -> Result<Planes> {
        let near = |new: usize, old: usize| new == old || new == 2 * old || new + 1 == 2 * old;
        if !near(height, x.height) || !near(width, x.width) {
            bail!("a picture of {} x {} does not become one of {height} x {width}", x.height, x.width);
        }
        match &self.form {
            ConvForm::Host(convolution) => self.on_host(convolution, x, [height, width]),
            ConvForm::Device { weight, bias, stride } => {
                let mut tensor = x.to_tensor()?;
                if [height, width] != [x.height, x.width] {
                    let enlarged = tensor.upsample_nearest2d(2 * x.height, 2 * x.width)?;
                    tensor = enlarged.narrow(2, 0, height)?.narrow(3, 0, width)?.contiguous()?;
                }
                let Border { before, behind } = self.border;
                let tensor = tensor.pad_with_zeros(2, before, behind)?.pad_with_zeros(3, before, behind)?;
                let y = tensor.conv2d(weight, 0, *stride, 1, 1)?;
                Planes::of_tensor(&match bias {
                    Some(bias) => y.broadcast_add(bias)?,
                    None => y,
                })
            }
        }
    }

    fn on_host(&self, convolution: &PlaneConvolution, x: &Planes, [height, width]: [usize; 2]) -> Result<Planes> {
        let PlaneShape { ins, outs, .. } = convolution.shape();
        let rows = x.rows.contiguous()?;
        if rows.dim(1)? != ins {
            bail!("pixels of {} numbers cannot be convolved by {ins}", rows.dim(1)?);
        }
        let (storage, layout) = rows.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { bail!("the pixels are not in the host's memory") };
        let pixels = contiguous(storage, layout)?;
        let Border { before, behind } = self.border;
        let [high, wide] = [height, width].map(|side| before + side + behind);
        let (new_height, new_width) = (convolution.results(high), convolution.results(wide));
        let mut all = Vec::with_capacity(x.images * new_height * new_width * outs);
        let mut framed = vec![0.0; high * wide * ins];
        for image in pixels.chunks_exact(x.pixels() * ins) {
            for row in 0..height {
                let from = &image[source(row, height, x.height) * x.width * ins..][..x.width * ins];
                let to = &mut framed[((before + row) * wide + before) * ins..][..width * ins];
                if width == x.width {
                    to.copy_from_slice(from);
                } else {
                    for (column, to) in to.chunks_exact_mut(ins).enumerate() {
                        to.copy_from_slice(&from[source(column, width, x.width) * ins..][..ins]);
                    }
                }
            }
            all.extend(convolution.forward(&framed, [high, wide]));
        }
        let rows = Tensor::from_vec(all, (x.images * new_height * new_width, outs), &Device::Cpu)?;
        Ok(Planes { rows, images: x.images, height: new_height, width: new_width })
    }
}

/// The place that a place of an enlarged picture repeats.
fn source(at: usize, new: usize, old: usize) -> usize {
    if new == old { at } else { at / 2 }
}
