//! RC-18 case by case, on plain numbers.

use model_boss_protocol::{ByteCount, KeepAlive, RequestId};
use proptest::prelude::*;

use super::*;
use crate::catalog::ModelIndex;
use crate::client::ClientIndex;
use crate::queue::{Arrival, InferenceQueue, Purpose, QueueLimits, Waiting};
use crate::testing::s;

const GIB: i128 = 1 << 30;

fn gib(number: i128) -> SignedBytes {
    SignedBytes::from(number * GIB)
}

/// A request of this base priority that arrived at `at`, aged until `now`.
fn asker(base: u8, at: Moment, now: Moment) -> Head {
    let (key, base) = place(base, at, now);
    Head { key, id: RequestId(1), base }
}

fn place(base: u8, at: Moment, now: Moment) -> (OrderKey, Priority) {
    let settings = Settings::default();
    let limits = QueueLimits { per_model: 9, in_all: 9 };
    let mut queue = InferenceQueue::new(limits, settings.aging_step);
    let arrival: Arrival = queue.arrive(at);
    let priority = Priority::new(base).unwrap();
    let model = ModelIndex::new(0);
    let client = ClientIndex::new(0);
    let keep_alive: Option<KeepAlive> = None;
    let purpose = Purpose::Inference;
    let id = RequestId(1);
    queue.push(Waiting {
        id,
        model,
        purpose,
        client,
        priority,
        arrival,
        deadline: None,
        keep_alive,
        work: None,
        retries: 0,
        climb: None,
    });
    (queue.best(model, now).unwrap().key, priority)
}

/// An idle slot of 4 GiB that is READY since the start.
fn idle(slot: u64, rank: u8) -> EvictionCandidate {
    EvictionCandidate {
        slot: SlotId(slot),
        bytes: gib(4),
        further: Vec::new(),
        excluded: false,
        frees_place: false,
        claimed: None,
        hold: Hold::Until(s(10)),
        rank: Priority::new(rank).unwrap(),
        usage: SlotUse::Idle,
        work: 0,
        last_used: s(0),
        last_priority: Priority::new(rank).unwrap(),
        queued: None,
    }
}

fn busy(slot: u64, rank: u8) -> EvictionCandidate {
    EvictionCandidate { usage: SlotUse::Busy, ..idle(slot, rank) }
}

/// A need of this many bytes on one device.
fn wants(bytes: i128) -> Need {
    Need::of(ByteCount(u64::try_from(bytes).unwrap()))
}

fn memory(missing: i128) -> Goal {
    Goal { need: wants(missing), rooms: vec![SignedBytes::ZERO], places: 0, away_until: Moment::START }
}

fn take(asker: &Head, missing: i128, from: &[EvictionCandidate], now: Moment) -> Result<Vec<u64>, Blocked> {
    plan(asker, &memory(missing), from, now, &Settings::default())
        .map(|v| v.iter().map(|victim| victim.slot.0).collect())
}

fn protection(asker: &Head, of: EvictionCandidate, now: Moment) -> (Protection, Option<Moment>) {
    let blocked = take(asker, GIB, &[of], now).unwrap_err();
    (blocked.blockers[0].1, blocked.look_again)
}

#[test]
fn rc_18_a_a_less_important_slot_may_be_taken_busy_or_not_and_within_its_hold() {
    let asker = asker(4, s(1), s(1));
    assert_eq!(take(&asker, GIB, &[idle(1, 5)], s(1)), Ok(vec![1]));
    assert_eq!(take(&asker, GIB, &[busy(1, 5)], s(1)), Ok(vec![1]));
}

#[test]
fn rc_18_a_a_drain_that_a_waiting_request_would_call_off_is_not_begun() {
    let asker = asker(4, s(1), s(1));
    let kept = EvictionCandidate { queued: Some(place(2, s(1), s(1))), ..busy(1, 8) };
    assert_eq!(protection(&asker, kept, s(1)), (Protection::QueuedBefore, None));
}

#[test]
fn rc_18_b_an_equal_idle_slot_with_nothing_queued_is_taken_at_once() {
    assert_eq!(take(&asker(5, s(1), s(1)), GIB, &[idle(1, 5)], s(1)), Ok(vec![1]));
}

#[test]
fn rc_18_b_an_equal_busy_slot_is_taken_after_its_hold_by_whoever_came_before_its_queue() {
    let mine = asker(5, s(2), s(9));
    let later = EvictionCandidate { queued: Some(place(5, s(3), s(9))), ..busy(1, 5) };
    assert_eq!(protection(&mine, later.clone(), s(9)).0, Protection::Hold);
    assert_eq!(protection(&mine, later.clone(), s(9)).1, Some(s(10)));
    assert_eq!(take(&mine, GIB, &[later], s(10)), Ok(vec![1]));
    let earlier = EvictionCandidate { queued: Some(place(5, s(1), s(10))), ..busy(1, 5) };
    assert_eq!(protection(&mine, earlier, s(10)).0, Protection::QueuedBefore);
}

#[test]
fn rc_18_b_a_model_that_was_just_evicted_takes_no_wanted_place_of_an_equal() {
    let away = Goal { away_until: s(20), ..memory(GIB) };
    let plan = |asker: &Head, of: EvictionCandidate, now| {
        let settings = Settings::default();
        plan(asker, &away, &[of], now, &settings).map_err(|blocked| (blocked.blockers[0].1, blocked.look_again))
    };
    let mine = asker(5, s(11), s(12));
    assert_eq!(plan(&mine, busy(1, 5), s(12)), Err((Protection::JustEvicted, Some(s(20)))));
    assert!(plan(&mine, busy(1, 5), s(20)).is_ok());
    // An idle place is nobody's turn, and importance comes first.
    assert!(plan(&mine, idle(1, 5), s(12)).is_ok());
    assert!(plan(&mine, busy(1, 6), s(12)).is_ok());
    let (now, long) = (s(600), Goal { away_until: s(700), ..memory(GIB) });
    let overdue = asker(5, s(0), now);
    assert!(super::plan(&overdue, &long, &[busy(1, 5)], now, &Settings::default()).is_ok());
}

#[test]
fn rc_18_among_equals_with_work_the_one_with_the_least_leaves() {
    let mine = asker(5, s(11), s(12));
    let works = |slot, work, used| EvictionCandidate { work, last_used: s(used), ..busy(slot, 5) };
    let all = [works(1, 9, 0), works(2, 3, 5), works(3, 3, 4), works(4, 20, 1)];
    assert_eq!(take(&mine, GIB, &all, s(12)), Ok(vec![3]));
    assert_eq!(take(&mine, 12 * GIB, &all, s(12)), Ok(vec![3, 2, 1]));
    let idle_one = idle(5, 5);
    assert_eq!(take(&mine, GIB, &[works(1, 1, 0), idle_one], s(12)), Ok(vec![5]));
}

#[test]
fn rc_18_a_more_important_slot_is_kept_until_it_fades() {
    let mine = asker(5, s(1), s(1));
    // A slot of rank 2, idle since 0 s, fades to 5 at 90 s.
    assert_eq!(
        protection(&mine, idle(1, 2), s(1)),
        (Protection::MoreImportant { rank: Priority::INTERACTIVE }, Some(s(90)))
    );
    assert_eq!(protection(&mine, busy(1, 2), s(1)).1, Some(s(601)));
}

#[test]
fn rc_5_aging_changes_order_and_never_the_right_to_evict() {
    let aged = asker(8, s(0), s(300));
    assert_eq!(aged.key.effective.number(), 1);
    assert_eq!(protection(&aged, busy(1, 5), s(300)).0, Protection::MoreImportant { rank: Priority::NORMAL });
}

#[test]
fn rc_18_c_after_max_wait_any_rank_is_taken_under_the_hold() {
    let now = s(600);
    let mine = asker(8, s(0), now);
    let fresh = EvictionCandidate { hold: Hold::Until(s(605)), ..busy(1, 2) };
    assert_eq!(protection(&mine, fresh.clone(), now), (Protection::Hold, Some(s(605))));
    assert_eq!(take(&mine, GIB, &[fresh], s(605)), Ok(vec![1]));
    let never = Settings { max_wait: Duration::ZERO, ..Settings::default() };
    assert!(plan(&mine, &memory(GIB), &[busy(1, 2)], s(6_000), &never).is_err());
}

#[test]
fn rc_18_c_zero_is_never_overtaken() {
    let mine = asker(8, s(0), s(700));
    let held = EvictionCandidate { queued: Some(place(0, s(699), s(700))), ..busy(1, 0) };
    assert_eq!(protection(&mine, held, s(700)).0, Protection::QueuedBefore);
}

#[test]
fn rc_18_never_pinned_never_loading_never_before_the_cause_started() {
    let mine = asker(0, s(0), s(5_000));
    for why in [Protection::Pinned, Protection::Loading, Protection::CauseWaits] {
        let kept = EvictionCandidate { hold: Hold::Always(why), ..idle(1, 9) };
        assert_eq!(protection(&mine, kept, s(5_000)), (why, None));
    }
}

#[test]
fn rc_11_a_load_for_nobody_is_taken_by_anybody() {
    let unwanted = EvictionCandidate { hold: Hold::Unwanted, ..idle(1, 0) };
    assert_eq!(take(&asker(9, s(0), s(0)), GIB, &[unwanted], s(0)), Ok(vec![1]));
}

#[test]
fn rc_18_idle_first_then_least_important_then_least_recently_used() {
    let mine = asker(2, s(9), s(9));
    let recent = EvictionCandidate { last_used: s(5), ..idle(3, 5) };
    let all = [busy(1, 9), idle(2, 4), recent, idle(4, 5)];
    assert_eq!(take(&mine, GIB, &all, s(9)), Ok(vec![4]));
    assert_eq!(take(&mine, 8 * GIB, &all, s(9)), Ok(vec![4, 3]));
    assert_eq!(take(&mine, 16 * GIB, &all, s(9)), Ok(vec![4, 3, 2, 1]));
}

#[test]
fn rc_18_the_whole_set_is_checked_before_the_first_eviction() {
    let mine = asker(5, s(9), s(9));
    let pinned = EvictionCandidate { hold: Hold::Always(Protection::Pinned), ..idle(3, 9) };
    let blocked = take(&mine, 12 * GIB, &[idle(1, 5), idle(2, 5), pinned], s(9)).unwrap_err();
    assert_eq!(blocked.blockers, [(SlotId(3), Protection::Pinned)]);
}

#[test]
fn rc_18_a_small_victim_that_a_large_one_makes_superfluous_stays() {
    let mine = asker(5, s(9), s(9));
    let large = EvictionCandidate { bytes: gib(20), last_used: s(2), ..idle(2, 5) };
    assert_eq!(take(&mine, 10 * GIB, &[idle(1, 5), large], s(9)), Ok(vec![2]));
}

#[test]
fn mm_3_a_full_category_gives_up_its_least_recently_used_and_no_more() {
    let mine = asker(5, s(9), s(9));
    let of_type =
        |n, used| EvictionCandidate { frees_place: true, last_used: s(used), bytes: SignedBytes::ZERO, ..idle(n, 5) };
    let goal = Goal { need: wants(0), rooms: vec![SignedBytes::ZERO], places: 1, away_until: Moment::START };
    let other = EvictionCandidate { last_used: s(0), ..idle(7, 9) };
    let all = [of_type(1, 3), of_type(2, 2), of_type(3, 4), other];
    let victims = plan(&mine, &goal, &all, s(9), &Settings::default()).unwrap();
    assert_eq!(victims.iter().map(|v| v.slot.0).collect::<Vec<_>>(), [2]);
    let busy_one = EvictionCandidate { frees_place: true, hold: Hold::Until(s(20)), ..busy(1, 5) };
    let blocked = plan(&mine, &goal, &[busy_one], s(9), &Settings::default()).unwrap_err();
    assert_eq!(blocked.lacking, Lacking::Place);
    assert_eq!(blocked.blockers, [(SlotId(1), Protection::Hold)]);
}

#[test]
fn mm_5_every_user_of_an_exclusive_device_leaves_or_none_does() {
    let mine = asker(5, s(9), s(9));
    let user = |n, rank| EvictionCandidate { excluded: true, bytes: SignedBytes::ZERO, ..idle(n, rank) };
    let goal = Goal { need: wants(0), rooms: vec![SignedBytes::ZERO], places: 0, away_until: Moment::START };
    let victims = plan(&mine, &goal, &[user(1, 5), user(2, 9), idle(3, 9)], s(9), &Settings::default()).unwrap();
    assert_eq!(victims.iter().map(|v| v.slot.0).collect::<Vec<_>>(), [2, 1]);
    let blocked = plan(&mine, &goal, &[user(1, 5), user(2, 1)], s(9), &Settings::default()).unwrap_err();
    assert_eq!((blocked.lacking, blocked.blockers.len()), (Lacking::Device, 1));
}

#[test]
fn rc_22_victims_on_several_devices_are_counted_together() {
    let mine = asker(5, s(9), s(9));
    let margin = split::MARGIN;
    let on = |n, a: i128, b: i128, used| EvictionCandidate {
        bytes: gib(a),
        further: vec![gib(b)],
        last_used: s(used),
        ..idle(n, 9)
    };
    // The model needs 12 GiB on two devices, which have 4 GiB and 2 GiB of spare memory beside the margin.
    let goal = Goal {
        need: wants(12 * GIB),
        rooms: vec![gib(4) + margin, gib(2) + margin],
        places: 0,
        away_until: Moment::START,
    };
    let all = [on(1, 1, 0, 1), on(2, 0, 6, 2), on(3, 6, 0, 3)];
    let victims = plan(&mine, &goal, &all, s(9), &Settings::default()).unwrap();
    assert_eq!(victims.iter().map(|v| v.slot.0).collect::<Vec<_>>(), [2]);
    // One device cannot make up for the lack of another: a negative room counts as zero, not as a debt.
    let debt =
        Goal { need: wants(5 * GIB), rooms: vec![gib(4) + margin, gib(-9)], places: 0, away_until: Moment::START };
    assert!(plan(&mine, &debt, &[on(1, 0, 6, 1)], s(9), &Settings::default()).is_err());
}

#[test]
fn rc_18_what_leaves_for_another_request_is_taken_by_a_more_important_one_only() {
    let claimed = EvictionCandidate { claimed: Some(Priority::NORMAL), ..busy(1, 9) };
    assert_eq!(protection(&asker(5, s(1), s(1)), claimed.clone(), s(1)).0, Protection::Claimed);
    assert_eq!(take(&asker(4, s(1), s(1)), GIB, &[claimed], s(1)), Ok(vec![1]));
}

proptest! {
    /// For random goals and slots, the victims suffice and none of them is superfluous.
    #[test]
    fn rc_18_victims_suffice_and_none_is_superfluous(
        sizes in prop::collection::vec((1..20i128, 0..10u8, any::<bool>(), 0..9u64), 1..8),
        missing in 1..60i128,
    ) {
        let candidates: Vec<EvictionCandidate> = sizes.iter().enumerate().map(|(n, &(size, rank, is_busy, used))| EvictionCandidate {
            bytes: gib(size),
            last_used: s(used),
            ..if is_busy { busy(n as u64, rank) } else { idle(n as u64, rank) }
        }).collect();
        let mine = asker(5, s(9), s(9));
        let bytes = |slot: SlotId| candidates[usize::try_from(slot.0).unwrap()].bytes;
        let right = |c: &EvictionCandidate| c.rank.number() > 5 || (c.rank.number() == 5 && c.usage == SlotUse::Idle);
        let most: SignedBytes = candidates.iter().filter(|c| right(c)).map(|c| c.bytes).sum();
        match plan(&mine, &memory(missing * GIB), &candidates, s(9), &Settings::default()) {
            Err(_) => prop_assert!(most < gib(missing)),
            Ok(victims) => {
                let sum: SignedBytes = victims.iter().map(|v| bytes(v.slot)).sum();
                prop_assert!(sum >= gib(missing));
                for victim in &victims {
                    prop_assert!(sum - bytes(victim.slot) < gib(missing));
                    prop_assert!(right(&candidates[usize::try_from(victim.slot.0).unwrap()]));
                }
            }
        }
    }
}
