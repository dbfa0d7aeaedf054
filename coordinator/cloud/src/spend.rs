//! Counts of requests to providers and their cost. Today's counts enforce the limits of clients; those since the start
//! feed the metrics. A day is one of UTC. A small file keeps today's counts, so that a restart does not reset the
//! limits.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model_boss_host::clocks::unix_seconds;
use model_boss_host::state_folder::{KeptFile, StateFolder};
use model_boss_lease_store::{StateFileUse, open_state_file};
use model_boss_protocol::ClientId;
use serde::{Deserialize, Serialize};

/// The file's name.
pub const FILE: &str = "spend.json";
/// The length of a day in seconds.
pub(super) const DAY: u64 = 86_400;
/// The most models of a provider with counts of their own. Clients choose the names, so an unlimited number would let
/// them inflate the metrics.
const MAX_MODELS: usize = 64;
/// The most clients with a sum of their own. Clients name themselves, so an unlimited number would let them inflate the
/// file and every answer that lists them. Further clients share one sum, and each of them is limited by it.
const MAX_CLIENTS: usize = 4_096;
/// The name under which further models and clients are counted, and models that have never answered.
pub(crate) const OTHER: &str = "other";

/// Counts of requests and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpendTally {
    /// Requests that were sent.
    pub requests: u64,
    /// Requests that got no answer.
    pub errors: u64,
    /// Tokens of prompts.
    pub input_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// US dollars of requests with known prices.
    pub spent_usd: f64,
}

/// Counts by provider, then by the provider's own name of the model.
pub(crate) type Tallies = BTreeMap<String, BTreeMap<String, SpendTally>>;

/// The ledger of one day.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Today {
    /// The day, counted from 1970.
    pub day: u64,
    /// Dollars by client.
    pub spent: BTreeMap<String, f64>,
    /// Dollars of all clients without a sum of their own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others_spent: f64,
    /// Tokens by client, for clients with a limit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tokens: BTreeMap<String, u64>,
    /// The counts of each provider.
    #[serde(default)]
    pub providers: Tallies,
    /// Whether the file of this day was damaged, so that today's spending is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_zero(dollars: &f64) -> bool {
    *dollars == 0.0
}

impl Today {
    /// Whether this client has, or would get, a sum of its own.
    pub(crate) fn counts_apart(&self, client: &str) -> bool {
        self.spent.len() < MAX_CLIENTS || self.spent.contains_key(client)
    }

    /// The dollars that this client spent, or the shared sum where it has none of its own.
    pub fn spent_by(&self, client: &str) -> f64 {
        let own = self.spent.get(client).copied().unwrap_or_default();
        if self.counts_apart(client) { own } else { self.others_spent }
    }

    /// The tokens that this client used, or those of all clients without a count of their own.
    fn tokens_of(&self, client: &str) -> u64 {
        self.tokens.get(self.token_count(client)).copied().unwrap_or_default()
    }

    fn use_tokens(&mut self, client: &str, tokens: u64) {
        let count = self.tokens.entry(self.token_count(client).to_owned()).or_default();
        *count = count.saturating_add(tokens);
    }

    /// The name under which a client's tokens are counted.
    fn token_count<'a>(&self, client: &'a str) -> &'a str {
        if self.tokens.len() < MAX_CLIENTS || self.tokens.contains_key(client) { client } else { OTHER }
    }

    fn spend(&mut self, client: String, dollars: f64) {
        if self.counts_apart(&client) {
            *self.spent.entry(client).or_default() += dollars;
        } else {
            self.others_spent += dollars;
        }
    }

    /// Starts a new day. A time on the day before the recorded one comes from a request that began yesterday, and
    /// counts for today. A recorded day that lies further ahead comes from a wrong clock, and is dropped.
    fn turn(&mut self, now: u64) {
        let day = now / DAY;
        if day != self.day && day.saturating_add(1) != self.day {
            *self = Self { day, ..Self::default() };
        }
    }
}

/// The usage of one answer.
pub(super) struct Used<'a> {
    pub(super) client: &'a ClientId,
    pub(super) provider: &'a str,
    pub(super) model: &'a str,
    /// Tokens of prompt and of answer.
    pub(super) tokens: (u64, u64),
    /// The cost; `None` without a known price.
    pub(super) dollars: Option<f64>,
}

/// Why no dollars are reserved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SpendRefusal {
    /// The limit is spent; holds the dollars spent.
    Spent(f64),
    /// Running requests may spend the rest of the limit; holds the dollars spent.
    UnderWay(f64),
    /// Today's spending is not known.
    Unknown,
}

/// The most that a request may cost, reserved while it runs.
#[derive(Debug)]
pub(super) struct Reserved {
    kept: Arc<SpendState>,
    /// The client whose sum the reservation counts against; `None` for the shared sum.
    client: Option<ClientId>,
    dollars: f64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut books = self.kept.books();
        if let Some(reserved) = books.reserved.get_mut(&self.client) {
            *reserved -= self.dollars;
            // A remainder this small comes from rounding.
            if *reserved < 1e-12 {
                books.reserved.remove(&self.client);
            }
        }
    }
}

/// The counts of all providers. Dropping the value writes them to the file.
#[derive(Debug)]
pub(super) struct Spend {
    kept: Arc<SpendState>,
    file: KeptFile,
}

/// The counts, and the state of their file.
#[derive(Debug)]
struct SpendState {
    path: PathBuf,
    books: Mutex<Books>,
}

#[derive(Clone, Debug, Default)]
struct Books {
    today: Today,
    /// The most that running requests may cost in dollars, by client; `None` has those of the shared sum.
    reserved: BTreeMap<Option<ClientId>, f64>,
    ever: Tallies,
    /// Whether the file could not be read yet, so that its counts are missing here.
    unread: bool,
}

impl Books {
    /// Adds the counts of the file to those since the start, if they are of the same day.
    fn add(&mut self, found: Today) {
        let counted = std::mem::replace(&mut self.today, found);
        for (client, dollars) in std::mem::take(&mut self.today.spent) {
            self.today.spend(client, dollars);
        }
        if counted.spent.is_empty() && counted.providers.is_empty() && counted.tokens.is_empty() {
            return;
        }
        self.today.turn(counted.day * DAY);
        for (client, tokens) in counted.tokens {
            self.today.use_tokens(&client, tokens);
        }
        self.today.others_spent += counted.others_spent;
        for (client, dollars) in counted.spent {
            self.today.spend(client, dollars);
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

    /// Applies a change to both counts of a model. A model that never answered has no count of its own: `answered`
    /// creates it.
    fn count(&mut self, now: u64, (provider, model): (&str, &str), answered: bool, change: impl Fn(&mut SpendTally)) {
        self.today.turn(now);
        for tallies in [&mut self.today.providers, &mut self.ever] {
            let models = tallies.entry(provider.to_owned()).or_default();
            let own = models.contains_key(model) || (answered && models.len() < MAX_MODELS);
            change(models.entry(if own { model } else { OTHER }.to_owned()).or_default());
        }
    }
}

impl Spend {
    /// Reads the file in the state folder; without it the counts are zero.
    pub(super) fn open(state: &StateFolder) -> Self {
        let books = Mutex::new(Books { unread: true, ..Books::default() });
        let kept = Arc::new(SpendState { path: state.file(FILE), books });
        let read = kept.read_file();
        let own = Arc::clone(&kept);
        let file = state.keep(FILE, "what was spent cannot be written and is counted in memory", move || own.content());
        // The file is read before it is written: if it cannot be read now, reading is repeated later. If its content is
        // lost, the new file records that for a restart.
        if read.is_err() || kept.books().today.unknown {
            file.changed();
        }
        if let Err(why) = read {
            state.trouble(&kept.path, why);
        }
        Self { kept, file }
    }

    /// Reserves the most that a request may cost, if the client is below its limit. The sum counts both spent dollars
    /// and those reserved by running requests. Check and reservation are one step: requests at once exceed the limit by
    /// the cost of the last one at most.
    pub(super) fn reserve(&self, client: &ClientId, limit: f64, most: f64, now: u64) -> Result<Reserved, SpendRefusal> {
        let mut books = self.kept.books();
        books.today.turn(now);
        if books.unread || books.today.unknown {
            return Err(SpendRefusal::Unknown);
        }
        let spent = books.today.spent_by(client.as_str());
        if spent >= limit {
            return Err(SpendRefusal::Spent(spent));
        }
        let client = books.today.counts_apart(client.as_str()).then(|| client.clone());
        let reserved = books.reserved.entry(client.clone()).or_default();
        if spent + *reserved >= limit {
            return Err(SpendRefusal::UnderWay(spent));
        }
        *reserved += most;
        drop(books);
        Ok(Reserved { kept: Arc::clone(&self.kept), client, dollars: most })
    }

    /// Counts tokens of a client with a limit. Where today's counts are lost, they begin anew: no money is at stake.
    pub(super) fn use_tokens(&self, client: &ClientId, tokens: u64, now: u64) {
        self.change(|books| {
            books.today.turn(now);
            books.today.use_tokens(client.as_str(), tokens);
        });
    }

    /// The tokens that this client used today.
    pub(super) fn tokens_of(&self, client: &ClientId, now: u64) -> u64 {
        let mut books = self.kept.books();
        books.today.turn(now);
        books.today.tokens_of(client.as_str())
    }

    /// The dollars that this client spent today.
    #[cfg(test)]
    pub(super) fn of(&self, client: &ClientId, now: u64) -> f64 {
        let mut books = self.kept.books();
        books.today.turn(now);
        books.today.spent_by(client.as_str())
    }

    /// Whether this client has a sum of its own, now.
    pub(super) fn counts_apart(&self, client: &ClientId) -> bool {
        self.kept.books().today.counts_apart(client.as_str())
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

    /// Counts the usage of an answer.
    pub(super) fn used(&self, used: &Used<'_>, now: u64) {
        let (input, output) = used.tokens;
        self.change(|books| {
            books.count(now, (used.provider, used.model), true, |tally| {
                tally.input_tokens = tally.input_tokens.saturating_add(input);
                tally.output_tokens = tally.output_tokens.saturating_add(output);
                tally.spent_usd += used.dollars.unwrap_or(0.0);
            });
            // A client that spent nothing needs no sum of its own.
            if let Some(dollars) = used.dollars.filter(|dollars| *dollars > 0.0) {
                books.today.spend(used.client.to_string(), dollars);
            }
        });
    }

    /// The spending of today, after a change of the day if necessary.
    pub(super) fn today(&self, now: u64) -> Today {
        let mut books = self.kept.books();
        books.today.turn(now);
        books.today.clone()
    }

    /// Counts since the process began.
    pub(super) fn ever(&self) -> Tallies {
        self.kept.books().ever.clone()
    }

    fn change(&self, how: impl FnOnce(&mut Books)) {
        how(&mut self.kept.books());
        self.file.changed();
    }
}

impl SpendState {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The text of the file. The call fails until the file was read once, because its content would be lost.
    fn content(&self) -> Result<Vec<u8>, String> {
        self.read_file()?;
        let today = self.books().today.clone();
        serde_json::to_vec(&today).map_err(|error| error.to_string())
    }

    /// Adds the counts of the file, unless that is done.
    fn read_file(&self) -> Result<(), String> {
        if !self.books().unread {
            return Ok(());
        }
        let found = read(&self.path).map_err(|error| format!("what was spent today cannot be read: {error}"))?;
        let mut books = self.books();
        if std::mem::take(&mut books.unread) {
            books.add(found);
        }
        Ok(())
    }
}

/// The content of the file. A damaged file is moved aside: the spending of that day is then unknown.
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
    use std::time::Duration;

    use super::*;
    use model_boss_host::clocks::unix_seconds;

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
        let tally = SpendTally { input_tokens: 21, output_tokens: 9, spent_usd: 1.75, ..SpendTally::default() };
        assert_eq!(again.today(now).providers["claude"]["opus"], tally);
        assert!(again.ever().is_empty(), "counters begin with the process");
        assert_eq!(again.of(&client, now + DAY), 0.0);
        assert!(again.today(now + DAY).providers.is_empty());
    }

    #[test]
    fn op_5_tokens_are_counted_for_a_day_and_survive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (client, now) = (ClientId::from("a"), 20_000 * DAY + 5);
        let spend = Spend::open(&StateFolder::new(folder.path()));
        spend.use_tokens(&client, 70, now);
        spend.use_tokens(&client, 5, now + 60);
        spend.use_tokens(&ClientId::from("b"), 1, now + 60);
        drop(spend);
        let again = Spend::open(&StateFolder::new(folder.path()));
        assert_eq!((again.tokens_of(&client, now), again.tokens_of(&ClientId::from("c"), now)), (75, 0));
        for n in 0..MAX_CLIENTS {
            again.use_tokens(&ClientId::from(format!("client-{n}").as_str()), 1, now);
        }
        let stranger = ClientId::from("one more");
        again.use_tokens(&stranger, 10, now);
        assert_eq!(again.tokens_of(&stranger, now), 12, "strangers share one count");
        assert_eq!(again.tokens_of(&client, now), 75);
        assert_eq!(again.tokens_of(&client, now + DAY), 0);
    }

    #[test]
    fn what_began_before_midnight_takes_nothing_back() {
        let folder = tempfile::tempdir().unwrap();
        let spend = Spend::open(&StateFolder::new(folder.path()));
        let (late, early) = (ClientId::from("late"), ClientId::from("early"));
        let midnight = 20_000 * DAY;
        spend.used(&use_of(&early, Some(5.0)), midnight + 1);
        // The request was made on the day before; its answer lasted until now.
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
        assert_eq!(spend.reserve(&client, 5.0, 1.0, now).unwrap_err(), SpendRefusal::Unknown);
        drop(spend);
        let spend = Spend::open(&state);
        assert_eq!(spend.reserve(&client, 5.0, 1.0, now).unwrap_err(), SpendRefusal::Unknown);
        spend.used(&use_of(&client, Some(1.0)), now);
        drop(spend);
        let again = Spend::open(&state);
        assert_eq!(again.of(&client, now), 1.0);
        assert_eq!(again.reserve(&client, 5.0, 1.0, now).unwrap_err(), SpendRefusal::Unknown);
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
        assert_eq!(spend.reserve(&client, 1.0, 0.0, now).unwrap_err(), SpendRefusal::UnderWay(0.0));
        drop(spend.reserve(&other, 1.0, 9.0, now).unwrap());
        drop(first);
        let third = spend.reserve(&client, 1.0, 0.25, now).unwrap();
        spend.used(&use_of(&client, Some(1.0)), now);
        assert_eq!(spend.reserve(&client, 1.0, 0.0, now).unwrap_err(), SpendRefusal::Spent(1.0));
        drop((second, third));
        assert!(spend.kept.books().reserved.is_empty());
    }

    #[test]
    fn invented_names_share_one_sum_and_no_limit_is_passed_by_them() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(folder.path());
        let spend = Spend::open(&state);
        let (limit, now) = (1.0, 20_000 * DAY);
        let named = |n: usize| ClientId::from(format!("invented-{n}"));
        // Answers without a cost create no sums.
        for n in 0..2 * MAX_CLIENTS {
            spend.used(&use_of(&named(n + 50_000), Some(0.0)), now);
        }
        let first = ClientId::from("first");
        spend.used(&use_of(&first, Some(0.5)), now);
        let mut passed = 0;
        for n in 0..10 * MAX_CLIENTS {
            if spend.reserve(&named(n), limit, 0.01, now).is_ok() {
                spend.used(&use_of(&named(n), Some(0.01)), now);
                passed += 1;
            }
        }
        assert_eq!(passed, MAX_CLIENTS - 1 + 100, "those beyond the bound spent one limit together");
        let more = spend.reserve(&named(9 * MAX_CLIENTS), limit, 0.01, now);
        assert!(matches!(more, Err(SpendRefusal::Spent(sum)) if sum >= limit), "{more:?}");
        assert_eq!(spend.today(now).spent.len(), MAX_CLIENTS);
        assert!(spend.kept.books().reserved.is_empty());
        assert_eq!(spend.of(&first, now), 0.5, "who was there before keeps a sum of its own");
        drop(spend);
        let again = Spend::open(&state);
        assert_eq!(
            (again.of(&first, now), again.of(&ClientId::from("new"), now)),
            (0.5, again.today(now).others_spent)
        );
        assert!(again.reserve(&ClientId::from("new"), limit, 0.01, now).is_err(), "spending survives a restart");
        assert_eq!(again.of(&ClientId::from("new"), now + 2 * DAY), 0.0);
    }

    #[test]
    fn requests_under_way_of_invented_names_are_held_to_the_shared_sum() {
        let folder = tempfile::tempdir().unwrap();
        let spent: BTreeMap<String, f64> = (0..MAX_CLIENTS + 7).map(|n| (format!("{n:05}"), 0.01)).collect();
        let text = serde_json::json!({ "day": 20_000, "spent": spent }).to_string();
        fs::write(folder.path().join(FILE), text).unwrap();
        let spend = Spend::open(&StateFolder::new(folder.path()));
        let now = 20_000 * DAY;
        assert_eq!(spend.today(now).spent.len(), MAX_CLIENTS);
        let held: Vec<_> = (0..20).map(|n| spend.reserve(&ClientId::from(format!("x{n}")), 1.0, 0.5, now)).collect();
        assert_eq!(held.iter().filter(|held| held.is_ok()).count(), 2);
        assert!(held.iter().any(|held| matches!(held, Err(SpendRefusal::UnderWay(_)))));
        drop(held);
        assert!(spend.reserve(&ClientId::from("x"), 1.0, 0.5, now).is_ok());
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
        // Creating a file below a file fails.
        fs::write(folder.path().join("state"), "").unwrap();
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
        fs::remove_file(folder.path().join("state")).unwrap();
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
        assert_eq!(models["m0"], SpendTally { requests: 2, errors: 1, ..SpendTally::default() });
        assert_eq!((models[OTHER].requests, models[OTHER].errors), (1_000 + 37, 1_000));
    }
}
