//! The assignment of layers to devices, and the order in which their tensors are read. It works with sizes and reads
//! no data.

use model_boss_engine::residency::plan::MemoryNeeds;
use model_boss_engine::residency::split::{EndBytes, split};

use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layers::kv;
use crate::plan::checked_model::CheckedModel;
use crate::plan::needs;
use crate::plan::options::DecoderLoadOptions;
use crate::plan::part::{DevicePart, LoadDevice};
use crate::spec::DecoderSpec;
use crate::spec::part_names::Needed;

/// Divides the layers among the devices. Devices that are too small for any layer are omitted from the result.
pub(crate) fn cut(
    plan: &CheckedModel,
    spec: &DecoderSpec,
    files: &ModelFiles,
    places: Vec<LoadDevice>,
    options: &DecoderLoadOptions,
) -> Result<Vec<DevicePart>, ModelError> {
    let Some(first) = places.first() else { return Ok(Vec::new()) };
    let [embedding, norm, head] = plan.end_bytes(spec, files, &first.target)?;
    let layers = (0..spec.layers.len())
        .map(|layer| plan.layer_bytes(spec, files, &first.target, layer))
        .collect::<Result<Vec<u64>, _>>()?;
    let kept = needs::kept_tokens(spec, options);
    let all_layers = 0..spec.layers.len();
    let kv = kv::bytes_of_layers(spec, all_layers.clone(), &first.target, kept) as u64;
    let kv = kv.saturating_add(needs::states(spec, all_layers, 1));
    let workspace = if places.len() > 1 { needs::workspace(spec) } else { 0 };
    let all = MemoryNeeds { layers, ends: embedding + norm + head, kv, workspace };
    // A tensor that is both embedding and head is on the first and on the last device.
    let ends = EndBytes { first: embedding, last: norm + if head > 0 { head } else { embedding } };
    let shares: Vec<u64> = places.iter().map(|place| place.share).collect();
    let stretches = split(&all, ends, &shares);
    let mut parts = Vec::new();
    for (at, place) in places.into_iter().enumerate() {
        let Some(stretch) = stretches.iter().find(|stretch| stretch.device == at) else { continue };
        // Devices of different kinds store the same weights in different types.
        let mut weights = stretch.needs.ends;
        for layer in stretch.layers.clone() {
            weights = weights.saturating_add(plan.layer_bytes(spec, files, &place.target, layer)?);
        }
        parts.push(DevicePart { place, layers: stretch.layers.clone(), weights });
    }
    keys_stay_together(spec, &parts)?;
    Ok(parts)
}

/// Refuses a division in which a layer uses the keys and values of one on another device.
fn keys_stay_together(spec: &DecoderSpec, parts: &[DevicePart]) -> Result<(), ModelError> {
    for part in parts {
        let outside = |of: usize| !part.layers.contains(&of);
        let borrowed =
            part.layers.clone().find_map(|layer| Some((layer, spec.lender(layer).filter(|of| outside(*of))?)));
        if let Some((layer, of)) = borrowed {
            let what = format!(
                "uses the keys and values of layer {of}, which would be on another device; give the model one device, \
                 or the last one a larger share"
            );
            return Err(ModelError::Layer { layer, what });
        }
    }
    Ok(())
}

/// The tensors that a load reads through the page cache, in approximately that order. The list is empty if layers are
/// streamed: those are read past the page cache, which has no memory to spare then.
pub(crate) fn order(
    plan: &CheckedModel,
    spec: &DecoderSpec,
    files: &ModelFiles,
    parts: &[DevicePart],
    options: &DecoderLoadOptions,
) -> Result<Vec<String>, ModelError> {
    let mut names = Vec::new();
    if parts.iter().any(|part| needs::wanted(spec, part, options)) {
        return Ok(names);
    }
    for (at, part) in parts.iter().enumerate() {
        names.extend(plan.ends(spec, at == 0, at + 1 == parts.len()));
        for layer in part.layers.clone() {
            let place = |needed: Needed| Ok((files.near(&needed.name)?, needed.name));
            let mut placed =
                spec.needed_by_layer(layer).into_iter().map(place).collect::<Result<Vec<_>, ModelError>>()?;
            // The order of the file differs little from that of the load, and avoids seeks.
            placed.sort_unstable();
            names.extend(placed.into_iter().map(|(_, name)| name));
        }
    }
    Ok(names)
}
