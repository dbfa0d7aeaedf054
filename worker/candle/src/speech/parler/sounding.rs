//! Frames become sound while others are still to come.

use candle_core::Result as CandleResult;

use crate::speech::codec::Dac;

/// Frames of the first piece, and the most of a later one.
const FIRST_PIECE: usize = 24;
const LARGEST_PIECE: usize = 96;

/// The frames of a part so far, and those that were heard.
pub(super) struct Sounding<'a> {
    codec: &'a Dac,
    frames: Vec<Vec<u32>>,
    heard: usize,
    piece: usize,
}

impl<'a> Sounding<'a> {
    /// A part of which nothing has come.
    pub(super) fn new(codec: &'a Dac) -> Self {
        Self { codec, frames: Vec::new(), heard: 0, piece: FIRST_PIECE }
    }

    /// Takes a frame. Some frames behind the piece are needed for it.
    pub(super) fn push(&mut self, frame: Vec<u32>) {
        self.frames.push(frame);
    }

    /// Frames so far.
    pub(super) fn frames(&self) -> usize {
        self.frames.len()
    }

    /// The next samples, once there are enough frames or these are all; none where the work was stopped.
    pub(super) fn samples(&mut self, is_over: bool, go_on: &mut dyn FnMut() -> bool) -> CandleResult<Option<Vec<f32>>> {
        let nothing = Ok(Some(Vec::new()));
        let Some(reach) = self.codec.reach() else {
            if !is_over {
                return nothing;
            }
            return self.codec.samples(&self.frames, go_on);
        };
        let mut samples = Vec::new();
        loop {
            let waiting = self.frames.len() - self.heard;
            let end = match is_over {
                _ if waiting >= self.piece + reach => self.heard + self.piece,
                true if waiting > 0 => self.heard + waiting.min(LARGEST_PIECE),
                _ => return Ok(Some(samples)),
            };
            let (from, to) = (self.heard.saturating_sub(reach), self.frames.len().min(end + reach));
            let Some(around) = self.codec.samples(&self.frames[from..to], go_on)? else { return Ok(None) };
            let hop = self.codec.hop();
            samples.extend_from_slice(&around[(self.heard - from) * hop..(end - from) * hop]);
            self.heard = end;
            self.piece = (2 * self.piece).min(LARGEST_PIECE);
        }
    }
}
