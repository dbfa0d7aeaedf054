//! Footprints, the measured memory of models, kept across restarts. They are in a document of the lease store, which
//! all coordinators of the store share (RC-20). The scheduler measures them.

use std::sync::Arc;
use std::time::Duration;

use model_boss_core::{Event, FOOTPRINTS_KEPT, Footprint};
use model_boss_lease_store::{Document, StoreError, Swap};
use model_boss_protocol::chain;
use model_boss_settings::DocumentStore;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::scheduling::News;

/// The document's name.
const DOCUMENT: &str = "footprints";
/// The pause before a store that is out of reach is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Receives learned footprints. The handle is cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct FootprintSink(mpsc::UnboundedSender<Footprint>);

impl FootprintSink {
    /// Reports the known footprints to the scheduler, and begins to store new ones. While the store is unreachable,
    /// this waits. Entries that cannot be parsed are skipped: their sizes are measured again.
    pub(crate) async fn start(documents: Arc<dyn DocumentStore>, news: News) -> Self {
        let (sender, learned) = mpsc::unbounded_channel();
        let reached = tell(&*documents, &news).await;
        tokio::spawn(keep(documents, news, learned, reached));
        Self(sender)
    }

    /// Stores a footprint, and removes those of other revisions of its model.
    pub(crate) fn learn(&self, footprint: Footprint) {
        // The send cannot fail: the task runs as long as the sender exists.
        let _ = self.0.send(footprint);
    }
}

/// Reports the stored footprints to the scheduler. Returns whether the store could be read.
async fn tell(documents: &dyn DocumentStore, news: &News) -> bool {
    match documents.load(DOCUMENT).await {
        Ok(document) => {
            let known = entries(&document).into_iter().filter_map(|entry| serde_json::from_value(entry).ok());
            news.event(Event::Footprints(known.collect()));
            true
        }
        Err(error) => {
            tracing::debug!("learned sizes could not be read: {}", chain(&error));
            false
        }
    }
}

async fn keep(
    documents: Arc<dyn DocumentStore>,
    news: News,
    mut learned: mpsc::UnboundedReceiver<Footprint>,
    mut reached: bool,
) {
    while !reached {
        sleep(TRY_AGAIN).await;
        reached = tell(&*documents, &news).await;
    }
    let mut batch = Vec::new();
    while learned.recv_many(&mut batch, 64).await > 0 {
        while let Err(error) = write(&*documents, &batch).await {
            if !error.is_outage() {
                tracing::warn!("a learned size is lost: {}", chain(&error));
                break;
            }
            sleep(TRY_AGAIN).await;
        }
        batch.clear();
    }
}

async fn write(documents: &dyn DocumentStore, learned: &[Footprint]) -> Result<(), StoreError> {
    loop {
        let document = documents.load(DOCUMENT).await?;
        let mut all = entries(&document);
        for footprint in learned {
            merge(&mut all, footprint).map_err(StoreError::Encode)?;
        }
        let content = serde_json::to_string(&all).map_err(StoreError::Encode)?;
        if documents.swap(DOCUMENT, document, content).await? == Swap::Done {
            return Ok(());
        }
    }
}

fn entries(document: &Document) -> Vec<Value> {
    let Some(content) = &document.content else { return Vec::new() };
    serde_json::from_str(content).unwrap_or_else(|error| {
        tracing::warn!(%error, "learned sizes cannot be understood and are learned again");
        Vec::new()
    })
}

/// Adds a footprint to the document. An entry of a later version is kept, though it cannot be parsed. Beyond the limit,
/// the entries that were learned first are removed.
fn merge(all: &mut Vec<Value>, footprint: &Footprint) -> Result<(), serde_json::Error> {
    all.retain(|entry| {
        let Ok(old) = serde_json::from_value::<Footprint>(entry.clone()) else { return true };
        let outdated = old.model == footprint.model && old.revision != footprint.revision;
        let same = Footprint { bytes: footprint.bytes, ..old } == *footprint;
        !outdated && !same
    });
    all.push(serde_json::to_value(footprint)?);
    all.drain(..all.len().saturating_sub(FOOTPRINTS_KEPT));
    Ok(())
}

#[cfg(test)]
mod tests {
    use model_boss_lease_store::LeaseDurations;
    use model_boss_protocol::{ByteCount, DeviceId, KvCacheType};

    use super::*;
    use crate::leases::{LeaseSetup, Leases, LedgerDocuments, StoreChoice};

    fn footprint(revision: u64, device: DeviceId, gib: u64) -> Footprint {
        let (model, bytes) = ("team/m:1".into(), ByteCount::gib(gib));
        let kv_cache_type = KvCacheType::Auto;
        Footprint { model, revision, context: None, max_concurrent: 8, kv_cache_type, device, bytes }
    }

    async fn documents(folder: &std::path::Path) -> LedgerDocuments {
        let setup = LeaseSetup {
            store: StoreChoice::Embedded(folder.join("state")),
            runtime_dir: Some(folder.join("run")),
            terms: LeaseDurations::default(),
            foreign: ByteCount::ZERO,
            return_patience: std::time::Duration::from_secs(10),
            probes: Vec::new(),
            news: News::channel().0,
        };
        LedgerDocuments::new(Leases::start(setup).await.unwrap().leases)
    }

    async fn known(documents: &LedgerDocuments) -> Vec<Footprint> {
        let document = documents.load(DOCUMENT).await.unwrap();
        entries(&document).into_iter().map(|entry| serde_json::from_value(entry).unwrap()).collect()
    }

    #[tokio::test]
    async fn rc_20_what_is_learned_is_kept_and_other_revisions_go() {
        let folder = tempfile::tempdir().unwrap();
        let documents = documents(folder.path()).await;
        assert_eq!(known(&documents).await, []);
        write(&documents, &[footprint(1, DeviceId::Cpu, 1), footprint(1, DeviceId::Cuda(0), 2)]).await.unwrap();
        write(&documents, &[footprint(1, DeviceId::Cuda(0), 3)]).await.unwrap();
        assert_eq!(known(&documents).await, [footprint(1, DeviceId::Cpu, 1), footprint(1, DeviceId::Cuda(0), 3)]);
        write(&documents, &[footprint(2, DeviceId::Cpu, 4)]).await.unwrap();
        assert_eq!(known(&documents).await, [footprint(2, DeviceId::Cpu, 4)]);
    }

    #[test]
    fn the_footprints_that_are_kept_are_bounded() {
        let learned = |context: u64| Footprint { context: Some(context), ..footprint(1, DeviceId::Cpu, 1) };
        let of_an_earlier_version = (0..3 * FOOTPRINTS_KEPT as u64).map(|n| serde_json::to_value(learned(n)).unwrap());
        let mut all: Vec<Value> = of_an_earlier_version.collect();
        merge(&mut all, &learned(9_999)).unwrap();
        merge(&mut all, &learned(10_000)).unwrap();
        assert_eq!(all.len(), FOOTPRINTS_KEPT);
        assert_eq!(all.last(), Some(&serde_json::to_value(learned(10_000)).unwrap()));
    }

    #[tokio::test]
    async fn what_a_later_version_wrote_stays_and_nonsense_is_done_without() {
        let folder = tempfile::tempdir().unwrap();
        let documents = documents(folder.path()).await;
        for (content, entries) in [(r#"[{"rank": 7}]"#, 2), ("no JSON", 1)] {
            let document = documents.load(DOCUMENT).await.unwrap();
            assert_eq!(documents.swap(DOCUMENT, document, content.to_owned()).await.unwrap(), Swap::Done);
            write(&documents, &[footprint(1, DeviceId::Cpu, 1)]).await.unwrap();
            let written = documents.load(DOCUMENT).await.unwrap();
            assert_eq!(super::entries(&written).len(), entries, "{content}");
        }
    }
}
