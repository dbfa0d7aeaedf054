//! The holder over a store in memory that can be made to fail.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model_boss_lease::{
    Accounting, DeviceKey, Evidence, LeaseDurations, LeaseState, Ledger, Mode, Owner, OwnerKind, Process, Token,
    Yielding,
};
use model_boss_protocol::{ByteCount, DeviceId, Priority};

use super::*;
use crate::claim::ClaimScope;
use crate::mark::Mark;
use crate::place::HostFolders;
use crate::race::{Pacing, pause_after};
use crate::store::{Etag, LedgerStore, Snapshot, StoredDocuments};
use crate::tree::guard_mark;
use crate::{
    AcquireRequest, Acquired, Caller, DeviceDeclaration, Document, GuestAcquired, LeaseHandle, LeaseWish, NotNamed,
    Observation, Proof, RenewOutcome, StoreError, Swap, host, this_process,
};

/// A register in memory. It counts swaps, can lose the next few races, and can be cut off.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Register>>);

#[derive(Default)]
struct Register {
    document: Option<String>,
    etag: u128,
    swaps: u32,
    answers: Vec<Swap>,
    cut_off: bool,
    /// The run of the store's process. If it is set, the store can lose acknowledged writes.
    run_id: Option<String>,
    /// The time by which the store's clock is ahead of this host's.
    ahead: Duration,
}

impl LedgerStore for Memory {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        let register = self.0.lock().unwrap();
        if register.cut_off {
            return Err(StoreError::Host("a store"));
        }
        let (document, etag) = (register.document.clone(), Etag(register.etag));
        let now = host::time_since_boot()?.after(register.ahead);
        Ok(Snapshot { document, etag, now, run_id: register.run_id.clone() })
    }

    fn compare_and_swap(&mut self, loaded: &Snapshot, _next: Etag, document: &str) -> Result<Swap, StoreError> {
        let mut register = self.0.lock().unwrap();
        if let Some(answer) = register.answers.pop() {
            return Ok(answer);
        }
        assert_eq!(loaded.etag, Etag(register.etag));
        register.document = Some(document.to_owned());
        register.etag += 1;
        register.swaps += 1;
        Ok(Swap::Done)
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }
}

impl StoredDocuments for Memory {
    fn load_document(&mut self, _name: &str) -> Result<Document, StoreError> {
        Ok(Document { content: None, etag: Etag(0) })
    }

    fn swap_document(&mut self, _name: &str, _loaded: &Document, _content: &str) -> Result<Swap, StoreError> {
        Ok(Swap::Conflict)
    }
}

struct Bench {
    memory: Memory,
    holder: Holder,
    folder: tempfile::TempDir,
}

fn bench() -> Bench {
    over(Memory::default(), tempfile::tempdir().unwrap())
}

/// A holder over a store that can lose acknowledged writes.
fn fragile() -> Bench {
    let memory = Memory::default();
    memory.0.lock().unwrap().run_id = Some("run-1".to_owned());
    over(memory, tempfile::tempdir().unwrap())
}

fn over(memory: Memory, folder: tempfile::TempDir) -> Bench {
    let mut holder = holder(&memory, &folder);
    let (device, key, accounting) = (DeviceId::Cpu, DeviceKey::cpu(), Accounting::PerProcess);
    let (capacity, reserve) = (ByteCount::gib(10), ByteCount::gib(1));
    holder.declare(&DeviceDeclaration { device, key, capacity, reserve, accounting }).unwrap();
    Bench { memory, holder, folder }
}

fn holder(memory: &Memory, folder: &tempfile::TempDir) -> Holder {
    let owner = Owner::new(host::this_process().unwrap(), "test", OwnerKind::Coordinator);
    let empty = Ledger::new("boot", Token(0), LeaseDurations::default());
    over_memory(memory, empty, folder, owner)
}

fn over_memory(memory: &Memory, empty: Ledger, folder: &tempfile::TempDir, owner: Owner) -> Holder {
    let place = HostFolders::of(Some(folder.path())).unwrap();
    let mark = Mark::open(&place, "boot", "ledger".to_owned(), None);
    let claim = ClaimScope::Shared("ledger".to_owned());
    Holder::over(Box::new(memory.clone()), empty, claim, (place, mark), owner).unwrap()
}

fn observation(used: ByteCount, sampled_at: Instant) -> Observation {
    Observation { device: DeviceId::Cpu, used: Some(used), processes: Vec::new(), sampled_at }
}

fn wish(request_id: &str, bytes: ByteCount) -> AcquireRequest {
    AcquireRequest::new(request_id, "m", Priority::NORMAL, vec![(DeviceId::Cpu, bytes)])
}

impl Bench {
    /// Observes what is in use now. A sample counts as older where the thread was interrupted while its age was read,
    /// so it is taken twice.
    fn looks(&mut self, used: ByteCount) {
        for _ in 0..2 {
            self.holder.observe(&observation(used, Instant::now())).unwrap();
        }
    }

    fn swaps(&self) -> u32 {
        self.memory.0.lock().unwrap().swaps
    }

    fn granted(&mut self, request_id: &str, bytes: ByteCount) -> LeaseHandle {
        self.holder.observe(&observation(ByteCount::gib(1), Instant::now())).unwrap();
        match self.holder.acquire(wish(request_id, bytes)).unwrap() {
            Acquired::Granted(handle) => handle,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn little_is_written() {
    let mut bench = bench();
    let before = bench.swaps();
    let start = Instant::now();
    let foreign = bench.holder.observe(&observation(ByteCount::gib(1), start)).unwrap();
    assert_eq!(foreign, Some(ByteCount::gib(1)));
    assert_eq!(bench.swaps(), before + 1);
    let nearly = ByteCount::gib(1) + ByteCount::mib(64);
    bench.holder.observe(&observation(nearly, start + Duration::from_millis(2_900))).unwrap();
    assert_eq!(bench.swaps(), before + 1, "small and soon");
    bench.holder.observe(&observation(nearly + ByteCount(1), start + Duration::from_millis(1))).unwrap();
    assert_eq!(bench.swaps(), before + 2, "not small");
    assert!(matches!(bench.holder.acquire(wish("a", ByteCount::gib(20))).unwrap(), Acquired::NeverFits { .. }));
    assert_eq!(bench.holder.renew().unwrap(), RenewOutcome::default());
    assert_eq!(bench.swaps(), before + 2, "nothing changed");
}

#[test]
fn an_observation_after_a_change_is_always_written() {
    let mut bench = bench();
    let handle = bench.granted("a", ByteCount::gib(1));
    bench.holder.attach(&handle, std::process::id()).unwrap();
    assert!(matches!(bench.holder.acquire(wish("b", ByteCount(1))).unwrap(), Acquired::Wait { .. }));
    bench.granted("b", ByteCount(1));
}

/// Simulated time and randomness: a millisecond passes between two readings of the clock, and random numbers are a
/// fixed sequence.
struct SimulatedPacing {
    now: Duration,
    random: u64,
}

impl Pacing for SimulatedPacing {
    fn now(&mut self) -> Duration {
        self.now = self.now.saturating_add(Duration::from_millis(1));
        self.now
    }

    fn chance(&mut self) -> f64 {
        // Knuth's MMIX generator.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn pause(&mut self, span: Duration) {
        self.now = self.now.saturating_add(span);
    }
}

fn simulated_pacing(random: u64) -> SimulatedPacing {
    SimulatedPacing { now: Duration::ZERO, random }
}

#[test]
fn a_lost_race_is_run_again_until_the_caller_has_waited_long_enough() {
    let mut bench = bench();
    bench.holder.pacing = Box::new(simulated_pacing(1));
    bench.memory.0.lock().unwrap().answers = vec![Swap::Conflict; 100];
    let handle = bench.granted("a", ByteCount::gib(1));
    assert_eq!(bench.holder.leases().len(), 1);
    // These are more losses in a row than can happen in practice.
    bench.memory.0.lock().unwrap().answers = vec![Swap::Stale; 10_000];
    let error = bench.holder.release(&handle, Evidence::Gone).unwrap_err();
    let StoreError::Contended(losses) = error else { panic!("{error}") };
    assert!(losses > 1_000, "{losses} in three seconds");
    bench.memory.0.lock().unwrap().answers.clear();
    bench.holder.release(&handle, Evidence::Gone).unwrap();
    bench.holder.release(&handle, Evidence::Gone).unwrap();
    assert!(bench.holder.leases().is_empty());
}

/// Busy processes race for one register. From read to swap takes about a millisecond, so of those that overlap all
/// but one lose.
#[test]
fn of_many_who_race_nobody_waits_long() {
    /// A racer's next step: it reads the register, or swaps the value it read.
    #[derive(Clone, Copy)]
    enum Next {
        Read,
        Swap(u64),
    }
    for (racers, longest) in [(8_u64, 250), (24, 350)] {
        let mut chance = simulated_pacing(racers);
        let mut all: Vec<(Duration, Next)> =
            (0..racers).map(|place| (Duration::from_micros(place), Next::Read)).collect();
        let (mut losses, mut begun) = (vec![0; all.len()], vec![Duration::ZERO; all.len()]);
        let (mut register, mut worst, mut now) = (0, Duration::ZERO, Duration::ZERO);
        while now < Duration::from_secs(60) {
            let racer = (0..all.len()).min_by_key(|racer| all[*racer].0).unwrap();
            let next = all[racer].1;
            now = all[racer].0;
            all[racer] = match next {
                Next::Read => {
                    let work = Duration::from_millis(1).mul_f64(0.8 + 0.4 * chance.chance());
                    (now + work, Next::Swap(register))
                }
                Next::Swap(read) if read == register => {
                    worst = worst.max(now - begun[racer]);
                    (register, losses[racer], begun[racer]) = (register + 1, 0, now);
                    (now, Next::Read)
                }
                Next::Swap(_) => {
                    losses[racer] += 1;
                    (now + pause_after(losses[racer], chance.chance()), Next::Read)
                }
            };
        }
        // One racer alone could do at most 60,000.
        assert!(register > 20_000, "{racers}: {register} swaps");
        assert!(worst < Duration::from_millis(longest), "{racers}: {worst:?}");
    }
}

#[test]
fn without_the_store_there_are_no_leases() {
    let mut bench = bench();
    bench.granted("a", ByteCount::gib(1));
    bench.memory.0.lock().unwrap().cut_off = true;
    assert!(bench.holder.acquire(wish("b", ByteCount(1))).is_err());
    assert!(bench.holder.renew().is_err());
    bench.memory.0.lock().unwrap().cut_off = false;
    assert_eq!(bench.holder.renew().unwrap(), RenewOutcome::default(), "a cut-off holder loses nothing");
}

#[test]
fn a_lease_that_somebody_ended_is_reported_as_lost() {
    let mut bench = bench();
    let handle = bench.granted("a", ByteCount::gib(1));
    let mut ledger: Ledger = serde_json::from_str(bench.memory.0.lock().unwrap().document.as_ref().unwrap()).unwrap();
    ledger.leases.clear();
    bench.memory.0.lock().unwrap().document = Some(serde_json::to_string(&ledger).unwrap());
    let error = bench.holder.attach(&handle, std::process::id()).unwrap_err();
    assert!(matches!(&error, StoreError::Lost(lease) if *lease == handle.lease), "{error}");
    let handle = bench.granted("b", ByteCount::gib(1));
    bench.memory.0.lock().unwrap().document = Some(serde_json::to_string(&ledger).unwrap());
    assert_eq!(bench.holder.renew().unwrap().lost, vec![handle]);
}

#[test]
fn a_device_must_be_declared_first() {
    let mut bench = bench();
    let wish =
        AcquireRequest { wish: LeaseWish::Parts(vec![(DeviceId::Cuda(0), ByteCount(1))]), ..wish("a", ByteCount(1)) };
    let error = bench.holder.acquire(wish).unwrap_err();
    assert_eq!(error.to_string(), "device cuda:0 was not declared to the lease ledger");
}

fn live_child() -> std::process::Child {
    std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap()
}

fn end(mut child: std::process::Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_is_held_is_stated_again_after_the_store_lost_everything() {
    let mut bench = fragile();
    let handle = bench.granted("a", ByteCount::gib(5));
    let child = live_child();
    bench.holder.attach(&handle, child.id()).unwrap();
    bench.memory.0.lock().unwrap().document = None;
    assert_eq!(bench.holder.renew().unwrap(), RenewOutcome::default());
    assert_eq!(bench.holder.leases().len(), 1);
    assert!(bench.holder.recovering().is_some());
    bench.holder.observe(&observation(ByteCount::gib(6), Instant::now())).unwrap();
    let Acquired::Wait { reason, .. } = bench.holder.acquire(wish("b", ByteCount(1))).unwrap() else { panic!() };
    assert!(reason.contains("may have lost records"), "{reason}");
    let attached = bench.holder.attach(&handle, std::process::id()).unwrap_err();
    assert!(attached.is_outage(), "{attached}");
    // After the window other leases are granted beside it, not over it.
    bench.memory.0.lock().unwrap().ahead = Duration::from_secs(22);
    bench.holder.renew().unwrap();
    bench.holder.observe(&observation(ByteCount::ZERO, Instant::now())).unwrap();
    assert!(matches!(bench.holder.acquire(wish("b", ByteCount::gib(5))).unwrap(), Acquired::Wait { .. }));
    assert!(matches!(bench.holder.acquire(wish("c", ByteCount::gib(4))).unwrap(), Acquired::Granted(_)));
    end(child);
}

#[test]
fn a_request_between_the_loss_of_the_store_and_the_next_observation_waits() {
    let mut bench = fragile();
    bench.granted("a", ByteCount::gib(5));
    for request in ["b", "c"] {
        bench.memory.0.lock().unwrap().document = None;
        let owner = Owner::new(host::this_process().unwrap(), "job", OwnerKind::Job);
        let waits = match request {
            "b" => matches!(bench.holder.acquire(wish("b", ByteCount(1))).unwrap(), Acquired::Wait { .. }),
            _ => matches!(bench.holder.acquire_for(owner, wish("c", ByteCount(1))), Ok(GuestAcquired::Recovering(_))),
        };
        assert!(waits, "{request}");
    }
    bench.memory.0.lock().unwrap().ahead = Duration::from_secs(22);
    bench.holder.observe(&observation(ByteCount::ZERO, Instant::now())).unwrap();
    assert!(matches!(bench.holder.acquire(wish("b", ByteCount(1))).unwrap(), Acquired::Granted(_)));
}

#[test]
fn a_lost_ledger_is_not_taken_for_a_first_start() {
    let bench = fragile();
    assert_eq!(bench.holder.recovering(), None, "the first start of this boot");
    let Bench { memory, folder, holder: first } = bench;
    drop(first);
    memory.0.lock().unwrap().document = None;
    let second = holder(&memory, &folder);
    assert!(second.recovering().is_some());
}

#[test]
fn a_lease_that_the_store_remembers_smaller_is_stated_again() {
    let mut bench = fragile();
    let handle = bench.granted("a", ByteCount::gib(2));
    let child = live_child();
    bench.holder.attach(&handle, child.id()).unwrap();
    bench.holder.observe(&observation(ByteCount::gib(1), Instant::now())).unwrap();
    let before = bench.memory.0.lock().unwrap().document.clone();
    let grown = [(DeviceId::Cpu, ByteCount::gib(6))];
    assert_eq!(bench.holder.resize(&handle, &grown).unwrap(), None);
    {
        let mut register = bench.memory.0.lock().unwrap();
        register.document = before;
        register.run_id = Some("run-2".to_owned());
    }
    bench.holder.renew().unwrap();
    assert_eq!(bench.holder.leases()[0].parts[0].bytes, ByteCount::gib(6));
    end(child);
}

#[test]
fn le_3_a_holder_hears_that_its_bytes_are_asked_back() {
    let mut bench = bench();
    let yielding = Yielding { preemptible: true, min_hold: Duration::ZERO, ..Yielding::default() };
    bench.looks(ByteCount::gib(1));
    let soft = AcquireRequest { yielding, ..wish("soft", ByteCount::gib(8)) };
    let Acquired::Granted(soft) = bench.holder.acquire(soft).unwrap() else { panic!() };
    bench.holder.attach(&soft, std::process::id()).unwrap();
    bench.looks(ByteCount::gib(1));
    let urgent = AcquireRequest { mode: Mode::Preempt, priority: Priority::HIGHEST, ..wish("u", ByteCount::gib(3)) };
    // A holder's leases are never revoked for its own requests.
    let Acquired::Wait { asked, .. } = bench.holder.acquire(urgent.clone()).unwrap() else { panic!() };
    assert_eq!(asked, []);
    bench.holder.cancel("u").unwrap();
    let urgent = AcquireRequest { request_id: "v".to_owned(), ..urgent };
    let other = Owner::new(Process { pid: 1, ..this_process().unwrap() }, "other", OwnerKind::Job);
    let waits = bench.holder.acquire_for(other.clone(), urgent.clone()).unwrap();
    let GuestAcquired::Wait { position, asked, .. } = waits else { panic!() };
    assert_eq!((position, asked.len()), (1, 1));
    assert_eq!(bench.holder.waiters().len(), 1);
    let kept = bench.holder.renew().unwrap();
    assert_eq!(kept.revoked.len(), 1);
    let revoked = &kept.revoked[0];
    assert_eq!((&revoked.handle, &revoked.wanted), (&soft, &vec![(DeviceId::Cpu, ByteCount::gib(3))]));
    assert!(revoked.remaining > Duration::from_secs(50) && revoked.remaining <= Duration::from_secs(60));
    assert_eq!(bench.holder.leases()[0].state, LeaseState::Revoking);
    bench.holder.resize(&soft, &[(DeviceId::Cpu, ByteCount::gib(2))]).unwrap();
    bench.looks(ByteCount::gib(1));
    let granted = bench.holder.acquire_for(other, urgent).unwrap();
    assert!(matches!(granted, GuestAcquired::Granted(_)));
    assert_eq!(bench.holder.renew().unwrap(), RenewOutcome::default());
}

#[test]
fn a_request_that_is_taken_back_leaves_the_queue() {
    let mut bench = bench();
    bench.granted("a", ByteCount::gib(8));
    let waits = AcquireRequest { mode: Mode::Wait, ..wish("b", ByteCount::gib(3)) };
    assert!(matches!(bench.holder.acquire(waits).unwrap(), Acquired::Wait { .. }));
    assert_eq!(bench.holder.waiters()[0].label, "m");
    bench.holder.cancel("b").unwrap();
    assert!(bench.holder.waiters().is_empty());
    bench.holder.cancel("a").unwrap();
    assert!(bench.holder.leases().is_empty(), "no process passed its gate");
}

#[test]
fn only_a_coordinator_changes_the_terms() {
    let memory = Memory::default();
    let folder = tempfile::tempdir().unwrap();
    let coordinator = holder(&memory, &folder);
    let owner = Owner::new(host::this_process().unwrap(), "job", OwnerKind::Job);
    let mut terms = LeaseDurations::default();
    terms.lease = Duration::from_secs(1);
    let empty = Ledger::new("boot", Token(0), terms);
    let mut job = over_memory(&memory, empty, &folder, owner);
    job.refresh().unwrap();
    assert_eq!(job.seen.terms, coordinator.seen.terms);
}

#[test]
fn a_caller_names_living_processes_of_its_own_and_none_that_never_end() {
    let mut bench = bench();
    let (coordinator, worker, job) = (live_child(), live_child(), live_child());
    bench.holder.owner.process = host::process(coordinator.id()).unwrap();
    let handle = bench.granted("a", ByteCount::gib(1));
    bench.holder.attach(&handle, worker.id()).unwrap();
    let mine = host::process(job.id()).unwrap();
    let user = nix::unistd::getuid().as_raw();
    let named = |caller, process: &Process| bench.holder.may_name(caller, process);
    named(Caller::User(user), &mine).unwrap();
    named(Caller::User(0), &mine).unwrap();
    let stranger = named(Caller::User(user + 1), &mine).unwrap_err();
    assert!(matches!(stranger, NotNamed::OtherUser { .. }), "{stranger}");
    assert!(matches!(named(Caller::Remote, &mine), Err(NotNamed::FromOutside(_))));
    assert!(matches!(named(Caller::Unknown, &mine), Err(NotNamed::NoUser)));
    let earlier = Process { start_time: mine.start_time - 1, ..mine.clone() };
    assert!(matches!(named(Caller::User(0), &earlier), Err(NotNamed::NotSeen(_))));
    // Not even root may name one of these processes.
    let init = host::process(1).unwrap();
    assert!(matches!(named(Caller::User(0), &init), Err(NotNamed::System(1))));
    for ours in [&coordinator, &worker] {
        let ours = host::process(ours.id()).unwrap();
        assert!(matches!(named(Caller::User(0), &ours), Err(NotNamed::Ours(_))), "{ours:?}");
    }
    [coordinator, worker, job].into_iter().for_each(end);
}

/// A program in the place of a guard, with two children in sessions of their own, and their process ids. One child
/// has the given mark and the other has no environment.
fn guard_with_children(mark: impl Fn(&Process) -> String) -> (Child, [u32; 2]) {
    let script = "read -r mark; MODEL_BOSS_GUARDS=$mark setsid tail -f /dev/null >/dev/null & echo $!; \
                  env -i \"PATH=$PATH\" setsid tail -f /dev/null >/dev/null & echo $!; wait";
    let mut command = Command::new("sh");
    let mut guard = command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mark = mark(&host::process(guard.id()).unwrap());
    writeln!(guard.stdin.as_mut().unwrap(), "{mark}").unwrap();
    let mut lines = BufReader::new(guard.stdout.take().unwrap()).lines();
    let children = [(); 2].map(|()| lines.next().unwrap().unwrap().parse().unwrap());
    // The children have their final identity once they run that program.
    for child in children {
        while std::fs::read(format!("/proc/{child}/comm")).unwrap() != b"tail\n" {
            std::thread::yield_now();
        }
    }
    (guard, children)
}

fn kill_number(pid: u32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), nix::sys::signal::Signal::SIGKILL).unwrap();
    let gone = || {
        host::process(pid).is_err()
            || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default().contains(") Z")
    };
    while !gone() {
        std::thread::yield_now();
    }
}

#[test]
fn le_4_what_died_guards_left_is_counted_and_ours_to_end_and_without_guards_it_is_not() {
    for guarded in [true, false] {
        let mut bench = bench();
        let (job, us) = (live_child(), bench.holder.owner.clone());
        let user = nix::unistd::getuid().as_raw();
        let (guard, [marked, bare]) =
            guard_with_children(|guard| if guarded { guard_mark(guard) } else { "1-2-3".to_owned() });
        bench.holder.owner = Owner::new(host::process(job.id()).unwrap(), "job", OwnerKind::Job).of_user(Some(user));
        let handle = bench.granted("a", ByteCount::gib(1));
        bench.holder.attach(&handle, guard.id()).unwrap();
        bench.holder.owner = us;
        assert!(bench.holder.settle().unwrap().is_empty(), "its holder lives");
        end(guard);
        end(job);
        let mut left = || {
            let left = bench.holder.settle().unwrap();
            let pids: Vec<u32> = left.iter().flat_map(|left| &left.processes).map(|process| process.pid).collect();
            (pids, bench.holder.leases().len())
        };
        let all = if guarded { Vec::from_iter(BTreeSet::from([marked, bare])) } else { Vec::new() };
        assert_eq!(left(), (all, 1));
        kill_number(marked);
        // Only the descendants that were recorded while the guard was alive show the lease of this process.
        assert_eq!(left(), (if guarded { vec![bare] } else { Vec::new() }, 1));
        kill_number(bare);
        assert_eq!(left(), (Vec::new(), 0));
    }
}

#[test]
fn a_forced_lease_is_kept_on_record_and_its_holder_loses_it() {
    let mut bench = fragile();
    let handle = bench.granted("a", ByteCount::gib(5));
    let job = live_child();
    bench.holder.attach(&handle, job.id()).unwrap();
    assert!(matches!(bench.holder.end_abandoned(&handle.lease).unwrap(), GuestReleased::Counted(_)));
    let forced = bench.holder.force(&handle.lease, "user 0").unwrap().unwrap();
    assert_eq!((&forced.lease, &*forced.by, &forced.pids), (&handle.lease, "user 0", &vec![job.id()]));
    assert_eq!(forced.parts, [("cpu".to_owned(), ByteCount::gib(5))]);
    assert_eq!(bench.holder.renew().unwrap().lost, std::slice::from_ref(&handle), "it is not stated again");
    assert_eq!(bench.holder.forced()[0].lease, handle.lease);
    assert!(matches!(bench.holder.force(&handle.lease, "user 0"), Err(StoreError::Lost(_))));
    // The bytes that its process still uses are foreign, and are not granted.
    bench.holder.observe(&observation(ByteCount::gib(6), Instant::now())).unwrap();
    assert!(matches!(bench.holder.acquire(wish("b", ByteCount::gib(4))).unwrap(), Acquired::Wait { .. }));
    end(job);
}

#[test]
fn a_guest_proves_its_lease_by_its_secret_also_after_the_store_lost_it_and_nobody_else_does() {
    let mut bench = fragile();
    let (coordinator, job, stranger) = (live_child(), live_child(), live_child());
    bench.holder.owner.process = host::process(coordinator.id()).unwrap();
    let me = Caller::User(nix::unistd::getuid().as_raw());
    let owner = |child: &std::process::Child| Owner::new(host::process(child.id()).unwrap(), "train", OwnerKind::Job);
    bench.holder.observe(&observation(ByteCount::gib(1), Instant::now())).unwrap();
    let ask = |bench: &mut Bench| match bench.holder.acquire_for(owner(&job), wish("a", ByteCount::gib(5))).unwrap() {
        GuestAcquired::Granted(lease) => *lease,
        other => panic!("{other:?}"),
    };
    let lease = ask(&mut bench);
    let again = ask(&mut bench);
    assert_eq!((again.view.lease, again.proof), (lease.view.lease.clone(), lease.proof.clone()), "it is given again");
    let handle = GuestHandle { lease: lease.view.lease.clone(), proof: lease.proof.clone() };
    bench.holder.attach_for(me, &handle, &[job.id()]).unwrap();
    let document = bench.memory.0.lock().unwrap().document.clone().unwrap();
    let secret = serde_json::to_string(&lease.proof).unwrap();
    assert!(!document.contains(secret.trim_matches('"')), "the ledger holds no secret");

    let token = bench.holder.seen.leases[&handle.lease].token;
    let forged = GuestHandle { proof: Proof::Fence(token), ..handle.clone() };
    let record = |handle: &GuestHandle, child: &std::process::Child| GuestRecord {
        handle: handle.clone(),
        request: wish("a", ByteCount::gib(5)),
        owner: owner(child),
        processes: vec![host::process(child.id()).unwrap()],
    };
    let shrink = [(DeviceId::Cpu, ByteCount(1))];
    let lost = |error: StoreError| assert!(matches!(error, StoreError::Lost(_)), "{error}");
    lost(bench.holder.resize_for(me, &forged, &shrink).unwrap_err());
    lost(bench.holder.release_for(me, &forged, &[]).unwrap_err());
    lost(bench.holder.attach_for(me, &forged, &[stranger.id()]).unwrap_err());
    assert_eq!(
        bench.holder.renew_for(me, std::slice::from_ref(&forged)).unwrap().1,
        std::slice::from_ref(&handle.lease)
    );

    // The store loses the lease, and another process makes the next request.
    bench.memory.0.lock().unwrap().document = None;
    lost(bench.holder.reassert_for(me, record(&forged, &stranger)).unwrap_err());
    let earlier = GuestHandle { lease: "lease-7".into(), proof: Proof::Fence(Token(u64::MAX)) };
    lost(bench.holder.reassert_for(me, record(&earlier, &stranger)).unwrap_err());
    let stated = bench.holder.reassert_for(me, record(&handle, &job)).unwrap().unwrap();
    assert_eq!((stated.view.lease, &stated.proof), (handle.lease.clone(), &handle.proof));
    assert!(bench.holder.seen.leases[&handle.lease].token >= token, "tokens only grow");
    end(job);
    assert_eq!(bench.holder.release_for(me, &handle, &[]).unwrap(), GuestReleased::Free);
    [coordinator, stranger].into_iter().for_each(end);
}

#[test]
fn a_lease_whose_secret_an_earlier_coordinator_made_is_promised_anew_when_it_has_expired() {
    let mut bench = bench();
    let job = live_child();
    let owner = Owner::new(host::process(job.id()).unwrap(), "train", OwnerKind::Job);
    bench.holder.observe(&observation(ByteCount::gib(1), Instant::now())).unwrap();
    let ask = |bench: &mut Bench| bench.holder.acquire_for(owner.clone(), wish("a", ByteCount::gib(5))).unwrap();
    assert!(matches!(ask(&mut bench), GuestAcquired::Granted(_)));
    let Bench { memory, folder, holder: first } = bench;
    drop(first);
    let mut bench = over(memory, folder);
    let GuestAcquired::Wait { reason, .. } = ask(&mut bench) else { panic!("it cannot be proven") };
    assert!(reason.contains("promised anew within"), "{reason}");
    bench.memory.0.lock().unwrap().ahead = Duration::from_secs(20);
    bench.holder.observe(&observation(ByteCount::gib(1), Instant::now())).unwrap();
    assert!(matches!(ask(&mut bench), GuestAcquired::Granted(_)));
    end(job);
}

#[test]
fn names_of_leases_say_nothing_about_their_tokens() {
    let mut bench = bench();
    let handles = ["a", "b"].map(|request| bench.granted(request, ByteCount::gib(1)));
    for handle in &handles {
        assert!(!handle.lease.to_string().contains(&handle.token.0.to_string()), "{handle:?}");
    }
    assert_ne!(handles[0].lease, handles[1].lease);
}
