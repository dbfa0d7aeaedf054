//! What each client spent today at providers, in US dollars. A day is one of UTC. Kept in a small file, so that a restart
//! forgives nobody.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use model_boss_protocol::ClientId;
use serde::{Deserialize, Serialize};

/// The file's name.
const FILE: &str = "spend.json";
const DAY: u64 = 86_400;

/// The ledger of one day.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Today {
    /// Days since 1970.
    day: u64,
    /// Dollars by client.
    spent: BTreeMap<String, f64>,
}

impl Today {
    /// Yesterday's counts for nothing.
    fn turn(&mut self, now: u64) {
        let day = now / DAY;
        if day != self.day {
            *self = Self { day, spent: BTreeMap::new() };
        }
    }
}

/// What was spent.
#[derive(Debug)]
pub(super) struct Spend {
    file: PathBuf,
    today: Mutex<Today>,
}

impl Spend {
    /// What the file below `state` says; nothing when there is none.
    pub(super) fn open(state: &Path) -> Self {
        let file = state.join(FILE);
        let today = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { file, today: Mutex::new(today) }
    }

    /// What this client spent today.
    pub(super) fn of(&self, client: &ClientId, now: u64) -> f64 {
        let mut today = self.today.lock().unwrap_or_else(PoisonError::into_inner);
        today.turn(now);
        today.spent.get(client.as_str()).copied().unwrap_or(0.0)
    }

    /// Counts a request.
    pub(super) fn add(&self, client: &ClientId, now: u64, dollars: f64) {
        let mut today = self.today.lock().unwrap_or_else(PoisonError::into_inner);
        today.turn(now);
        *today.spent.entry(client.to_string()).or_default() += dollars;
        if let Err(error) = write(&self.file, &today) {
            tracing::warn!(file = %self.file.display(), %error, "what was spent cannot be kept; it is counted in memory");
        }
    }
}

/// Whole or not at all.
fn write(file: &Path, today: &Today) -> std::io::Result<()> {
    let draft = file.with_extension("json.new");
    fs::write(&draft, serde_json::to_vec(today)?)?;
    fs::rename(&draft, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_survives_a_restart_and_not_the_day() {
        let folder = tempfile::tempdir().unwrap();
        let (client, now) = (ClientId::from("a"), 20_000 * DAY + 5);
        let spend = Spend::open(folder.path());
        spend.add(&client, now, 1.5);
        spend.add(&client, now + 60, 0.25);
        let again = Spend::open(folder.path());
        assert_eq!((again.of(&client, now), again.of(&ClientId::from("b"), now)), (1.75, 0.0));
        assert_eq!(again.of(&client, now + DAY), 0.0);
    }
}
