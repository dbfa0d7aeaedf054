//! Equal operations at equal times, on the rules alone and on ledgers in each store: all outcomes and documents must be
//! equal.

use std::time::Duration;

use model_boss_lease::{
    Accounting, DeviceKey, Evidence, LeaseDurations, LeaseId, Ledger, Mode, Op, Owner, OwnerKind, Process, ProcessUse,
    Renewal, Request, StoreTime, Token, Want, Yielding, apply,
};
use model_boss_lease_store::{EmbeddedStore, Etag, LedgerStore, RedisStore, Swap};
use model_boss_protocol::{ByteCount, Priority};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use crate::server::Server;

const BOOT: &str = "boot";

/// One step: the operation, the holder or lease, the size, and the time that passes before.
type Step = (u8, u8, u64, u64);

#[test]
fn le_1_embedded_redis_and_the_rules_alone_agree_on_every_sequence() {
    let Some(server) = Server::start() else { return };
    let config = ProptestConfig {
        cases: 16,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut runner = TestRunner::new(config);
    let steps = proptest::collection::vec((0..10_u8, 0..4_u8, 0..60_u64, 0..2_000_u64), 10..60);
    let granted = std::cell::Cell::new(0_usize);
    runner
        .run(&steps, |steps| {
            server.flush();
            let folder = tempfile::tempdir().unwrap();
            let mut redis = RedisStore::open(&server.url(), BOOT).unwrap();
            let mut embedded = EmbeddedStore::open(folder.path()).unwrap();
            let mut alone = Ledger::new(BOOT, Token(0), LeaseDurations::default());
            let mut now = StoreTime(1_000_000_000);
            // The two devices are declared and observed.
            let first = [(0, 0, 0, 0), (0, 0, 1, 0), (1, 0, 0, 1), (1, 0, 1, 1)];
            for step in first.into_iter().chain(steps) {
                now = now.after(Duration::from_millis(step.3));
                let op = op(&alone, step, now);
                let outcome = apply(&mut alone, now, op.clone());
                granted.set(granted.get() + usize::from(matches!(outcome, model_boss_lease::Outcome::Granted(_))));
                for (name, store) in [("redis", &mut redis as &mut dyn LedgerStore), ("embedded", &mut embedded)] {
                    let loaded = store.load().unwrap();
                    let mut ledger = match &loaded.document {
                        Some(text) => serde_json::from_str(text).unwrap(),
                        None => Ledger::new(BOOT, Token(0), LeaseDurations::default()),
                    };
                    prop_assert_eq!(&apply(&mut ledger, now, op.clone()), &outcome, "{}: {:?}", name, op);
                    prop_assert_eq!(&ledger, &alone, "{}: {:?}", name, op);
                    let document = serde_json::to_string(&ledger).unwrap();
                    prop_assert_eq!(
                        store.compare_and_swap(&loaded, Etag::random().unwrap(), &document).unwrap(),
                        Swap::Done
                    );
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(granted.get() > 50, "only {} leases were granted: nothing was compared", granted.get());
}

/// The operation that the numbers select in this ledger.
fn op(ledger: &Ledger, (what, who, size, _): Step, now: StoreTime) -> Op {
    let pid = 100 + u32::from(who);
    let process = Process { pid, start_time: 7, pid_ns: "pid:[1]".to_owned() };
    let device = DeviceKey::gpu(format!("GPU-{}", size % 2));
    let bytes = ByteCount(1 + size);
    let mut leases = ledger.leases.iter().skip(usize::from(who) % ledger.leases.len().max(1));
    let (lease, token) = leases.next().map_or((LeaseId::from("lease-0"), Token(0)), |(id, l)| (id.clone(), l.token));
    let held: Vec<_> = ledger.leases.get(&lease).map(model_boss_lease::Lease::promised).unwrap_or_default();
    match what {
        0 => Op::Declare {
            name: device.to_string(),
            device,
            capacity: ByteCount(100),
            reserve: ByteCount(5),
            accounting: Accounting::PerProcess,
            by: OwnerKind::Coordinator,
        },
        1 | 2 => {
            let processes = vec![ProcessUse { lineage: vec![process], bytes: ByteCount(size / 8) }];
            Op::Observe { device, used: Some(ByteCount(size / 4)), processes, sampled_at: now }
        }
        3..=5 => Op::Acquire(Request {
            request_id: format!("{who}-{}", size % 5),
            lease: LeaseId::from(format!("lease-{who}-{}", size % 5)),
            owner: Owner::new(process, "job", OwnerKind::Job),
            priority: Priority::new(u8::try_from(size % 10).unwrap()).unwrap(),
            yielding: Yielding { preemptible: size % 2 == 0, min_hold: Duration::ZERO, ..Yielding::default() },
            want: if size % 3 == 0 {
                let devices = vec![DeviceKey::gpu("GPU-0"), DeviceKey::gpu("GPU-1")];
                Want::AnyOf { count: 1 + usize::from(who % 2), bytes, devices }
            } else {
                Want::Parts(vec![(device, bytes)])
            },
            mode: [Mode::Try, Mode::Wait, Mode::Preempt][usize::from(who) % 3].clone(),
        }),
        6 => Op::Attach { lease, token, process, boot_id: BOOT.to_owned() },
        7 => Op::Renew { leases: vec![Renewal::plain(lease, token)] },
        8 => Op::Resize { lease, token, parts: held.into_iter().map(|(device, _)| (device, bytes)).collect() },
        _ => Op::Release { lease, token, evidence: if size % 2 == 0 { Evidence::Gone } else { Evidence::None } },
    }
}
