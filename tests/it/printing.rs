//! Texts from files and engines in terminals and logs: none of them controls a terminal.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use model_boss_tests::{Behaviour, PATIENCE, Sandbox, binary, until};

/// Sequences that move the cursor, set a title, or reverse text.
const HOSTILE: &str = "\x1b]0;title\x07\x1b[2J\u{9b}31m\u{202e}";

fn is_harmless(text: &str) -> bool {
    !text.contains(['\x1b', '\x07', '\u{9b}', '\u{202e}'])
}

#[test]
fn op_10_a_worker_by_hand_writes_no_name_of_a_file_to_the_terminal_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join(HOSTILE);
    std::fs::create_dir(&model).unwrap();
    std::fs::write(model.join("config.json"), format!("{{\"model_type\": \"{}\"}}", "\u{9b}31m\u{202e}")).unwrap();
    for command in [&["inspect"][..], &["inspect", "--json"], &["serve", "--model"]] {
        let output = Command::new(binary("model-boss-worker")).args(command).arg(&model).output().unwrap();
        for written in [output.stdout, output.stderr] {
            let written = String::from_utf8(written).unwrap();
            assert!(is_harmless(&written), "{command:?}: {written:?}");
        }
    }
}

#[tokio::test]
async fn op_10_lines_of_an_engine_are_printable_in_its_log_and_wherever_they_are_shown() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let engine = sandbox.path("llama-server");
    let script = std::fs::read_to_string(&engine).unwrap();
    let script = script.replacen("#!/bin/sh\n", &format!("#!/bin/sh\nprintf '%s\\n' '{HOSTILE}' >&2\n"), 1);
    std::fs::write(&engine, script).unwrap();
    std::fs::set_permissions(&engine, Permissions::from_mode(0o755)).unwrap();
    let behaviour = Behaviour { load_exit: Some(1), load_message: HOSTILE.to_owned(), ..Behaviour::default() };
    let _model = sandbox.gguf_model("alpha", "backend = \"llama-server\"", behaviour);
    let boss = sandbox.start().await;
    let refused = boss.chat("alpha", "?").await;
    let refused = String::from_utf8_lossy(&refused.body).into_owned();
    assert!(is_harmless(&refused), "{refused:?}");
    let log = sandbox.path("state/logs/alpha.log");
    let written = async || std::fs::read_to_string(&log).ok().filter(|text| text.contains("title"));
    let written = until(PATIENCE, "its lines are in the log", written).await;
    assert!(
        is_harmless(&written) && written.contains("\\u001b]0;title\\u0007\\u001b[2J\\u009b31m\\u202e"),
        "{written:?}"
    );
    let shown = boss.client().get("/api/v1/logs/alpha").await;
    assert!(is_harmless(&String::from_utf8_lossy(&shown.body)), "{shown:?}");
    boss.finish().await;
}
