//! Pictures in rows: a row for each pixel, with all its channels.

use std::ops::Range;

use candle_core::{Device, Result, Tensor, bail};

/// Some pictures of one size.
#[derive(Clone)]
pub(in crate::pictures) struct Planes {
    /// `[images * height * width, channels]`.
    pub(in crate::pictures) rows: Tensor,
    pub(in crate::pictures) images: usize,
    pub(in crate::pictures) height: usize,
    pub(in crate::pictures) width: usize,
}

impl Planes {
    /// The same pictures with other rows.
    pub(in crate::pictures) fn with(&self, rows: Tensor) -> Self {
        Self { rows, ..*self }
    }

    /// Pixels of a picture.
    pub(in crate::pictures) fn pixels(&self) -> usize {
        self.height * self.width
    }

    pub(in crate::pictures) fn channels(&self) -> Result<usize> {
        self.rows.dim(1)
    }

    /// The rows of each picture.
    pub(in crate::pictures) fn ranges(&self) -> Vec<Range<usize>> {
        let pixels = self.pixels();
        (0..self.images).map(|at| at * pixels..(at + 1) * pixels).collect()
    }

    /// Pictures whose numbers lie channel by channel.
    pub(in crate::pictures) fn of_channels(
        numbers: &[f32],
        [images, channels, height, width]: [usize; 4],
        device: &Device,
    ) -> Result<Self> {
        let pixels = height * width;
        if numbers.len() != images * channels * pixels || numbers.is_empty() {
            bail!("{} numbers are no {images} pictures of {channels} x {height} x {width}", numbers.len());
        }
        let mut rows = vec![0.0; numbers.len()];
        for (rows, numbers) in rows.chunks_exact_mut(channels * pixels).zip(numbers.chunks_exact(channels * pixels)) {
            for (channel, numbers) in numbers.chunks_exact(pixels).enumerate() {
                for (row, number) in rows.chunks_exact_mut(channels).zip(numbers) {
                    row[channel] = *number;
                }
            }
        }
        let rows = Tensor::from_vec(rows, (images * pixels, channels), device)?;
        Ok(Self { rows, images, height, width })
    }

    /// The numbers channel by channel, picture by picture.
    pub(in crate::pictures) fn to_channels(&self) -> Result<Vec<f32>> {
        let (channels, pixels) = (self.channels()?, self.pixels());
        let rows = self.rows.flatten_all()?.to_vec1::<f32>()?;
        let mut numbers = vec![0.0; rows.len()];
        for (rows, numbers) in rows.chunks_exact(channels * pixels).zip(numbers.chunks_exact_mut(channels * pixels)) {
            for (channel, numbers) in numbers.chunks_exact_mut(pixels).enumerate() {
                for (row, number) in rows.chunks_exact(channels).zip(numbers) {
                    *number = row[channel];
                }
            }
        }
        Ok(numbers)
    }

    /// The channels of two pictures side by side.
    pub(in crate::pictures) fn beside(&self, other: &Self) -> Result<Self> {
        Ok(self.with(Tensor::cat(&[&self.rows, &other.rows], 1)?))
    }

    /// These pictures so many times, one behind the other.
    pub(in crate::pictures) fn repeated(&self, times: usize) -> Result<Self> {
        let rows = if times == 1 { self.rows.clone() } else { self.rows.repeat((times, 1))? };
        Ok(Self { rows, images: self.images * times, ..*self })
    }

    /// As tensors of candle's own convolutions, `[images, channels, height, width]`.
    pub(super) fn to_tensor(&self) -> Result<Tensor> {
        let shape = (self.images, self.height, self.width, self.channels()?);
        self.rows.reshape(shape)?.permute((0, 3, 1, 2))?.contiguous()
    }

    pub(super) fn of_tensor(tensor: &Tensor) -> Result<Self> {
        let (images, channels, height, width) = tensor.dims4()?;
        let rows = tensor.permute((0, 2, 3, 1))?.contiguous()?.reshape((images * height * width, channels))?;
        Ok(Self { rows, images, height, width })
    }
}
