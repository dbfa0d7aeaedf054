//! RC-28: a model that speaks in the real worker, through the coordinator: the sound of the reference, in parts.

use std::path::Path;

use http::StatusCode;
use model_boss_tests::Sandbox;
use serde_json::{Value, json};

use crate::rule::{TensorRule, safetensors};

const SPEECH: &str = "/v1/audio/speech";

/// A case of `scripts/reference/vits.py` as the model of its name.
fn model(sandbox: &Sandbox, name: &str, manifest: &str) -> Value {
    model_of(sandbox, "speech", name, manifest)
}

/// A case in a folder of the worker's tests as the model of its name.
fn model_of(sandbox: &Sandbox, cases: &str, name: &str, manifest: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../worker/candle/tests/{cases}/{name}.json"));
    let case: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let folder = sandbox.path("models").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    for (file, text) in case["files"].as_object().unwrap() {
        std::fs::write(folder.join(file), text.to_string()).unwrap();
    }
    for (file, rules) in case["weights"].as_object().unwrap() {
        let tensors: Vec<TensorRule> = serde_json::from_value(rules["tensors"].clone()).unwrap();
        std::fs::write(folder.join(file), safetensors(&tensors, rules["seed"].as_u64().unwrap())).unwrap();
    }
    sandbox.model(name, &folder, manifest);
    case
}

/// Samples of a WAV file of 16 bits.
fn samples(wav: &[u8]) -> Vec<f64> {
    assert_eq!(&wav[36..40], b"data");
    wav[44..].chunks_exact(2).map(|pair| f64::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_768.0).collect()
}

#[tokio::test]
async fn rc_28_a_model_says_through_the_coordinator_what_the_reference_says() {
    let sandbox = Sandbox::new();
    let voices = "voices = { alloy = \"2\" }";
    let cases = [("mms", ""), ("speakers", voices)].map(|(name, manifest)| (name, model(&sandbox, name, manifest)));
    let boss = sandbox.start_with_real_worker().await;
    for (name, case) in &cases {
        for spoken in case["spoken"].as_array().unwrap() {
            let mut body =
                json!({ "model": name, "input": spoken["text"], "seed": spoken["seed"], "speed": spoken["speed"] });
            if *name == "speakers" {
                let voice = spoken["voice"].to_string();
                body["voice"] = json!(if voice == "2" { "alloy".to_owned() } else { voice });
            }
            let answer = boss.client().post(SPEECH, &body).await;
            assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
            let heard = samples(&answer.body);
            let expected: Vec<f64> = serde_json::from_value(spoken["samples"].clone()).unwrap();
            assert_eq!(heard.len(), expected.len(), "{spoken}");
            for (ours, theirs) in heard.iter().zip(&expected) {
                assert!((ours - theirs).abs() < 1e-3, "{name}: {ours} {theirs}");
            }
        }
    }
    let listed = boss.read("/v1/audio/voices?model=speakers").await;
    assert_eq!(listed["voices"].as_array().unwrap().len(), 5, "{listed}");
    let shown = boss.read("/v1/models/mms").await;
    assert_eq!((&shown["category"], &shown["voices"][0]["language"]), (&json!("tts"), &json!("eng")));
    let health = boss.read("/api/v1/health").await;
    assert_eq!(health["all_models_loaded"].as_array().unwrap().len(), 2, "{health}");
    boss.finish().await;
}

#[tokio::test]
async fn rc_28_csm_speaks_through_the_coordinator_at_its_own_speed() {
    let sandbox = Sandbox::new();
    let case = model_of(&sandbox, "csm", "plain", "voices = { maya = \"1\" }");
    let boss = sandbox.start_with_real_worker().await;
    let ask = async |body: Value| boss.client().post(SPEECH, &body).await;
    let spoken = &case["spoken"][0];
    let answer = ask(json!({ "model": "plain", "input": spoken["text"], "response_format": "wav" })).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let heard = samples(&answer.body);
    let expected: Vec<f64> = serde_json::from_value(spoken["samples"].clone()).unwrap();
    assert_eq!(heard.len(), expected.len());
    // The samples of a model without training go beyond what a file can hold.
    for (ours, theirs) in heard.iter().zip(&expected) {
        assert!((ours - theirs.clamp(-1.0, 1.0)).abs() < 1e-3, "{ours} {theirs}");
    }
    let other = ask(json!({ "model": "plain", "input": spoken["text"], "voice": "maya" })).await;
    assert_eq!(other.status, StatusCode::OK, "{other:?}");
    assert_ne!(other.body, answer.body);
    let refused = ask(json!({ "model": "plain", "input": "hello", "speed": 1.5 })).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (StatusCode::BAD_REQUEST, "unsupported_by_model"));
    assert!(refused.error_message().contains("its own speed"), "{refused:?}");
    let shown = boss.read("/v1/models/plain").await;
    let ids: Vec<&Value> = shown["voices"].as_array().unwrap().iter().map(|voice| &voice["id"]).collect();
    assert_eq!((&shown["category"], ids), (&json!("tts"), vec![&json!("0"), &json!("1"), &json!("maya")]), "{shown}");
    boss.finish().await;
}

#[tokio::test]
async fn jb_5_parler_speaks_through_the_coordinator_as_its_instructions_say() {
    let sandbox = Sandbox::new();
    let case = model_of(&sandbox, "parler", "plain", "voices = { nova = \"default\" }");
    let boss = sandbox.start_with_real_worker().await;
    let ask = async |body: Value| boss.client().post(SPEECH, &body).await;
    for spoken in case["spoken"].as_array().unwrap() {
        let (text, instructions) = (&spoken["text"], &spoken["instructions"]);
        let answer = ask(json!({ "model": "plain", "input": text, "instructions": instructions })).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        let heard = samples(&answer.body);
        let expected: Vec<f64> = serde_json::from_value(spoken["samples"].clone()).unwrap();
        // "it's late" is one sentence, and so is "hello there.".
        assert_eq!(heard.len(), expected.len(), "{text}");
        for (ours, theirs) in heard.iter().zip(&expected) {
            assert!((ours - theirs).abs() < 1e-3, "{text}: {ours} {theirs}");
        }
        let other = ask(json!({ "model": "plain", "input": text, "voice": "nova" })).await;
        assert_eq!(other.status, StatusCode::OK, "{other:?}");
        assert_ne!(other.body, answer.body, "the usual voice");
    }
    for (instructions, code, words) in [
        ("very long ".repeat(110), "unsupported_by_model", "at most 1024"),
        ("x".repeat(5000), "invalid_request", "'instructions' have 5000"),
    ] {
        let refused = ask(json!({ "model": "plain", "input": "hello", "instructions": instructions })).await;
        assert_eq!((refused.status, refused.error_code().as_str()), (StatusCode::BAD_REQUEST, code));
        assert!(refused.error_message().contains(words), "{refused:?}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn rc_28_a_long_text_is_spoken_in_parts_the_same_each_time_and_refusals_have_reasons() {
    let sandbox = Sandbox::new();
    model(&sandbox, "mms", "");
    model(&sandbox, "quiet", "params = { response_format = \"pcm\", speed = 2.0 }");
    let boss = sandbox.start_with_real_worker().await;
    let text = "It was a quiet morning at the harbour. Nobody had slept, and the wind was cold! ".repeat(6);
    let mut body = json!({ "model": "mms", "input": text, "seed": 11 });
    let once = boss.client().post(SPEECH, &body).await;
    assert_eq!(once.status, StatusCode::OK, "{once:?}");
    let heard = samples(&once.body);
    // Between sentences there is silence.
    let longest = heard.split(|sample| *sample != 0.0).map(<[f64]>::len).max().unwrap();
    assert!(longest >= 16_000 / 8, "{longest}");
    assert_eq!(boss.client().post(SPEECH, &body).await.body, once.body, "the same seed");
    body["seed"] = json!(12);
    assert_ne!(boss.client().post(SPEECH, &body).await.body, once.body);
    // Four at once are answered each as alone.
    body["seed"] = json!(11);
    let asked = (0..4).map(|_| {
        let (client, body) = (boss.client(), body.clone());
        tokio::spawn(async move { client.post(SPEECH, &body).await })
    });
    for answer in asked.collect::<Vec<_>>() {
        assert_eq!(answer.await.unwrap().body, once.body);
    }
    let by_default = boss.client().post(SPEECH, &json!({ "model": "quiet", "input": "hello" })).await;
    assert!(by_default.header("content-type").unwrap().starts_with("audio/pcm"), "the manifest's params");
    for (field, value, words) in [
        ("input", json!("?!"), "nothing that the model can say"),
        ("voice", json!("1"), "there is no voice '1'"),
        ("instructions", json!("sing"), "instructions"),
    ] {
        let mut wrong = json!({ "model": "mms", "input": "hello" });
        wrong[field] = value;
        let refused = boss.client().post(SPEECH, &wrong).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
        assert!(refused.error_message().contains(words), "{refused:?}");
    }
    // A client that leaves ends its work: the next one is not behind a text of many sentences.
    let mut long = json!({ "model": "mms", "input": text.repeat(8), "seed": 1 });
    long["stream_format"] = json!("sse");
    let mut stream = boss.client().stream(SPEECH, &long).await;
    stream.chunk().await;
    drop(stream);
    assert_eq!(boss.client().post(SPEECH, &body).await.body, once.body);
    boss.finish().await;
}
