use std::future::pending;
use std::io;

use clap::Parser;
use tokio::sync::Notify;

use super::*;
use crate::testing::{FakeCoordinator, ScriptedAnswer};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ChatArgs,
}

fn args(words: &[&str]) -> ChatArgs {
    Line::parse_from([&["run"], words].concat()).args
}

fn piece(text: &str) -> String {
    format!("data: {}\n\n", json!({ "choices": [{ "delta": { "content": text } }] }))
}

async fn asked(
    answer: ScriptedAnswer,
    words: &[&str],
) -> (FakeCoordinator, Result<(String, AnswerEnd), CliError>, String) {
    let fake = FakeCoordinator::answering(vec![answer]).await.unwrap();
    let client = Client::new(&fake.url, Some("a secret key".to_owned())).unwrap();
    let asker = ChatSession { client: &client, args: args(words) };
    let mut messages = asker.beginning();
    messages.push(message("user", "What?"));
    let mut out = Vec::new();
    let answer = asker.ask(&messages, &mut out, pending::<()>()).await;
    (fake, answer, String::from_utf8(out).unwrap())
}

#[tokio::test]
async fn an_answer_is_written_as_it_comes_and_ends_its_line() {
    let pieces = [": loading guide 43%\n\n".to_owned(), piece("Good"), piece(" day"), "data: [DONE]\n\n".to_owned()];
    // The pieces of the network do not end where lines of the stream end.
    let whole = pieces.concat();
    let (first, second) = whole.split_at(whole.len() / 2);
    let words = ["guide", "--system", "Be short.", "--max-tokens", "9", "--temperature", "0", "--keep-alive", "-1"];
    let (fake, answer, out) = asked(ScriptedAnswer::stream(&[first, second]), &words).await;
    assert_eq!(answer.unwrap(), ("Good day".to_owned(), AnswerEnd::ByItself));
    assert_eq!(out, "Good day\n");
    let [request] = fake.asked().try_into().unwrap();
    assert_eq!(request.line, "POST /v1/chat/completions");
    assert_eq!(request.key.as_deref(), Some("Bearer a secret key"));
    let expected = json!({
        "model": "guide", "stream": true, "max_tokens": 9, "temperature": 0.0, "keep_alive": -1.0,
        "messages": [{ "role": "system", "content": "Be short." }, { "role": "user", "content": "What?" }],
    });
    assert_eq!(request.body, expected);
}

#[tokio::test]
async fn an_error_before_or_within_the_stream_is_told() {
    let body = json!({ "error": { "message": "there is no model 'giude'", "type": "x", "param": null, "code": "y" } });
    let (_, answer, _) = asked(ScriptedAnswer::json(404, &body), &["giude"]).await;
    assert_eq!(answer.unwrap_err().to_string(), "there is no model 'giude'");

    let event = format!("data: {body}\n\n");
    let (_, answer, out) = asked(ScriptedAnswer::stream(&[&piece("Good"), &event]), &["guide"]).await;
    assert_eq!(answer.unwrap_err().to_string(), "there is no model 'giude'");
    assert_eq!(out, "Good\n", "what came before stays");
}

#[tokio::test]
async fn a_stream_without_its_end_is_an_error() {
    let (_, answer, out) = asked(ScriptedAnswer::stream(&[&piece("Good")]), &["guide"]).await;
    assert!(matches!(answer, Err(CliError::CutOff)), "{answer:?}");
    assert_eq!(out, "Good\n");
}

#[tokio::test]
async fn somebody_else_on_the_port_is_told_apart() {
    let (_, answer, _) =
        asked(ScriptedAnswer { status: 502, pieces: vec!["<html>".to_owned()], ends: true }, &["guide"]).await;
    let error = answer.unwrap_err().to_string();
    assert!(error.contains("502") && error.contains("something else"), "{error}");
}

/// A writer that notifies a test of each write.
struct Watched<'a>(&'a Notify, Vec<u8>);

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.notify_one();
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn ctrl_c_stops_the_answer_and_the_generation_behind_it() {
    let answer = ScriptedAnswer { status: 200, pieces: vec![piece("Good")], ends: false };
    let fake = FakeCoordinator::answering(vec![answer]).await.unwrap();
    let client = Client::new(&fake.url, None).unwrap();
    let asker = ChatSession { client: &client, args: args(&["guide"]) };
    let written = Notify::new();
    let mut out = Watched(&written, Vec::new());
    let stopped = asker.ask(&[message("user", "What?")], &mut out, written.notified()).await.unwrap();
    assert_eq!(stopped, ("Good".to_owned(), AnswerEnd::Stopped));
    assert_eq!(out.1, b"Good\n");
    fake.left.cancelled().await;
}

#[tokio::test]
async fn ctrl_c_while_nothing_came_yet_stops_the_request() {
    let fake = FakeCoordinator::answering(vec![ScriptedAnswer { status: 200, pieces: Vec::new(), ends: false }])
        .await
        .unwrap();
    let client = Client::new(&fake.url, None).unwrap();
    let asker = ChatSession { client: &client, args: args(&["guide"]) };
    let (mut out, question) = (Vec::new(), [message("user", "What?")]);
    let stopped = asker.ask(&question, &mut out, std::future::ready(())).await.unwrap();
    assert_eq!(stopped, (String::new(), AnswerEnd::Stopped));
    assert!(out.is_empty());
}
