//! The ledger's thread: its loop, and the order of its work. The heartbeat has precedence.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use model_boss_core::{Event, LedgerState};
use model_boss_host::guard::end_leftovers_at_once;
use model_boss_host::probe::Probes;
use model_boss_lease_store::{Holder, OtherLeases, StoreError};
use model_boss_protocol::{ByteCount, Later, chain};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::command::LeaseCommand;
use super::held::Ranks;
use super::leaks::Leaks;
use super::ledger::LedgerOwner;
use super::leftovers::end_leftovers;
use super::look::show_unknown;
use super::opening::StoreChoice;
use super::setup::{LeaseSetup, LeaseStartError};
use super::status::{DeviceTable, StoreWatch};
use crate::leases::{LeaseStart, Leases};
use crate::scheduling::News;

/// The interval between samples while a lease is held or queued.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between samples while no lease is held.
const IDLE_INTERVAL: Duration = Duration::from_secs(4);

/// The interval between samples while a device still shows an ended process (RC-18).
const RELEASE_INTERVAL: Duration = Duration::from_millis(50);

/// The pause before a store that was never reached is tried again.
const OPEN_AGAIN: Duration = Duration::from_secs(1);

impl Leases {
    /// Starts the ledger's thread. It opens the ledger, ends processes of an earlier coordinator and samples the
    /// devices. A store that is out of reach is tried again without limit; one that cannot be used is an error.
    pub(crate) async fn start(setup: LeaseSetup) -> Result<LeaseStart, LeaseStartError> {
        let (commands, inbox) = mpsc::channel();
        let (reply, begun) = oneshot::channel();
        let (devices, store) = (DeviceTable::default(), StoreWatch::new(setup.store.describe()));
        let (table, watch) = (devices.clone(), store.clone());
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        std::thread::Builder::new()
            .name("leases".into())
            .spawn(move || {
                let _guard = guard;
                keep(setup, &table, &watch, reply, &inbox);
            })
            .map_err(LeaseStartError::Thread)?;
        begun.await.map_err(|_| LeaseStartError::Ended)??;
        Ok(LeaseStart { leases: Self::new(commands), devices, store, ended })
    }
}

/// Runs the ledger's thread until the last handle is dropped.
pub(super) fn keep(
    setup: LeaseSetup,
    table: &DeviceTable,
    watch: &StoreWatch,
    begun: oneshot::Sender<Result<(), LeaseStartError>>,
    inbox: &mpsc::Receiver<LeaseCommand>,
) {
    let LeaseSetup { store, runtime_dir, terms, foreign, return_patience, probes, news } = setup;
    let mut begun = Some(begun);
    let mut tell = |word| begun.take().is_some_and(|begun| begun.send(word).is_ok());
    let mut probes = match Probes::start(probes) {
        Ok(probes) => probes,
        Err(error) => {
            tell(Err(LeaseStartError::Thread(error)));
            return;
        }
    };
    let mut reached = false;
    let (holder, unsettled) = loop {
        let opened = store.open(runtime_dir.as_deref(), &terms).and_then(|mut holder| {
            reached = true;
            let left = end_leftovers(&mut holder)?;
            Ok((holder, left))
        });
        match opened {
            Ok(opened) => break opened,
            Err(error) if may_come_back(&store, &error, reached) => {
                if tell_away(&error, watch, &news) {
                    show_unknown(&mut probes, table, &news);
                    tell(Ok(()));
                }
                if !refuse_for(OPEN_AGAIN, (&store, &error), inbox, &news) {
                    return;
                }
            }
            Err(error) => {
                tell(Err(error.into()));
                return;
            }
        }
    };
    let spans = (foreign, return_patience);
    let mut ledger = LedgerOwner::new(holder, probes, spans, news, (table.clone(), watch.clone()), unsettled);
    match ledger.look() {
        // Another ledger counts one of this machine's devices.
        Err(error) if !error.is_outage() => {
            tell(Err(error.into()));
            return;
        }
        looked => ledger.done(&looked),
    }
    tell(Ok(()));
    ledger.run(inbox);
}

/// Whether another attempt may help. A fault of the store itself is an error at the start. Later the thread waits for
/// its end, since an operator may be about to correct it.
fn may_come_back(store: &StoreChoice, error: &StoreError, reached: bool) -> bool {
    match store {
        _ if reached && error.is_outage() => true,
        StoreChoice::Redis { .. } => matches!(error, StoreError::Unavailable { .. }),
        StoreChoice::Embedded(_) => error.is_failed_disk(),
    }
}

/// Reports once that the store is out of reach.
fn tell_away(error: &StoreError, watch: &StoreWatch, news: &News) -> bool {
    let detail = chain(error);
    let state = LedgerState::Away { detail };
    let before = watch.status();
    let first = !before.reached && before.state != state;
    if first {
        tracing::error!("nothing is loaded until the lease store is reached: {}", chain(error));
        watch.update(|status| status.state = state.clone());
        news.event(Event::Ledger(state));
    }
    first
}

/// Answers every command with the error for the given time. Returns `false` when no handle is left.
fn refuse_for(
    span: Duration,
    (store, error): (&StoreChoice, &StoreError),
    inbox: &mpsc::Receiver<LeaseCommand>,
    news: &News,
) -> bool {
    let until = Instant::now().later(span);
    let unavailable = || StoreError::Away { store: store.describe(), detail: chain(error) };
    loop {
        match inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(LeaseCommand::Wait(_) | LeaseCommand::Cancel(_)) => {}
            Ok(LeaseCommand::Acquire { slot, .. }) => {
                let (reason, retry_after) = (chain(error), OPEN_AGAIN);
                news.event(Event::LeaseRefused { slot, reason, retry_after });
            }
            // A caller that disconnected needs no answer.
            Ok(LeaseCommand::Attach { reply, .. }) => drop(reply.send(Err(unavailable()))),
            Ok(LeaseCommand::Release { slot }) => news.event(Event::LeaseReleased { slot }),
            Ok(LeaseCommand::Do(job)) => job(Err(unavailable())),
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

impl LedgerOwner {
    fn new(
        holder: Holder,
        probes: Probes,
        (foreign, return_patience): (ByteCount, Duration),
        news: News,
        (table, watch): (DeviceTable, StoreWatch),
        unsettled: bool,
    ) -> Self {
        let run = holder.name();
        let mut ledger = Self {
            holder,
            probes,
            news,
            table,
            watch,
            state: LedgerState::Away { detail: String::new() },
            run,
            held: HashMap::new(),
            places: BTreeMap::new(),
            cancelling: Vec::new(),
            asked: 0,
            others: OtherLeases::default(),
            revoked: BTreeSet::new(),
            ranks: Ranks::default(),
            releasing: Vec::new(),
            return_patience,
            leaks: Leaks::default(),
            declared: BTreeMap::new(),
            blind: BTreeMap::new(),
            foreign,
            in_doubt: false,
            unsettled,
            looked: Instant::now(),
            complaint: String::new(),
        };
        ledger.done::<()>(&Ok(()));
        ledger
    }

    fn run(mut self, inbox: &mpsc::Receiver<LeaseCommand>) {
        let mut renewed = Instant::now();
        // The time of the last tending, not of the last sample: frequent requests sample too, and would postpone all
        // other work.
        let mut tended = Instant::now();
        loop {
            let interval = match (self.releasing.is_empty() && !self.in_doubt, self.held.is_empty() && self.is_quiet())
            {
                (false, _) => RELEASE_INTERVAL,
                // A queued request that waits for a revocation checks each second whether memory was released.
                (true, false) => WATCH_INTERVAL,
                (true, true) => IDLE_INTERVAL,
            };
            let due = renewed.later(self.holder.heartbeat()).min(tended.later(interval));
            match inbox.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(command) => self.command(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if renewed.elapsed() >= self.holder.heartbeat() {
                renewed = Instant::now();
                self.renew();
            }
            if tended.elapsed() >= interval {
                tended = Instant::now();
                self.keep_places();
                self.look_or_log();
                self.finish_releases();
                self.settle();
            }
        }
    }

    fn command(&mut self, command: LeaseCommand) {
        match command {
            LeaseCommand::Acquire { slot, ask } => self.acquire(slot, ask),
            LeaseCommand::Wait(ask) => self.wait(ask),
            LeaseCommand::Cancel(model) => self.cancel(&model),
            LeaseCommand::Attach { slot, pid, reply } => {
                // A runner that was stopped meanwhile kills its process itself.
                let _ = reply.send(self.attach(slot, pid));
            }
            LeaseCommand::Release { slot } => {
                self.releasing.push((slot, Instant::now()));
                self.look_or_log();
                self.finish_releases();
            }
            LeaseCommand::Do(job) => job(Ok(self)),
        }
    }

    /// Whether there are no foreign leases, no queue and no faults, so that samples may be rare.
    fn is_quiet(&self) -> bool {
        self.state == LedgerState::Open
            && !self.unsettled
            && !self.table.is_in_trouble()
            && self.holder.leases().is_empty()
            && self.holder.waiters().is_empty()
    }

    /// Records the store's state after a call, and reports changes. A call that needs no answer of the store succeeds
    /// during an outage too, so the store's own last answers decide.
    pub(super) fn done<T>(&mut self, result: &Result<T, StoreError>) {
        let away = |detail: String| LedgerState::Away { detail };
        let state = match (result, self.holder.outage()) {
            (_, Some(detail)) => away(detail.to_owned()),
            // The recovery window after a loss is no outage: its end is known.
            (Ok(_) | Err(StoreError::Recovering(_)), None) => match self.holder.recovering() {
                Some(left) => LedgerState::Recovering { left },
                None => LedgerState::Open,
            },
            (Err(error), None) if error.is_outage() => away(chain(error)),
            // An invalid request does not show the store's state.
            (Err(_), None) => return,
        };
        let same = std::mem::discriminant(&state) == std::mem::discriminant(&self.state);
        if !same {
            match &state {
                LedgerState::Open => tracing::info!(store = self.holder.describe(), "memory can be leased"),
                LedgerState::Recovering { left } => {
                    tracing::warn!("the lease store may have lost records: nothing is loaded for {left:.0?}");
                }
                LedgerState::Away { detail } => {
                    tracing::error!("loaded models serve on, nothing is loaded or evicted: {detail}");
                }
            }
            self.news.event(Event::Ledger(state.clone()));
        }
        self.state = state.clone();
        let (store, warnings) = (self.holder.describe(), self.holder.warnings());
        self.watch.update(|status| *status = super::StoreStatus { store, state, reached: true, warnings });
    }

    /// Ends leases whose holder and processes are gone.
    fn settle(&mut self) {
        // Foreign holders may have died without a release.
        if self.unsettled || !self.others.leases.is_empty() {
            let settled = self.holder.settle();
            self.done(&settled);
            match settled {
                Ok(living) => {
                    end_leftovers_at_once(&living);
                    self.unsettled = !living.is_empty();
                }
                Err(error) => tracing::debug!("leases could not be settled: {}", chain(&error)),
            }
        }
    }
}
