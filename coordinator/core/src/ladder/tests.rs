//! The chosen rung, by a table of situations.

use super::*;
use crate::refusal::{Refusal, RefusalReason};

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn ladder(names: &[&str]) -> Ladder {
    let rung = |(position, name): (usize, &&str)| Rung { target: Target::Local(ModelId::from(*name)), position };
    let mut rungs = names.iter().enumerate().map(rung);
    let first = rungs.next().unwrap();
    Ladder { first, rest: rungs.collect(), pin_primary: false, patience: s(10) }
}

fn warm(wait: u64) -> RungState {
    RungState::Usable(Standing::Warm { wait: s(wait) })
}

fn cold(load: u64) -> RungState {
    RungState::Usable(Standing::Cold { load: s(load) })
}

fn bad(code: RefusalReason, message: &str) -> RungState {
    RungState::Unusable(Refusal::new(code, message))
}

fn choice(ladder: &Ladder, states: Vec<RungState>) -> (usize, String) {
    let rungs: Vec<_> = ladder.rungs().zip(states).collect();
    let (index, choice) = choose(&rungs, ladder).unwrap();
    assert_eq!(choice.position, rungs[index].0.position);
    (index, choice.reason.to_string())
}

#[test]
fn tr_2_a_loaded_lower_rung_wins_when_the_better_one_takes_longer_than_the_patience() {
    let three = ladder(&["big", "middle", "small"]);
    for (states, index, reason) in [
        (vec![warm(0), warm(0), warm(0)], 0, "preferred"),
        (vec![cold(9), warm(0), warm(0)], 0, "preferred"),
        (vec![cold(11), warm(0), warm(0)], 1, "sooner; big is not loaded (11.0 s)"),
        (vec![cold(100), cold(60), warm(0)], 2, "sooner; big is not loaded (100.0 s)"),
        (vec![cold(100), cold(95), cold(90)], 0, "preferred"),
        (vec![warm(30), warm(25), warm(0)], 2, "sooner; big is loaded and has others before it (30.0 s)"),
        (vec![RungState::Usable(Standing::Loading { wait: s(3) }), warm(0), warm(0)], 0, "preferred"),
    ] {
        assert_eq!(choice(&three, states.clone()), (index, reason.to_owned()), "{states:?}");
    }
}

#[test]
fn tr_2_who_has_to_leave_counts_and_no_room_counts_most() {
    let two = ladder(&["big", "small"]);
    let evicting = |idle, busy| RungState::Usable(Standing::Evicting { load: s(5), idle, busy });
    assert_eq!(choice(&two, vec![evicting(1, 0), cold(1)]).0, 0);
    assert_eq!(choice(&two, vec![evicting(4, 0), cold(1)]).0, 1);
    assert_eq!(choice(&two, vec![evicting(0, 1), cold(1)]).0, 1);
    let no_room = || RungState::Usable(Standing::NoRoom { load: s(1) });
    assert_eq!(choice(&two, vec![no_room(), evicting(3, 2)]).0, 1);
    assert_eq!(choice(&two, vec![no_room(), no_room()]).0, 0);
}

#[test]
fn tr_2_a_pinned_primary_is_waited_for_but_its_failure_leads_on() {
    let mut two = ladder(&["big", "small"]);
    two.pin_primary = true;
    assert_eq!(choice(&two, vec![cold(1_000), warm(0)]), (0, "preferred; pin_primary".into()));
    let failing = bad(RefusalReason::BackingOff, "failed 3 times");
    assert_eq!(choice(&two, vec![failing, cold(1_000)]), (1, "fallback; big: failed 3 times".into()));
}

#[test]
fn a_failed_rung_is_named_and_a_better_one_that_works_is_not_skipped_for_it() {
    let three = ladder(&["big", "middle", "small"]);
    let bad = || bad(RefusalReason::LoadFailed, "no such file");
    assert_eq!(choice(&three, vec![bad(), cold(20), warm(0)]).1, "sooner; middle is not loaded (20.0 s)");
    assert_eq!(choice(&three, vec![bad(), cold(2), warm(0)]), (1, "fallback; big: no such file".into()));
    assert_eq!(choice(&three, vec![warm(0), bad(), bad()]), (0, "preferred".into()));
}

#[test]
fn one_model_alone_is_no_choice() {
    assert_eq!(choice(&Ladder::from("a"), vec![cold(500)]), (0, "only".into()));
}

#[test]
fn when_nothing_is_left_the_first_error_stands_with_the_others_named() {
    let two = ladder(&["big", "small"]);
    let late = Refusal::new(RefusalReason::BackingOff, "later").retry_after(s(9));
    let soon = Refusal::new(RefusalReason::QueueFull, "full").retry_after(s(2));
    let rungs: Vec<_> = two.rungs().zip([RungState::Unusable(late), RungState::Unusable(soon)]).collect();
    let error = choose(&rungs, &two).unwrap_err();
    assert_eq!((error.reason, error.retry_after), (RefusalReason::BackingOff, Some(s(2))));
    assert_eq!(error.message, "later; nor can 'small': full");
}
