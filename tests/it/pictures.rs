//! RC-25: pictures through the coordinator. With fake workers: queue, forms, streams, jobs, disconnects. With tiny
//! random pipelines in the real worker: the pictures of `diffusers`.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use model_boss_images::{ImageLimits, PictureFormat, PictureOrigin, RgbImage, decode, encode};
use model_boss_tests::{Answer, Behaviour, Boss, Event, PATIENCE, Sandbox, until};
use serde_json::{Value, json};

use crate::rule::{TensorRule, safetensors};

const GENERATIONS: &str = "/v1/images/generations";
const EDITS: &str = "/v1/images/edits";
const JOBS: &str = "/api/v1/jobs";

const DIFFUSION: &str = "vram = \"64MiB\"\ncategory = \"diffusion\"";

fn asked(model: &str) -> Value {
    json!({ "model": model, "prompt": "a cat", "n": 2, "seed": 4, "steps": 3 })
}

/// A form with these fields and files.
async fn form(boss: &Boss, path: &str, fields: &[(&str, &str)], files: &[(&str, &[u8])]) -> Answer {
    let part = |head: &str, content: &[u8]| {
        let head = format!("--limit\r\nContent-Disposition: form-data; {head}\r\n\r\n");
        [head.as_bytes(), content, b"\r\n"].concat()
    };
    let texts = fields.iter().map(|(name, value)| part(&format!("name=\"{name}\""), value.as_bytes()));
    let files = files.iter().map(|(name, file)| part(&format!("name=\"{name}\"; filename=\"a.png\""), file));
    let body: Vec<u8> = files.chain(texts).chain([b"--limit--\r\n".to_vec()]).flatten().collect();
    let mut request = boss.client().request(Method::POST, path, body);
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("multipart/form-data; boundary=limit"));
    boss.client().send(request).await
}

#[tokio::test]
async fn rc_25_requests_for_pictures_reach_the_only_model_that_paints() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model_with("brush", DIFFUSION, Behaviour::default());
    let _chat = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let answer = boss.client().post(GENERATIONS, &asked("brush")).await;
    assert_eq!((answer.status, answer.header("x-served-model")), (StatusCode::OK, Some("brush")), "{answer:?}");
    let seeds: Vec<u64> =
        answer.json()["data"].as_array().unwrap().iter().map(|data| data["seed"].as_u64().unwrap()).collect();
    assert_eq!(seeds, [4, 5]);
    let mut worker = model.worker().await;
    assert_eq!(worker.request().await.body, asked("brush"));
    let unnamed = boss.client().post("/api/v1/images/generations", &json!({ "prompt": "a cat" })).await;
    assert_eq!(unnamed.status, StatusCode::OK, "the only model that paints needs no name: {unnamed:?}");

    let files: [(&str, &[u8]); 3] = [("image[]", b"\r\n--limi\r\n"), ("mask", b"mask"), ("image[]", b"two")];
    let fields = [("model", "brush"), ("x_priority", "3"), ("prompt", "a dog"), ("seed", "9"), ("stream", "false")];
    let edited = form(&boss, EDITS, &fields, &files).await;
    assert_eq!((edited.status, &edited.json()["data"][0]["seed"]), (StatusCode::OK, &json!(9)), "{edited:?}");
    worker.request().await;
    let sent = worker.request().await.body.as_str().unwrap().to_owned();
    assert!(sent.contains("\r\n--limi\r\n") && sent.contains("two") && sent.contains("name=\"mask\""), "{sent}");
    assert!(!sent.contains("x_priority"), "{sent}");
    let in_json = json!({ "model": "brush", "prompt": "a dog", "image": "data:image/png;base64,AAAA" });
    assert_eq!(boss.client().post(EDITS, &in_json).await.status, StatusCode::OK);

    for (answer, code, param) in [
        (boss.client().post(GENERATIONS, &asked("alpha")).await, "unsupported_by_model", "model"),
        (boss.client().post(GENERATIONS, &asked("nobody")).await, "model_not_found", "model"),
        (form(&boss, EDITS, &[("model", "brush")], &[]).await, "invalid_request", "image"),
        (form(&boss, EDITS, &fields, &[("file", b"x")]).await, "invalid_request", "image"),
        (form(&boss, "/v1/images/variations", &[], &[("image", b"x")]).await, "unsupported_by_model", "image"),
        (boss.chat("brush", "?").await, "unsupported_by_model", "model"),
    ] {
        let told = answer.json()["error"].clone();
        assert_eq!((&told["code"], &told["param"]), (&json!(code), &json!(param)), "{told}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn rc_25_events_show_pictures_as_they_are_painted_and_end_with_their_client() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model_with("brush", DIFFUSION, Behaviour::default());
    let boss = sandbox.start().await;
    let mut streamed = asked("brush");
    streamed["stream"] = true.into();
    let mut stream = boss.client().stream(GENERATIONS, &streamed).await;
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    let kinds: Vec<String> = stream
        .rest()
        .await
        .into_iter()
        .map(|event| match event {
            Event::Data(data) => data["type"].as_str().unwrap().to_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
    let partial = "image_generation.partial_image";
    assert_eq!(kinds, [partial, partial, partial, "image_generation.completed"]);
    drop(model.worker().await);
    model.behave(Behaviour { hold_after_tokens: Some(1), ..Behaviour::default() });
    assert!(boss.client().post("/api/v1/unload", &json!({})).await.status.is_success());
    let mut stream = boss.client().stream(GENERATIONS, &streamed).await;
    stream.chunk().await;
    let mut worker = model.worker().await;
    worker.held().await;
    drop(stream);
    assert_eq!(worker.cancelled().await, 1);
    boss.finish().await;
}

#[tokio::test]
async fn rc_26_pictures_are_jobs_whose_steps_are_counted() {
    let sandbox = Sandbox::new();
    let holds = Behaviour { hold_after_tokens: Some(2), ..Behaviour::default() };
    let mut model = sandbox.fake_model_with("brush", DIFFUSION, holds);
    let boss = sandbox.start().await;
    let order = json!({ "kind": "diffusion", "body": asked("brush") });
    let accepted = boss.client().post(JOBS, &order).await;
    assert_eq!(accepted.status, 202, "{accepted:?}");
    let job = format!("{JOBS}/{}", accepted.json()["id"].as_str().unwrap());
    let mut worker = model.worker().await;
    worker.held().await;
    let counted = async || {
        let shown = boss.read(&job).await;
        (shown["progress"]["done"] == 2).then_some(shown["progress"].clone())
    };
    let progress = until(PATIENCE, "two steps are counted", counted).await;
    assert_eq!((&progress["unit"], &progress["total"]), (&json!("steps"), &json!(3)), "{progress}");
    worker.decode();
    let ended = async || {
        let shown = boss.read(&format!("{job}?wait=10s")).await;
        (!shown["ended"].is_null()).then_some(shown)
    };
    let ended = until(PATIENCE, "the job ends", ended).await;
    assert_eq!(ended["state"], "succeeded", "{ended}");
    let result = boss.client().get(&format!("{job}/result")).await;
    assert_eq!(result.json()["data"].as_array().unwrap().len(), 2);
    // An edit is a job, too: its form is checked when it is sent.
    let fields = [("model", "brush"), ("prompt", "a dog")];
    let edit = form(&boss, &format!("{JOBS}?kind=identity"), &fields, &[("image", b"x"), ("mask", b"y")]).await;
    assert_eq!(edit.status, 202, "{edit:?}");
    let refused = form(&boss, &format!("{JOBS}?kind=image_edits"), &fields, &[("mask", b"y")]).await;
    assert_eq!((refused.status.as_u16(), refused.json()["error"]["param"].as_str()), (400, Some("image")));
    boss.finish().await;
}

/// A case of `scripts/reference/pictures.py` as the model of its name.
fn pipeline(sandbox: &Sandbox, name: &str, manifest: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../worker/candle/tests/pictures/{name}.json"));
    let case: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let folder = sandbox.path("models").join(name);
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    for (file, text) in case["files"].as_object().unwrap() {
        put(file, text.as_str().map_or_else(|| text.to_string(), str::to_owned).as_bytes());
    }
    for (file, rules) in case["weights"].as_object().unwrap() {
        let tensors: Vec<TensorRule> = serde_json::from_value(rules["tensors"].clone()).unwrap();
        put(file, &safetensors(&tensors, rules["seed"].as_u64().unwrap()));
    }
    sandbox.model(name, &folder, manifest);
    case
}

/// The picture that the script begins with, and the mask: white is painted anew.
fn begun(number: usize, [width, height]: [usize; 2]) -> [Vec<u8>; 2] {
    let byte = |at: usize| {
        let (channel, x, y) = (at % 3, at / 3 % width, at / 3 / width);
        ((x * (number + 2) + y * 13 + channel * 50 + x * y % 17 * 3) % 256) as u8
    };
    let anew = |at: usize| if at / 3 % width >= width / 3 && at / 3 / width >= 5 { 255 } else { 0 };
    let file = |byte: &dyn Fn(usize) -> u8| {
        let image = RgbImage::new(width, height, (0..3 * width * height).map(byte).collect()).unwrap();
        encode(&image, PictureFormat::Png, PictureOrigin::Painted).unwrap()
    };
    [file(&byte), file(&anew)]
}

/// How far two pictures are from each other, in 255 parts.
fn apart(ours: &Value, theirs: &Value) -> f64 {
    let file = STANDARD.decode(ours["b64_json"].as_str().unwrap()).unwrap();
    let ours = decode(&file, &ImageLimits::default()).unwrap().bytes;
    let theirs = STANDARD.decode(theirs.as_str().unwrap()).unwrap();
    assert_eq!(ours.len(), theirs.len());
    let away: u64 = ours.iter().zip(&theirs).map(|(ours, theirs)| u64::from(ours.abs_diff(*theirs))).sum();
    away as f64 / ours.len() as f64
}

#[tokio::test]
async fn jb_2_pictures_through_the_coordinator_are_those_of_diffusers() {
    let sandbox = Sandbox::new();
    let names = ["sd-plain", "xl-plain", "sd-inpaint", "flux-dev", "flux-schnell", "sd3-plain", "sd3-other"];
    let cases = names.map(|name| (name, pipeline(&sandbox, name, "backend = \"diffusers\"")));
    let boss = sandbox.start_with_real_worker().await;
    let mut compared = 0;
    for (name, case) in &cases {
        for painted in case["painted"].as_array().unwrap().iter().filter(|painted| !painted["pictures"].is_null()) {
            let size = [&painted["width"], &painted["height"]].map(|side| side.as_u64().unwrap() as usize);
            let seeds = painted["seeds"].as_array().unwrap();
            let (first, count) = (seeds[0].to_string(), seeds.len().to_string());
            let text = |field: &str| painted[field].as_str().unwrap_or_default().to_owned();
            let shape = format!("{}x{}", size[0], size[1]);
            let answer = if painted["image"].is_null() {
                let mut body = json!({ "model": name, "prompt": painted["prompt"], "size": shape, "n": seeds.len(),
                    "seed": seeds[0], "steps": painted["steps"], "guidance_scale": painted["guidance"] });
                for (field, value) in [("negative_prompt", "negative"), ("max_sequence_length", "most")] {
                    if !painted[value].is_null() {
                        body[field] = painted[value].clone();
                    }
                }
                boss.client().post(GENERATIONS, &body).await
            } else {
                let [image, mask] = begun(painted["image"].as_u64().unwrap() as usize, size);
                let (prompt, steps) = (text("prompt"), painted["steps"].to_string());
                let (guidance, strength) = (painted["guidance"].to_string(), painted["strength"].to_string());
                let most = painted["most"].to_string();
                let mut fields = vec![
                    ("model", *name),
                    ("prompt", &prompt),
                    ("seed", &first),
                    ("n", &count),
                    ("steps", &steps),
                    ("guidance_scale", &guidance),
                    ("strength", &strength),
                ];
                fields.extend((!painted["most"].is_null()).then_some(("max_sequence_length", most.as_str())));
                let mut files = vec![("image", image.as_slice())];
                files.extend((painted["mask"] == true).then_some(("mask", mask.as_slice())));
                form(&boss, EDITS, &fields, &files).await
            };
            assert_eq!(answer.status, StatusCode::OK, "{name}: {answer:?}");
            let told = answer.json();
            assert_eq!(told["size"], shape, "{name}");
            let theirs = painted["pictures"].as_array().unwrap();
            let ours = told["data"].as_array().unwrap();
            assert_eq!(ours.len(), theirs.len());
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert!(apart(ours, theirs) < 2.0, "{name}: {}", apart(ours, theirs));
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 13);
    let negative = json!({ "model": "flux-schnell", "prompt": "a cat", "negative_prompt": "dogs" });
    let refused = boss.client().post(GENERATIONS, &negative).await;
    assert_eq!(refused.json()["error"]["param"], "negative_prompt", "{refused:?}");
    let shown = boss.read("/v1/models/xl-plain").await;
    assert_eq!(shown["category"], "diffusion", "{shown}");
    boss.finish().await;
}

#[tokio::test]
async fn rc_25_a_pipeline_is_found_by_its_files_and_one_that_is_not_known_is_named() {
    let sandbox = Sandbox::new();
    pipeline(&sandbox, "sd-plain", "");
    let other = sandbox.path("models").join("other");
    std::fs::create_dir_all(other.join("transformer")).unwrap();
    std::fs::write(other.join("model_index.json"), r#"{"_class_name":"HunyuanDiTPipeline"}"#).unwrap();
    std::fs::write(other.join("transformer/diffusion_pytorch_model.safetensors"), "x").unwrap();
    sandbox.model("other", &other, "");
    let boss = sandbox.start_with_real_worker().await;
    assert_eq!(boss.read("/v1/models/sd-plain").await["category"], "diffusion");
    let refused = boss.client().post(GENERATIONS, &json!({ "model": "other", "prompt": "a cat" })).await;
    assert!(refused.error_message().contains("'HunyuanDiTPipeline'"), "{refused:?}");
    // The worker's own refusals come with their field.
    for (field, value) in [("scheduler", json!("magic")), ("size", json!("30x32")), ("clip_skip", json!(40))] {
        let mut body = json!({ "model": "sd-plain", "prompt": "a cat", "size": "32x32", "steps": 2 });
        body[field] = value;
        let refused = boss.client().post(GENERATIONS, &body).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)));
    }
    // Each as alone, whoever is beside it, and the same each time.
    let body = json!({ "model": "sd-plain", "prompt": "a cat", "size": "32x32", "steps": 3, "seed": 5, "n": 3 });
    let files = |answer: &Answer| -> Vec<Value> {
        answer.json()["data"].as_array().unwrap().iter().map(|data| data["b64_json"].clone()).collect()
    };
    let once = files(&boss.client().post(GENERATIONS, &body).await);
    let asked = (0..3).map(|_| {
        let (client, body) = (boss.client(), body.clone());
        tokio::spawn(async move { client.post(GENERATIONS, &body).await })
    });
    for answer in asked.collect::<Vec<_>>() {
        assert_eq!(files(&answer.await.unwrap()), once);
    }
    boss.finish().await;
}
