//! Responses that were answered, for clients that continue them by `previous_response_id`. They are kept in memory,
//! each for its client, within a bound: the least recently used go first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model_boss_protocol::{ByteCount, ClientId};
use tokio::time::Instant;

/// The bytes that a record takes beside its texts.
const AROUND: u64 = 512;

/// The responses kept.
#[derive(Debug)]
pub(crate) struct ResponseStore {
    limit: ByteCount,
    idle: Duration,
    kept: Mutex<KeptResponses>,
}

/// A response and its place in a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredResponse {
    /// The response, as JSON.
    pub(crate) response: Bytes,
    /// The list of its own input items, as JSON.
    pub(crate) input: Bytes,
    /// The response that it continues.
    pub(crate) previous: Option<String>,
}

type ResponseKey = (ClientId, String);

#[derive(Debug, Default)]
struct KeptResponses {
    records: HashMap<ResponseKey, KeptResponse>,
    /// Keys by their last use, which is a number that grows.
    by_use: BTreeMap<u64, ResponseKey>,
    uses: u64,
    bytes: u64,
}

#[derive(Debug)]
struct KeptResponse {
    stored: StoredResponse,
    used: u64,
    used_at: Instant,
}

impl ResponseStore {
    /// A store of at most `limit`, from which responses go that were not used for `idle`.
    pub(crate) fn new(limit: ByteCount, idle: Duration) -> Self {
        Self { limit, idle, kept: Mutex::default() }
    }

    /// Keeps a response of a client.
    pub(crate) fn keep(&self, client: &ClientId, id: &str, stored: StoredResponse, now: Instant) {
        let mut kept = self.kept(now);
        let key = (client.clone(), id.to_owned());
        kept.remove(&key);
        let size = size(&key, &stored);
        if size > self.limit.0 {
            return;
        }
        while kept.bytes.saturating_add(size) > self.limit.0 && kept.remove_first() {}
        kept.bytes = kept.bytes.saturating_add(size);
        kept.records.insert(key.clone(), KeptResponse { stored, used: 0, used_at: now });
        kept.used(&key, now);
    }

    /// A response of a client.
    pub(crate) fn get(&self, client: &ClientId, id: &str, now: Instant) -> Option<StoredResponse> {
        let mut kept = self.kept(now);
        let key = (client.clone(), id.to_owned());
        kept.used(&key, now);
        kept.records.get(&key).map(|record| record.stored.clone())
    }

    /// A response and all that it continues, the oldest first. The error is the id that is missing.
    pub(crate) fn conversation(
        &self,
        client: &ClientId,
        id: &str,
        now: Instant,
    ) -> Result<Vec<StoredResponse>, String> {
        let mut kept = self.kept(now);
        let (mut all, mut next) = (Vec::new(), Some(id.to_owned()));
        while let Some(id) = next {
            let key = (client.clone(), id);
            let Some(record) = kept.records.get(&key) else { return Err(key.1) };
            next = record.stored.previous.clone();
            all.push(record.stored.clone());
            // The first responses of a conversation are used last, and so go last: the others need them.
            kept.used(&key, now);
        }
        all.reverse();
        Ok(all)
    }

    /// Forgets a response. Returns whether it was there.
    pub(crate) fn remove(&self, client: &ClientId, id: &str, now: Instant) -> bool {
        self.kept(now).remove(&(client.clone(), id.to_owned()))
    }

    /// The store's content, without responses that were idle for too long.
    fn kept(&self, now: Instant) -> MutexGuard<'_, KeptResponses> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |record: &KeptResponse| now.saturating_duration_since(record.used_at) > self.idle;
        while kept.first().is_some_and(|key| kept.records.get(key).is_none_or(is_idle)) && kept.remove_first() {}
        kept
    }
}

impl KeptResponses {
    fn first(&self) -> Option<&ResponseKey> {
        self.by_use.first_key_value().map(|(_, key)| key)
    }

    fn remove_first(&mut self) -> bool {
        let Some(key) = self.first().cloned() else { return false };
        self.remove(&key)
    }

    fn remove(&mut self, key: &ResponseKey) -> bool {
        let Some(record) = self.records.remove(key) else { return false };
        self.by_use.remove(&record.used);
        self.bytes = self.bytes.saturating_sub(size(key, &record.stored));
        true
    }

    /// Records a use.
    fn used(&mut self, key: &ResponseKey, now: Instant) {
        let Some(record) = self.records.get_mut(key) else { return };
        self.by_use.remove(&record.used);
        self.uses += 1;
        (record.used, record.used_at) = (self.uses, now);
        self.by_use.insert(self.uses, key.clone());
    }
}

fn size((client, id): &ResponseKey, stored: &StoredResponse) -> u64 {
    let names = client.as_str().len() + 2 * id.len() + stored.previous.as_ref().map_or(0, String::len);
    AROUND + (stored.response.len() + stored.input.len() + names) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_boss_host::clocks::later;

    fn stored(size: usize, previous: Option<&str>) -> StoredResponse {
        StoredResponse { response: vec![b'x'; size].into(), input: Bytes::new(), previous: previous.map(str::to_owned) }
    }

    fn me() -> ClientId {
        ClientId::from("me")
    }

    #[test]
    fn en_7_the_least_recently_used_response_goes_first_and_nothing_grows_past_the_limit() {
        let store = ResponseStore::new(ByteCount(20_000), Duration::MAX);
        let now = Instant::now();
        for number in 0..100 {
            store.keep(&me(), &format!("r{number}"), stored(4_000, None), now);
            assert!(store.get(&me(), "r0", now).is_some() || number > 3, "the first is used again and again");
            let kept = store.kept(now);
            assert!(kept.bytes <= 20_000 && kept.records.len() <= 4 && kept.by_use.len() == kept.records.len());
        }
        assert!(store.get(&me(), "r0", now).is_some() && store.get(&me(), "r1", now).is_none());
        store.keep(&me(), "large", stored(20_000, None), now);
        assert!(store.get(&me(), "large", now).is_none(), "larger than the store");
        assert!(store.remove(&me(), "r0", now) && !store.remove(&me(), "r0", now));
        let rest: Vec<String> = store.kept(now).records.keys().map(|(_, id)| id.clone()).collect();
        assert!(rest.iter().all(|id| store.remove(&me(), id, now)));
        assert_eq!(store.kept(now).bytes, 0, "every byte is given back");
    }

    #[test]
    fn en_7_a_response_that_was_not_used_for_long_is_forgotten() {
        let store = ResponseStore::new(ByteCount::mib(1), Duration::from_secs(60));
        let start = Instant::now();
        let at = |seconds| later(start, Duration::from_secs(seconds));
        store.keep(&me(), "a", stored(1, None), start);
        store.keep(&me(), "b", stored(1, None), start);
        assert!(store.get(&me(), "a", at(50)).is_some());
        assert!(store.get(&me(), "b", at(70)).is_none());
        assert!(store.get(&me(), "a", at(100)).is_some());
        assert!(store.get(&me(), "a", at(161)).is_none());
        assert_eq!(store.kept(at(161)).bytes, 0);
    }

    #[test]
    fn en_7_a_conversation_is_whole_or_names_what_is_missing_and_is_its_clients_own() {
        let store = ResponseStore::new(ByteCount(20_000), Duration::MAX);
        let now = Instant::now();
        store.keep(&me(), "1", stored(10, None), now);
        store.keep(&me(), "2", stored(20, Some("1")), now);
        store.keep(&me(), "3", stored(30, Some("2")), now);
        let sizes = |all: Vec<StoredResponse>| all.iter().map(|one| one.response.len()).collect::<Vec<_>>();
        assert_eq!(store.conversation(&me(), "3", now).map(sizes), Ok(vec![10, 20, 30]));
        assert_eq!(store.conversation(&ClientId::from("other"), "3", now), Err("3".to_owned()));
        // Of a conversation that was used, the newest goes first.
        store.keep(&me(), "x", stored(18_000, None), now);
        assert!(store.get(&me(), "3", now).is_none() && store.get(&me(), "1", now).is_some());
        store.remove(&me(), "1", now);
        assert_eq!(store.conversation(&me(), "2", now), Err("1".to_owned()));
    }

    #[test]
    fn a_store_without_room_keeps_nothing() {
        let store = ResponseStore::new(ByteCount::ZERO, Duration::MAX);
        store.keep(&me(), "1", stored(0, None), Instant::now());
        assert!(store.get(&me(), "1", Instant::now()).is_none());
    }
}
