//! `/v1/audio/transcriptions` and `/v1/audio/translations` with a scripted model, over a real socket.

use std::sync::Mutex;

use model_boss_audio::MelShape;
use model_boss_engine::speech::fake_speech::{ScriptedSpeech, info};
use model_boss_protocol::Category;
use serde_json::{Value, json};

use super::rig::{Answer, Rig, Setup};

/// A model that says `HI` and `YOU` in a window, whatever it hears.
pub(super) fn scripted() -> ScriptedSpeech {
    let text = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let one = [vec![109], text(" HI"), vec![119, 119], text(" YOU."), vec![134]].concat();
    let script = std::iter::repeat_n((one, 20.0), 100).collect();
    let info = info(MelShape { bins: 4, window: 400, hop: 160 });
    ScriptedSpeech { info, script: Mutex::new(script), begun: Mutex::default() }
}

/// A file of loud sound.
fn wav(seconds: f64) -> Vec<u8> {
    let samples: Vec<u8> = (0..(seconds * 16_000.0) as i32)
        .flat_map(|at| (((at * 7919) % 20_001 - 10_000) as i16).to_le_bytes())
        .collect();
    let length = |more: usize| ((samples.len() + more) as u32).to_le_bytes();
    let format: [&[u8]; 6] =
        [&[16, 0, 0, 0, 1, 0, 1, 0], &16_000_u32.to_le_bytes(), &32_000_u32.to_le_bytes(), &[2, 0], &[16, 0], b"data"];
    [b"RIFF", &length(36)[..], b"WAVEfmt ", &format.concat(), &length(0), &samples].concat()
}

fn form(fields: &[(&str, &str)], file: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        body.extend(format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").bytes());
    }
    body.extend(b"--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n");
    body.extend(file);
    body.extend(b"\r\n--B--\r\n");
    body
}

const FORM: &str = "content-type: multipart/form-data; boundary=B\r\n";

async fn rig() -> Rig {
    Setup { category: Category::Transcription, ..Setup::default() }.start().await
}

async fn asked(rig: &Rig, fields: &[(&str, &str)], seconds: f64) -> Answer {
    rig.send("POST", "/v1/audio/transcriptions", FORM, &form(fields, &wav(seconds))).await
}

#[tokio::test]
async fn rc_28_each_form_of_an_answer_is_openais() {
    let rig = rig().await;
    let plain = asked(&rig, &[("model", "whisper"), ("language", "en")], 0.6).await;
    assert_eq!((plain.status, plain.json()["text"].as_str()), (200, Some("HI YOU.")), "{}", plain.text());
    assert_eq!(plain.json()["usage"], json!({"type": "duration", "seconds": 1}));
    assert!(plain.json()["timings"]["x_real_time"].as_f64().unwrap() > 0.0);
    let of = async |format: &str| asked(&rig, &[("response_format", format), ("language", "en")], 0.6).await.text();
    assert_eq!(of("text").await, "HI YOU.\n");
    let srt = "1\n00:00:00,000 --> 00:00:00,200\nHI\n\n2\n00:00:00,200 --> 00:00:00,500\nYOU.\n\n";
    assert_eq!(of("srt").await, srt);
    assert!(of("vtt").await.starts_with("WEBVTT\n\n00:00.000 --> 00:00.200\nHI\n\n"));
    let verbose: Value = serde_json::from_str(&of("verbose_json").await).unwrap();
    assert_eq!((verbose["language"].as_str(), verbose["task"].as_str()), (Some("en"), Some("transcribe")));
    assert_eq!((verbose["duration"].as_f64(), verbose["segments"].as_array().unwrap().len()), (Some(0.6), 2));
    let first = &verbose["segments"][0];
    assert_eq!((first["id"].as_u64(), first["seek"].as_u64(), first["end"].as_f64()), (Some(0), Some(0), Some(0.2)));
    assert_eq!(first["tokens"], json!([109, 32, 72, 73, 119]));
    assert!(verbose["words"].is_null());
    let words = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word"), ("language", "de")];
    let words = asked(&rig, &words, 0.6).await.json();
    let heard: Vec<&str> =
        words["words"].as_array().unwrap().iter().map(|word| word["word"].as_str().unwrap()).collect();
    assert_eq!((heard, words["language"].as_str()), (vec!["HI", "YOU."], Some("de")));
    assert!(words["segments"].is_null());
    let sure = asked(&rig, &[("include[]", "logprobs")], 0.6).await.json();
    assert_eq!(sure["logprobs"].as_array().unwrap().len(), 8);
    assert_eq!(sure["logprobs"][1]["token"], "H");
}

#[tokio::test]
async fn rc_28_a_stream_has_deltas_and_the_whole_text() {
    let rig = rig().await;
    let answer = asked(&rig, &[("stream", "true")], 0.6).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let events = answer.events();
    let deltas: Vec<&str> = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, ["HI", " YOU."]);
    let last = events.last().unwrap();
    assert_eq!((last["type"].as_str(), last["text"].as_str()), (Some("transcript.text.done"), Some("HI YOU.")));
    assert_eq!(last["usage"]["seconds"], 1);
}

#[tokio::test]
async fn rc_28_long_sound_is_cut_into_chunks_or_read_on() {
    let rig = rig().await;
    // A window has a second; each says the same, and is complete after half a second of it.
    let cut = asked(&rig, &[("response_format", "verbose_json")], 2.4).await.json();
    assert_eq!(cut["language"], "en", "the model finds it");
    let starts: Vec<f64> =
        cut["segments"].as_array().unwrap().iter().map(|one| one["start"].as_f64().unwrap()).collect();
    assert!(starts.len() >= 6 && starts.is_sorted(), "{starts:?}");
    let on = asked(&rig, &[("response_format", "verbose_json"), ("chunking_strategy", "none")], 2.4).await.json();
    let object = r#"{"type":"server_vad","threshold":0.4,"prefix_padding_ms":300,"silence_duration_ms":200}"#;
    let by_object =
        asked(&rig, &[("response_format", "verbose_json"), ("chunking_strategy", object)], 2.4).await.json();
    assert_eq!(by_object["segments"], cut["segments"]);
    let seeks: Vec<u64> = on["segments"].as_array().unwrap().iter().map(|one| one["seek"].as_u64().unwrap()).collect();
    assert_eq!(seeks, [0, 0, 100, 100, 200, 200]);
    let silence = rig.send("POST", "/v1/audio/translations", FORM, &form(&[], &[])).await;
    assert_eq!(silence.error(), (400, "invalid_request".to_owned(), "file".to_owned()));
}

#[tokio::test]
async fn rc_28_wrong_values_are_named() {
    let rig = rig().await;
    for (name, value) in [
        ("language", "klingon"),
        ("response_format", "xml"),
        ("temperature", "warm"),
        ("temperature", "1.5"),
        ("stream", "maybe"),
        ("timestamp_granularities[]", "letter"),
        ("timestamp_granularities[]", "word"),
        ("include[]", "everything"),
        ("chunking_strategy", "sometimes"),
        ("chunking_strategy", r#"{"type":"server_vad","threshold":2}"#),
        ("chunking_strategy", r#"{"type":"server_vad","silence_duration_ms":99999}"#),
        ("chunking_strategy", r#"{"type":"server_vad","silence":1}"#),
        ("without_timestamps", "2"),
        ("condition_on_previous_text", "x"),
    ] {
        let refused = asked(&rig, &[(name, value)], 0.6).await;
        let (status, code, param) = refused.error();
        assert_eq!((status, code.as_str()), (400, "invalid_request"), "{name} {value}: {}", refused.text());
        assert_eq!(param, name.trim_end_matches("[]"), "{value}");
    }
    let both = asked(&rig, &[("stream", "true"), ("response_format", "srt")], 0.6).await;
    assert_eq!(both.error().2, "response_format");
    let text = rig.send("POST", "/v1/audio/transcriptions", FORM, &form(&[], b"this is no sound")).await;
    assert_eq!(text.error(), (400, "invalid_request".to_owned(), "file".to_owned()));
    let json = rig.post("/v1/audio/transcriptions", &json!({"model": "x"})).await;
    assert!(json.text().contains("multipart/form-data"), "{}", json.text());
    let other = rig.post("/v1/chat/completions", &json!({"model": "x"})).await;
    assert_eq!(other.status, 404);
}
