//! A block of two streams that see each other.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::modulation::{Modulated, Modulation};
use super::stream_attention::{StreamAttention, StreamNames, StreamSight};
use super::stream_turns::StreamTurns;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::pictures::layers::PlaneWeights;
use crate::spec::Activation;
use crate::speech::weights::SpeechWeights;

/// The parts of conditions: the bias and the weight of a norm, and the factor on what is added.
const ATTENTION: ([usize; 2], usize) = ([0, 1], 2);
const FEED: ([usize; 2], usize) = ([3, 4], 5);
const ALONE: ([usize; 2], usize) = ([6, 7], 8);
/// The same of a stream that ends in the block.
const ENDING: [usize; 2] = [1, 0];

/// The form of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pictures) struct StreamBlockSpec {
    pub(in crate::pictures) width: usize,
    pub(in crate::pictures) heads: usize,
    /// Whether queries and keys have norms.
    pub(in crate::pictures) has_norms: bool,
    /// Whether pictures have a second attention, to themselves alone.
    pub(in crate::pictures) sees_alone: bool,
    /// Whether nothing of the text is left behind the block.
    pub(in crate::pictures) ends_text: bool,
}

/// Two products with an activation between them.
struct StreamFeed {
    up: Linear,
    down: Linear,
}

struct JointStream {
    change: Modulation,
    attention: StreamAttention,
    feed: StreamFeed,
}

enum JointText {
    Whole(JointStream),
    Ending { change: Modulation, attention: StreamAttention },
}

/// A block with its weights.
pub(in crate::pictures) struct JointBlock {
    image: JointStream,
    alone: Option<StreamAttention>,
    text: JointText,
    spec: StreamBlockSpec,
}

/// The rows of both streams.
pub(in crate::pictures) struct JointRows {
    pub(in crate::pictures) text: Tensor,
    pub(in crate::pictures) image: Tensor,
}

/// The rows of each picture, of the two streams and of both together.
pub(in crate::pictures) struct JointForm {
    pictures: usize,
    tokens: usize,
    patches: usize,
    images: Vec<Range<usize>>,
    both: Vec<Range<usize>>,
}

impl JointForm {
    /// Of pictures with so many tokens and patches each.
    pub(in crate::pictures) fn new(pictures: usize, tokens: usize, patches: usize) -> Self {
        let ranges = |each: usize| (0..pictures).map(|at| at * each..(at + 1) * each).collect();
        Self { pictures, tokens, patches, images: ranges(patches), both: ranges(tokens + patches) }
    }

    pub(in crate::pictures) fn both(&self) -> &[Range<usize>] {
        &self.both
    }

    /// Each picture's rows behind those of its text.
    pub(in crate::pictures) fn joined(&self, text: &Tensor, image: &Tensor) -> Result<Tensor> {
        if self.pictures == 1 {
            return Tensor::cat(&[text, image], 0);
        }
        let width = text.dim(1)?;
        let apart = |x: &Tensor, rows: usize| x.reshape((self.pictures, rows, width));
        let both = Tensor::cat(&[apart(text, self.tokens)?, apart(image, self.patches)?], 1)?;
        both.reshape((self.pictures * (self.tokens + self.patches), width))
    }

    /// The rows of both streams apart.
    pub(in crate::pictures) fn apart(&self, rows: &Tensor) -> Result<JointRows> {
        Ok(JointRows { text: self.part(rows, 0, self.tokens)?, image: self.part(rows, self.tokens, self.patches)? })
    }

    fn part(&self, rows: &Tensor, from: usize, count: usize) -> Result<Tensor> {
        let width = rows.dim(1)?;
        let apart = rows.reshape((self.pictures, self.tokens + self.patches, width))?;
        apart.narrow(1, from, count)?.contiguous()?.reshape((self.pictures * count, width))
    }
}

impl StreamFeed {
    fn read(weights: &mut SpeechWeights<'_, '_>, path: &str, width: usize) -> std::result::Result<Self, ModelError> {
        Ok(Self {
            up: weights.panels(&format!("{path}.net.0.proj"), [4 * width, width])?,
            down: weights.panels(&format!("{path}.net.2"), [width, 4 * width])?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&Activation::GeluTanh.in_place(self.up.forward(x)?)?)
    }
}

impl JointStream {
    /// The stream behind attention and its products.
    fn behind(&self, change: &Modulated, x: &Tensor, mixed: Tensor) -> Result<Tensor> {
        change.gated(x, self.attention.behind(mixed)?, ATTENTION.1)
    }

    fn fed(&self, change: &Modulated, x: &Tensor) -> Result<Tensor> {
        change.gated(x, self.feed.forward(&change.normed(x, FEED.0)?)?, FEED.1)
    }
}

impl JointBlock {
    pub(in crate::pictures) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        spec: StreamBlockSpec,
    ) -> std::result::Result<Self, ModelError> {
        let StreamBlockSpec { width, heads, has_norms, sees_alone, ends_text } = spec;
        let attention = |names: StreamNames, part: &str, weights: &mut SpeechWeights<'_, '_>| {
            StreamAttention::read(weights, (&format!("{path}.{part}"), names), [width, heads], has_norms)
        };
        let change = |name: &str, parts: usize, weights: &mut SpeechWeights<'_, '_>| {
            Modulation::read(weights, &format!("{path}.{name}.linear"), [parts, width])
        };
        let image = JointStream {
            change: change("norm1", if sees_alone { 9 } else { 6 }, weights)?,
            attention: attention(StreamNames::IMAGE, "attn", weights)?,
            feed: StreamFeed::read(weights, &format!("{path}.ff"), width)?,
        };
        let alone = if sees_alone { Some(attention(StreamNames::IMAGE, "attn2", weights)?) } else { None };
        let text = if ends_text {
            JointText::Ending {
                change: change("norm1_context", 2, weights)?,
                attention: attention(StreamNames::TEXT.without_out(), "attn", weights)?,
            }
        } else {
            JointText::Whole(JointStream {
                change: change("norm1_context", 6, weights)?,
                attention: attention(StreamNames::TEXT, "attn", weights)?,
                feed: StreamFeed::read(weights, &format!("{path}.ff_context"), width)?,
            })
        };
        Ok(Self { image, alone, text, spec })
    }

    /// The rows of both streams behind the block. Those of a text that ends here are as they were.
    pub(in crate::pictures) fn forward(
        &self,
        rows: JointRows,
        conditions: &Tensor,
        (form, turns): (&JointForm, Option<&StreamTurns>),
    ) -> Result<JointRows> {
        let JointRows { text, image } = rows;
        let heads = self.spec.heads;
        let of_image = self.image.change.forward(conditions)?;
        let (of_text, text_attention, parts) = match &self.text {
            JointText::Whole(stream) => (stream.change.forward(conditions)?, &stream.attention, ATTENTION.0),
            JointText::Ending { change, attention } => (change.forward(conditions)?, attention, ENDING),
        };
        let [query, key, value] = self.image.attention.before(&of_image.normed(&image, ATTENTION.0)?)?;
        let [text_query, text_key, text_value] = text_attention.before(&of_text.normed(&text, parts)?)?;
        let query = form.joined(&text_query, &query)?;
        let (key, value) = (form.joined(&text_key, &key)?, form.joined(&text_value, &value)?);
        let mixed = form.apart(&StreamSight { heads, ranges: &form.both, turns }.attend([query, key, value])?)?;
        let mut painted = self.image.behind(&of_image, &image, mixed.image)?;
        if let Some(alone) = &self.alone {
            let parts = alone.before(&of_image.normed(&image, ALONE.0)?)?;
            let mixed = StreamSight { heads, ranges: &form.images, turns: None }.attend(parts)?;
            painted = of_image.gated(&painted, alone.behind(mixed)?, ALONE.1)?;
        }
        let image = self.image.fed(&of_image, &painted)?;
        let text = match &self.text {
            JointText::Whole(stream) => stream.fed(&of_text, &stream.behind(&of_text, &text, mixed.text)?)?,
            JointText::Ending { .. } => text,
        };
        Ok(JointRows { text, image })
    }
}
