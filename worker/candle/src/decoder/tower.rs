//! The part of a model that turns images into rows of the decoder.

use model_boss_engine::{DecoderError, ImageTiles, SeenRows};

/// A tower with the projection to the decoder's width.
pub(crate) trait SeeingTower: Send {
    /// The rows of an image, as many as it has places. `stop` is asked between layers: once it says yes, this ends with
    /// [`DecoderError::Interrupted`].
    fn rows(&self, picture: &ImageTiles, stop: &(dyn Fn() -> bool + Sync)) -> Result<SeenRows, DecoderError>;
}
