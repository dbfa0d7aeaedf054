//! Latent pictures as rows of patches, which are squares of pixels.

use candle_core::{Device, Result, Tensor, bail};

/// The sizes of some latent pictures, and of their patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pictures) struct PatchSizes {
    pub(in crate::pictures) pictures: usize,
    pub(in crate::pictures) channels: usize,
    /// Height and width of a latent picture.
    pub(in crate::pictures) size: [usize; 2],
    /// The side of a patch, which divides both.
    pub(in crate::pictures) side: usize,
}

/// The numbers of a patch in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pictures) enum PatchNumbers {
    /// Channel by channel.
    ChannelsFirst,
    /// Pixel by pixel.
    ChannelsLast,
}

impl PatchSizes {
    /// Rows and columns of patches.
    pub(in crate::pictures) fn patches(&self) -> [usize; 2] {
        self.size.map(|size| size / self.side)
    }

    fn numbers(&self) -> usize {
        self.pictures * self.channels * self.size[0] * self.size[1]
    }

    /// Numbers of a patch.
    fn width(&self) -> usize {
        self.channels * self.side * self.side
    }

    /// The place of a number of the rows in latent pictures, which lie channel by channel.
    fn place(&self, at: usize, order: PatchNumbers) -> usize {
        let Self { channels, side, .. } = *self;
        let ([_, columns], width) = (self.patches(), self.width());
        let each = self.patches()[0] * columns;
        let (row, within) = (at / width, at % width);
        let (picture, patch) = (row / each, row % each);
        let (channel, pixel) = match order {
            PatchNumbers::ChannelsFirst => (within / (side * side), within % (side * side)),
            PatchNumbers::ChannelsLast => (within % channels, within / channels),
        };
        let (y, x) = (patch / columns * side + pixel / side, patch % columns * side + pixel % side);
        ((picture * channels + channel) * self.size[0] + y) * self.size[1] + x
    }

    /// Latent pictures in rows, `[pictures * patches, channels * side * side]`.
    pub(in crate::pictures) fn rows(&self, numbers: &[f32], order: PatchNumbers, device: &Device) -> Result<Tensor> {
        if numbers.len() != self.numbers() || self.size.iter().any(|size| !size.is_multiple_of(self.side)) {
            bail!("{} numbers are no latent pictures of {self:?}", numbers.len());
        }
        let rows: Vec<f32> = (0..numbers.len()).map(|at| numbers[self.place(at, order)]).collect();
        Tensor::from_vec(rows, (numbers.len() / self.width(), self.width()), device)
    }

    /// The numbers of rows, channel by channel.
    pub(in crate::pictures) fn numbers_of(&self, rows: &Tensor, order: PatchNumbers) -> Result<Vec<f32>> {
        let rows = rows.flatten_all()?.to_vec1::<f32>()?;
        if rows.len() != self.numbers() {
            bail!("{} numbers are no latent pictures of {self:?}", rows.len());
        }
        let mut numbers = vec![0.0; rows.len()];
        for (at, number) in rows.into_iter().enumerate() {
            numbers[self.place(at, order)] = number;
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_lie_row_by_row_and_come_back() {
        let sizes = PatchSizes { pictures: 2, channels: 2, size: [4, 6], side: 2 };
        let numbers: Vec<f32> = (0..96).map(|number| number as f32).collect();
        let rows = sizes.rows(&numbers, PatchNumbers::ChannelsFirst, &Device::Cpu).unwrap();
        assert_eq!(rows.dims(), [12, 8]);
        assert_eq!(rows.get(1).unwrap().to_vec1::<f32>().unwrap(), [2.0, 3.0, 8.0, 9.0, 26.0, 27.0, 32.0, 33.0]);
        assert_eq!(sizes.numbers_of(&rows, PatchNumbers::ChannelsFirst).unwrap(), numbers);
        let rows = sizes.rows(&numbers, PatchNumbers::ChannelsLast, &Device::Cpu).unwrap();
        assert_eq!(rows.get(1).unwrap().to_vec1::<f32>().unwrap(), [2.0, 26.0, 3.0, 27.0, 8.0, 32.0, 9.0, 33.0]);
        assert_eq!(sizes.numbers_of(&rows, PatchNumbers::ChannelsLast).unwrap(), numbers);
        assert!(sizes.rows(&numbers[1..], PatchNumbers::ChannelsLast, &Device::Cpu).is_err());
    }
}
