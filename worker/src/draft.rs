//! A draft model beside a worker's model: its part of the lease, and its load.

use model_boss_engine::{Decoder, TextEngine};
use model_boss_protocol::{ByteCount, DraftSpec, Residency, ResidencyMode, WorkerExit, WorkerSpec};
use tracing::info;

use crate::backend::LoadDecoder;
use crate::failure::LoadFailure;

/// The start line as if the model had no draft model: with the rest of its lease.
pub(crate) fn without_draft(spec: &WorkerSpec) -> WorkerSpec {
    let mut alone = WorkerSpec { draft: None, ..spec.clone() };
    if let (Some(draft), Some((_, first))) = (&spec.draft, alone.parts.first_mut()) {
        *first = ByteCount(first.0.saturating_sub(draft.bytes.0));
    }
    alone
}

/// The start line as if the draft model were the model. All of it is on the first device.
fn of_draft(spec: &WorkerSpec, draft: &DraftSpec) -> WorkerSpec {
    let first = spec.parts.first().map(|(device, _)| (device.clone(), draft.bytes));
    WorkerSpec {
        source: draft.source.clone(),
        parts: first.into_iter().collect(),
        residency: Residency {
            mode: ResidencyMode::Resident,
            kv_cache_type: spec.residency.kv_cache_type,
            ..Residency::default()
        },
        draft: None,
        ..spec.clone()
    }
}

/// The decoder of the draft model, where there is one. It is loaded before the model itself: it is small, and what is
/// wrong with it is known early.
pub(crate) fn load_draft(spec: &WorkerSpec, load: LoadDecoder) -> Result<Option<Box<dyn Decoder>>, LoadFailure> {
    let Some(draft) = &spec.draft else { return Ok(None) };
    let decoder = load(&of_draft(spec, draft), &mut |_| {}).map_err(|failure| failure.about("the draft model"))?;
    info!(model = %spec.model, draft = %draft.source.display(), weights = decoder.info().weight_bytes, "draft model");
    Ok(Some(decoder))
}

/// The engine with its draft model.
pub(crate) fn with_draft(engine: TextEngine, draft: Option<Box<dyn Decoder>>) -> Result<TextEngine, LoadFailure> {
    let Some(draft) = draft else { return Ok(engine) };
    let refused =
        |why: String| LoadFailure::message(WorkerExit::BadModel, format!("the draft model is of no use: {why}"));
    engine.with_draft_model(draft).map_err(refused)
}
