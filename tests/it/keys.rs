//! API keys, HTTPS and the audit log, with the programs that operators and clients use.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use http::header::AUTHORIZATION;
use model_boss_tests::{Answer, Behaviour, Boss, PATIENCE, Sandbox, binary, question, until};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};

/// `model-boss ARGS` with this state folder, and no variables of the test's own.
fn command(sandbox: &Sandbox, args: &[&str]) -> Command {
    let mut command = Command::new(binary("model-boss"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MODEL_BOSS_")) {
        command.env_remove(name);
    }
    command.env("MODEL_BOSS_STATE_DIR", sandbox.path("state")).current_dir(sandbox.path("")).args(args);
    command
}

fn printed(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn keys(sandbox: &Sandbox, args: &[&str]) -> String {
    printed(command(sandbox, &[&["keys"], args].concat()).output().unwrap())
}

async fn ask(boss: &Boss, key: &str, body: &Value) -> Answer {
    let client = boss.client();
    let mut request = client.request(http::Method::POST, "/v1/chat/completions", body.to_string());
    request.headers_mut().insert(AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
    client.send(request).await
}

/// The entries of the audit log.
fn orders(sandbox: &Sandbox) -> Vec<Value> {
    let text = std::fs::read_to_string(sandbox.path("state/audit/audit.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn op_5_a_friend_gets_a_key_for_two_models_and_a_day() {
    let sandbox = Sandbox::new();
    let _models = ["alpha", "beta", "gamma"].map(|name| sandbox.fake_model(name, Behaviour::default()));
    let boss = sandbox.start().await;
    let url = format!("http://{}", boss.client().address());
    assert_eq!(boss.chat("gamma", "?").await.status, 200, "there are no keys yet");
    let key = keys(
        &sandbox,
        &["create", "friend", "--model", "alpha", "--model", "beta", "--daily-tokens", "30", "--daily-spend", "2"],
    );
    until(PATIENCE, "a key is needed", async || (boss.chat("alpha", "?").await.status == 401).then_some(())).await;
    assert_eq!(ask(&boss, &key, &question("alpha", "?")).await.status, 200);
    assert_eq!(ask(&boss, &key, &question("beta", "?")).await.status, 200);
    let refused = ask(&boss, &key, &question("gamma", "?")).await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (403, "insufficient_scope"));
    let mut other = question("alpha", "?");
    other["x_client_id"] = "operator".into();
    let refused = ask(&boss, &key, &other).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["param"]), (403, &"x_client_id".into()));
    // The tokens of a day run out, and the answer says until when.
    let last = until(PATIENCE, "the tokens are used up", async || {
        let answer = ask(&boss, &key, &question("alpha", "?")).await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    assert_eq!((last.status.as_u16(), last.error_code().as_str()), (429, "client_limit"));
    assert!(last.header("retry-after").unwrap().parse::<u64>().unwrap() <= 86_400);

    // The user who runs the coordinator has no key, and gives orders all the same.
    let own = |args: &[&str]| printed(command(&sandbox, args).env("MODEL_BOSS_URL", &url).output().unwrap());
    assert!(own(&["ps"]).contains("alpha"));
    own(&["unload", "alpha"]);
    let stranger = command(&sandbox, &["ps"]).env("MODEL_BOSS_URL", &url).env("MODEL_BOSS_API_KEY", &key).output();
    let told = String::from_utf8(stranger.unwrap().stderr).unwrap();
    assert!(told.contains("lacks the scope read"), "{told}");
    until(PATIENCE, "the order is in the log", async || {
        orders(&sandbox).into_iter().find(|entry| entry["path"] == "/api/v1/unload" && entry["who"] == "owner")
    })
    .await;

    // Another key takes the place of the first one, and both end at once.
    let second = keys(&sandbox, &["rotate", "friend", "--grace", "1h"]);
    until(PATIENCE, "the new key counts", async || {
        (ask(&boss, &second, &question("alpha", "?")).await.status == 429).then_some(())
    })
    .await;
    assert_eq!(ask(&boss, &key, &question("alpha", "?")).await.status, 429, "the old one is valid still");
    keys(&sandbox, &["revoke", "friend"]);
    until(PATIENCE, "no key is valid", async || {
        (ask(&boss, &second, &question("alpha", "?")).await.status == 401).then_some(())
    })
    .await;
    assert_eq!(boss.chat("alpha", "?").await.status, 401, "the door stays shut");
    boss.finish().await;
}

#[tokio::test]
async fn op_5_who_gave_which_order_is_written_down() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let key = keys(&sandbox, &["create", "anna", "--scope", "manage,lease", "--model", "alpha"]);
    let boss = sandbox.start().await;
    let client = boss.client();
    let order = async |path: &str, body: Value, key: &str| {
        let mut request = client.request(http::Method::POST, path, body.to_string());
        request.headers_mut().insert(AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
        client.send(request).await.status.as_u16()
    };
    assert_eq!(order("/api/v1/load", json!({ "model_name": "alpha" }), &key).await, 200);
    assert_eq!(order("/api/v1/load", json!({ "model_name": "alpha" }), "mb-wrong").await, 401);
    assert_eq!(order("/api/v1/unload", json!({}), &key).await, 403, "this concerns every model");
    assert_eq!(order("/v1/chat/completions", question("alpha", "?"), &key).await, 403);
    let written = until(PATIENCE, "three orders are written", async || {
        let written = orders(&sandbox);
        (written.len() >= 3).then_some(written)
    })
    .await;
    assert_eq!(written.len(), 3, "a request to a model is no order: {written:?}");
    assert_eq!((&written[0]["who"], &written[0]["status"]), (&"anna".into(), &200.into()));
    assert_eq!(written[0]["order"], json!({ "model_name": "alpha" }));
    assert!(written[0]["from"].as_str().unwrap().starts_with("127.0.0.1:") && written[0]["at"].as_f64().is_some());
    assert_eq!((&written[1]["who"], &written[1]["code"]), (&Value::Null, &"invalid_api_key".into()));
    assert_eq!((&written[2]["who"], &written[2]["code"]), (&"anna".into(), &"insufficient_scope".into()));
    boss.finish().await;
}

/// Writes a new certificate for `localhost`, and its key.
fn certify(folder: &Path) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    for (name, text) in [("key.pem", signing_key.serialize_pem()), ("cert.pem", cert.pem())] {
        let draft = folder.join("draft");
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(draft, folder.join(name)).unwrap();
    }
}

#[tokio::test]
async fn op_5_https_is_spoken_and_a_renewed_certificate_taken() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path("");
    certify(&folder);
    let sandbox = sandbox.with_config("tls_cert = \"cert.pem\"\ntls_key = \"key.pem\"");
    let boss = sandbox.start().await;
    let address: SocketAddr = boss.client().address();
    let url = format!("https://localhost:{}", address.port());
    let trusting = |certificate: &Path| {
        let mut command = command(&sandbox, &["ps"]);
        command.env("MODEL_BOSS_URL", &url).env("SSL_CERT_FILE", certificate).output().unwrap()
    };
    let before = folder.join("before.pem");
    std::fs::copy(folder.join("cert.pem"), &before).unwrap();
    printed(trusting(&before));
    assert_eq!(boss.client().get("/ready").await.status, 200, "plain HTTP stays for programs of this machine");
    certify(&folder);
    until(PATIENCE, "the new certificate is used", async || {
        trusting(&folder.join("cert.pem")).status.success().then_some(())
    })
    .await;
    let refused = trusting(&before);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("SSL_CERT_FILE"), "{told}");
    // A certificate without its key changes nothing.
    std::fs::write(folder.join("cert.pem"), "nothing").unwrap();
    boss.output().line("says that the certificate stays", |line| line.contains("certificate of before stays")).await;
    assert_eq!(boss.client().get("/ready").await.status, 200);
    boss.finish().await;
}

#[tokio::test]
async fn op_5_a_certificate_that_does_not_do_is_named_at_the_start() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path("");
    certify(&folder);
    for (config, told) in [
        ("tls_cert = \"cert.pem\"", "needs 'tls_key'"),
        ("tls_cert = \"cert.pem\"\ntls_key = \"cert.pem\"", "no PEM file of a private key"),
        ("tls_cert = \"none.pem\"\ntls_key = \"key.pem\"", "none.pem cannot be read"),
    ] {
        let sandbox = Sandbox::new().with_config(&config.replace("= \"", &format!("= \"{}/", folder.display())));
        let (status, output) = sandbox.launch(&binary("model-boss-fake-worker")).end().await;
        assert!(!status.success() && output.contains(told), "{config}: {output}");
    }
}
