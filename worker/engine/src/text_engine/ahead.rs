//! The drafts of a step: which sequences have some, and how long they are (EN-8).

use super::sequence::RunningSequence;
use super::settings::DraftUse;
use crate::decoder::Decoder;
use crate::drafts::RowCost;

/// Adds drafts to the shares of sequences that decode, as far as they pay. A step with which an answer begins has none:
/// its client waits for the whole step, and the others get their drafts in the next one.
pub(super) fn look_ahead(
    all: &mut [RunningSequence],
    shares: &mut [usize],
    decoder: &dyn Decoder,
    (drafts, cost): (DraftUse, RowCost),
) {
    let info = decoder.info();
    if drafts == DraftUse::Never || !info.same_in_any_step || info.state_bytes > 0 {
        return;
    }
    let begins = all.iter().zip(&*shares).any(|(running, share)| {
        *share > 0 && running.is_in_prompt() && running.fed() + share == running.tokens().len()
    });
    let mut found = Vec::with_capacity(all.len());
    for running in all.iter_mut() {
        if running.is_parked() {
            found.push((0, 0.0));
            continue;
        }
        let class = running.length_class();
        running.look_ahead(&|length| decoder.length_class(length) == class);
        found.push(running.drafting().offer());
    }
    let decoding = shares.iter().filter(|share| **share > 0).count();
    let longest = match drafts {
        _ if begins => vec![0; found.len()],
        DraftUse::Always => found.iter().map(|(most, _)| *most).collect(),
        _ => cost.shares(&found, decoding, shares.iter().sum()),
    };
    for ((running, share), count) in all.iter_mut().zip(shares).zip(longest) {
        if running.is_parked() {
            continue;
        }
        running.keep_drafted(count);
        *share += count;
    }
}
