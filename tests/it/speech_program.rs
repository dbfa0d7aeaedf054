//! RC-28: programs that speak, run by the real worker for each request: text in, sound out, limits, and their end.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use http::StatusCode;
use model_boss_tests::{Boss, Sandbox, until};
use serde_json::{Value, json};

const SPEECH: &str = "/v1/audio/speech";

/// A model without files whose program this is.
fn speaker(sandbox: &Sandbox, name: &str, table: &str) {
    let text = format!("name = \"{name}\"\n[speech]\n{table}\n");
    std::fs::write(sandbox.path("manifests").join(format!("{name}.toml")), text).unwrap();
}

/// A program in the sandbox.
fn script(sandbox: &Sandbox, name: &str, text: &str) -> PathBuf {
    let path = sandbox.path(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Samples of 16 bits that are this text.
fn raw(table: &str) -> String {
    format!("output = \"s16le\"\nsample_rate = 24000\n{table}")
}

fn asked(model: &str, input: &str) -> Value {
    json!({ "model": model, "input": input, "response_format": "pcm" })
}

async fn said(boss: &Boss, body: &Value) -> String {
    let answer = boss.client().post(SPEECH, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    String::from_utf8_lossy(&answer.body).trim_end().to_owned()
}

#[tokio::test]
async fn rc_28_a_program_gets_the_text_and_what_its_line_names_and_nothing_of_a_request_is_an_option() {
    let sandbox = Sandbox::new();
    // Its sound is the text.
    speaker(&sandbox, "echo", &raw("line = [\"cat\"]\nvoices = [\"plain\"]"));
    let program = script(&sandbox, "args", "cat > /dev/null; printf '%s|' \"$@\" \"$WORDS\"; printf ' '");
    let table = format!(
        "line = [\"{}\", \"-v\", \"{{voice}}\", \"{{language}}\", \"{{speed}}\", \"{{words_per_minute}}\", \"a b;c\"]\n\
         env = {{ WORDS = \"few\" }}\nwords_per_minute = 100\n\
         voices = [{{ id = \"anna\", language = \"de\" }}, {{ id = \"bob\", name = \"Bob\", language = \"en\" }}]",
        program.display()
    );
    speaker(&sandbox, "args", &raw(&table));
    let boss = sandbox.start_with_real_worker().await;
    assert_eq!(said(&boss, &asked("echo", "Say this, please!")).await, "Say this, please!");
    assert_eq!(said(&boss, &asked("args", "x")).await.trim_end_matches(['\0', ' ']), "-v|anna|de|1|100|a b;c|few|");
    let mut body = asked("args", "x");
    body["voice"] = json!({ "id": "bob" });
    body["speed"] = json!(1.25);
    assert_eq!(said(&boss, &body).await.trim_end_matches(['\0', ' ']), "-v|bob|en|1.25|125|a b;c|few|");
    for (field, value, code) in [
        ("voice", json!("--help"), "invalid_request"),
        ("voice", json!(7), "invalid_request"),
        ("speed", json!(9), "invalid_request"),
        ("input", json!(" "), "invalid_request"),
        ("input", json!("x".repeat(4_097)), "invalid_request"),
        ("response_format", json!("mp3"), "unsupported_by_model"),
        ("response_format", json!("gif"), "invalid_request"),
        ("stream_format", json!("gif"), "invalid_request"),
        ("instructions", json!("whisper it"), "unsupported_by_model"),
        ("phonemes", json!(true), "unsupported_by_model"),
    ] {
        let mut wrong = asked("args", "x");
        wrong[field] = value;
        let refused = boss.client().post(SPEECH, &wrong).await;
        assert_eq!(
            (refused.status, refused.error_code().as_str()),
            (StatusCode::BAD_REQUEST, code),
            "{field}: {refused:?}"
        );
        let param = refused.json()["error"]["param"].as_str().unwrap_or_default().to_owned();
        assert!(param == field || field == "phonemes" && param == "input", "{refused:?}");
    }
    let voices = boss.read("/v1/audio/voices?model=args").await;
    assert_eq!(
        voices["voices"][1],
        json!({ "id": "bob", "name": "Bob", "language": "en", "model": "args", "default": false })
    );
    let slots = boss.read("/api/v1/slots").await;
    assert!(slots["slots"].as_array().unwrap().iter().all(|slot| slot["parts"][0][0] == "cpu"), "{slots}");
    boss.finish().await;
}

#[tokio::test]
async fn rc_28_a_program_that_fails_or_takes_too_long_is_named_and_the_next_one_runs() {
    let sandbox = Sandbox::new();
    let fails = script(&sandbox, "fails", "echo 'no such voice here' >&2; exit 3");
    let breaks = script(&sandbox, "breaks", "head -c 4000 /dev/zero; exit 4");
    let slow = script(&sandbox, "slow", "exec sleep 1000");
    for (name, program, more) in
        [("fails", fails, ""), ("breaks", breaks, ""), ("slow", slow, "time_limit = \"300ms\"\n")]
    {
        speaker(&sandbox, name, &raw(&format!("line = [\"{}\"]\n{more}voices = [\"a\"]", program.display())));
    }
    speaker(&sandbox, "words", "line = [\"cat\"]\nvoices = [\"a\"]");
    speaker(&sandbox, "gone", "line = [\"/nowhere/speak\"]\nvoices = [\"a\"]");
    let boss = sandbox.start_with_real_worker().await;
    for (name, words) in [
        ("fails", &["code 3", "no such voice here"][..]),
        ("slow", &["time_limit"]),
        ("words", &["no WAV file", "s16le"]),
    ] {
        for _ in 0..2 {
            let refused = boss.client().post(SPEECH, &asked(name, "x")).await;
            assert_eq!((refused.status, refused.error_code().as_str()), (StatusCode::BAD_GATEWAY, "backend_error"));
            assert!(words.iter().all(|word| refused.error_message().contains(word)), "{refused:?}");
        }
    }
    let cut = boss.client().stream(SPEECH, &asked("breaks", "x")).await;
    assert!(cut.until_broken().await.len() <= 4_000);
    let mut events = asked("breaks", "x");
    events["stream_format"] = "sse".into();
    let told = boss.client().stream(SPEECH, &events).await.rest().await;
    assert!(format!("{:?}", told.last()).contains("code 4"), "{told:?}");
    let missing = boss.client().post(SPEECH, &asked("gone", "x")).await;
    assert_eq!(missing.error_code(), "model_load_failed");
    assert!(missing.error_message().contains("/nowhere/speak"), "{missing:?}");
    boss.finish().await;
}

/// The number of running processes whose command line has this word.
fn running(word: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let line = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
    let own = std::process::id().to_string();
    let others = processes.filter(|entry| entry.file_name().to_str() != Some(&own));
    others.map(line).filter(|line| String::from_utf8_lossy(line).contains(word)).count()
}

#[tokio::test]
async fn rc_28_programs_end_with_their_clients_their_worker_and_their_coordinator_whatever_they_start() {
    let sandbox = Sandbox::new();
    // A session of its own leaves the program's group; only the kernel knows whose it is.
    let word = format!("98{}", std::process::id());
    let text = format!("setsid sleep {word} > /dev/null 2>&1 & head -c 96000 /dev/zero; exec sleep {word}");
    let program = script(&sandbox, "lingers", &text);
    speaker(&sandbox, "lingers", &raw(&format!("line = [\"{}\"]\nvoices = [\"a\"]", program.display())));
    let boss = sandbox.start_with_real_worker().await;
    let is_running = async |count: usize| (running(&word) == count).then_some(());
    let mut stream = boss.client().stream(SPEECH, &asked("lingers", "x")).await;
    assert_eq!(stream.status, StatusCode::OK);
    stream.piece().await.unwrap();
    until(Duration::from_secs(5), "both processes run", || is_running(2)).await;
    drop(stream);
    until(Duration::from_secs(5), "they end with their client", || is_running(0)).await;
    let mut again = boss.client().stream(SPEECH, &asked("lingers", "x")).await;
    again.piece().await.unwrap();
    until(Duration::from_secs(5), "both processes run again", || is_running(2)).await;
    let slots = boss.read("/api/v1/slots").await;
    let guard = slots["slots"][0]["pid"].as_i64().unwrap();
    let guard = nix::unistd::Pid::from_raw(i32::try_from(guard).unwrap());
    nix::sys::signal::kill(guard, nix::sys::signal::Signal::SIGKILL).unwrap();
    until(Duration::from_secs(5), "they end with their worker", || is_running(0)).await;
    drop(again);
    let mut last = boss.client().stream(SPEECH, &asked("lingers", "x")).await;
    last.piece().await.unwrap();
    until(Duration::from_secs(5), "both processes run once more", || is_running(2)).await;
    boss.kill().await;
    until(Duration::from_secs(5), "they end with their coordinator", || is_running(0)).await;
}

#[tokio::test]
async fn rc_28_a_program_is_confined_to_its_own_files_and_has_no_network() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("secret")).unwrap();
    std::fs::write(sandbox.path("secret/key"), "hidden").unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("key"), "hidden").unwrap();
    let tried = format!(
        "cat > /dev/null; {{ cat '{0}/key' || echo unreadable; echo x > '{0}/new' || echo unwritable; }} 2> /dev/null",
        elsewhere.path().display()
    );
    let program = script(&sandbox, "tries", &tried);
    speaker(&sandbox, "tries", &raw(&format!("line = [\"{}\"]\nvoices = [\"a\"]", program.display())));
    let reads = format!("reads = [\"{}\"]\n", elsewhere.path().display());
    speaker(&sandbox, "reads", &raw(&format!("line = [\"{}\"]\n{reads}voices = [\"a\"]", program.display())));
    let boss = sandbox.start_with_real_worker().await;
    let confined = said(&boss, &asked("tries", "x")).await;
    if confined.contains("hidden") {
        eprintln!("skipped: this kernel has no Landlock");
    } else {
        assert_eq!(confined.split_whitespace().collect::<Vec<_>>(), ["unreadable", "unwritable"]);
        assert!(said(&boss, &asked("reads", "x")).await.starts_with("hiddenunwritable"));
    }
    boss.finish().await;
}

/// espeak-ng, which Debian has.
fn has_espeak() -> bool {
    let found = Command::new("espeak-ng").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: espeak-ng is not installed");
    }
    found
}

#[tokio::test]
async fn rc_28_espeak_ng_speaks_in_every_format_by_the_manifest_of_the_documents() {
    if !has_espeak() {
        return;
    }
    let sandbox = Sandbox::new();
    let manifest = include_str!("../../manifests/examples/espeak-ng.toml");
    std::fs::write(sandbox.path("manifests/espeak-ng.toml"), manifest).unwrap();
    let boss = sandbox.start_with_real_worker().await;
    let mut body = json!({ "model": "espeak-ng", "input": "The quick brown fox jumps over the lazy dog." });
    let begun = Instant::now();
    let wav = boss.client().post(SPEECH, &body).await;
    assert_eq!((wav.status, wav.header("content-type")), (StatusCode::OK, Some("audio/wav")), "{:?}", wav.body.len());
    let seconds = |bytes: usize| bytes as f64 / 2.0 / 22_050.0;
    let length = seconds(wav.body.len() - 44);
    assert!((1.5..6.0).contains(&length), "{length} s of sound");
    eprintln!("{length:.2} s of sound after {:.2} s, the load included", begun.elapsed().as_secs_f64());
    let loud = wav.body[44..].chunks_exact(2).any(|pair| i16::from_le_bytes([pair[0], pair[1]]).unsigned_abs() > 3_000);
    assert!(loud, "it is no silence");
    body["speed"] = json!(2.0);
    let quick = boss.client().post(SPEECH, &body).await;
    assert!(seconds(quick.body.len()) < 0.75 * length);
    body["voice"] = json!("de");
    for (format, begins) in [("flac", &b"fLaC"[..]), ("opus", b"OggS"), ("wav", b"RIFF")] {
        body["response_format"] = json!(format);
        let answer = boss.client().post(SPEECH, &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        assert!(answer.body.starts_with(begins), "{format}");
    }
    boss.finish().await;
}
