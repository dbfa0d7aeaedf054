//! The worker's side of requests for pictures: the facts of its model, its memory, and the way to the engine.

use std::sync::Arc;

use model_boss_engine::{Painter, PainterInfo, PlaceUse};
use model_boss_protocol::{ApiError, ByteCount};
use tokio::sync::mpsc;

use super::job::PaintJob;
use crate::gone::engine_gone;

/// A loaded model that paints.
pub(crate) struct PaintingSide {
    info: PainterInfo,
    places: Arc<[PlaceUse]>,
    /// The most bytes of activations.
    workspace: u64,
    orders: mpsc::Sender<PaintJob>,
}

impl PaintingSide {
    /// A model with so much memory in its lease; none for one without a lease.
    pub(crate) fn new(painter: &dyn Painter, leased: Option<ByteCount>, orders: mpsc::Sender<PaintJob>) -> Self {
        let info = painter.info().clone();
        let pixels = |[width, height]: [usize; 2]| (width as u64).saturating_mul(height as u64);
        let most = pixels([info.longest_side; 2]).saturating_mul(info.bytes_per_pixel);
        // A lease is an estimate until the model was used: a picture of the usual size is painted in any.
        let least = pixels(info.usual_size).saturating_mul(info.bytes_per_pixel);
        let workspace = leased.map_or(most, |leased| leased.0.saturating_sub(info.weight_bytes).clamp(least, most));
        Self { info, places: painter.places(), workspace, orders }
    }

    /// The facts of the model.
    pub(crate) fn info(&self) -> &PainterInfo {
        &self.info
    }

    /// The use of devices, and the most bytes beside the weights.
    pub(crate) fn device_use(&self) -> (&[PlaceUse], u64) {
        (&self.places, self.workspace)
    }

    /// Bytes of the weights.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.info.weight_bytes
    }

    /// How many pictures of this size are painted together, with and without the prompt where both are computed; an
    /// error where not even one has room.
    pub(crate) fn at_once(&self, [width, height]: [usize; 2]) -> Result<usize, ApiError> {
        let one = (width as u64).saturating_mul(height as u64).saturating_mul(self.info.bytes_per_pixel).max(1);
        if one > self.workspace {
            let message = format!(
                "a picture of {width}x{height} takes about {} beside the weights, and this model's lease has {}: ask for \
                 a smaller one, or state more memory in its manifest (vram = …)",
                ByteCount(one),
                ByteCount(self.workspace)
            );
            return Err(ApiError::invalid("size", message));
        }
        // Decoding takes most of it, one picture after the other. The steps of a picture take a quarter.
        Ok(usize::try_from((self.workspace / one).saturating_mul(4)).unwrap_or(usize::MAX))
    }

    /// Sends a request to the engine.
    pub(crate) async fn paint(&self, job: PaintJob) -> Result<(), ApiError> {
        match self.orders.send(job).await {
            Ok(()) => Ok(()),
            Err(_) => Err(engine_gone().await),
        }
    }
}
