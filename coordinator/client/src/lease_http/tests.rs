use model_boss_lease::{LeaseState, Process};
use model_boss_lease_store::{LeaseWish, Token, WaiterView};
use model_boss_protocol::{ByteCount, DeviceId};
use serde_json::{Value, json};

use super::*;

fn again<T: Serialize + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug>(value: &T) -> Value {
    let written = serde_json::to_value(value).unwrap();
    assert_eq!(serde_json::from_value::<T>(written.clone()).unwrap(), *value);
    written
}

fn owner() -> Value {
    json!({"pid": 4711, "start_time": 123_456, "pid_ns": 4_026_531_836_u64, "label": "train.py"})
}

#[test]
fn a_wish_needs_little_and_has_the_defaults_of_training() {
    let wish = json!({"request_id": "a", "owner": owner(), "any": {"count": 2, "memory": "18GiB"}});
    let wish: AcquireBody = serde_json::from_value(wish).unwrap();
    assert_eq!((wish.priority.number(), wish.preemptible, wish.preempt, wish.wait), (7, false, false, true));
    assert_eq!((wish.grace, wish.min_hold), (Duration::from_secs(60), Duration::from_secs(600)));
    assert_eq!(wish.owner.pid_ns.0, "pid:[4026531836]");
    assert_eq!(again(&wish)["any"], json!({"count": 2, "memory": 19_327_352_832_u64}));
    let parts = json!({
        "request_id": "b", "owner": owner(), "parts": [{"device": "cuda:0", "memory": 5}], "grace": 1.5, "min_hold": "0s",
    });
    let wish: AcquireBody = serde_json::from_value(parts).unwrap();
    assert_eq!((wish.grace, wish.min_hold), (Duration::from_millis(1_500), Duration::ZERO));
    assert_eq!(again(&wish)["grace"], "1500ms");
}

#[test]
fn what_is_wrong_is_named() {
    let error = |body: Value| serde_json::from_value::<AcquireBody>(body).unwrap_err().to_string();
    assert!(error(json!({"request_id": "a", "owner": owner(), "vram": "18GiB"})).contains("unknown field `vram`"));
    let wish = |key: &str, value: Value| {
        let mut wish = json!({"request_id": "a", "owner": owner()});
        wish[key] = value;
        wish
    };
    assert!(error(wish("grace", json!("60"))).contains("not a duration"));
    assert!(error(wish("grace", json!(-1))).contains("negative"));
    assert!(error(wish("priority", json!(12))).contains("12"));
    let mut stranger = owner();
    stranger["pid_ns"] = json!("net:[7]");
    assert!(error(wish("owner", stranger)).contains("no pid namespace"));
}

#[test]
fn a_lease_keeps_the_fields_of_its_first_version_and_hides_its_token_where_there_is_none() {
    let lease = json!({
        "id": "lease-7", "expires_in_ms": 9_000, "revoke": null, "lease": "lease-7", "label": "train.py",
        "owner": {"pid": 1, "start_time": 2, "pid_ns": "pid:[3]", "label": "train.py", "kind": "job"}, "priority": 7,
        "parts": [{"device": "cuda:0", "uuid": "GPU-1", "bytes": 5, "measured": null}], "state": "active",
        "preemptible": false, "in_default": false, "pids": [1],
    });
    let read: LeaseBody = serde_json::from_value(lease.clone()).unwrap();
    assert_eq!(read.state, LeaseState::Active);
    assert_eq!(again(&read), lease);
    let mut held = lease;
    held["token"] = json!(7);
    held["state"] = json!("LIMBO");
    let read: LeaseBody = serde_json::from_value(held).unwrap();
    assert_eq!((read.token.clone(), read.state.clone()), (Some(Proof::Fence(Token(7))), LeaseState::Limbo));
    let granted = again(&GrantedBody { lease: read, heartbeat_ms: 3_000, term_ms: 15_000 });
    assert_eq!((&granted["lease"]["token"], &granted["lease"]["state"]), (&json!(7), &json!("limbo")));
}

#[test]
fn the_other_words_travel_both_ways() {
    let owner: OwnerBody = serde_json::from_value(owner()).unwrap();
    assert_eq!(OwnerBody::of(&owner.owner().process, "train.py"), owner);
    let process = ProcessBody::from(owner.owner().process);
    assert_eq!(Process::from(process.clone()), owner.owner().process);
    again(&WaitingBody {
        waiting: QueueNotice {
            position: 1,
            reason: "full".to_owned(),
            retry_after_ms: 1_000,
            recovering: true,
            asked: vec![AskedBody { label: "soft".to_owned(), grace_left_ms: 5 }],
        },
    });
    let short: WaitingBody =
        serde_json::from_value(json!({"waiting": {"position": 1, "reason": "", "retry_after_ms": 1}})).unwrap();
    assert!(!short.waiting.recovering && short.waiting.asked.is_empty());
    let handle = HandleBody { id: LeaseId::from("lease-7"), token: Proof::Fence(Token(7)) };
    assert_eq!(again(&RenewBody { leases: vec![handle] }), json!({"leases": [{"id": "lease-7", "token": 7}]}));
    again(&RenewedBody { leases: Vec::new(), lost: vec![LeaseId::from("lease-7")] });
    assert_eq!(
        again(&AttachBody { token: Proof::Fence(Token(7)), pids: vec![4711] }),
        json!({"token": 7, "pids": [4711]})
    );
    assert_eq!(again(&ResizeBody { token: Proof::Fence(Token(7)), parts: None }), json!({"token": 7}));
    assert_eq!(again(&ReleaseBody::default()), json!({}));
    assert_eq!(
        again(&ReleasedBody { released: true, state: None, reason: None, warning: None }),
        json!({"released": true})
    );
    assert_eq!(again(&ReleaseBody { force: true, ..ReleaseBody::default() }), json!({"force": true}));
    again(&CancelBody { request_id: "a".to_owned(), owner: owner.clone() });
    again(&ReassertBody {
        token: Proof::Fence(Token(7)),
        request_id: "a".to_owned(),
        owner,
        priority: Priority::BATCH,
        preemptible: true,
        grace: Duration::from_secs(1),
        min_hold: Duration::ZERO,
        parts: vec![PartBody { device: DeviceId::Cpu, memory: ByteCount(5) }],
        processes: vec![process],
    });
    let list = json!({"leases": [], "waiters": [
        {"position": 1, "request_id": "a", "label": "b", "priority": 7, "parts": [{"device": "cpu", "memory": 5}]}]});
    assert_eq!(again(&serde_json::from_value::<LeaseList>(list.clone()).unwrap()), list);
    assert_eq!(serde_json::from_value::<LeaseList>(json!({"leases": []})).unwrap(), LeaseList::default());
}

#[test]
fn who_waits_is_shown_in_the_words_of_its_wish() {
    let view = |want| WaiterView {
        position: 1,
        request_id: "a".to_owned(),
        label: "train.py".to_owned(),
        priority: Priority::TRAINING,
        want,
    };
    let any = LeaseWish::AnyOf { count: 2, bytes: ByteCount(5), devices: vec![DeviceId::Cuda(0), DeviceId::Cuda(1)] };
    let body = again(&WaiterBody::from(view(Some(any))));
    assert_eq!(body["any"], json!({"count": 2, "memory": 5, "among": ["cuda:0", "cuda:1"]}));
    let body = again(&WaiterBody::from(view(Some(LeaseWish::Parts(vec![(DeviceId::Cpu, ByteCount(5))])))));
    assert_eq!((&body["parts"], &body["any"]), (&json!([{"device": "cpu", "memory": 5}]), &Value::Null));
    let unknown = again(&WaiterBody::from(view(None)));
    assert_eq!(unknown["label"], "train.py");
}
