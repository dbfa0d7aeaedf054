//! Accounts of clients: service, limits and order.

use super::*;
use crate::catalog::ModelIndex;
use crate::testing::{ms, s};

fn clients(rule: ClientRule) -> Clients {
    Clients::new(ClientRules { default: rule, ..ClientRules::default() }, 1_000)
}

fn client(name: &str) -> Principal {
    Principal::Client(name.into())
}

fn ended(tokens: Option<u64>, took: Duration) -> RecentRequest {
    RecentRequest {
        request: RequestId(1),
        model: "m".into(),
        index: ModelIndex::new(0),
        ended: Moment::START,
        took,
        tokens,
        outcome: RequestOutcome::Answered,
    }
}

/// One request from its arrival to its end.
fn serve(clients: &mut Clients, client: ClientIndex, now: Moment, tokens: u64) {
    clients.waits(client, now);
    clients.started(client, now);
    clients.left(client, now);
    clients.ended(client, now, ended(Some(tokens), Duration::ZERO));
}

#[test]
fn rc_4_service_counts_in_steps_and_without_tokens_by_time() {
    let mut all = clients(ClientRule::default());
    let a = all.named(&client("a"), s(0));
    serve(&mut all, a, s(0), 2_500);
    assert_eq!(all.standing(a, s(0)).service, 2);
    all.started(a, s(0));
    all.ended(a, s(9), ended(None, Duration::from_secs(9)));
    assert_eq!(all.get(a).service, 2_500 + 900);
}

#[test]
fn rc_4_a_client_that_was_away_saves_nothing_up_and_owes_nothing() {
    let mut all = clients(ClientRule::default());
    let (busy, new) = (all.named(&client("busy"), s(0)), all.named(&client("new"), s(0)));
    serve(&mut all, busy, s(0), 50_000);
    // The client joins one that is active and got much service: both continue from the same level.
    all.started(busy, s(1));
    all.waits(new, s(1));
    assert_eq!(all.standing(new, s(1)).service, all.standing(busy, s(1)).service);
    assert_eq!(all.ahead(new), 0);
    serve(&mut all, new, s(2), 3_000);
    assert_eq!(all.ahead(new), 3_000);
    // One client is alone, then another one arrives. Service that no other client wanted counts against neither.
    all.left(new, s(3));
    all.ended(busy, s(3), ended(Some(9_000), Duration::ZERO));
    let late = all.named(&client("late"), s(4));
    all.waits(late, s(4));
    assert_eq!(all.standing(late, s(4)).service, all.standing(busy, s(4)).service);
}

#[test]
fn rc_9_concurrency_and_cooldown_hold_a_client_back() {
    let rule = ClientRule { max_concurrent: Some(2), cooldown: Duration::from_millis(1_500), ..ClientRule::default() };
    let mut all = clients(rule);
    let a = all.named(&client("a"), s(0));
    all.started(a, s(0));
    assert_eq!(all.get(a).held_back(s(0)), None);
    all.started(a, s(0));
    assert_eq!(all.get(a).held_back(s(0)), Some(HeldBack::Concurrency { running: 2, limit: 2 }));
    all.ended(a, s(5), ended(Some(1), Duration::ZERO));
    assert_eq!(all.get(a).held_back(ms(6_499)), Some(HeldBack::Cooldown { until: ms(6_500) }));
    assert_eq!(all.get(a).held_back(ms(6_500)), None);
}

#[test]
fn rc_9_a_rate_is_refilled_by_time_and_says_when() {
    let mut all = clients(ClientRule { rate_per_minute: Some(6), ..ClientRule::default() });
    let a = all.named(&client("a"), s(0));
    for _ in 0..6 {
        assert_eq!(all.admit(a, s(0)), Ok(()));
    }
    let Err(OverLimit::Rate { per_minute, retry_after }) = all.admit(a, s(0)) else { panic!("a seventh was let in") };
    assert_eq!((per_minute, retry_after), (6, Duration::from_secs(10)));
    assert_eq!(all.admit(a, s(10)), Ok(()));
    assert!(all.admit(a, s(10)).is_err());
    assert_eq!((all.get(a).requests, all.get(a).refused), (7, 2));
}

#[test]
fn rc_9_only_so_many_of_a_client_wait() {
    let mut all = clients(ClientRule { max_queued: Some(1), ..ClientRule::default() });
    let a = all.named(&client("a"), s(0));
    assert_eq!(all.admit(a, s(0)), Ok(()));
    all.waits(a, s(0));
    assert_eq!(all.admit(a, s(0)), Err(OverLimit::Queued { limit: 1 }));
    all.left(a, s(0));
    assert_eq!(all.admit(a, s(0)), Ok(()));
}

#[test]
fn names_from_strangers_take_no_more_than_so_much_memory() {
    let mut all = clients(ClientRule::default());
    let kept = all.named(&client("kept"), s(0));
    all.waits(kept, s(0));
    for n in 0..3 * REMEMBERED {
        all.named(&client(&format!("stranger-{n}")), s(n as u64));
    }
    assert_eq!(all.all.len(), REMEMBERED);
    assert_eq!(all.ids.len(), REMEMBERED);
    assert_eq!(all.named(&client("kept"), s(0)), kept);
    assert_eq!(all.get(kept).waiting, 1);
}

#[test]
fn rc_24_a_named_client_has_its_own_rule() {
    let rule = ClientRule { max_priority: model_boss_protocol::Priority::HIGHEST, ..ClientRule::default() };
    let rules = ClientRules { default: ClientRule::default(), named: [("boss".into(), rule.clone())].into() };
    let mut all = Clients::new(rules, 1_000);
    let boss = all.named(&client("boss"), s(0));
    let other = all.named(&client("other"), s(0));
    assert_eq!(all.get(boss).rule, rule);
    assert_eq!(all.get(other).rule, ClientRule::default());
    all.reconfigure(ClientRules::default(), 1_000);
    assert_eq!(all.get(boss).rule, ClientRule::default());
}
