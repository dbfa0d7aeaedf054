//! Layers whose experts are pages: the source of their experts, with the guess of the next layer's choice, and the
//! layers as the decoder runs them.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use candle_core::{Result, Tensor};
use model_boss_engine::DecoderError;
use model_boss_engine::residency::Monitor;
use model_boss_engine::residency::experts::{ChosenExpert, ExpertPager, PageServeError};

use super::pages::StoredPages;
use crate::decoder::source::LayerSource;
use crate::device::fault::StepFault;
use crate::layers::experts::{ExpertSource, Routing};
use crate::layers::layer::Layer;
use crate::layers::mlp::Mlp;

/// The routers of all layers, as they become known.
pub(super) type Routings = Arc<[OnceLock<Arc<Routing>>]>;

/// The experts of one layer, in pages.
pub(super) struct PagedExperts {
    pub(super) pager: Arc<ExpertPager<StoredPages>>,
    pub(super) layer: usize,
    pub(super) routings: Routings,
}

impl PagedExperts {
    /// Guesses the choice of the next layer by its router from this layer's rows, and reads ahead. Layers change the
    /// stream little, so the guess is mostly right (Eliseev and Mazur, 2023, arXiv 2312.17238).
    fn look_ahead(&self, x: &Tensor) -> Result<()> {
        let after = self.routings.iter().enumerate().skip(self.layer + 1);
        let Some((layer, routing)) = after.filter_map(|(layer, routing)| Some((layer, routing.get()?))).next() else {
            return Ok(());
        };
        let rows = routing.choose(x)?;
        let mut guess: Vec<usize> = (0..rows.len()).filter(|expert| !rows[*expert].is_empty()).collect();
        guess.sort_by_key(|expert| std::cmp::Reverse(rows[*expert].len()));
        self.pager.expect(layer, &guess);
        Ok(())
    }
}

impl ExpertSource for PagedExperts {
    fn each(
        &self,
        x: &Tensor,
        chosen: &[ChosenExpert],
        stop: &dyn Fn() -> bool,
        compute: &mut dyn FnMut(usize, &Mlp) -> Result<()>,
    ) -> Result<()> {
        let asked = self.pager.ask(self.layer, chosen);
        // A guess that fails is no fault of the step.
        let _ = self.look_ahead(x);
        self.pager.serve(asked, stop, compute).map_err(|error| match error {
            PageServeError::Fault(fault) => StepFault(fault).into(),
            PageServeError::Compute(error) => error,
        })
    }

    fn routed_by(&self, routing: &Arc<Routing>) {
        if let Some(known) = self.routings.get(self.layer) {
            known.get_or_init(|| Arc::clone(routing));
        }
    }
}

/// A stage's layers, all resident but for their experts.
pub(super) struct PagedLayers {
    pub(super) first: usize,
    pub(super) layers: Vec<Layer>,
    pub(super) pager: Arc<ExpertPager<StoredPages>>,
    pub(super) monitor: Arc<Monitor>,
}

impl LayerSource for PagedLayers {
    type Guard<'a> = PagedLayer<'a>;

    fn layer(&mut self, index: usize, _stop: &dyn Fn() -> bool) -> std::result::Result<PagedLayer<'_>, DecoderError> {
        let found = index.checked_sub(self.first).and_then(|at| self.layers.get(at));
        let layer = found.ok_or_else(|| DecoderError::Step(format!("there is no layer {index}")))?;
        Ok(PagedLayer { layer, index, begun: Instant::now(), pager: &self.pager })
    }

    fn begin_step(&mut self) {
        self.pager.begin_step();
    }

    fn end_step(&mut self) {
        self.pager.end_step();
    }

    fn monitor(&self) -> Option<Arc<Monitor>> {
        Some(Arc::clone(&self.monitor))
    }
}

/// A layer in use, which reports its time when it is dropped.
pub(super) struct PagedLayer<'a> {
    layer: &'a Layer,
    index: usize,
    begun: Instant,
    pager: &'a ExpertPager<StoredPages>,
}

impl Deref for PagedLayer<'_> {
    type Target = Layer;

    fn deref(&self) -> &Layer {
        self.layer
    }
}

impl Drop for PagedLayer<'_> {
    fn drop(&mut self) {
        self.pager.layer_ends(self.index, self.begun);
    }
}
