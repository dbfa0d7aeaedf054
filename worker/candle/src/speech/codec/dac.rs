//! DAC (Kumar et al., 2023, arXiv 2306.06546): frames of codes become samples. Each sample is made of few frames around
//! its own, so that frames are heard while others are still to come.

use candle_core::{Device, Result as CandleResult, Tensor};

use super::dac_spec::DacSpec;
use super::snake::Snake;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::speech::convolution::{Convolved, InputActivation, TimeConvolution, Upsampling};
use crate::speech::weights::{ConvolutionSizes, SpeechWeights};

/// Taps of the first and the last convolution, and of those with a way around.
const TAPS: usize = 7;

/// The distances between taps of the units of a stage.
const DILATIONS: [usize; 3] = [1, 3, 9];

/// The decoder of a codec.
pub(in crate::speech) struct Dac {
    books: Vec<DacBook>,
    first: TimeConvolution,
    stages: Vec<DacStage>,
    snake: Snake,
    last: TimeConvolution,
    device: Device,
    codes: usize,
    hop: usize,
    /// Frames on each side that have an effect on a frame's samples; none where pieces cannot be put together.
    reach: Option<usize>,
}

/// A codebook, and the product that gives its vectors the width of a frame.
struct DacBook {
    vectors: Tensor,
    out: Linear,
}

struct DacStage {
    snake: Snake,
    up: Upsampling,
    units: Vec<DacUnit>,
}

/// Two convolutions with a way around.
struct DacUnit {
    snakes: [Snake; 2],
    wide: TimeConvolution,
    own: Linear,
}

/// The names of parts: those of `transformers`, or those of the package that the codec was published with, in which
/// parts are numbered.
struct DacNames {
    path: String,
    numbered: bool,
    stages: usize,
}

impl DacNames {
    /// A part of the decoder.
    fn of(&self, named: &str, number: usize) -> String {
        match self.numbered {
            true => format!("{}.model.decoder.model.{number}", self.path),
            false => format!("{}.decoder.{named}", self.path),
        }
    }

    /// A part of a stage, or of a unit of it.
    fn inside(&self, of: &str, named: &str, number: usize) -> String {
        if self.numbered { format!("{of}.block.{number}") } else { format!("{of}.{named}") }
    }

    fn stage(&self, at: usize) -> String {
        self.of(&format!("block.{at}"), at + 1)
    }

    fn book(&self, at: usize) -> String {
        let package = if self.numbered { ".model" } else { "" };
        format!("{}{package}.quantizer.quantizers.{at}", self.path)
    }
}

impl Dac {
    /// Reads the decoder below a path.
    pub(in crate::speech) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        spec: &DacSpec,
    ) -> Result<Self, ModelError> {
        let numbered = weights.has(&format!("{path}.model.quantizer.quantizers.0.codebook.weight"));
        let names = DacNames { path: path.to_owned(), numbered, stages: spec.ratios().len() };
        let width = spec.width();
        let book = |at: usize| {
            let path = names.book(at);
            let vectors =
                weights.tensor(&format!("{path}.codebook.weight"), &[spec.codebook_size, spec.codebook_dim])?;
            let out = weights.pointwise(&format!("{path}.out_proj"), [width, spec.codebook_dim])?;
            Ok(DacBook { vectors, out })
        };
        let books = (0..spec.num_codebooks).map(book).collect::<Result<Vec<_>, ModelError>>()?;
        let sizes = ConvolutionSizes { outs: spec.decoder_hidden_size, ins: width, taps: TAPS, dilation: 1 };
        let first = weights.convolution(&names.of("conv1", 0), sizes)?;
        let mut stages = Vec::new();
        for (at, ratio) in spec.ratios().iter().enumerate() {
            stages.push(DacStage::read(weights, &names, at, (spec.decoder_hidden_size >> at, *ratio))?);
        }
        let narrow = spec.decoder_hidden_size >> names.stages;
        let snake = Snake::read(weights, &names.of("snake1", names.stages + 1), narrow)?;
        let sizes = ConvolutionSizes { outs: 1, ins: narrow, taps: TAPS, dilation: 1 };
        let last = weights.convolution(&names.of("conv2", names.stages + 2), sizes)?;
        let device = weights.device.clone();
        let (codes, hop, reach) = (spec.codebook_size, spec.hop(), reach(spec.ratios()));
        Ok(Self { books, first, stages, snake, last, device, codes, hop, reach })
    }

    /// Frames on each side of a frame that have an effect on its samples. None where frames become samples only all
    /// together.
    pub(in crate::speech) fn reach(&self) -> Option<usize> {
        self.reach
    }

    /// Samples of a frame inside of a sound.
    pub(in crate::speech) fn hop(&self) -> usize {
        self.hop
    }

    /// The samples of some frames, each a code of every codebook. Codes that no codebook has are errors.
    pub(in crate::speech) fn samples(
        &self,
        frames: &[Vec<u32>],
        go_on: &mut dyn FnMut() -> bool,
    ) -> CandleResult<Option<Vec<f32>>> {
        let books = self.books.len();
        if frames.iter().any(|frame| frame.len() != books || frame.iter().any(|code| *code as usize >= self.codes)) {
            candle_core::bail!("a frame has codes that the codec does not have");
        }
        let mut sum: Option<Tensor> = None;
        for (at, book) in self.books.iter().enumerate() {
            let codes: Vec<u32> = frames.iter().map(|frame| frame[at]).collect();
            let codes = Tensor::from_vec(codes, frames.len(), &self.device)?;
            let vectors = book.out.forward(&book.vectors.index_select(&codes, 0)?)?;
            sum = Some(match sum {
                Some(sum) => (sum + vectors)?,
                None => vectors,
            });
        }
        let Some(sum) = sum.filter(|_| !frames.is_empty()) else { return Ok(Some(Vec::new())) };
        let mut x = self.first.same(&sum, InputActivation::Nothing)?;
        for stage in &self.stages {
            let Some(made) = stage.forward(&x, go_on)? else { return Ok(None) };
            x = made;
        }
        let samples = self.last.same(&self.snake.forward(&x)?, InputActivation::Nothing)?.tanh()?;
        samples.flatten_all()?.to_vec1().map(Some)
    }
}

impl DacStage {
    fn read(
        weights: &mut SpeechWeights<'_, '_>,
        names: &DacNames,
        at: usize,
        (ins, stride): (usize, usize),
    ) -> Result<Self, ModelError> {
        let (path, outs) = (names.stage(at), ins / 2);
        let snake = Snake::read(weights, &names.inside(&path, "snake1", 0), ins)?;
        let sizes = ConvolutionSizes { outs, ins, taps: 2 * stride, dilation: 1 };
        let form = Convolved { stride, padding: stride.div_ceil(2) };
        let up = weights.upsampling_of(&names.inside(&path, "conv_t1", 1), sizes, form)?;
        let mut units = Vec::new();
        for (at, dilation) in DILATIONS.into_iter().enumerate() {
            let path = names.inside(&path, &format!("res_unit{}", at + 1), at + 2);
            let name = |named, number| names.inside(&path, named, number);
            let sizes = ConvolutionSizes { outs, ins: outs, taps: TAPS, dilation };
            units.push(DacUnit {
                snakes: [
                    Snake::read(weights, &name("snake1", 0), outs)?,
                    Snake::read(weights, &name("snake2", 2), outs)?,
                ],
                wide: weights.convolution(&name("conv1", 1), sizes)?,
                own: weights.pointwise(&name("conv2", 3), [outs, outs])?,
            });
        }
        Ok(Self { snake, up, units })
    }

    fn forward(&self, x: &Tensor, go_on: &mut dyn FnMut() -> bool) -> CandleResult<Option<Tensor>> {
        let mut x = self.up.forward(&self.snake.forward(x)?, InputActivation::Nothing)?;
        for DacUnit { snakes: [first, second], wide, own } in &self.units {
            if !go_on() {
                return Ok(None);
            }
            let inner = wide.same(&first.forward(&x)?, InputActivation::Nothing)?;
            x = (x + own.forward(&second.forward(&inner)?)?)?;
        }
        Ok(Some(x))
    }
}

/// Frames on each side of a frame that have an effect on its samples. None where a stage makes a moment less than its
/// ratio says, so that samples of pieces have other places.
fn reach(ratios: &[usize]) -> Option<usize> {
    if ratios.iter().any(|ratio| ratio % 2 == 1) {
        return None;
    }
    let units: usize = DILATIONS.iter().map(|dilation| TAPS / 2 * dilation).sum();
    // From the samples back to the frames.
    let of_samples =
        ratios.iter().rev().fold(TAPS / 2, |reach, ratio| (reach + units + 2 * ratio).div_ceil(*ratio) + 1);
    Some(of_samples + TAPS / 2)
}
