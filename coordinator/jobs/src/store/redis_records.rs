//! Records in Redis or Valkey: one hash for each state folder, because bodies and results are files of that folder.

use std::sync::LazyLock;

use model_boss_lease_store::RedisLink;
use redis::Script;

use super::error::JobStoreError;
use super::traits::{RecordChange, RecordStore, SCHEMA};

/// The fields of the hash that are no records.
const FORM: &str = "form";
const TAKEN: &str = "taken";
/// The beginning of the fields that are records.
const RECORD: &str = "record:";
/// Records read in one step, so that no answer takes long.
const PIECE: usize = 200;

/// Takes the store over. Argument: the last form that is known. Returns the form, or 0 and the number of the take-over.
static TAKE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local form = tonumber(redis.call('HGET', KEYS[1], 'form') or ARGV[1])
        if form > tonumber(ARGV[1]) then return {form, 0} end
        redis.call('HSET', KEYS[1], 'form', ARGV[1])
        return {0, redis.call('HINCRBY', KEYS[1], 'taken', 1)}
        ",
    )
});

/// Keeps changes. Arguments: the number of the take-over; then for each change its kind, name and text.
static COMMIT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        if redis.call('HGET', KEYS[1], 'taken') ~= ARGV[1] then return 'TAKEN' end
        for i = 2, #ARGV, 3 do
            if ARGV[i] == 'put' then
                redis.call('HSET', KEYS[1], 'record:' .. ARGV[i + 1], ARGV[i + 2])
            else
                redis.call('HDEL', KEYS[1], 'record:' .. ARGV[i + 1])
            end
        end
        return 'DONE'
        ",
    )
});

/// Records in a hash of a Redis server.
pub struct RedisRecords {
    link: RedisLink,
    key: String,
    taken: u64,
}

impl RedisRecords {
    /// The records of the folder with this name, on the server of this URL. The call opens no connection.
    pub fn new(url: &str, folder: &str) -> Result<Self, JobStoreError> {
        Ok(Self { link: RedisLink::to(url)?, key: format!("mb:jobs:{folder}"), taken: 0 })
    }

    fn bad_answer(&self, detail: String) -> JobStoreError {
        JobStoreError::BadAnswer { store: self.describe(), detail }
    }
}

impl RecordStore for RedisRecords {
    fn take_over(&mut self) -> Result<Vec<(String, String)>, JobStoreError> {
        let key = self.key.clone();
        let (newer, taken): (u64, u64) = self.link.ask(|connection| TAKE.key(&key).arg(SCHEMA).invoke(connection))?;
        if newer > 0 {
            return Err(JobStoreError::Newer { store: self.describe(), found: newer, known: SCHEMA });
        }
        self.taken = taken;
        let mut records = std::collections::BTreeMap::new();
        let mut cursor = 0_u64;
        loop {
            let (next, piece): (u64, Vec<(String, String)>) = self.link.ask(|connection| {
                redis::cmd("HSCAN").arg(&key).arg(cursor).arg("COUNT").arg(PIECE).query(connection)
            })?;
            // A scan may give a field twice.
            for (field, text) in piece {
                match field.strip_prefix(RECORD) {
                    Some(name) => _ = records.insert(name.to_owned(), text),
                    None if field == FORM || field == TAKEN => {}
                    None => return Err(self.bad_answer(format!("somebody else wrote '{field}' to {key}"))),
                }
            }
            if next == 0 {
                return Ok(records.into_iter().collect());
            }
            cursor = next;
        }
    }

    fn commit(&mut self, changes: &[RecordChange]) -> Result<(), JobStoreError> {
        let (key, taken) = (self.key.clone(), self.taken);
        let answer: String = self.link.ask(|connection| {
            let mut script = COMMIT.key(&key);
            script.arg(taken);
            for change in changes {
                match change {
                    RecordChange::Put { name, text } => script.arg("put").arg(name).arg(text),
                    RecordChange::Delete { name } => script.arg("delete").arg(name).arg(""),
                };
            }
            script.invoke(connection)
        })?;
        match answer.as_str() {
            "DONE" => Ok(()),
            "TAKEN" => Err(JobStoreError::TakenOver { store: self.describe() }),
            other => Err(self.bad_answer(format!("a change came to '{other}'"))),
        }
    }

    fn describe(&self) -> String {
        format!("Redis at {}", self.link.server())
    }
}
