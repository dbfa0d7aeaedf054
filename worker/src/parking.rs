//! Parked prefixes on the engine's thread: given out before this process ends, and taken from an earlier one. The
//! coordinator keeps them in between.

use std::time::Instant;

use axum::body::Bytes;
use model_boss_engine::{NotRestored, RestoredBlocks, TextEngine};
use model_boss_protocol::{InstructionSet, ModelId, ParkedOutcome, ParkedRefusal, ParkedWriter, WorkerSpec};
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, info, warn};
use xxhash_rust::xxh3::xxh3_128;

/// Bytes of the last frame, and of what is around the body of each.
const LAST_FRAME: usize = 32;
const AROUND: usize = 16;

/// An order to give prefixes out.
pub(crate) struct ParkOrder {
    pub(crate) model: ModelId,
    pub(crate) key: String,
    /// The most bytes.
    pub(crate) bytes: u64,
    /// The moment from which the rest is left out.
    pub(crate) until: Instant,
    pub(crate) frames: mpsc::Sender<Bytes>,
}

/// An order to take prefixes.
pub(crate) struct RestoreOrder {
    /// The bodies of blocks; none is too late after the sender was dropped.
    pub(crate) bodies: mpsc::Receiver<Vec<u8>>,
    pub(crate) done: oneshot::Sender<ParkedOutcome>,
}

/// The key of a worker's prefixes: a digest of what keys and values depend on. `None` where none are parked.
pub(crate) fn key(spec: &WorkerSpec, layout: Option<String>, instructions: InstructionSet) -> Option<String> {
    let (identity, layout) = (spec.parking.as_ref()?, layout?);
    let facts = [identity.as_str(), env!("CARGO_PKG_VERSION"), &instructions.to_string(), &layout];
    Some(format!("{:032x}", xxh3_128(facts.join("\n").as_bytes())))
}

/// Gives out the hottest prefixes, until the bytes or the time are used up. A receiver that has gone ends it.
pub(crate) fn park(engine: &mut TextEngine, order: ParkOrder) {
    let ParkOrder { model, key, bytes, until, frames } = order;
    let begun = Instant::now();
    let (mut writer, head) = match ParkedWriter::start(&model, &key) {
        Ok(started) => started,
        Err(error) => return warn!("prefixes cannot be parked: {error}"),
    };
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_sub(head.len() + LAST_FRAME);
    if frames.blocking_send(head.into()).is_err() {
        return;
    }
    let mut blocks = engine.parked_blocks();
    while Instant::now() < until {
        let (tokens, body) = match engine.take_out(&mut blocks) {
            Ok(Some(block)) => block,
            Ok(None) => break,
            // The blocks that were given out before are good.
            Err(error) => {
                warn!("no more prefixes are parked: {error}");
                break;
            }
        };
        let Some(rest) = left.checked_sub(body.len() + AROUND) else { break };
        let Some(frame) = writer.block(tokens, |frame| frame.extend_from_slice(&body)) else { break };
        left = rest;
        if frames.blocking_send(frame.into()).is_err() {
            return debug!("the coordinator takes no more prefixes");
        }
    }
    let counts = writer.counts();
    let _ = frames.blocking_send(writer.end().into());
    let ms = begun.elapsed().as_millis();
    info!(blocks = counts.blocks, tokens = counts.tokens, ms, "prefixes parked");
}

/// Takes prefixes, until there is no room for more. Those that came before a fault are kept: each was checked.
pub(crate) fn restore(engine: &mut TextEngine, order: RestoreOrder) {
    let RestoreOrder { mut bodies, done } = order;
    let (mut restored, mut outcome) = (RestoredBlocks::default(), ParkedOutcome::default());
    while let Some(body) = bodies.blocking_recv() {
        if let Err(error) = engine.put_in(&mut restored, &body) {
            outcome.message = error.to_string();
            outcome.refused = Some(match error {
                NotRestored::NoRoom => ParkedRefusal::NoRoom,
                NotRestored::Malformed(_) => ParkedRefusal::Damaged,
                NotRestored::Refused(_) => ParkedRefusal::Failed,
            });
            break;
        }
    }
    (outcome.blocks, outcome.tokens) = (restored.blocks() as u64, restored.tokens() as u64);
    engine.settle(restored);
    info!(blocks = outcome.blocks, tokens = outcome.tokens, "prefixes of an earlier process restored");
    // The coordinator may have gone on without an answer.
    let _ = done.send(outcome);
}
