//! Few file descriptors: clients beyond the limit are refused, and workers never count as lost for lack of one.

use std::net::TcpStream;

use model_boss_tests::{Behaviour, Boss, PATIENCE, Sandbox, binary, question, until};

/// A coordinator with this limit, whose worker would be replaced after a single failed health check.
async fn limited(sandbox: &Sandbox, limit: u32) -> Boss {
    sandbox.launch(&binary("model-boss-fake-worker")).after(&format!("ulimit -n {limit}")).start().await
}

fn sandbox() -> Sandbox {
    Sandbox::new().with_config("hang_timeout = \"1s\"")
}

fn fine() -> Behaviour {
    Behaviour { reply: Some("yes".to_owned()), ..Behaviour::default() }
}

#[tokio::test]
async fn idle_connections_take_no_descriptor_from_workers() {
    let sandbox = sandbox();
    let mut model = sandbox.fake_model("alpha", fine());
    let boss = limited(&sandbox, 64).await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    let mut worker = model.worker().await;
    let idle: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(boss.client().address()).unwrap()).collect();
    let refused = boss.chat("alpha", "?").await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (503, "overloaded"), "{refused:?}");
    assert!(refused.header("retry-after").is_some_and(|wait| wait.parse::<u64>().is_ok()), "{refused:?}");
    assert!(refused.error_message().contains("ulimit -n"), "{refused:?}");
    drop(idle);
    let answered = async || Some(boss.chat("alpha", "?").await).filter(|answer| answer.status.is_success());
    assert_eq!(until(PATIENCE, "clients are served again", answered).await.text(), "yes");
    assert_eq!(model.spawns(), 1, "the worker was never lost");
    let fits = boss.read("/api/v1/slots").await["slots"][0]["pid"].as_u64();
    assert!(fits.is_some());
    boss.finish().await;
    worker.gone().await;
}

#[tokio::test]
async fn hundreds_of_requests_at_once_are_answered_or_told_to_come_again() {
    let sandbox = sandbox();
    let behaviour = Behaviour { first_token_ms: 20, ..fine() };
    let [alpha, beta] = ["alpha", "beta"]
        .map(|name| sandbox.fake_model_with(name, "vram = \"64MiB\"\nmax_concurrent = 64", behaviour.clone()));
    let boss = limited(&sandbox, 64).await;
    for name in ["alpha", "beta"] {
        assert_eq!(boss.chat(name, "?").await.text(), "yes");
    }
    let mut served = 0;
    // A crowd on one thread may send its requests so late that refusals come first, which most HTTP libraries take for
    // a broken connection.
    let asked: Vec<_> = (0..300)
        .map(|n| {
            let body = question(["alpha", "beta"][n % 2], "?").to_string();
            let head = format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\
                 content-type: application/json\r\ncontent-length: {}\r\n\r\n",
                boss.client().address(),
                body.len()
            );
            let client = boss.client();
            tokio::spawn(async move { client.raw((head + &body).as_bytes()).await })
        })
        .collect();
    for answer in asked {
        let answer = String::from_utf8(answer.await.unwrap()).unwrap();
        match answer.split(' ').nth(1) {
            Some("200") => served += 1,
            Some("503") => assert!(answer.contains("\"overloaded\""), "{answer:?}"),
            _ => panic!("{answer:?}"),
        }
    }
    assert!(served >= 10, "{served} were served");
    assert_eq!((alpha.spawns(), beta.spawns()), (1, 1), "no worker was lost");
    boss.finish().await;
}

#[tokio::test]
async fn the_limit_is_raised_and_programs_get_the_one_that_was_set() {
    let sandbox = sandbox();
    let mut model = sandbox.fake_model("alpha", fine());
    let launch = sandbox.launch(&binary("model-boss-fake-worker"));
    let boss = launch.after("ulimit -S -n 200; ulimit -H -n 1000").start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    let soft = |pid: u32| {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap().to_owned();
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        (numbers[0], numbers[1])
    };
    assert_eq!(soft(boss.pid()), (1_000, 1_000));
    assert_eq!(soft(model.worker().await.pid), (200, 1_000));
    boss.finish().await;
}
