//! The drafts of a step: which sequences have some, and how long they are (EN-8).

use std::time::{Duration, Instant};

use super::sequence::RunningSequence;
use super::settings::DraftUse;
use crate::decoder::{Decoder, DecoderError};
use crate::drafts::{DraftModel, DraftWish, RowCost, StepAhead};

/// Adds drafts to the shares of sequences that decode, as far as they pay. A step with which an answer begins has none:
/// its client waits for the whole step, and the others get their drafts in the next one. Returns the time for which the
/// draft model computed.
///
/// # Errors
/// The device of the draft model is lost.
pub(super) fn look_ahead(
    all: &mut [RunningSequence],
    shares: &mut [usize],
    (decoder, mut model): (&dyn Decoder, Option<&mut DraftModel>),
    (drafts, cost): (DraftUse, RowCost),
) -> Result<Duration, DecoderError> {
    let info = decoder.info();
    if drafts == DraftUse::Never || !info.same_in_any_step || info.state_bytes > 0 {
        return Ok(Duration::ZERO);
    }
    let begins = all.iter().zip(&*shares).any(|(running, share)| {
        *share > 0 && running.is_in_prompt() && running.fed() + share == running.tokens().len()
    });
    for (running, share) in all.iter_mut().zip(&*shares) {
        if !running.is_parked() {
            let (class, length) = (running.length_class(), running.tokens().len());
            let room = if *share > 0 && !begins { running.draft_room() } else { 0 };
            // A longer sequence of another class would be computed by other positions.
            let most = (0..=room).rev().find(|most| decoder.length_class(length + most) == class).unwrap_or_default();
            let (drafting, tokens) = running.drafts();
            drafting.look_up(tokens, most);
        }
    }
    let sequences = shares.iter().filter(|share| **share > 0).count();
    let ahead = StepAhead { rows: shares.iter().sum(), sequences, cost };
    let (took, written) = match &mut model {
        Some(model) if !begins => write_drafts(all, model, ahead, drafts)?,
        _ => (Duration::ZERO, Vec::new()),
    };
    let offer = |running: &mut RunningSequence| match running.is_parked() {
        true => Vec::new(),
        false => running.drafts().0.offer().to_vec(),
    };
    let found: Vec<Vec<f64>> = all.iter_mut().map(offer).collect();
    let longest = match drafts {
        DraftUse::Always => found.iter().map(Vec::len).collect(),
        _ => cost.shares(&found, sequences, ahead.rows),
    };
    for (place, ((running, share), count)) in all.iter_mut().zip(shares).zip(longest).enumerate() {
        if running.is_parked() {
            continue;
        }
        running.keep_drafted(count);
        *share += count;
        // A draft that was looked up saves nothing for the model.
        if let Some(model) = &mut model
            && written.contains(&place)
        {
            model.kept(running.id(), count);
        }
    }
    Ok(took)
}

/// Has the draft model write for sequences of which nothing was found that is as likely. Returns the time that it took,
/// and the places of the sequences that have its drafts.
fn write_drafts(
    all: &mut [RunningSequence],
    model: &mut DraftModel,
    ahead: StepAhead,
    drafts: DraftUse,
) -> Result<(Duration, Vec<usize>), DecoderError> {
    let began = Instant::now();
    let mut places = Vec::with_capacity(all.len());
    for (place, running) in all.iter_mut().enumerate() {
        // The draft model sees no images.
        if running.is_parked() || !running.images().are_none() {
            continue;
        }
        let drafting = running.drafts().0;
        let found = drafting.offer().first().copied().unwrap_or_default();
        if drafting.most() > 0 && found < DraftModel::BETTER_FOUND {
            places.push((place, drafting.most()));
        }
    }
    if places.is_empty() {
        return Ok((Duration::ZERO, Vec::new()));
    }
    let wish = |(place, most): &(usize, usize)| {
        let running = &all[*place];
        let (salt, tokens, is_greedy) = (running.salt(), running.tokens(), running.is_greedy());
        DraftWish { id: running.id(), salt, tokens, most: *most, is_greedy }
    };
    let wishes: Vec<DraftWish<'_>> = places.iter().map(wish).collect();
    let running: &[RunningSequence] = all;
    let stop = || running.iter().all(|running| running.reply().is_closed());
    let written = model.write(&wishes, ahead, drafts == DraftUse::Always, &stop)?;
    let mut taken = Vec::new();
    for ((place, _), draft) in places.into_iter().zip(written) {
        if draft.tokens.is_empty() {
            continue;
        }
        let (drafting, tokens) = all[place].drafts();
        if draft.chances.first() > drafting.offer().first() {
            drafting.begin(tokens, draft);
            taken.push(place);
        }
    }
    Ok((began.elapsed(), taken))
}
