//! The start line of our own workers, made of an order and the settings.

use std::num::NonZero;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use model_boss_protocol::{Backend, Category, DeviceId, DraftSpec, Manifest, SpawnToken, Speculation, WorkerSpec};

use super::order::{SpawnOrder, Tools, template_of};

/// The context to serve: the load's, else the manifest's, else the settings'.
pub(super) fn context_of(order: &SpawnOrder, tools: &Tools) -> Option<u64> {
    order.context.or(order.model.manifest.context_length).or(tools.catalog.engines().context)
}

/// The program of a worker that parks prefixes; `None` where none are parked.
pub(super) fn parking_program(order: &SpawnOrder, tools: &Tools) -> Option<PathBuf> {
    let writes_text = order.model.description.category == Category::Llm && order.backend == Backend::Candle;
    let program = tools.settings.programs.of(order.backend).ok().filter(|_| writes_text && tools.parking.is_open());
    program.cloned()
}

/// The identity of a model's files, by their revision, and of the worker's program. The call reads the program's facts,
/// so it may block.
pub(super) fn identity(program: &Path, revision: u64) -> Option<String> {
    let about = program.metadata().ok()?;
    Some(format!("{revision:016x} {} {}.{:09}", about.len(), about.mtime(), about.mtime_nsec()))
}

/// The draft model, unless drafts are off. Its part of the lease is by the estimate that is in the model's own. The
/// call reads the headers of its files, so it may block.
fn draft_of(order: &SpawnOrder, tools: &Tools) -> Option<DraftSpec> {
    let manifest = &order.model.manifest;
    let draft = order.model.draft.as_ref().filter(|_| manifest.speculation != Some(Speculation::Off))?;
    let served = Manifest { context_length: context_of(order, tools), ..manifest.clone() };
    Some(DraftSpec { source: draft.path.clone(), bytes: draft.bytes(&served) })
}

/// The start line of a worker on this port, without the identity for parked prefixes.
pub(super) fn worker_spec(
    order: &SpawnOrder,
    tools: &Tools,
    (port, token, proof): (u16, SpawnToken, SpawnToken),
) -> WorkerSpec {
    let (manifest, description) = (&order.model.manifest, &order.model.description);
    let device = match order.parts.first() {
        // The worker sees only the GPUs of its lease, numbered from 0.
        Some((DeviceId::Cuda(_), _)) => DeviceId::Cuda(0),
        Some((other, _)) => other.clone(),
        None => DeviceId::Cpu,
    };
    WorkerSpec {
        model: description.id.clone(),
        category: description.category,
        source: order.model.source.clone(),
        device,
        parts: order.parts.clone(),
        port,
        generation: order.slot.generation,
        token,
        proof,
        context_length: context_of(order, tools),
        max_concurrent: description.max_concurrent,
        residency: order.residency,
        params: manifest.params.clone(),
        chat_template: manifest.chat_template.clone().or_else(|| manifest.prompt_format.map(template_of)),
        thinking: manifest.thinking,
        settings: order.model.settings_of(order.backend),
        text: tools.settings.text,
        cpu_features: tools.settings.cpu_features,
        threads: manifest.threads.and_then(NonZero::new),
        speculation: manifest.speculation.unwrap_or_default(),
        draft: draft_of(order, tools),
        speech: manifest.speech.clone(),
        voices: manifest.voices.clone(),
        sandbox: tools.settings.sandbox,
        parking: None,
    }
}
