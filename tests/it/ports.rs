//! RC-15: workers get ports in sequence. Ports of other programs are skipped, and those programs are never taken for
//! workers.

use std::net::{Ipv4Addr, TcpListener};

use model_boss_tests::{Behaviour, Sandbox};

/// Occupies a range of free ports below the ephemeral ones, as other programs might.
fn strangers(count: u16) -> (u16, Vec<TcpListener>) {
    let start = 30_000 + u16::try_from(std::process::id() % 200).unwrap() * 10;
    let runs = (start..32_700).step_by(10);
    let hold =
        |first: u16| (first..first + count).map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()).collect();
    runs.map(|first| (first, hold(first)))
        .find_map(|(first, held): (u16, Option<Vec<_>>)| Some((first, held?)))
        .unwrap()
}

#[tokio::test]
async fn rc_15_busy_ports_are_skipped() {
    let (first, _held) = strangers(3);
    let sandbox = Sandbox::new().with_worker_ports(first..=first + 9);
    let mut model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let worker = model.worker().await;
    assert!((first + 3..first + 10).contains(&worker.port), "{} of {first}+", worker.port);
    boss.finish().await;
}

#[tokio::test]
async fn rc_15_a_range_that_is_all_taken_is_named() {
    let (first, _held) = strangers(3);
    let sandbox = Sandbox::new().with_worker_ports(first..=first + 2);
    let model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let answer = boss.chat("alpha", "?").await;
    assert!(answer.status.is_server_error(), "{answer:?}");
    assert!(answer.error_message().contains("worker_ports"), "{answer:?}");
    boss.finish().await;
    assert_eq!(model.spawns(), 0);
}
