//! What was asked of providers and what it cost: today, which limits of clients are held to, and since the process began,
//! which the metrics show. A day is one of UTC. Today is kept in a small file, so that a restart forgives nobody.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use model_boss_protocol::ClientId;
use serde::{Deserialize, Serialize};

/// The file's name.
const FILE: &str = "spend.json";
/// Seconds.
pub(super) const DAY: u64 = 86_400;
/// Models of a provider that are counted apart. Their names come from clients: more would let anybody grow the metrics.
const MAX_MODELS: usize = 64;
/// Where the others are counted, and names that no answer has come for.
pub(crate) const OTHER: &str = "other";

/// What was asked, and what it cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Tally {
    /// Requests that were sent there.
    pub(crate) requests: u64,
    /// Those that got no answer.
    pub(crate) errors: u64,
    /// Tokens of prompts.
    pub(crate) input_tokens: u64,
    /// Tokens of answers.
    pub(crate) output_tokens: u64,
    /// US dollars, where prices are known.
    pub(crate) spent_usd: f64,
}

/// By provider, then by the provider's own name of the model.
pub(crate) type Tallies = BTreeMap<String, BTreeMap<String, Tally>>;

/// The ledger of one day.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Today {
    /// Days since 1970.
    pub(crate) day: u64,
    /// Dollars by client.
    pub(crate) spent: BTreeMap<String, f64>,
    /// What was asked of each provider.
    #[serde(default)]
    pub(crate) providers: Tallies,
}

impl Today {
    /// Yesterday's counts for nothing.
    fn turn(&mut self, now: u64) {
        let day = now / DAY;
        if day != self.day {
            *self = Self { day, ..Self::default() };
        }
    }
}

/// What an answer used.
pub(super) struct Used<'a> {
    pub(super) client: &'a ClientId,
    pub(super) provider: &'a str,
    pub(super) model: &'a str,
    /// Of prompt and of answer.
    pub(super) tokens: (u64, u64),
    /// `None` where no price is known.
    pub(super) dollars: Option<f64>,
}

/// What was asked and spent.
#[derive(Debug)]
pub(super) struct Spend {
    file: PathBuf,
    books: Mutex<Books>,
}

#[derive(Clone, Debug, Default)]
struct Books {
    today: Today,
    ever: Tallies,
}

impl Books {
    /// Does the same to both counts of a model. One that was never answered for has none of its own: `answered` makes it.
    fn count(&mut self, now: u64, (provider, model): (&str, &str), answered: bool, change: impl Fn(&mut Tally)) {
        self.today.turn(now);
        for tallies in [&mut self.today.providers, &mut self.ever] {
            let models = tallies.entry(provider.to_owned()).or_default();
            let own = models.contains_key(model) || (answered && models.len() < MAX_MODELS);
            change(models.entry(if own { model } else { OTHER }.to_owned()).or_default());
        }
    }
}

impl Spend {
    /// What the file below `state` says; nothing when there is none.
    pub(super) fn open(state: &Path) -> Self {
        let file = state.join(FILE);
        let today = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { file, books: Mutex::new(Books { today, ever: Tallies::new() }) }
    }

    /// What this client spent today.
    pub(super) fn of(&self, client: &ClientId, now: u64) -> f64 {
        self.with(|books| {
            books.today.turn(now);
            books.today.spent.get(client.as_str()).copied().unwrap_or(0.0)
        })
    }

    /// Counts a request that was sent, and whether an answer began.
    pub(super) fn asked(&self, provider: &str, model: &str, answered: bool, now: u64) {
        self.with(|books| {
            books.count(now, (provider, model), answered, |tally| {
                tally.requests += 1;
                tally.errors += u64::from(!answered);
            });
        });
    }

    /// Counts what an answer used.
    pub(super) fn used(&self, used: &Used<'_>, now: u64) {
        let (input, output) = used.tokens;
        let today = self.with(|books| {
            books.count(now, (used.provider, used.model), true, |tally| {
                tally.input_tokens += input;
                tally.output_tokens += output;
                tally.spent_usd += used.dollars.unwrap_or(0.0);
            });
            if let Some(dollars) = used.dollars {
                *books.today.spent.entry(used.client.to_string()).or_default() += dollars;
            }
            write(&self.file, &books.today)
        });
        if let Err(error) = today {
            tracing::warn!(file = %self.file.display(), %error, "what was spent cannot be kept; it is counted in memory");
        }
    }

    /// Today's ledger.
    pub(super) fn today(&self, now: u64) -> Today {
        self.with(|books| {
            books.today.turn(now);
            books.today.clone()
        })
    }

    /// What was asked since the process began.
    pub(super) fn ever(&self) -> Tallies {
        self.with(|books| books.ever.clone())
    }

    fn with<T>(&self, change: impl FnOnce(&mut Books) -> T) -> T {
        change(&mut self.books.lock().unwrap_or_else(PoisonError::into_inner))
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

    fn use_of<'a>(client: &'a ClientId, dollars: Option<f64>) -> Used<'a> {
        Used { client, provider: "claude", model: "opus", tokens: (7, 3), dollars }
    }

    #[test]
    fn what_is_spent_survives_a_restart_and_not_the_day() {
        let folder = tempfile::tempdir().unwrap();
        let (client, now) = (ClientId::from("a"), 20_000 * DAY + 5);
        let spend = Spend::open(folder.path());
        spend.used(&use_of(&client, Some(1.5)), now);
        spend.used(&use_of(&client, Some(0.25)), now + 60);
        spend.used(&use_of(&client, None), now + 60);
        let again = Spend::open(folder.path());
        assert_eq!((again.of(&client, now), again.of(&ClientId::from("b"), now)), (1.75, 0.0));
        let tally = Tally { input_tokens: 21, output_tokens: 9, spent_usd: 1.75, ..Tally::default() };
        assert_eq!(again.today(now).providers["claude"]["opus"], tally);
        assert!(again.ever().is_empty(), "counters begin with the process");
        assert_eq!(again.of(&client, now + DAY), 0.0);
        assert!(again.today(now + DAY).providers.is_empty());
    }

    #[test]
    fn a_file_of_before_counts_of_providers_were_kept_is_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), r#"{"day":20000,"spent":{"a":2.5}}"#).unwrap();
        assert_eq!(Spend::open(folder.path()).of(&ClientId::from("a"), 20_000 * DAY), 2.5);
    }

    #[test]
    fn names_that_nobody_answers_for_are_counted_together() {
        let folder = tempfile::tempdir().unwrap();
        let spend = Spend::open(folder.path());
        for n in 0..1_000 {
            spend.asked("claude", &format!("made-up-{n}"), false, 0);
        }
        for n in 0..100 {
            spend.asked("claude", &format!("m{n}"), true, 0);
        }
        spend.asked("claude", "m0", false, 0);
        let models = &spend.ever()["claude"];
        assert_eq!(models.len(), MAX_MODELS);
        assert_eq!(models["m0"], Tally { requests: 2, errors: 1, ..Tally::default() });
        assert_eq!((models[OTHER].requests, models[OTHER].errors), (1_000 + 37, 1_000));
    }
}
