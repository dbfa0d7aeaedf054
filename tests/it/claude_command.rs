//! RC-27: the `claude` command line as the connection to a provider, with a fake program that writes the same output.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use http::StatusCode;
use model_boss_tests::{Boss, PATIENCE, Sandbox, binary, question, text_of_events, until};
use serde_json::{Value, json};

/// A fake `claude` that records its arguments and input, and prints the file `say`.
const STAND_IN: &str = r#"#!/bin/sh
here=$(dirname "$0")
printf '%s\n' "$@" > "$here/args"
env > "$here/env"
pwd > "$here/pwd"
before=
for word in "$@"; do
    [ "$before" = --system-prompt-file ] && cp "$word" "$here/system"
    before=$word
done
cat > "$here/prompt"
if [ -f "$here/stay" ]; then
    sleep 600 &
    echo "$$ $!" > "$here/pids"
fi
cat "$here/say"
[ -f "$here/alone" ] && exec sleep 600
[ -f "$here/stay" ] && wait
[ -f "$here/fail" ] && { echo "no login here" >&2; exit 3; }
exit 0
"#;

const BEGIN: &str = concat!(
    r#"{"type":"system","subtype":"init","session_id":"s","tools":[]}"#,
    "\n",
    r#"{"type":"stream_event","event":{"type":"message_start","message":{"usage":{"input_tokens":4,"output_tokens":1}}}}"#,
    "\n",
    r#"{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"four"}}}"#,
    "\n",
);

const END: &str = concat!(
    r#"{"type":"assistant","message":{"content":[{"type":"text","text":"four"}],"usage":{"input_tokens":4,"output_tokens":1}}}"#,
    "\n",
    r#"{"type":"stream_event","event":{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}}"#,
    "\n",
    r#"{"type":"stream_event","event":{"type":"message_stop"}}"#,
    "\n",
    r#"{"type":"result","subtype":"success","is_error":false,"result":"four","usage":{"input_tokens":4,"output_tokens":9}}"#,
    "\n",
);

struct StandIn {
    sandbox: Sandbox,
    folder: PathBuf,
}

impl StandIn {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let folder = sandbox.path("stand-in");
        std::fs::create_dir(&folder).unwrap();
        let program = folder.join("claude");
        std::fs::write(&program, STAND_IN).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = format!("[providers.claude]\ntransport = \"cli\"\ncommand = \"{}\"", program.display());
        let stand_in = Self { sandbox: sandbox.with_config(&config), folder };
        stand_in.says(&(BEGIN.to_owned() + END));
        stand_in
    }

    fn says(&self, lines: &str) {
        std::fs::write(self.folder.join("say"), lines).unwrap();
    }

    fn was_given(&self, what: &str) -> String {
        std::fs::read_to_string(self.folder.join(what)).unwrap_or_default()
    }

    async fn start(&self) -> Boss {
        let mut launch = self.sandbox.launch(&binary("model-boss-fake-worker"));
        launch.command.env("ANTHROPIC_API_KEY", "sk-test-not-a-key").env("SECRET_OF_OURS", "x");
        launch.start().await
    }
}

#[tokio::test]
async fn rc_27_the_command_answers_whole_and_streamed_and_knows_nothing_of_ours() {
    let stand_in = StandIn::new();
    let boss = stand_in.start().await;
    let mut body = question("claude:opus", "2 + 2?");
    body["messages"].as_array_mut().unwrap().insert(0, json!({ "role": "system", "content": "Be brief." }));
    body["max_tokens"] = json!(77);
    let answer = boss.client().post("/v1/chat/completions", &body).await;
    assert_eq!(answer.text(), "four", "{answer:?}");
    assert_eq!(
        (&answer.json()["usage"]["completion_tokens"], answer.header("x-served-model")),
        (&json!(9), Some("claude:opus"))
    );
    assert_eq!((stand_in.was_given("prompt"), stand_in.was_given("system")), ("2 + 2?".into(), "Be brief.".into()));
    let args = stand_in.was_given("args");
    assert!(args.contains("\n--model\nclaude-opus-4-5\n") && args.contains("\n--tools\n\n"), "{args}");
    let env = stand_in.was_given("env");
    assert!(env.contains("PATH=") && env.contains("CLAUDE_CODE_MAX_OUTPUT_TOKENS=77"), "{env}");
    assert!(!env.contains("ANTHROPIC_API_KEY") && !env.contains("SECRET_OF_OURS"), "{env}");
    let place = PathBuf::from(stand_in.was_given("pwd").trim());
    assert!(!place.starts_with(stand_in.sandbox.path("")) && !place.exists(), "{place:?} was its own, and is gone");

    let events = boss.chat_streamed("claude:opus", "2 + 2?").await.rest().await;
    assert_eq!(text_of_events(&events), "four");
    let shown = boss.read("/api/v1/providers").await;
    let today = &shown["providers"][0]["today"];
    assert_eq!((&today["requests"], &today["output_tokens"]), (&json!(2), &json!(18)), "{shown}");
    boss.finish().await;
}

#[tokio::test]
async fn rc_27_what_the_command_cannot_do_is_said() {
    let stand_in = StandIn::new();
    let boss = stand_in.start().await;
    let ask = async |change: Value| {
        let mut body = question("claude:opus", "?");
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        boss.client().post("/v1/chat/completions", &body).await
    };
    let tool = json!([{ "type": "function", "function": { "name": "f" } }]);
    let refused = ask(json!({ "tools": tool })).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("tools")));
    let refused = ask(json!({ "model": "claude:--dangerously-skip-permissions" })).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("model")));
    assert_eq!(stand_in.was_given("args"), "", "it was not even started");

    stand_in.says("");
    std::fs::write(stand_in.folder.join("fail"), "").unwrap();
    let failed = ask(json!({})).await;
    assert_eq!((failed.status, failed.error_code().as_str()), (StatusCode::BAD_GATEWAY, "backend_error"), "{failed:?}");
    assert!(
        failed.error_message().contains("no login here") && failed.error_message().contains("exit status: 3"),
        "{failed:?}"
    );
    // The program fails in the same way in the middle of a stream.
    stand_in.says(BEGIN);
    let events = boss.chat_streamed("claude:opus", "?").await.rest().await;
    assert!(format!("{events:?}").contains("no login here"), "{events:?}");

    let line =
        json!({ "type": "result", "subtype": "success", "is_error": true, "result": "Claude AI usage limit reached" });
    stand_in.says(&format!("{line}\n"));
    let limited = ask(json!({ "stream": true })).await;
    assert_eq!((limited.status, limited.error_code().as_str()), (StatusCode::TOO_MANY_REQUESTS, "cloud_rate_limited"));
    boss.finish().await;

    std::fs::remove_file(stand_in.folder.join("claude")).unwrap();
    let boss = stand_in.start().await;
    let absent = boss.chat("claude:opus", "?").await;
    assert!(absent.error_message().contains("cannot be started"), "{absent:?}");
    boss.finish().await;
}

#[tokio::test]
async fn rc_27_the_command_ends_with_its_client_and_with_the_coordinator() {
    let stand_in = StandIn::new();
    stand_in.says(BEGIN);
    std::fs::write(stand_in.folder.join("stay"), "").unwrap();
    let boss = stand_in.start().await;
    let alive = |pids: &[String]| pids.iter().any(|pid| PathBuf::from("/proc").join(pid).join("exe").exists());
    let pids = || -> Vec<String> { stand_in.was_given("pids").split_whitespace().map(str::to_owned).collect() };
    let mut stream = boss.chat_streamed("claude:opus", "?").await;
    assert_eq!(stream.token().await, "four");
    let first = pids();
    assert_eq!((first.len(), alive(&first)), (2, true));
    drop(stream);
    until(PATIENCE, "the command and what it started are gone", async || (!alive(&first)).then_some(())).await;

    // The client abandons a whole answer.
    let waiting = boss.ask(question("claude:opus", "?"));
    until(PATIENCE, "another one runs", async || (pids() != first && alive(&pids())).then_some(())).await;
    let second = pids();
    waiting.abort();
    until(PATIENCE, "that one is gone too", async || (!alive(&second)).then_some(())).await;

    std::fs::rename(stand_in.folder.join("stay"), stand_in.folder.join("alone")).unwrap();
    let mut stream = boss.chat_streamed("claude:opus", "?").await;
    assert_eq!(stream.token().await, "four");
    boss.kill().await;
}
