//! What was asked of providers and what it cost: today, which limits of clients are held to, and since the process began,
//! which the metrics show. A day is one of UTC. Today is kept in a small file, so that a restart forgives nobody; a thread of
//! its own writes it, so that nobody who counts waits for the disk.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use model_boss_lease_store::{StateFileUse, open_state_file, replace_state_file};
use model_boss_protocol::ClientId;
use serde::{Deserialize, Serialize};

use crate::clocks::unix_seconds;
use crate::state_folder::StateFolder;

/// The file's name.
pub(crate) const FILE: &str = "spend.json";
/// A file that cannot be written is tried again after this.
const TRY_AGAIN: Duration = Duration::from_millis(500);
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
    /// The file of this day was damaged: nobody knows what had been spent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unknown: bool,
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

/// Why nothing is reserved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Refused {
    /// So much was spent.
    Spent(f64),
    /// So much was spent, and the rest may go to requests under way.
    UnderWay(f64),
    /// What was spent today is not known.
    Unknown,
}

/// The most that a request may cost, held for as long as it is under way.
#[derive(Debug)]
pub(super) struct Reserved {
    kept: Arc<Kept>,
    client: ClientId,
    dollars: f64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut books = self.kept.books();
        if let Some(reserved) = books.reserved.get_mut(self.client.as_str()) {
            *reserved -= self.dollars;
            // What is left of sums of other sizes is no debt.
            if *reserved < 1e-12 {
                books.reserved.remove(self.client.as_str());
            }
        }
    }
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
    state: StateFolder,
    file: PathBuf,
    books: Mutex<Books>,
    /// Something is to be written, or it is over.
    news: Condvar,
}

#[derive(Clone, Debug, Default)]
struct Books {
    today: Today,
    /// Dollars that requests under way may cost at most, by client.
    reserved: BTreeMap<String, f64>,
    ever: Tallies,
    /// The file does not say what stands here.
    unwritten: bool,
    /// The file could not be read yet, so its content is not counted here.
    unread: bool,
    /// Nobody counts any more.
    over: bool,
}

impl Books {
    /// Counts what was found in the file beside what was counted since, if it is of the same day.
    fn add(&mut self, found: Today) {
        let counted = std::mem::replace(&mut self.today, found);
        if counted.spent.is_empty() && counted.providers.is_empty() {
            return;
        }
        self.today.turn(counted.day * DAY);
        for (client, dollars) in counted.spent {
            *self.today.spent.entry(client).or_default() += dollars;
        }
        for (provider, models) in counted.providers {
            let known = self.today.providers.entry(provider).or_default();
            for (model, more) in models {
                let tally = known.entry(model).or_default();
                tally.requests += more.requests;
                tally.errors += more.errors;
                tally.input_tokens = tally.input_tokens.saturating_add(more.input_tokens);
                tally.output_tokens = tally.output_tokens.saturating_add(more.output_tokens);
                tally.spent_usd += more.spent_usd;
            }
        }
    }

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
    /// What the file in the state folder says; nothing when there is none.
    pub(super) fn open(state: &StateFolder) -> Self {
        let (state, file) = (state.clone(), state.file(FILE));
        // To be read again before the first write, if it cannot be read now.
        let books = Mutex::new(Books { unread: true, ..Books::default() });
        let kept = Arc::new(Kept { state, file, books, news: Condvar::new() });
        kept.read_file();
        let own = Arc::clone(&kept);
        let writer = std::thread::Builder::new().name("spend".into()).spawn(move || own.write_news());
        let writer = writer.inspect_err(|error| tracing::warn!(%error, "what is spent is counted in memory only")).ok();
        Self { kept, writer }
    }

    /// Reserves the most that a request may cost, if the client has spent less than its limit and so have its requests that
    /// are under way: check and reservation are one step, so that no number of requests at once goes over the limit by more
    /// than the last of them costs.
    pub(super) fn reserve(&self, client: &ClientId, limit: f64, most: f64, now: u64) -> Result<Reserved, Refused> {
        let mut books = self.kept.books();
        books.today.turn(now);
        if books.unread || books.today.unknown {
            return Err(Refused::Unknown);
        }
        let spent = books.today.spent.get(client.as_str()).copied().unwrap_or(0.0);
        if spent >= limit {
            return Err(Refused::Spent(spent));
        }
        let reserved = books.reserved.entry(client.to_string()).or_default();
        if spent + *reserved >= limit {
            return Err(Refused::UnderWay(spent));
        }
        *reserved += most;
        drop(books);
        Ok(Reserved { kept: Arc::clone(&self.kept), client: client.clone(), dollars: most })
    }

    /// What this client spent today.
    #[cfg(test)]
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

    /// Writes what is new until it is over. Changes that come while the disk is busy are written together. A disk that fails is
    /// tried again: what is counted stays here until it is written.
    fn write_news(&self) {
        let mut failed = false;
        loop {
            let books = self.books();
            let mut books = if failed {
                let wait = self.news.wait_timeout_while(books, TRY_AGAIN, |books| !books.over);
                wait.unwrap_or_else(PoisonError::into_inner).0
            } else {
                let idle = |books: &mut Books| !books.unwritten && !books.unread && !books.over;
                self.news.wait_while(books, idle).unwrap_or_else(PoisonError::into_inner)
            };
            let over = books.over;
            if std::mem::take(&mut books.unwritten) {
                drop(books);
                failed = !self.write_file();
            } else if books.unread && !over {
                drop(books);
                failed = !self.read_file();
            } else {
                return;
            }
            if over {
                return;
            }
        }
    }

    /// Counts what the file says too. Whether that is done.
    fn read_file(&self) -> bool {
        let found = match read(&self.file) {
            Ok(found) => found,
            Err(error) => {
                self.state.trouble(&self.file, format!("what was spent today cannot be read: {error}"));
                return false;
            }
        };
        let mut books = self.books();
        if std::mem::take(&mut books.unread) {
            // A restart has to know that it does not know.
            books.unwritten |= found.unknown;
            books.add(found);
        }
        drop(books);
        self.state.well(&self.file);
        true
    }

    /// Writes what is counted. Whether that is done.
    fn write_file(&self) -> bool {
        // Its content would be lost.
        let read = !self.books().unread || self.read_file();
        let today = self.books().today.clone();
        let written = read
            && match serde_json::to_vec(&today).map_err(io::Error::from) {
                Ok(text) => {
                    replace_state_file(&self.file, &text).map_or_else(|error| self.unwritten(&error), |()| true)
                }
                Err(error) => self.unwritten(&error),
            };
        if written {
            self.state.well(&self.file);
        } else {
            self.books().unwritten = true;
        }
        written
    }

    fn unwritten(&self, error: &io::Error) -> bool {
        self.state.trouble(&self.file, format!("what was spent cannot be written and is counted in memory: {error}"));
        false
    }
}

/// The content of the file. A damaged one is moved aside: what was spent on that day is then not known.
fn read(file: &Path) -> io::Result<Today> {
    let mut text = Vec::new();
    match open_state_file(file, StateFileUse::Read) {
        Ok(mut open) => open.read_to_end(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Today::default()),
        Err(error) => return Err(error),
    };
    serde_json::from_slice(&text).or_else(|error| {
        let aside = file.with_extension("json.damaged");
        tracing::warn!("{} makes no sense ({error}) and is moved to {}", file.display(), aside.display());
        let today = Today { day: unix_seconds() / DAY, unknown: true, ..Today::default() };
        fs::rename(file, aside).map(|()| today)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clocks::unix_seconds;

    fn use_of<'a>(client: &'a ClientId, dollars: Option<f64>) -> Used<'a> {
        Used { client, provider: "claude", model: "opus", tokens: (7, 3), dollars }
    }

    #[test]
    fn what_is_spent_survives_a_restart_and_not_the_day() {
        let folder = tempfile::tempdir().unwrap();
        let (client, now) = (ClientId::from("a"), 20_000 * DAY + 5);
        let spend = Spend::open(&StateFolder::new(folder.path()));
        spend.used(&use_of(&client, Some(1.5)), now);
        spend.used(&use_of(&client, Some(0.25)), now + 60);
        spend.used(&use_of(&client, None), now + 60);
        drop(spend);
        let again = Spend::open(&StateFolder::new(folder.path()));
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
        let spend = Spend::open(&StateFolder::new(folder.path()));
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
    fn a_damaged_file_shuts_limits_until_the_day_ends_also_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(folder.path());
        let (client, now) = (ClientId::from("a"), unix_seconds());
        fs::write(folder.path().join(FILE), "{\"day\":20").unwrap();
        let spend = Spend::open(&state);
        assert_eq!(spend.reserve(&client, 5.0, 1.0, now).unwrap_err(), Refused::Unknown);
        drop(spend);
        let spend = Spend::open(&state);
        assert_eq!(spend.reserve(&client, 5.0, 1.0, now).unwrap_err(), Refused::Unknown);
        spend.used(&use_of(&client, Some(1.0)), now);
        drop(spend);
        let again = Spend::open(&state);
        assert_eq!(again.of(&client, now), 1.0);
        assert_eq!(again.reserve(&client, 5.0, 1.0, now).unwrap_err(), Refused::Unknown);
        again.reserve(&client, 5.0, 1.0, now + 2 * DAY).unwrap();
        drop(again);
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(files.len(), 2, "the damaged file is aside, and no draft is left: {files:?}");
        assert_eq!(fs::read(folder.path().join("spend.json.damaged")).unwrap(), b"{\"day\":20");
    }

    #[test]
    fn what_is_under_way_counts_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let spend = Spend::open(&StateFolder::new(folder.path()));
        let (client, other, now) = (ClientId::from("a"), ClientId::from("b"), 20_000 * DAY);
        let first = spend.reserve(&client, 1.0, 0.75, now).unwrap();
        let second = spend.reserve(&client, 1.0, 0.75, now).unwrap();
        assert_eq!(spend.reserve(&client, 1.0, 0.0, now).unwrap_err(), Refused::UnderWay(0.0));
        drop(spend.reserve(&other, 1.0, 9.0, now).unwrap());
        drop(first);
        let third = spend.reserve(&client, 1.0, 0.25, now).unwrap();
        spend.used(&use_of(&client, Some(1.0)), now);
        assert_eq!(spend.reserve(&client, 1.0, 0.0, now).unwrap_err(), Refused::Spent(1.0));
        drop((second, third));
        assert!(spend.kept.books().reserved.is_empty());
    }

    #[test]
    fn no_number_of_threads_goes_over_a_limit_by_more_than_one_request() {
        let folder = tempfile::tempdir().unwrap();
        let (client, now) = (ClientId::from("a"), 20_000 * DAY);
        let spend = Spend::open(&StateFolder::new(folder.path()));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        if let Ok(reserved) = spend.reserve(&client, 1.0, 0.3, now) {
                            spend.used(&use_of(&client, Some(0.3)), now);
                            drop(reserved);
                        }
                    }
                });
            }
        });
        let spent = spend.of(&client, now);
        assert!((1.0..1.3 + 1e-9).contains(&spent), "{spent}");
    }

    #[test]
    fn what_a_disk_does_not_take_is_counted_and_written_when_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(&folder.path().join("state"));
        let (client, now) = (ClientId::from("a"), 20_000 * DAY);
        let spend = Spend::open(&state);
        spend.used(&use_of(&client, Some(1.0)), now);
        let until = |done: &dyn Fn() -> bool| {
            while !done() {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        };
        until(&|| {
            state.troubles().iter().any(|trouble| trouble.contains("spend.json: what was spent cannot be written"))
        });
        spend.used(&use_of(&client, Some(0.5)), now);
        assert_eq!(spend.of(&client, now), 1.5);
        fs::create_dir(folder.path().join("state")).unwrap();
        until(&|| state.troubles().is_empty());
        assert_eq!(Spend::open(&state).of(&client, now), 1.5);
    }

    #[test]
    fn a_file_that_could_not_be_read_at_first_counts_too() {
        let folder = tempfile::tempdir().unwrap();
        let (state, file) = (StateFolder::new(folder.path()), folder.path().join(FILE));
        std::os::unix::fs::symlink("elsewhere", &file).unwrap();
        let (client, now) = (ClientId::from("a"), 20_000 * DAY);
        let spend = Spend::open(&state);
        spend.used(&use_of(&client, Some(1.0)), now);
        assert!(state.troubles()[0].contains("it is a link"), "{:?}", state.troubles());
        let mended = folder.path().join("mended");
        fs::write(&mended, r#"{"day":20000,"spent":{"a":2.5}}"#).unwrap();
        fs::rename(mended, &file).unwrap();
        drop(spend);
        assert_eq!(Spend::open(&state).of(&client, now), 3.5);
    }

    #[test]
    fn a_file_of_before_counts_of_providers_were_kept_is_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), r#"{"day":20000,"spent":{"a":2.5}}"#).unwrap();
        assert_eq!(Spend::open(&StateFolder::new(folder.path())).of(&ClientId::from("a"), 20_000 * DAY), 2.5);
    }

    #[test]
    fn names_that_nobody_answers_for_are_counted_together() {
        let folder = tempfile::tempdir().unwrap();
        let spend = Spend::open(&StateFolder::new(folder.path()));
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
