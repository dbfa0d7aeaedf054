//! `model-boss doctor` and `model-boss bug-report` as a person runs them.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use model_boss_protocol::ByteCount;
use model_boss_tests::{Behaviour, Boss, FakeGpus, GPU_IS_LOST, RedisServer, Sandbox, UNKNOWN_ERROR, binary};
use serde_json::Value;

/// The command line in the sandbox's folder, with its settings, at this coordinator's address or at a free port.
fn command(sandbox: &Sandbox, boss: Option<&Boss>) -> Command {
    let mut command = Command::new(binary("model-boss"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MODEL_BOSS_")) {
        command.env_remove(name);
    }
    let port = boss.map_or(9, |boss| boss.client().address().port());
    command.env("MODEL_BOSS_URL", format!("http://127.0.0.1:{port}")).current_dir(sandbox.path(""));
    command.env("MODEL_BOSS_STATE_DIR", sandbox.path("state")).env("HF_HOME", sandbox.path("hub"));
    command
}

fn doctor(command: &mut Command) -> (Output, Value) {
    let output = command.args(["doctor", "--json"]).output().unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output, json)
}

/// The result of each finding of one check.
fn results(json: &Value, check: &str) -> Vec<String> {
    let findings = json["findings"].as_array().unwrap().iter().filter(|finding| finding["check"] == check);
    findings.map(|finding| format!("{}: {}", finding["result"].as_str().unwrap(), finding["found"])).collect()
}

fn only(json: &Value, check: &str) -> String {
    let mut results = results(json, check);
    assert_eq!(results.len(), 1, "{check}: {results:?}");
    results.remove(0)
}

#[tokio::test]
async fn op_1_doctor_works_with_and_without_a_coordinator_and_changes_nothing() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let absent = sandbox.path("state/new/folder");
    let (output, json) = doctor(command(&sandbox, None).env("MODEL_BOSS_STATE_DIR", &absent));
    assert!(only(&json, "coordinator").starts_with("note"), "{json}");
    assert!(only(&json, "settings").starts_with("ok"), "{json}");
    assert!(only(&json, "folder").starts_with("ok"), "{json}");
    assert!(only(&json, "worker").starts_with("ok"), "{json}");
    assert!(!absent.exists() && !sandbox.path("hub").exists(), "nothing is made");
    let failed = json["counts"]["failure"].as_u64().unwrap() > 0;
    assert_eq!(output.status.code(), Some(i32::from(failed)), "{json}");

    let boss = sandbox.start().await;
    let (_, json) = doctor(&mut command(&sandbox, Some(&boss)));
    assert!(only(&json, "coordinator").starts_with("ok"), "{json}");
    assert_eq!(boss.read("/api/v1/slots").await["slots"].as_array().map(Vec::len), Some(0), "no model is loaded");
    let text = command(&sandbox, Some(&boss)).arg("doctor").output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("Coordinator and ports\n  ok ") && !text.contains('\u{1b}'), "{text}");
    boss.finish().await;
}

#[test]
fn op_1_doctor_names_who_holds_the_port() {
    let sandbox = Sandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (output, json) = doctor(command(&sandbox, None).env("MODEL_BOSS_URL", url));
    let found = only(&json, "coordinator");
    assert!(found.starts_with("failure") && found.contains(&format!("process {}", std::process::id())), "{found}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn op_1_doctor_finds_a_redis_that_would_lose_leases() {
    let Some(redis) = RedisServer::start() else { return };
    let sandbox = Sandbox::new();
    let look = || doctor(command(&sandbox, None).env("MODEL_BOSS_REDIS_URL", redis.url())).1;
    assert!(only(&look(), "eviction").starts_with("ok"));
    for policy in ["allkeys-lru", "volatile-ttl", "allkeys-random"] {
        redis.ask(&["CONFIG", "SET", "maxmemory-policy", policy]).unwrap();
        let found = only(&look(), "eviction");
        assert!(found.starts_with("failure") && found.contains(policy), "{found}");
    }
    drop(redis.ask(&["CONFIG", "SET", "appendonly", "no"]));
    assert!(only(&look(), "persistence").starts_with("note"));
    let away = doctor(command(&sandbox, None).env("MODEL_BOSS_REDIS_URL", "redis://u:hush@127.0.0.1:9")).1;
    assert!(only(&away, "store").starts_with("failure") && !away.to_string().contains("hush"), "{away}");
}

#[test]
fn op_1_doctor_names_the_gpus_and_their_faults() {
    let sandbox = Sandbox::new();
    let Some(gpus) = FakeGpus::new(&sandbox) else { return };
    let look = || {
        let mut command = command(&sandbox, None);
        gpus.under_command(&mut command);
        doctor(&mut command).1
    };
    assert!(only(&look(), "driver").contains("lists no GPU"), "{}", look());
    gpus.plug("GPU-0000aaaa", ByteCount::gib(24));
    let json = look();
    assert!(only(&json, "gpu").contains("GPU-0000aaaa") && only(&json, "driver").contains("570.00"), "{json}");
    assert!(only(&json, "worker_build").starts_with("warning"), "the worker of the tests has no CUDA: {json}");
    gpus.fail("nvmlDeviceGetMemoryInfo_v2", GPU_IS_LOST);
    assert!(only(&look(), "gpu").starts_with("failure"), "{}", look());
    gpus.fail("nvmlInit_v2", UNKNOWN_ERROR);
    assert!(only(&look(), "driver").contains("does not work"), "{}", look());
}

#[test]
fn op_1_doctor_finds_faults_of_files() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("manifests/bad.toml"), "nmae = \"x\"\n").unwrap();
    fs::write(sandbox.path("tasks.yaml"), "tasks:\n  chat:\n    ladder: [x]\n    laddr: [x]\n").unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["box.lan".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let (key, other) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
    fs::write(sandbox.path("cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(sandbox.path("key.pem"), other.serialize_pem()).unwrap();
    fs::set_permissions(sandbox.path("key.pem"), fs::Permissions::from_mode(0o644)).unwrap();
    let mut command = command(&sandbox, None);
    command.env("MODEL_BOSS_TLS_CERT", "cert.pem").env("MODEL_BOSS_TLS_KEY", "key.pem");
    let (output, json) = doctor(command.env("MODEL_BOSS_SANDBOX", "off"));
    for check in ["manifest", "tasks", "certificate", "tls", "mode"] {
        assert!(only(&json, check).starts_with("failure"), "{check} in {json}");
    }
    assert!(only(&json, "certificate").contains("box.lan") && only(&json, "manifest").contains("nmae"), "{json}");
    assert!(only(&json, "sandbox").starts_with("note"), "{json}");
    assert_eq!(output.status.code(), Some(1));
    fs::write(sandbox.path("wrong.toml"), "prot = 1\n").unwrap();
    let wrong = doctor(self::command(&sandbox, None).env("MODEL_BOSS_CONFIG", "wrong.toml")).1;
    assert!(only(&wrong, "settings").contains("prot"), "{wrong}");
}

/// Everything in an archive, as one text.
fn content(sandbox: &Sandbox, archive: &str) -> String {
    let output = Command::new("tar").args(["xzOf", archive]).current_dir(sandbox.path("")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn op_1_a_bug_report_has_no_secret_and_no_prompt() {
    let sandbox = Sandbox::new();
    let engine = sandbox.fake_engine();
    let config = format!(
        "[providers.acme]\nbase_url = \"https://acme.example\"\nkey_file = \"{}\"\n[providers.other]\nbase_url = \
         \"https://other.example\"\nkey_env = \"OTHER_PLACE\"\n[backends.mine]\ncommand = \
         \"{} --port {{port}} --api-key backend-hush\"\n",
        sandbox.path("acme.key").display(),
        engine.display(),
    );
    fs::write(sandbox.path("acme.key"), "acme-hush-1234\n").unwrap();
    fs::create_dir_all(sandbox.path("hub")).unwrap();
    fs::write(sandbox.path("hub/token"), "hubfile-hush-1234\n").unwrap();
    let behaviour = Behaviour {
        load_message: "Authorization: Bearer log-hush-1234\n{\"messages\":[\"log-sphinx\"]}".to_owned(),
        load_exit: Some(71),
        ..Behaviour::default()
    };
    let _failing = sandbox.fake_model_with("failing", "description = \"token=manifest-hush\"\n", behaviour);
    let _model =
        sandbox.fake_model("alpha", Behaviour { reply: Some("answer-sphinx".to_owned()), ..Behaviour::default() });
    let tasks = "tasks:\n  chat:\n    ladder: [alpha]\n    description: \"see https://a:tasks-hush@h/\"\n";
    fs::write(sandbox.path("tasks.yaml"), tasks).unwrap();
    fs::write(
        sandbox.path("boss.log"),
        "started\nuser: \"file-sphinx\"\nX-Api-Key: filelog-hush\nhome is /home/margaret/x\n",
    )
    .unwrap();
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "question-sphinx").await.status.is_success());
    assert!(!boss.chat("failing", "question-sphinx").await.status.is_success());
    fs::write(sandbox.path("report.toml"), config).unwrap();

    let report = |boss: Option<&Boss>, file: &str| {
        let mut command = command(&sandbox, boss);
        command.env("MODEL_BOSS_CONFIG", "report.toml").env("MODEL_BOSS_API_KEY", "mykey-hush-1234");
        command
            .env("OTHER_PLACE", "other-hush-1234")
            .env("HF_TOKEN", "hf_variable_hush")
            .env("AWS_SECRET_ACCESS_KEY", "aws-hush-1234");
        command.env("HOME", "/home/margaret").env("MODEL_BOSS_REDIS_URL", "redis://ruser:redis-hush@127.0.0.1:9/0");
        command
            .env("MODEL_BOSS_LLAMACPP_ARGS", "--ctx-size 512")
            .env("HTTPS_PROXY", "http://pu:proxy-hush@127.0.0.1:9");
        command.args(["bug-report", file, "--log", "boss.log"]).output().unwrap()
    };
    let with = report(Some(&boss), "with.tar.gz");
    assert!(with.status.success(), "{with:?}");
    let said = String::from_utf8(with.stdout).unwrap();
    assert!(said.contains("coordinator/slots.json") && said.contains("Read it before you send it"), "{said}");
    let owner = fs::read_to_string(sandbox.path("state/owner.key")).unwrap();
    let owner = owner.split_whitespace().nth(1).unwrap().to_owned();
    boss.finish().await;
    let without = report(None, "without.tar.gz");
    assert!(without.status.success(), "{without:?}");

    for archive in ["with.tar.gz", "without.tar.gz"] {
        let text = content(&sandbox, archive);
        for forbidden in ["hush", "-sphinx", "ruser", "margaret", owner.as_str()] {
            let place = text.lines().find(|line| line.contains(forbidden));
            assert_eq!(place, None, "{archive} has {forbidden}");
        }
        for expected in ["acme.example", "alpha", "Lease store", "started", "host = "] {
            assert!(text.contains(expected), "{archive} has no {expected}");
        }
    }
    let down = content(&sandbox, "without.tar.gz");
    assert!(down.contains("No coordinator answered") && !down.contains("\"slots\""), "it says that none answered");
    let again = report(None, "with.tar.gz");
    assert!(
        !again.status.success() && String::from_utf8(again.stderr).unwrap().contains("with.tar.gz cannot be written")
    );
}
