//! The invariants of the rules, over random histories in which processes live, die, lie about tokens and vanish.
//!
//! Beside the ledger runs a small world that knows which process is really alive. The ledger never sees it; it only
//! hears what a careful holder would tell it.

use std::collections::{BTreeMap, BTreeSet};

use model_boss_lease::{
    DeviceKey, Evidence, Lease, LeaseId, LeaseState, Ledger, Op, Outcome, Owner, OwnerKind, Process, ProcessUse,
    StoreTime, Terms, Token, apply,
};
use model_boss_protocol::{ByteCount, Priority};
use proptest::prelude::*;
use proptest::sample::Index;

const NAMESPACE: &str = "pid:[1]";
const CAPACITY: u64 = 100;
const RESERVE: u64 = 10;

/// Something that happens. An [`Index`] picks one of the leases of that moment.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Observe { device: usize, foreign: Option<u64>, age: u64 },
    Acquire { request: u8, sizes: [u64; 2] },
    Attach { lease: Index, token: Offered },
    Renew { token: Offered },
    Resize { lease: Index, token: Offered, sizes: [u64; 2] },
    Kill { lease: Index },
    Release { lease: Index, token: Offered },
    ConfirmDead { lease: Index, lie: Lie },
}

/// Which token a caller presents.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Offered {
    Right,
    Stale,
}

/// What is wrong with the evidence that somebody offers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    None,
    OtherStartTime,
    OtherNamespace,
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    let token = || prop_oneof![4 => Just(Offered::Right), 1 => Just(Offered::Stale)];
    let sizes = || [0..70_u64, 0..70_u64];
    let lie = prop_oneof![3 => Just(Lie::None), 1 => Just(Lie::OtherStartTime), 1 => Just(Lie::OtherNamespace)];
    prop_oneof![
        3 => (0..9_000_u64).prop_map(Step::Wait),
        8 => (0..2_usize, proptest::option::weighted(0.9, 0..60_u64), 0..3_000_u64)
            .prop_map(|(device, foreign, age)| Step::Observe { device, foreign, age }),
        8 => (0..12_u8, sizes()).prop_map(|(request, sizes)| Step::Acquire { request, sizes }),
        5 => (index(), token()).prop_map(|(lease, token)| Step::Attach { lease, token }),
        4 => token().prop_map(|token| Step::Renew { token }),
        2 => (index(), token(), sizes()).prop_map(|(lease, token, sizes)| Step::Resize { lease, token, sizes }),
        2 => index().prop_map(|lease| Step::Kill { lease }),
        4 => (index(), token()).prop_map(|(lease, token)| Step::Release { lease, token }),
        3 => (index(), lie).prop_map(|(lease, lie)| Step::ConfirmDead { lease, lie }),
    ]
}

/// What is really so.
struct World {
    ledger: Ledger,
    now: StoreTime,
    devices: [DeviceKey; 2],
    /// Live processes and the lease each went through the gate with.
    alive: BTreeMap<u32, LeaseId>,
    next_pid: u32,
    tokens: BTreeSet<Token>,
}

fn process(pid: u32) -> Process {
    Process { pid, start_time: u64::from(pid) * 7, pid_ns: NAMESPACE.to_owned() }
}

fn coordinator() -> Owner {
    Owner::new(process(1), "test", OwnerKind::Coordinator)
}

impl World {
    fn new() -> Self {
        let devices = [DeviceKey::cpu(), DeviceKey::gpu("GPU-1")];
        let mut ledger = Ledger::new("boot", Token(0), Terms::default());
        for device in &devices {
            let (capacity, reserve) = (ByteCount(CAPACITY), ByteCount(RESERVE));
            let declare = Op::Declare { device: device.clone(), name: device.to_string(), capacity, reserve };
            assert_eq!(apply(&mut ledger, StoreTime(1_000_000), declare), Outcome::Noted);
        }
        let (alive, tokens) = (BTreeMap::new(), BTreeSet::new());
        Self { ledger, now: StoreTime(20_000_000), devices, alive, next_pid: 100, tokens }
    }

    fn pick(&self, index: Index) -> Option<(LeaseId, Lease)> {
        let leases: Vec<_> = self.ledger.leases.iter().collect();
        let (id, lease) = leases.get(index.index(leases.len().max(1)))?;
        Some(((*id).clone(), (*lease).clone()))
    }

    fn parts(&self, sizes: [u64; 2]) -> Vec<(DeviceKey, ByteCount)> {
        self.devices.iter().cloned().zip(sizes.map(ByteCount)).filter(|(_, bytes)| bytes.0 > 0).collect()
    }

    fn take(&mut self, step: Step) -> Option<(Op, Offered)> {
        let offered =
            |lease: &Lease, token| if token == Offered::Right { lease.token } else { Token(lease.token.0 - 1) };
        Some(match step {
            Step::Wait(millis) => {
                self.now = StoreTime(self.now.0 + millis * 1_000);
                return None;
            }
            Step::Kill { lease } => {
                let (id, _) = self.pick(lease)?;
                self.alive.retain(|_, held| *held != id);
                return None;
            }
            Step::Observe { device, foreign, age } => {
                let device = self.devices[device].clone();
                let bytes_of = |id: &LeaseId| {
                    let parts = self.ledger.leases.get(id).map(|lease| lease.parts.as_slice()).unwrap_or_default();
                    parts.iter().filter(|part| part.device == device).map(|part| part.bytes).sum::<ByteCount>()
                };
                // The first process of a lease uses all that was promised, through a child.
                let mut seen = BTreeSet::new();
                let processes: Vec<_> = self
                    .alive
                    .iter()
                    .filter(|(_, id)| seen.insert((*id).clone()))
                    .map(|(pid, id)| ProcessUse {
                        lineage: vec![process(*pid + 50_000), process(*pid)],
                        bytes: bytes_of(id),
                    })
                    .collect();
                let ours: ByteCount = processes.iter().map(|usage| usage.bytes).sum();
                let used = foreign.map(|foreign| ours + ByteCount(foreign));
                let sampled_at = StoreTime(self.now.0 - age * 1_000);
                (Op::Observe { device, used, processes, sampled_at }, Offered::Right)
            }
            Step::Acquire { request, sizes } => {
                let (request_id, parts) = (format!("request-{request}"), self.parts(sizes));
                (Op::Acquire { request_id, owner: coordinator(), priority: Priority::NORMAL, parts }, Offered::Right)
            }
            Step::Attach { lease, token } => {
                let (id, lease) = self.pick(lease)?;
                self.next_pid += 1;
                let process = process(self.next_pid);
                (Op::Attach { lease: id, token: offered(&lease, token), process, boot_id: "boot".to_owned() }, token)
            }
            Step::Renew { token } => {
                let leases = self.ledger.leases.iter().map(|(id, lease)| (id.clone(), offered(lease, token))).collect();
                (Op::Renew { leases }, token)
            }
            Step::Resize { lease, token, sizes } => {
                let (id, lease) = self.pick(lease)?;
                (Op::Resize { lease: id, token: offered(&lease, token), parts: self.parts(sizes) }, token)
            }
            Step::Release { lease, token } => {
                let (id, lease) = self.pick(lease)?;
                let gone = !self.alive.values().any(|held| *held == id);
                let evidence = if gone { Evidence::Gone } else { Evidence::None };
                (Op::Release { lease: id, token: offered(&lease, token), evidence }, token)
            }
            Step::ConfirmDead { lease, lie } => {
                let (id, lease) = self.pick(lease)?;
                let mut gone: Vec<_> =
                    lease.pids.iter().filter(|process| !self.alive.contains_key(&process.pid)).cloned().collect();
                if lie == Lie::OtherStartTime {
                    gone = lease.pids.iter().map(|p| Process { start_time: p.start_time - 1, ..p.clone() }).collect();
                }
                let seen_from = if lie == Lie::OtherNamespace { "pid:[2]" } else { NAMESPACE }.to_owned();
                (Op::ConfirmDead { lease: id, gone, seen_from }, Offered::Right)
            }
        })
    }

    /// Takes one step and checks every invariant.
    fn check(&mut self, step: Step) -> Result<(), TestCaseError> {
        let lied = matches!(step, Step::ConfirmDead { lie: Lie::OtherStartTime | Lie::OtherNamespace, .. });
        let Some((op, offered)) = self.take(step) else { return Ok(()) };
        // What time alone changes is not this operation's doing.
        let mut before = self.ledger.clone();
        apply(&mut before, self.now, Op::Renew { leases: Vec::new() });
        let outcome = apply(&mut self.ledger, self.now, op.clone());
        let (before, after) = (before, &self.ledger);

        prop_assert!(after.fence >= before.fence, "I2: the fence fell");
        let requests: BTreeSet<_> = after.leases.values().map(|lease| &lease.request_id).collect();
        prop_assert_eq!(requests.len(), after.leases.len(), "I3: a request id has two leases");

        let new: Vec<_> = after.leases.iter().filter(|(id, _)| !before.leases.contains_key(*id)).collect();
        match (&op, &outcome) {
            (Op::Acquire { parts, .. }, Outcome::Granted(grant)) => {
                if let [(id, lease)] = new.as_slice() {
                    prop_assert_eq!(*id, &grant.lease);
                    prop_assert!(
                        self.tokens.iter().all(|earlier| *earlier < lease.token),
                        "I2: an old token came again"
                    );
                    self.tokens.insert(lease.token);
                    let granted: Vec<_> = lease.parts.iter().map(|part| (part.device.clone(), part.bytes)).collect();
                    prop_assert_eq!(&granted, parts, "I4: not all parts were granted");
                    self.within_capacity(&before)?;
                } else {
                    prop_assert!(new.is_empty());
                    prop_assert_eq!(&before.leases, &after.leases, "I3: asking again changed something");
                }
            }
            (Op::Resize { .. }, Outcome::Resized) => self.within_capacity(&before)?,
            _ => prop_assert!(new.is_empty(), "I4: a lease came from {op:?} with {outcome:?}"),
        }
        if offered == Offered::Stale || lied {
            prop_assert_eq!(&before.leases, &after.leases, "I5: a stale token or a lie changed something");
        }
        for (id, lease) in before.leases.iter().filter(|(id, _)| !after.leases.contains_key(*id)) {
            let ended = matches!(&op, Op::Release { lease, .. } | Op::ConfirmDead { lease, .. } if lease == id);
            prop_assert!(ended, "I6: {id} left through {op:?}");
            prop_assert!(!self.alive.values().any(|held| held == id), "I6: {lease:?} left and its process lives");
        }
        if let (Op::Attach { lease, process, .. }, Outcome::Attached) = (&op, &outcome) {
            self.alive.insert(process.pid, lease.clone());
        }
        for (pid, id) in &self.alive {
            let lease = self.ledger.leases.get(id);
            prop_assert!(lease.is_some_and(|l| l.pids.contains(&process(*pid))), "I6: process {pid} is not counted");
            prop_assert!(lease.is_some_and(|l| l.state != LeaseState::Pending));
        }
        let reread = serde_json::to_string(&self.ledger).and_then(|text| serde_json::from_str::<Ledger>(&text));
        prop_assert!(reread.is_ok_and(|reread| reread == self.ledger), "the document round-trips");
        Ok(())
    }

    /// I1, where a grant or a growth has just added bytes. Elsewhere what is foreign may have grown since.
    fn within_capacity(&self, before: &Ledger) -> Result<(), TestCaseError> {
        for (key, device) in &self.ledger.devices {
            if self.ledger.charged(key) > before.charged(key) {
                let total = self.ledger.charged(key) + device.foreign.unwrap_or_default();
                prop_assert!(total.0 <= CAPACITY - RESERVE, "I1: {total:?} on {key}");
                prop_assert!(device.foreign.is_some(), "I1: granted without knowing what is in use");
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn le_4_the_invariants_hold_in_every_history(steps in proptest::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.check(step)?;
        }
    }
}

/// A property test that never grants anything proves nothing.
#[test]
fn random_histories_reach_every_outcome() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut reached = BTreeSet::new();
    for _ in 0..300 {
        let steps = proptest::collection::vec(step(), 100).new_tree(&mut runner).unwrap().current();
        let mut world = World::new();
        for step in steps {
            let Some((op, _)) = world.take(step) else { continue };
            let outcome = apply(&mut world.ledger, world.now, op.clone());
            if let (Op::Attach { lease, process, .. }, Outcome::Attached) = (&op, &outcome) {
                world.alive.insert(process.pid, lease.clone());
            }
            let text = format!("{outcome:?}");
            reached.insert(text.split([' ', '(', '{']).next().unwrap_or_default().to_owned());
        }
    }
    for outcome in [
        "Noted", "Granted", "Wait", "Attached", "Lost", "Renewed", "Resized", "Released", "InLimbo", "NotShown",
        "Refused",
    ] {
        assert!(reached.contains(outcome), "{outcome} was never reached; reached: {reached:?}");
    }
}
