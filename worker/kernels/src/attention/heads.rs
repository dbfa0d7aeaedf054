//! Preparing queries and keys for their product: each head's norm, and its rotation. Knows one head of one row.

/// The two elements of a head that form a rotated plane. The choice only changes the order of the weights' rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePlanes {
    /// A plane is element `i` of the first half with element `i` of the second, as in GPT-NeoX and all safetensors
    /// files of this project.
    Halves,
    /// A plane is two neighbouring elements, as in the RoPE paper and in GGUF files with architecture `llama`.
    Neighbours,
}

/// Weights of a norm over one head, `[head_dim]`, and its epsilon.
#[derive(Clone, Copy)]
pub struct HeadNorm<'a> {
    /// `[head_dim]`.
    pub weight: &'a [f32],
    /// The number that is added to the mean of squares.
    pub eps: f32,
    /// Whether it comes before the rotation or behind it.
    pub order: NormOrder,
}

/// The place of a head's norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormOrder {
    /// Before the rotation, as in Qwen3.
    BeforeRotation,
    /// Behind the rotation, as in Hunyuan.
    AfterRotation,
}

impl HeadNorm<'_> {
    /// RMSNorm in place.
    #[inline(always)]
    pub(super) fn apply(self, head: &mut [f32]) {
        const LANES: usize = 8;
        let mut lanes = [0.0_f32; LANES];
        let (whole, rest) = head.as_chunks::<LANES>();
        for part in whole {
            for (lane, x) in lanes.iter_mut().zip(part) {
                *lane = x.mul_add(*x, *lane);
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *lane = x.mul_add(*x, *lane);
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        let squares = ((a + e) + (c + g)) + ((b + f) + (d + h));
        let scale = (squares / head.len() as f32 + self.eps).sqrt().recip();
        for (x, weight) in head.iter_mut().zip(self.weight) {
            *x *= scale * weight;
        }
    }
}

/// Cosines and sines of all rows of a step, `[rows, planes]` each.
#[derive(Clone, Copy)]
pub struct Rotation<'a> {
    /// The pairs of elements that are rotated together.
    pub planes: RopePlanes,
    /// The first element of a head that is rotated.
    pub first: usize,
    /// Elements of a head that are rotated: two for each plane.
    pub width: usize,
    /// Cosines.
    pub cos: &'a [f32],
    /// Sines.
    pub sin: &'a [f32],
}

/// A head's norm and its rotation, in their order.
#[inline(always)]
pub(super) fn prepare(norm: Option<HeadNorm<'_>>, rotation: Rotation<'_>, row: usize, head: &mut [f32]) {
    let in_order = |order| norm.filter(|norm| norm.order == order);
    if let Some(norm) = in_order(NormOrder::BeforeRotation) {
        norm.apply(head);
    }
    rotation.apply(row, head);
    if let Some(norm) = in_order(NormOrder::AfterRotation) {
        norm.apply(head);
    }
}

impl Rotation<'_> {
    /// Turns a head of a row in place.
    #[inline(always)]
    pub(super) fn apply(self, row: usize, head: &mut [f32]) {
        let half = self.width / 2;
        let head = &mut head[self.first..][..self.width];
        let (cos, sin) = (&self.cos[row * half..][..half], &self.sin[row * half..][..half]);
        match self.planes {
            RopePlanes::Halves => {
                let (firsts, seconds) = head.split_at_mut(half);
                for (((a, b), cos), sin) in firsts.iter_mut().zip(seconds).zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
            RopePlanes::Neighbours => {
                for (([a, b], cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
        }
    }
}
