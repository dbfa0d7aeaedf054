//! Looking at images before a step: the shares of sequences that end at an image which nobody has looked at, or inside
//! of one that has to come in one step. Knows sequences and a decoder, no blocks.

use std::sync::Arc;

use crate::batch::SequenceStage;
use crate::decoder::{Decoder, DecoderError};
use crate::engine::{EngineError, WorkError};

use super::images::{KnownImages, SequenceImages, Unseen};
use super::sequence::RunningSequence;
use super::turns::fatal;

/// Sequences whose images a decoder could not look at, by their places in the batch.
pub(super) type Blinded = Vec<(usize, WorkError)>;

/// Makes shares of a step that no image is cut by, where its places see each other. A share may grow beyond the budget
/// of `rows` only if no other does.
pub(super) fn keep_whole(running: &[RunningSequence], shares: &mut [usize], rows: usize) {
    let mut total: usize = shares.iter().sum();
    let mut grown = false;
    for (running, share) in running.iter().zip(shares) {
        if *share == 0 {
            continue;
        }
        let whole = running.images().whole(running.fed(), *share);
        let beyond = total - *share + whole > rows;
        let given = if whole > *share && beyond && grown { 0 } else { whole };
        grown |= given > *share;
        total = total - *share + given;
        *share = given;
    }
}

/// Has a decoder look at the images that a step needs. Beside sequences that decode it looks at one, so that these do
/// not wait for all; the shares of others end in front of their images.
pub(super) fn look(
    (decoder, known): (&mut dyn Decoder, &mut KnownImages),
    running: &mut [RunningSequence],
    shares: &mut [usize],
    stages: &[SequenceStage],
) -> Result<Blinded, EngineError> {
    let decodes = stages.contains(&SequenceStage::Decode);
    let (mut looked, mut blinded) = (false, Vec::new());
    for (at, (running, share)) in running.iter_mut().zip(shares).enumerate() {
        let fed = running.fed();
        while let Some(unseen) = running.images().unseen(fed..fed + *share) {
            let digest = unseen.picture.digest;
            if let Some(rows) = known.rows(running.salt(), digest) {
                running.images_mut().saw(unseen.index, rows);
                continue;
            }
            if looked && decodes {
                *share = unseen.first.saturating_sub(fed);
                break;
            }
            looked = true;
            let reply = running.reply();
            match see(decoder, &unseen, running.images(), &|| reply.is_closed()) {
                Ok(rows) => {
                    let rows = Arc::new(rows);
                    known.keep(running.salt(), digest, &rows);
                    running.images_mut().saw(unseen.index, rows);
                }
                // Its client has gone; it leaves the batch before the next step.
                Err(DecoderError::Interrupted) => *share = unseen.first.saturating_sub(fed),
                Err(error) => {
                    fatal(&error)?;
                    *share = 0;
                    blinded.push((at, error.into()));
                }
            }
        }
    }
    Ok(blinded)
}

fn see(
    decoder: &mut dyn Decoder,
    unseen: &Unseen,
    images: &SequenceImages,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<crate::images::SeenRows, DecoderError> {
    let rows = decoder.see(&unseen.picture, stop)?;
    let places = images.steps().get(unseen.index).map_or(0, |image| image.range.len());
    let fits = |rows: &[f32]| !rows.is_empty() && rows.len().is_multiple_of(places.max(1));
    if !fits(&rows.embedded) || rows.behind_layers.iter().any(|added| added.len() != rows.embedded.len()) {
        return Err(DecoderError::Step(format!("the model gave no rows for an image of {places} places")));
    }
    Ok(rows)
}
