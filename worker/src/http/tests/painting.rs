//! Routes of a worker that paints, with a painter made of arithmetic: fields, forms, streams, errors, cancelling.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model_boss_images::{ImageLimits, PictureFormat, PictureOrigin, RgbImage, decode, encode};
use model_boss_protocol::{Category, ErrorCode};
use serde_json::{Value, json};

use super::rig::{Answer, Rig, Setup, event};

const GENERATIONS: &str = "/v1/images/generations";
const EDITS: &str = "/v1/images/edits";

async fn painter() -> Rig {
    Setup { category: Category::Diffusion, params: json!({}), ..Setup::default() }.start().await
}

fn picture(width: usize, height: usize) -> Vec<u8> {
    let image = RgbImage::new(width, height, vec![9; 3 * width * height]).unwrap();
    encode(&image, PictureFormat::Png, PictureOrigin::Painted).unwrap()
}

fn url(file: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(file))
}

/// The first pixel and the size of a picture in an answer.
fn seen(data: &Value) -> ([u8; 3], [usize; 2]) {
    let file = STANDARD.decode(data["b64_json"].as_str().unwrap()).unwrap();
    let image = decode(&file, &ImageLimits::default()).unwrap();
    (image.bytes[..3].try_into().unwrap(), [image.width, image.height])
}

/// A form with these fields and files.
async fn form(rig: &Rig, fields: &[(&str, &str)], files: &[(&str, &[u8])]) -> Answer {
    let mut body = Vec::new();
    for (name, text) in fields {
        body.extend(format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n").as_bytes());
    }
    for (name, file) in files {
        let head = format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"a.png\"\r\n\r\n");
        body.extend([head.as_bytes(), file, b"\r\n"].concat());
    }
    body.extend(b"--b--\r\n");
    rig.send("POST", EDITS, "content-type: multipart/form-data; boundary=b\r\n", &body).await
}

#[tokio::test]
async fn rc_25_pictures_of_one_request_have_seeds_that_follow_each_other() {
    let rig = painter().await;
    let asked = json!({ "model": "m", "prompt": "a cat", "n": 3, "size": "24x16", "seed": 7, "steps": 2,
        "guidance_scale": 3, "negative_prompt": "dogs", "scheduler": "ddim", "clip_skip": 1, "quality": "high" });
    let answer = rig.post(GENERATIONS, &asked).await.json();
    let data = answer["data"].as_array().unwrap();
    let pictures: Vec<_> = data.iter().map(|data| (data["seed"].as_u64().unwrap(), seen(data))).collect();
    assert_eq!(pictures, [7, 8, 9].map(|seed| (u64::from(seed), ([seed, 200, 0], [24, 16]))));
    assert_eq!((&answer["size"], &answer["output_format"]), (&json!("24x16"), &json!("png")));
    assert_eq!(answer["timings"]["steps"], 2, "{answer}");
    assert_eq!(data[0]["digital_source_type"], "trainedAlgorithmicMedia");
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    let request = rig.painter.requests().pop().unwrap();
    assert_eq!((request.guidance_scale, request.steps, request.clip_skip), (3.0, 2, Some(1)));
    assert_eq!((request.negative_prompt.as_deref(), request.scheduler.as_deref()), (Some("dogs"), Some("ddim")));
    // A request without wishes has those of the model.
    let plain =
        rig.post(GENERATIONS, &json!({ "prompt": "a cat", "size": "auto", "output_format": "jpeg" })).await.json();
    assert_eq!((seen(&plain["data"][0]).1, &plain["output_format"]), ([16, 16], &json!("jpeg")));
    let request = rig.painter.requests().pop().unwrap();
    assert_eq!((request.steps, request.guidance_scale, request.seeds.len()), (4, 7.5, 1));
    // Of torch, a negative seed is one from the end.
    let negative = rig.post(GENERATIONS, &json!({ "prompt": "", "seed": -1, "n": 2 })).await.json();
    let seeds: Vec<u64> =
        negative["data"].as_array().unwrap().iter().map(|data| data["seed"].as_u64().unwrap()).collect();
    assert_eq!(seeds, [u64::MAX, 0]);
}

#[tokio::test]
async fn rc_25_bad_fields_are_refused_by_name() {
    let rig = painter().await;
    for (field, value, code) in [
        ("prompt", json!(null), "invalid_request"),
        ("prompt", json!(7), "invalid_request"),
        ("prompt", json!("x".repeat(32_001)), "invalid_request"),
        ("n", json!(11), "invalid_request"),
        ("n", json!(0), "invalid_request"),
        ("size", json!("big"), "invalid_request"),
        ("size", json!("20x16"), "invalid_request"),
        ("size", json!("16x72"), "invalid_request"),
        ("steps", json!(0), "invalid_request"),
        ("steps", json!("many"), "invalid_request"),
        ("guidance_scale", json!(-1), "invalid_request"),
        ("seed", json!(1.5), "invalid_request"),
        ("strength", json!(0.5), "invalid_request"),
        ("output_format", json!("gif"), "invalid_request"),
        ("output_compression", json!(101), "invalid_request"),
        ("output_compression", json!(50), "unsupported_by_model"),
        ("response_format", json!("url"), "unsupported_by_model"),
        ("response_format", json!("png"), "invalid_request"),
        ("background", json!("transparent"), "unsupported_by_model"),
        ("prompt_weighting", json!(true), "unsupported_by_model"),
        ("reference_images", json!(["data:,x"]), "unsupported_by_model"),
        ("partial_images", json!(4), "invalid_request"),
    ] {
        let mut asked = json!({ "prompt": "a cat" });
        asked[field] = value.clone();
        let answer = rig.post(GENERATIONS, &asked).await;
        assert_eq!(answer.error(), (400, code.to_owned(), field.to_owned()), "{field}: {value}");
    }
    // A value that leaves a field as it is, is no wish.
    let mut asked = json!({ "prompt": "a cat", "prompt_weighting": false, "background": "auto", "strength": null });
    asked["output_format"] = json!("webp");
    asked["output_compression"] = json!(100);
    assert_eq!(rig.post(GENERATIONS, &asked).await.status, 200);
    assert_eq!(rig.get(GENERATIONS).await.status, 405);
    assert_eq!(rig.post("/tokenize", &json!({ "content": "a" })).await.status, 404);
}

#[tokio::test]
async fn rc_25_an_edit_comes_as_a_form_or_as_json() {
    let rig = painter().await;
    let file = picture(20, 33);
    let mask = picture(20, 33);
    let answer = form(
        &rig,
        &[("prompt", "12"), ("seed", "5"), ("strength", "0.25"), ("n", "2"), ("size", "")],
        &[("image", &file), ("mask", &mask)],
    )
    .await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let data = answer.json()["data"].clone();
    // The size of the picture, as far as there are such sizes.
    assert_eq!((seen(&data[0]), seen(&data[1]).0[0]), (([5, 200, 1], [16, 32]), 6));
    assert_eq!(data[0]["digital_source_type"], "compositeWithTrainedAlgorithmicMedia");
    let request = rig.painter.requests().pop().unwrap();
    let beginning = request.beginning.unwrap();
    assert_eq!((request.prompt.as_str(), beginning.strength), ("12", 0.25));
    assert_eq!(beginning.mask.map(|mask| (mask.width, mask.height, mask.bytes[0])), Some((20, 33, 9)));
    for image in [
        json!({ "image": url(&file) }),
        json!({ "image": [url(&file)] }),
        json!({ "images": [{ "image_url": url(&file) }], "mask": { "image_url": { "url": url(&mask) } } }),
    ] {
        let mut asked = json!({ "prompt": "a cat", "size": "8x8" });
        let is_masked = image.get("mask").is_some();
        asked.as_object_mut().unwrap().extend(image.as_object().unwrap().clone());
        let answer = rig.post(EDITS, &asked).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let beginning = rig.painter.requests().pop().unwrap().beginning.unwrap();
        assert_eq!(beginning.strength, if is_masked { 1.0 } else { 0.8 }, "as diffusers has it");
    }
    let several = form(&rig, &[("prompt", "x")], &[("image[]", &file), ("image[]", &file)]).await;
    assert_eq!(several.error(), (400, "unsupported_by_model".to_owned(), "image".to_owned()));
    for (fields, files, param) in [
        (&[("prompt", "x")][..], &[][..], "image"),
        (&[], &[("image", &file[..])], "prompt"),
        (&[("prompt", "x")], &[("image", &b"no picture"[..])], "image"),
        (&[("prompt", "x")], &[("image", &file[..]), ("mask", b"no picture")], "mask"),
        (&[("prompt", "x")], &[("image", &file[..]), ("other", &file)], "other"),
        (&[("prompt", "x"), ("strength", "2")], &[("image", &file[..])], "strength"),
        (&[("prompt", "x"), ("n", "few")], &[("image", &file[..])], "n"),
    ] {
        assert_eq!(form(&rig, fields, files).await.error(), (400, "invalid_request".to_owned(), param.to_owned()));
    }
    let elsewhere = rig.post(EDITS, &json!({ "prompt": "x", "image": "http://127.0.0.1/a.png" })).await;
    assert_eq!(elsewhere.error().2, "image");
}

#[tokio::test]
async fn rc_25_a_stream_shows_unfinished_pictures_and_ends_with_each_picture_whole() {
    let rig = painter().await;
    let asked = json!({ "prompt": "a cat", "n": 2, "seed": 3, "steps": 4, "stream": true, "partial_images": 1 });
    let answer = rig.post(GENERATIONS, &asked).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let events: Vec<Value> = answer.chunks.iter().map(|chunk| event(chunk)).collect();
    let told: Vec<(&str, u64, [u8; 3])> = events
        .iter()
        .map(|event| (event["type"].as_str().unwrap(), event["image_index"].as_u64().unwrap(), seen(event).0))
        .collect();
    let (partial, completed) = ("image_generation.partial_image", "image_generation.completed");
    let expected = [
        (partial, 0, [3, 100, 0]),
        (partial, 1, [4, 100, 0]),
        (completed, 0, [3, 200, 0]),
        (completed, 1, [4, 200, 0]),
    ];
    assert_eq!(told, expected);
    assert_eq!((&events[0]["partial_image_index"], &events[2]["partial_image_index"]), (&json!(0), &Value::Null));
    assert_eq!(events[3]["timings"]["steps"], 4);
    // A failure in the middle is the last event.
    rig.painter.fail_after(2, model_boss_engine::DecoderError::OutOfMemory("it is full".to_owned()));
    let cut = rig.post(GENERATIONS, &asked).await;
    let last = event(cut.chunks.last().unwrap());
    assert_eq!((cut.status, last["error"]["code"].as_str().unwrap()), (200, ErrorCode::NoCapacity.as_str()));
}

#[tokio::test]
async fn rc_26_the_steps_of_pictures_are_counted_while_they_are_painted() {
    let rig = painter().await;
    let permits = rig.painter.gate();
    let body = json!({ "prompt": "a cat", "steps": 3 }).to_string();
    let _asked = rig.open("POST", GENERATIONS, "x-request-id: p1\r\n", body.as_bytes()).await;
    rig.until(|rig| rig.painter.requests().len() == 1).await;
    permits.send(()).unwrap();
    permits.send(()).unwrap();
    let progress = async || rig.get("/progress/p1").await;
    loop {
        let told = progress().await;
        if told.status == 200 && told.json()["done"] == 2 {
            assert_eq!(told.json(), json!({ "unit": "steps", "done": 2, "total": 3 }));
            break;
        }
        tokio::task::yield_now().await;
    }
    drop(permits);
}

#[tokio::test]
async fn rc_25_a_client_that_leaves_ends_its_picture_within_a_step() {
    let rig = painter().await;
    let permits = rig.painter.gate();
    let body = json!({ "prompt": "a cat", "steps": 1000, "stream": true }).to_string();
    let long = rig.open("POST", GENERATIONS, "", body.as_bytes()).await;
    rig.until(|rig| rig.painter.requests().len() == 1).await;
    permits.send(()).unwrap();
    drop(long);
    let asked = json!({ "prompt": "a dog", "steps": 1 });
    let short = rig.post(GENERATIONS, &asked);
    let stepping = rig.stepping_until(&permits, |rig| rig.painter.requests().len() == 2);
    let (answer, ()) = tokio::join!(short, async {
        stepping.await;
        // The rest of its steps.
        let _ = permits.send(());
    });
    assert_eq!(answer.status, 200);
    assert_eq!(rig.worker.health().engine.waiting, 0);
}
