//! What models were seen to use, by model, revision, context, parallelism and device (RC-20). Knows no slots.

use std::collections::BTreeMap;

use model_boss_protocol::{ByteCount, DeviceId};

use crate::{Footprint, ModelDescription, SizeEstimate, SizeRule};

/// Everything learned. A value only rises: the peak is what has to fit.
#[derive(Debug, Default)]
pub(crate) struct Footprints {
    bytes: BTreeMap<Key, ByteCount>,
}

type Key = (model_boss_protocol::ModelId, u64, Option<u64>, u32, DeviceId);

impl Footprints {
    /// Takes one in; gives it back as it is known now if that is news.
    pub(crate) fn learn(&mut self, seen: Footprint) -> Option<Footprint> {
        let key = (seen.model.clone(), seen.revision, seen.context, seen.max_concurrent, seen.device.clone());
        let known = self.bytes.entry(key).or_insert(ByteCount::ZERO);
        if seen.bytes <= *known {
            return None;
        }
        *known = seen.bytes;
        Some(seen)
    }

    /// The chain of RC-20 as far as the scheduler sees it: the manifest's word, what was learned here, then whatever rule
    /// gave the estimate.
    pub(crate) fn size(
        &self,
        model: &ModelDescription,
        context: Option<u64>,
        device: &DeviceId,
        estimate: &SizeEstimate,
    ) -> SizeEstimate {
        if estimate.rule == SizeRule::Manifest || self.bytes.is_empty() {
            return estimate.clone();
        }
        let key = (model.id.clone(), model.revision, context, model.max_concurrent, device.clone());
        match self.bytes.get(&key) {
            Some(&bytes) => SizeEstimate { bytes, rule: SizeRule::Learned, streamed: estimate.streamed },
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
            learned.size(m, context, &device.parse().unwrap(), &m.size).rule
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
    fn rc_20_a_footprint_only_rises() {
        let mut learned = Footprints::default();
        assert_eq!(learned.learn(seen(None, "cpu", 1_000)).unwrap().bytes, ByteCount::mib(1_000));
        assert_eq!(learned.learn(seen(None, "cpu", 1_000)), None);
        assert_eq!(learned.learn(seen(None, "cpu", 900)), None);
        assert_eq!(learned.learn(seen(None, "cpu", 1_001)).unwrap().bytes, ByteCount::mib(1_001));
    }
}
