//! What was asked of providers and what it cost: today, which limits of clients are held to, and since the process began,
//! which the metrics show. A day is one of UTC. Today is kept in a small file, so that a restart forgives nobody; a thread of
//! its own writes it, so that nobody who counts waits for the disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

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
    /// Yesterday's counts for nothing. What began yesterday and ends today counts for today. A day that lies further back is a
    /// clock that was put right.
    fn turn(&mut self, now: u64) {
        let day = now / DAY;
        if day != self.day && day.saturating_add(1) != self.day {
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

/// What was asked and spent. Dropped, it has written all of it.
#[derive(Debug)]
pub(super) struct Spend {
    kept: Arc<Kept>,
    /// `None` where there is no thread to be had.
    writer: Option<JoinHandle<()>>,
}

/// What is counted, and where it is kept.
#[derive(Debug)]
struct Kept {
    file: PathBuf,
    books: Mutex<Books>,
    /// Something is to be written, or it is over.
    news: Condvar,
}

#[derive(Clone, Debug, Default)]
struct Books {
    today: Today,
    ever: Tallies,
    /// The file does not say what stands here.
    unwritten: bool,
    /// Nobody counts any more.
    over: bool,
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
        let today = read(&file).unwrap_or_else(|error| {
            tracing::warn!(file = %file.display(), %error, "what was spent today cannot be read; it counts for nothing");
            Today::default()
        });
        let books = Mutex::new(Books { today, ..Books::default() });
        let kept = Arc::new(Kept { file, books, news: Condvar::new() });
        let own = Arc::clone(&kept);
        let writer = std::thread::Builder::new().name("spend".into()).spawn(move || own.write_news());
        let writer = writer.inspect_err(|error| tracing::warn!(%error, "what is spent is counted in memory only")).ok();
        Self { kept, writer }
    }

    /// What this client spent today.
    pub(super) fn of(&self, client: &ClientId, now: u64) -> f64 {
        let mut books = self.kept.books();
        books.today.turn(now);
        books.today.spent.get(client.as_str()).copied().unwrap_or(0.0)
    }

    /// Counts a request that was sent, and whether an answer began.
    pub(super) fn asked(&self, provider: &str, model: &str, answered: bool, now: u64) {
        self.change(|books| {
            books.count(now, (provider, model), answered, |tally| {
                tally.requests += 1;
                tally.errors += u64::from(!answered);
            });
        });
    }

    /// Counts what an answer used.
    pub(super) fn used(&self, used: &Used<'_>, now: u64) {
        let (input, output) = used.tokens;
        self.change(|books| {
            books.count(now, (used.provider, used.model), true, |tally| {
                tally.input_tokens = tally.input_tokens.saturating_add(input);
                tally.output_tokens = tally.output_tokens.saturating_add(output);
                tally.spent_usd += used.dollars.unwrap_or(0.0);
            });
            if let Some(dollars) = used.dollars {
                *books.today.spent.entry(used.client.to_string()).or_default() += dollars;
            }
        });
    }

    /// Today's ledger.
    pub(super) fn today(&self, now: u64) -> Today {
        let mut books = self.kept.books();
        books.today.turn(now);
        books.today.clone()
    }

    /// What was asked since the process began.
    pub(super) fn ever(&self) -> Tallies {
        self.kept.books().ever.clone()
    }

    fn change(&self, how: impl FnOnce(&mut Books)) {
        let mut books = self.kept.books();
        how(&mut books);
        books.unwritten = true;
        self.kept.news.notify_one();
    }
}

impl Drop for Spend {
    fn drop(&mut self) {
        self.kept.books().over = true;
        self.kept.news.notify_one();
        if let Some(writer) = self.writer.take() {
            // One that panicked has written what it could.
            let _ = writer.join();
        }
    }
}

impl Kept {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what is new until it is over. What changes while the disk is busy is written together.
    fn write_news(&self) {
        let idle = |books: &mut Books| !books.unwritten && !books.over;
        loop {
            let mut books = self.news.wait_while(self.books(), idle).unwrap_or_else(PoisonError::into_inner);
            if !std::mem::take(&mut books.unwritten) {
                return;
            }
            let today = books.today.clone();
            drop(books);
            if let Err(error) = write(&self.file, &today) {
                let file = self.file.display();
                tracing::warn!(%file, %error, "what was spent cannot be kept; it is counted in memory");
            }
        }
    }
}

fn read(file: &Path) -> io::Result<Today> {
    match fs::read(file) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Today::default()),
        Err(error) => Err(error),
    }
}

/// Whole or not at all, whatever ends meanwhile.
fn write(file: &Path, today: &Today) -> io::Result<()> {
    let new = file.with_extension("json.new");
    let mut draft = File::create(&new)?;
    draft.write_all(&serde_json::to_vec(today)?)?;
    draft.sync_all()?;
    fs::rename(new, file)
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
        drop(spend);
        let again = Spend::open(folder.path());
        assert_eq!((again.of(&client, now), again.of(&ClientId::from("b"), now)), (1.75, 0.0));
        let tally = Tally { input_tokens: 21, output_tokens: 9, spent_usd: 1.75, ..Tally::default() };
        assert_eq!(again.today(now).providers["claude"]["opus"], tally);
        assert!(again.ever().is_empty(), "counters begin with the process");
        assert_eq!(again.of(&client, now + DAY), 0.0);
        assert!(again.today(now + DAY).providers.is_empty());
    }

    #[test]
    fn what_began_before_midnight_takes_nothing_back() {
        let folder = tempfile::tempdir().unwrap();
        let spend = Spend::open(folder.path());
        let (late, early) = (ClientId::from("late"), ClientId::from("early"));
        let midnight = 20_000 * DAY;
        spend.used(&use_of(&early, Some(5.0)), midnight + 1);
        // Its answer took until now; the request came yesterday.
        spend.used(&use_of(&late, Some(2.0)), midnight - 1);
        assert_eq!((spend.of(&early, midnight + 2), spend.of(&late, midnight + 2)), (5.0, 2.0));
        // A clock that was a year ahead does not keep its day for a year.
        spend.used(&use_of(&early, Some(1.0)), midnight + 365 * DAY);
        assert_eq!(spend.of(&early, midnight), 0.0);
    }

    #[test]
    fn a_damaged_file_is_nothing_and_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "{\"day\":20").unwrap();
        let (client, now) = (ClientId::from("a"), 20_000 * DAY);
        Spend::open(folder.path()).used(&use_of(&client, Some(1.0)), now);
        assert_eq!(Spend::open(folder.path()).of(&client, now), 1.0);
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(files, [FILE], "no draft is left");
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
