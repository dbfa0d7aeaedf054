//! The load of a model, from its files to a decoder that runs. The module has the order of a load (configuration,
//! headers, shapes, memory, weights), and classifies its failures.

mod stages;

use std::path::Path;
use std::sync::Arc;
use std::thread;

use model_boss_protocol::{ByteCount, DeviceId};
use model_boss_weights::store::{self, WeightStore, WeightStoreChoice};

use crate::decoder::spec_decoder::SpecDecoder;
use crate::device;
use crate::error::{LoadError, ModelError};
use crate::files::ModelFiles;
use crate::plan::checked_model::CheckedModel;
use crate::plan::cut::{cut, order};
use crate::plan::options::{DecoderLoadOptions, DeviceOptions};
use crate::plan::part::{DevicePart, LoadDevice};
use crate::plan::tower_plan::TowerPlan;
use crate::read::direct::{Feed, Intake};
use crate::read::page_cache;
use crate::read::read_ahead::{EndsWith, ReadAhead};
use crate::read::reader::WeightReader;
use crate::spec::DecoderSpec;

/// Whether a decoder's last product is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecoderHead {
    Read,
    /// It is not used, and the file may lack it.
    LeftOut,
}

/// Finds the tower of a model that sees.
pub(crate) type FindTower<'a> = &'a dyn Fn(&ModelFiles, &DecoderSpec) -> Result<Option<Box<dyn TowerPlan>>, ModelError>;

/// Reads a model's weights over several devices, and those of the tower that it sees with.
pub(crate) fn read_over(
    source: &Path,
    places: &[DeviceOptions],
    options: &DecoderLoadOptions,
    (head, find_tower): (DecoderHead, FindTower<'_>),
    progress: &mut dyn FnMut(f32),
) -> Result<SpecDecoder, LoadError> {
    let devices: Vec<_> = places.iter().map(|place| device::open(&place.device)).collect::<Result<_, _>>()?;
    let bad = |reason: ModelError| LoadError::BadModel { model: source.to_owned(), reason: Box::new(reason) };
    let (files, mut spec) = ModelFiles::open(source).map_err(bad)?;
    if head == DecoderHead::Read && spec.sees_behind() {
        return Err(bad(ModelError::WritesNothing));
    }
    if head == DecoderHead::LeftOut {
        // The embedding is there in any case.
        (spec.tied_head, spec.head_bias) = (true, false);
    }
    let tower = find_tower(&files, &spec).map_err(bad)?;
    let plan = CheckedModel::new(&spec, &files, tower.as_deref()).map_err(bad)?;
    let place = |(place, device): (&DeviceOptions, _)| {
        let opened = LoadDevice::of(place, device, &plan.matrices, options.kv_cache_type);
        opened.map_err(|reason| LoadError::KvType { device: place.device.clone(), reason })
    };
    let places = places.iter().zip(devices).map(place).collect::<Result<Vec<_>, _>>()?;
    let parts = cut(&plan, &spec, &files, places, options).map_err(bad)?;
    progress(0.0);
    let expected = parts.iter().map(|part| part.weights).sum();
    let nowhere = || LoadError::DeviceLost { device: DeviceId::Auto, why: "no device was named".to_owned() };
    let first = parts.first().ok_or_else(nowhere)?;
    let order = order(&plan, &spec, &files, &parts, options).map_err(bad)?;
    let feed = match past_the_cache(&files, &parts) {
        Some(store) if !order.is_empty() => Some(Feed::new(store, &files, &first.place.target, &order).map_err(bad)?),
        _ => None,
    };
    let named = if feed.is_some() { &[] } else { order.as_slice() };
    let pieces = named.iter().map(|name| files.stored(name)).collect::<Result<Vec<_>, _>>().map_err(bad)?;
    let ahead = ReadAhead::new(pieces.into_iter().flatten().collect());
    let mut progress = |share| {
        ahead.used(share);
        progress(share);
    };
    let read = thread::scope(|scope| {
        let _end = EndsWith(&ahead);
        // If the thread cannot be started, bytes are read when they are touched.
        let beside = thread::Builder::new().name("read-ahead".to_owned());
        let intake = match &feed {
            Some(feed) => {
                let (intake, sender) = Intake::new(feed);
                let _ = beside.spawn_scoped(scope, move || feed.run(&sender));
                Some(intake)
            }
            None => {
                let _ = beside.spawn_scoped(scope, || ahead.run(|piece| files.will_need(piece)));
                None
            }
        };
        let mut reader = WeightReader::new(&files, &first.place.target, expected, &mut progress).taking(intake);
        stages::read((&plan, tower.as_deref()), spec, &mut reader, &parts, options)
    });
    let decoder = read.map_err(|(at, trouble)| {
        let device = parts.get(at).map_or(DeviceId::Auto, |part| part.place.name.clone());
        match trouble {
            stages::StageFailure::TooSmall { needs, free } => {
                LoadError::OutOfMemory { device, needs: ByteCount(needs), free: ByteCount(free) }
            }
            stages::StageFailure::NoKeys { needs, given, tokens } => {
                LoadError::NoKeys { device, needs: ByteCount(needs), given: ByteCount(given), tokens }
            }
            stages::StageFailure::NoRoom(what) => LoadError::NoRoom { device, what },
            stages::StageFailure::Model(ModelError::Refused(refusal)) => {
                LoadError::TooLarge { model: source.to_owned(), refusal }
            }
            stages::StageFailure::Model(ModelError::Device(error)) => {
                LoadError::DeviceLost { device, why: error.to_string() }
            }
            stages::StageFailure::Model(reason) => bad(reason),
        }
    })?;
    if feed.is_some() {
        page_cache::fill(files.paths());
    }
    Ok(decoder)
}

/// The store for a model that is not in memory. It bypasses the page cache, which would otherwise be filled with a
/// copy while the load waits.
fn past_the_cache(files: &ModelFiles, parts: &[DevicePart]) -> Option<Arc<dyn WeightStore>> {
    let on_cpu = matches!(parts, [part] if part.place.target.device.is_cpu());
    // Blocks of quantised matrices are made of mapped files.
    let as_stored = files.are_as_used();
    let cold = on_cpu && as_stored && files.cached_share() < 0.5;
    // Without direct reads, only the page cache remains.
    if cold { store::open(&files.paths(), WeightStoreChoice::Direct).ok() } else { None }
}

#[cfg(test)]
mod tests;
