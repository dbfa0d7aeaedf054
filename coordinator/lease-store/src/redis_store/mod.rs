//! The ledger in Redis or Valkey: one hash per host, shared by all processes of the host, with or without a
//! coordinator.
//!
//! Two small scripts make it a register. One reads the document with the server's time and run id. The other swaps it
//! if no other process did, the server is still the same process, and the reading is not old. No key has an expiry.

mod address;
mod facts;
mod link;

use std::sync::LazyLock;

use model_boss_lease::StoreTime;
use redis::Script;

use crate::error::StoreError;
use crate::store::{Document, Etag, LedgerStore, Snapshot, StoredDocuments, Swap};

pub use facts::RedisFacts;
pub use link::RedisLink;

use address::Address;
use facts::is_new_enough;

/// A document that was read longer ago than this is read again before a decision.
const READ_IS_OLD_US: u64 = 1_000_000;

/// Reads the ledger: time, the server, and the document in one step.
static READ: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local time = redis.call('TIME')
        local server = redis.call('INFO', 'server')
        local memory = redis.call('INFO', 'memory')
        return {
            time[1], time[2],
            string.match(server, 'run_id:(%w+)') or '',
            string.match(server, 'redis_version:([%w.]+)') or '',
            string.match(memory, 'maxmemory_policy:([%w-]+)') or '',
            redis.call('HGET', KEYS[1], 'etag'),
            redis.call('HGET', KEYS[1], 'document'),
        }
        ",
    )
});

/// Swaps the ledger. Arguments: expected etag, run id, time of reading in microseconds, its maximum age, new etag,
/// new document.
static SWAP: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
        if run_id ~= ARGV[2] then return 'STALE' end
        local time = redis.call('TIME')
        local age = time[1] * 1000000 + time[2] - tonumber(ARGV[3])
        if age > tonumber(ARGV[4]) or age < 0 then return 'STALE' end
        if (redis.call('HGET', KEYS[1], 'etag') or '') ~= ARGV[1] then return 'CONFLICT' end
        redis.call('HSET', KEYS[1], 'etag', ARGV[5], 'document', ARGV[6])
        return 'DONE'
        ",
    )
});

/// Swaps a small document. Arguments: expected etag, new etag, new document.
static SWAP_DOCUMENT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        if (redis.call('HGET', KEYS[1], 'etag') or '') ~= ARGV[1] then return 'CONFLICT' end
        redis.call('HSET', KEYS[1], 'etag', ARGV[2], 'document', ARGV[3])
        return 'DONE'
        ",
    )
});

/// Seconds, microseconds, run id, version, eviction policy, etag, document.
type StoreAnswer = (u64, u64, String, String, String, Option<String>, Option<String>);

/// The lease ledger in Redis.
pub struct RedisStore {
    link: RedisLink,
    key: String,
    version: Option<String>,
}

/// The address in this URL, without credentials; an error names the URL's fault. The call opens no connection.
pub fn redis_server(url: &str) -> Result<String, StoreError> {
    Ok(Address::parse(url)?.show())
}

impl RedisStore {
    /// Opens the ledger of this boot. `url` is `redis://`, `rediss://` (TLS), `redis+unix://`, or
    /// `redis+sentinel://host:port,host:port/SERVICE/DB`. The call connects at once, so that a wrong address is
    /// reported here.
    pub fn open(url: &str, boot_id: &str) -> Result<Self, StoreError> {
        let link = RedisLink::new(Address::parse(url)?);
        let mut store = Self { link, key: format!("mb:{{{boot_id}}}:ledger"), version: None };
        store.load()?;
        Ok(store)
    }

    /// The server's address, without credentials.
    pub fn server(&self) -> String {
        self.link.server()
    }

    fn check_server(&mut self, version: String, policy: String) -> Result<(), StoreError> {
        let server = || self.link.server();
        if policy != "noeviction" {
            return Err(StoreError::Evicts { server: server(), policy });
        }
        if !is_new_enough(&version) {
            return Err(StoreError::TooOld { server: server(), version });
        }
        self.version = Some(version);
        Ok(())
    }

    fn swapped(&self, answer: &str) -> Result<Swap, StoreError> {
        match answer {
            "DONE" => Ok(Swap::Done),
            "CONFLICT" => Ok(Swap::Conflict),
            "STALE" => Ok(Swap::Stale),
            other => Err(self.bad_answer(format!("a swap came to '{other}'"))),
        }
    }

    fn bad_answer(&self, detail: String) -> StoreError {
        StoreError::BadAnswer { server: self.link.server(), detail }
    }

    fn etag(&self, text: Option<&str>) -> Result<Etag, StoreError> {
        match text {
            None => Ok(Etag(0)),
            Some(text) => u128::from_str_radix(text, 16)
                .map(Etag)
                .map_err(|_| self.bad_answer(format!("'{text}' is no etag; somebody else wrote to {}", self.key))),
        }
    }
}

impl LedgerStore for RedisStore {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        let key = self.key.clone();
        let (seconds, micros, run_id, version, policy, etag, document): StoreAnswer =
            self.link.ask(|connection| READ.key(&key).invoke(connection))?;
        self.check_server(version, policy)?;
        let etag = self.etag(etag.as_deref())?;
        let now = StoreTime(seconds * 1_000_000 + micros);
        Ok(Snapshot { document, etag, now, run_id: Some(run_id) })
    }

    fn compare_and_swap(&mut self, loaded: &Snapshot, next: Etag, document: &str) -> Result<Swap, StoreError> {
        let key = self.key.clone();
        let run_id = loaded.run_id.as_deref().unwrap_or_default();
        let answer: String = self.link.ask(|connection| {
            SWAP.key(&key)
                .arg(expected(loaded.etag))
                .arg(run_id)
                .arg(loaded.now.0)
                .arg(READ_IS_OLD_US)
                .arg(next.to_string())
                .arg(document)
                .invoke(connection)
        })?;
        self.swapped(&answer)
    }

    fn describe(&self) -> String {
        let version = self.version.as_deref().unwrap_or("of unknown version");
        format!("Redis {version} at {}", self.link.server())
    }
}

impl StoredDocuments for RedisStore {
    fn load_document(&mut self, name: &str) -> Result<Document, StoreError> {
        let key = document_key(name);
        let (etag, content): (Option<String>, Option<String>) =
            self.link.ask(|connection| redis::cmd("HMGET").arg(&key).arg("etag").arg("document").query(connection))?;
        Ok(Document { content, etag: self.etag(etag.as_deref())? })
    }

    fn swap_document(&mut self, name: &str, loaded: &Document, content: &str) -> Result<Swap, StoreError> {
        let (key, next) = (document_key(name), Etag::random()?);
        let answer: String = self.link.ask(|connection| {
            SWAP_DOCUMENT.key(&key).arg(expected(loaded.etag)).arg(next.to_string()).arg(content).invoke(connection)
        })?;
        self.swapped(&answer)
    }
}

fn document_key(name: &str) -> String {
    format!("mb:document:{name}")
}

fn expected(etag: Etag) -> String {
    if etag == Etag(0) { String::new() } else { etag.to_string() }
}
