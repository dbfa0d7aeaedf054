//! Footprints: the memory that models were seen to use, by model, revision, context, parallelism, device, and type of
//! keys and values (RC-20).

use std::collections::{BTreeMap, BTreeSet};

use model_boss_protocol::{ByteCount, DeviceId, KvCacheType, ModelId};

use crate::{Footprint, ModelDescription, SizeEstimate, SizeRule};

/// The number of footprints that are kept. Contexts and models by path come from clients, so their number must be
/// bounded. The footprint seen longest ago is dropped, and measured again when the model is next loaded.
pub const FOOTPRINTS_KEPT: usize = 1_024;

/// The sizes learned so far. A value only rises: the peak has to fit.
#[derive(Debug, Default)]
pub(crate) struct Footprints {
    bytes: BTreeMap<Key, Peak>,
    /// The keys of the footprints, in the order in which they were last seen.
    seen: BTreeSet<(u64, Key)>,
    /// The number of measurements so far, used as their time.
    sightings: u64,
}

#[derive(Clone, Copy, Debug)]
struct Peak {
    bytes: ByteCount,
    seen: u64,
}

type Key = (ModelId, u64, Option<u64>, u32, DeviceId, KvCacheType);

impl Footprints {
    /// Stores a measurement; returns the footprint if it is new or larger than before.
    pub(crate) fn learn(&mut self, seen: Footprint) -> Option<Footprint> {
        let Footprint { revision, context, max_concurrent, kv_cache_type, .. } = seen;
        let key = (seen.model.clone(), revision, context, max_concurrent, seen.device.clone(), kv_cache_type);
        self.sightings += 1;
        let before = self.bytes.get(&key).copied();
        let most = before.map_or(ByteCount::ZERO, |known| known.bytes);
        if let Some(known) = before {
            self.seen.remove(&(known.seen, key.clone()));
        } else {
            self.forget_other_revisions(&seen);
        }
        self.seen.insert((self.sightings, key.clone()));
        self.bytes.insert(key, Peak { bytes: most.max(seen.bytes), seen: self.sightings });
        if self.bytes.len() > FOOTPRINTS_KEPT
            && let Some((_, oldest)) = self.seen.pop_first()
        {
            self.bytes.remove(&oldest);
        }
        (seen.bytes > most).then_some(seen)
    }

    /// Drops the model's footprints of other revisions. A model has one revision at a time, and earlier sizes do not
    /// apply to it.
    fn forget_other_revisions(&mut self, seen: &Footprint) {
        let first = (seen.model.clone(), 0, None, 0, DeviceId::Cpu, KvCacheType::Auto);
        let of_model = self.bytes.range(first..).take_while(|((model, ..), _)| *model == seen.model);
        let others: Vec<(Key, u64)> = of_model
            .filter(|((_, revision, ..), _)| *revision != seen.revision)
            .map(|(key, known)| (key.clone(), known.seen))
            .collect();
        for (key, at) in others {
            self.bytes.remove(&key);
            self.seen.remove(&(at, key));
        }
    }

    /// The number of footprints.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len().max(self.seen.len())
    }

    /// The chain of RC-20 within the scheduler: the manifest's size, then the learned one, then the estimate by its
    /// own rule.
    pub(crate) fn size(
        &self,
        model: &ModelDescription,
        (context, kv_cache_type): (Option<u64>, KvCacheType),
        device: &DeviceId,
        estimate: &SizeEstimate,
    ) -> SizeEstimate {
        if estimate.rule == SizeRule::Manifest || self.bytes.is_empty() {
            return estimate.clone();
        }
        let key = (model.id.clone(), model.revision, context, model.max_concurrent, device.clone(), kv_cache_type);
        match self.bytes.get(&key) {
            Some(&Peak { bytes, .. }) => SizeEstimate { bytes, rule: SizeRule::Learned, streamed: estimate.streamed },
            None => estimate.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::model;

    fn seen(context: Option<u64>, device: &str, mib: u64) -> Footprint {
        Footprint {
            model: "m".into(),
            revision: 1,
            context,
            max_concurrent: 1,
            kv_cache_type: KvCacheType::Auto,
            device: device.parse().unwrap(),
            bytes: ByteCount::mib(mib),
        }
    }

    #[test]
    fn rc_20_what_was_learned_holds_for_its_revision_context_parallelism_and_device() {
        let mut learned = Footprints::default();
        assert!(learned.learn(seen(None, "cuda:0", 1_024)).is_some());
        let mut m = model("m", 4);
        m.size.rule = SizeRule::Headers;
        let size = |m: &ModelDescription, context, device: &str| {
            learned.size(m, (context, KvCacheType::Auto), &device.parse().unwrap(), &m.size).rule
        };
        assert_eq!(size(&m, None, "cuda:0"), SizeRule::Learned);
        assert_eq!(size(&m, None, "cuda:1"), SizeRule::Headers);
        assert_eq!(size(&m, Some(8_192), "cuda:0"), SizeRule::Headers);
        let other = |change: fn(&mut ModelDescription)| {
            let mut other = m.clone();
            change(&mut other);
            size(&other, None, "cuda:0")
        };
        assert_eq!(other(|m| m.revision = 2), SizeRule::Headers);
        assert_eq!(other(|m| m.max_concurrent = 2), SizeRule::Headers);
        assert_eq!(other(|m| m.size.rule = SizeRule::Manifest), SizeRule::Manifest);
    }

    #[test]
    fn footprints_are_bounded_and_the_one_seen_longest_ago_goes() {
        let mut learned = Footprints::default();
        learned.learn(seen(None, "cpu", 1_000));
        for context in 0..3 * FOOTPRINTS_KEPT as u64 {
            learned.learn(seen(Some(context), "cpu", 1_000));
            // The second measurement is no larger.
            learned.learn(seen(None, "cpu", 900));
        }
        assert_eq!(learned.len(), FOOTPRINTS_KEPT);
        let mut m = model("m", 4);
        m.size.rule = SizeRule::Headers;
        assert_eq!(learned.size(&m, (None, KvCacheType::Auto), &DeviceId::Cpu, &m.size).rule, SizeRule::Learned);
        assert_eq!(learned.size(&m, (Some(0), KvCacheType::Auto), &DeviceId::Cpu, &m.size).rule, SizeRule::Headers);
        assert!(learned.learn(Footprint { revision: 2, ..seen(None, "cpu", 1) }).is_some());
        assert_eq!(learned.len(), 1, "what other revisions needed says nothing any more");
    }

    #[test]
    fn rc_20_a_footprint_only_rises() {
        let mut learned = Footprints::default();
        assert_eq!(learned.learn(seen(None, "cpu", 1_000)).unwrap().bytes, ByteCount::mib(1_000));
        assert_eq!(learned.learn(seen(None, "cpu", 1_000)), None);
        assert_eq!(learned.learn(seen(None, "cpu", 900)), None);
        assert_eq!(learned.learn(seen(None, "cpu", 1_001)).unwrap().bytes, ByteCount::mib(1_001));
    }
}
