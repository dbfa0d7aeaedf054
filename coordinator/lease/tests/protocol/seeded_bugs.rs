//! Seeded bugs: each is put into the protocol, and the checks must find it. A check that finds no bug would guard
//! against none.

use crate::histories::{GENEROUS, choices, run};
use crate::world::{Action, Bug, Reply, Step, World};

/// The number of histories tried; nearly every bug shows within the first few hundred.
const HISTORIES: u64 = 6_000;

fn is_caught(bug: Bug, invariants: &[&str]) {
    for seed in 0..HISTORIES {
        let mut world = World::new(2 + usize::try_from(seed % 3).unwrap_or(0), GENEROUS, bug);
        run(&mut world, &choices(seed, 120));
        if let Some(violation) = world.violation() {
            assert!(invariants.contains(&violation.invariant), "{bug:?} shows as {violation:?}");
            return;
        }
    }
    panic!("{bug:?} was not found in {HISTORIES} histories");
}

macro_rules! seeded {
    ($($name:ident: $bug:ident => $invariants:expr;)*) => {
        $(#[test]
        fn $name() {
            is_caught(Bug::$bug, &$invariants);
        })*
    };
}

seeded! {
    client_clock_used: ClientClock => ["I1", "I10"];
    counter_instead_of_etag_after_data_loss: CounterForEtag => ["I1", "I2", "I3", "I6"];
    renew_recreates: RenewRecreates => ["I1", "I3", "I6", "I10"];
    expiry_frees: ExpiryFrees => ["I6"];
    revoke_mark_frees: RevocationFrees => ["I6", "I1"];
    two_call_multi_gpu: OneDevicePerCall => ["I4", "I3"];
    no_idempotency: NoIdempotency => ["I3", "I10"];
    release_without_token: ReleaseWithoutToken => ["I5", "I6"];
    no_recovery_window: NoWindow => ["I1", "I2", "I6"];
    flush_without_run_id_change: FlushUnnoticed => ["I1", "I2", "I6"];
    no_gate: NoGate => ["I1", "I6", "I10"];
    confirm_dead_ignores_start_time: DeadWhateverItsStart => ["I6"];
    confirm_dead_from_another_pid_namespace: DeadFromElsewhere => ["I6"];
    child_processes_counted_as_foreign: ChildrenAreForeign => ["I10"];
    limbo_not_counted_in_plans: LimboNotCounted => ["I1"];
    nominations_ignored: NominationsIgnored => ["I7"];
    nomination_cycle: NominationCycle => ["I10"];
    waiter_never_expires: WaitersStay => ["I10"];
    unknown_probe_read_as_0: UnknownIsZero => ["I1"];
    fence_restarts_after_flush: FenceRestarts => ["I2"];
    two_state_folders_for_one_gpu: TwoLedgers => ["I1", "I7"];
    observation_older_than_a_release_hides_use: OldSamplesCount => ["I1"];
    overuse_counted_nowhere: OveruseNotCounted => ["I1"];
    clock_jump_back_freezes_expiry: FrozenClock => ["I9", "I10"];
}

/// The bug needs a pause without writes by others, which random histories rarely contain.
#[test]
fn paused_client_swaps_with_an_old_clock() {
    let found = |bug| {
        let mut world = World::new(2, GENEROUS, bug);
        let story = [
            Action::Observe(0),
            Action::Observe(1),
            Action::Pause(0, Step::Ask),
            Action::Tick(3),
            Action::Tick(3),
            Action::Resume(0, Reply::Heard),
        ];
        story.into_iter().for_each(|action| world.step(action));
        world.violation().map(|violation| violation.invariant)
    };
    assert_eq!(found(Bug::SwapWithAnOldClock), Some("I1"));
    assert_eq!(found(Bug::None), None);
}

/// The histories that reveal the seeded bugs break no invariant without them.
#[test]
fn without_a_bug_nothing_is_found() {
    for seed in 0..500 {
        let mut world = World::new(2 + usize::try_from(seed % 3).unwrap_or(0), GENEROUS, Bug::None);
        let taken = run(&mut world, &choices(seed, 120));
        assert_eq!(world.violation(), None, "history {seed}: {taken:?}");
    }
}

/// A process of an older version writes back only its own fields. The loss must be found in the document.
#[test]
fn old_schema_drops_fields() {
    use model_boss_lease::{LeaseDurations, Ledger, Op, StoreTime, Token, apply};
    let mut newer = serde_json::to_value(Ledger::new("boot", Token(0), LeaseDurations::default())).unwrap();
    newer["wishes"] = serde_json::json!({ "a": 1 });
    let rewritten = |document: &serde_json::Value| {
        let mut ledger: Ledger = serde_json::from_value(document.clone()).unwrap();
        apply(&mut ledger, StoreTime(0), Op::Renew { leases: Vec::new() });
        serde_json::to_value(ledger).unwrap()
    };
    let survives = |rewritten: &serde_json::Value| rewritten["wishes"] == newer["wishes"];
    assert!(survives(&rewritten(&newer)));
    // The bug: a reader that keeps only the known fields.
    let known = serde_json::to_value(Ledger::new("boot", Token(0), LeaseDurations::default())).unwrap();
    let mut dropping = newer.clone();
    dropping.as_object_mut().unwrap().retain(|field, _| known.get(field).is_some());
    assert!(!survives(&rewritten(&dropping)));
}
