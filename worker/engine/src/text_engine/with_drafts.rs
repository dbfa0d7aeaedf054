//! A draft model beside the decoder.

use std::sync::Arc;

use super::TextEngine;
use crate::decoder::Decoder;
use crate::drafts::DraftModel;
use crate::places::PlaceUse;

impl TextEngine {
    /// The same with a second, smaller model of the same vocabulary, which writes drafts.
    ///
    /// # Errors
    /// The reason why it cannot write drafts for this model.
    pub fn with_draft_model(self, decoder: Box<dyn Decoder>) -> Result<Self, String> {
        let info = self.decoder.info();
        if !info.same_in_any_step || info.state_bytes > 0 {
            return Err("this model's answers could change by drafts, so that it takes none".to_owned());
        }
        let draft_model = DraftModel::new(decoder, info.vocab_size, info.weight_bytes)?;
        Ok(Self { draft_model: Some(draft_model), ..self })
    }

    /// The use of the devices, by the decoder and by the draft model's.
    pub fn places(&self) -> Arc<[PlaceUse]> {
        let own = self.decoder.places();
        match &self.draft_model {
            Some(model) => own.iter().chain(model.decoder().places().iter()).cloned().collect(),
            None => own,
        }
    }
}
