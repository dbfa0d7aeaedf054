//! `/v1/embeddings` and `/v1/classify` of a model that reads texts and images, over a real socket.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model_boss_engine::{
    DecoderError, EncoderInfo, EncoderText, LabelShares, PairForm, PlaceUse, SightInfo, TextEncoder, TextLetters,
};
use model_boss_images::{NewSize, PixelPlan, PixelPlanes, PixelSteps};
use model_boss_protocol::{Category, DeviceId};
use serde_json::{Value, json};

use super::rig::{Rig, Setup};

/// A model whose vectors say what it was given: of a text the number of tokens, and the first and the last; of an image
/// its sides, and its first red.
pub(super) struct SeeingEncoder(EncoderInfo, SightInfo);

impl SeeingEncoder {
    pub(super) fn new() -> Self {
        let info = EncoderInfo {
            vocab_size: 300,
            max_tokens: 10,
            width: 3,
            labels: Vec::new(),
            shares: LabelShares::Apart,
            pairs: PairForm::Joined,
            weight_bytes: 7,
            workspace_bytes: 0,
            kv_tokens: Some(0),
            prompts: BTreeMap::new(),
            default_prompt: None,
            leaves_prompts_out: false,
            tasks: Vec::new(),
        };
        let size = Some(NewSize::Sides { height: 4, width: 6 });
        let pixels = PixelSteps { size, factor: None, normal: None, ..PixelPlan::SIGLIP.steps };
        let sight = SightInfo {
            pixels,
            patch: 2,
            rows_before: 1,
            scale: 0.5,
            bias: -1.0,
            shares: LabelShares::Together,
            text_rows: 10,
            letters: TextLetters::Words,
            end: Some(1),
        };
        Self(info, sight)
    }
}

impl TextEncoder for SeeingEncoder {
    fn info(&self) -> &EncoderInfo {
        &self.0
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        [PlaceUse::new(DeviceId::Cpu, 0..1, (7, 0), (0, 0))].into()
    }

    fn encode(&mut self, texts: &[EncoderText<'_>]) -> Result<Vec<Vec<f32>>, DecoderError> {
        let number = |token: Option<&u32>| token.map_or(0.0, |token| *token as f32);
        let vector = |text: &EncoderText<'_>| {
            vec![text.tokens.len() as f32, number(text.tokens.first()), number(text.tokens.last())]
        };
        Ok(texts.iter().map(vector).collect())
    }

    fn sight(&self) -> Option<&SightInfo> {
        Some(&self.1)
    }

    fn encode_images(&mut self, images: &[&PixelPlanes]) -> Result<Vec<Vec<f32>>, DecoderError> {
        Ok(images.iter().map(|image| vec![image.width as f32, image.height as f32, image.values[0]]).collect())
    }
}

/// A URL of an image of one colour, in the plainest format.
fn picture(width: u32, height: u32, [red, green, blue]: [u8; 3]) -> String {
    let row = (width as usize * 3).next_multiple_of(4);
    let mut file = b"BM".to_vec();
    let words = [54 + row as u32 * height, 0, 54, 40, width, height, 1 | 24 << 16, 0, 0, 0, 0, 0, 0];
    file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    for _ in 0..height {
        let start = file.len();
        (0..width).for_each(|_| file.extend([blue, green, red]));
        file.resize(start + row, 0);
    }
    format!("data:image/bmp;base64,{}", STANDARD.encode(file))
}

async fn rig() -> Rig {
    Setup { category: Category::Vision, ..Setup::default() }.start().await
}

async fn post(rig: &Rig, path: &str, body: &Value) -> (u16, Value) {
    let answer = rig.send("POST", path, "", body.to_string().as_bytes()).await;
    (answer.status, serde_json::from_str(&answer.chunks.concat()).unwrap())
}

#[tokio::test]
async fn em_3_texts_and_images_have_their_vectors_in_order() {
    let rig = rig().await;
    let vectors = async |input: Value| {
        let (status, answer) = post(&rig, "/v1/embeddings", &json!({"input": input})).await;
        assert_eq!(status, 200, "{answer}");
        let data = answer["data"].as_array().unwrap();
        let vectors: Vec<Value> = data.iter().map(|one| one["embedding"].clone()).collect();
        (json!(vectors), answer["usage"]["prompt_tokens"].clone())
    };
    let red = picture(3, 5, [200, 10, 20]);
    // A byte is its own token here; texts get small letters and an end. An image has 6 patches and a row before them.
    assert_eq!(vectors(json!("Ab!")).await, (json!([[3.0, 97.0, 1.0]]), json!(3)));
    let image = json!({"type": "image_url", "image_url": {"url": red}});
    assert_eq!(vectors(image.clone()).await, (json!([[6.0, 4.0, 200.0]]), json!(7)));
    let mixed = json!([
        "a", image, {"type": "text", "text": "B"}, {"type": "input_image", "image_url": picture(1, 1, [9, 0, 0])},
        [5, 6], {"image": picture(40, 40, [7, 0, 0]).split_once(',').unwrap().1}, {"text": "cd"}, {"type": "input_text", "text": "e"}
    ]);
    let expected = json!([
        [2.0, 97.0, 1.0],
        [6.0, 4.0, 200.0],
        [2.0, 98.0, 1.0],
        [6.0, 4.0, 9.0],
        [2.0, 5.0, 6.0],
        [6.0, 4.0, 7.0],
        [3.0, 99.0, 1.0],
        [2.0, 101.0, 1.0]
    ]);
    assert_eq!(vectors(mixed).await, (expected, json!(32)));
    assert_eq!(vectors(json!([5, 6])).await.0, json!([[2.0, 5.0, 6.0]]), "one list of tokens");
    assert_eq!(vectors(json!("a".repeat(30))).await.0, json!([[10.0, 97.0, 1.0]]), "a long text is cut");
}

#[tokio::test]
async fn em_3_labels_of_the_request_get_shares() {
    let rig = rig().await;
    let ask = async |body: Value| post(&rig, "/v1/classify", &body).await;
    let image = json!({"type": "image_url", "image_url": {"url": picture(1, 1, [0, 0, 0])}});
    // The vectors of the labels are 2, 97, 1 and 3, 98, 1, and the image's is 6, 4, 0: their products are 10 apart.
    let body = json!({"input": [image, "zz"], "labels": ["a", "bb"], "hypothesis_template": "{}"});
    let (status, answer) = ask(body).await;
    assert_eq!(status, 200, "{answer}");
    let share = 1.0 / (1.0 + f64::exp(-5.0));
    let first = &answer["data"][0];
    assert_eq!((&first["label"], &first["num_classes"], &first["index"]), (&json!("bb"), &json!(2), &json!(0)));
    assert!((first["probs"][1].as_f64().unwrap() - share).abs() < 1e-6, "{first}");
    assert_eq!(answer["data"][1]["index"], 1);
    assert_eq!(answer["usage"]["prompt_tokens"], 2 + 3 + 7 + 3);
    for (body, status, said) in [
        (json!({"input": "x"}), 400, "'labels' is missing"),
        (json!({"input": "x", "labels": []}), 400, "0 texts"),
        (json!({"input": "x", "candidate_labels": ["a"], "hypothesis_template": "no place"}), 400, "{}"),
        (json!({"input": "x", "labels": ["a".repeat(20)]}), 400, r#""param":"labels""#),
    ] {
        let (got, answer) = ask(body.clone()).await;
        assert!(got == status && answer.to_string().contains(said), "{body}: {got} {answer}");
    }
}

#[tokio::test]
async fn em_3_images_that_cannot_be_had_are_refused_by_place() {
    let rig = rig().await;
    let of = |url: &str| json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]);
    let huge = {
        let url = picture(1, 1, [0, 0, 0]);
        let mut file = STANDARD.decode(url.split_once(',').unwrap().1).unwrap();
        file[18..26].copy_from_slice(&[0, 64, 0, 0, 0, 64, 0, 0]);
        format!("data:;base64,{}", STANDARD.encode(file))
    };
    let many = json!(vec![json!({"image": picture(1, 1, [0, 0, 0])}); 65]);
    for (input, status, said) in [
        (of("https://example.com/a.png"), 400, "as a data: URL"),
        (of("file:///etc/passwd"), 400, "not fetched from 'file:'"),
        (of("a.png"), 400, "does not begin with data:"),
        (of("data:image/png;base64,AAAA"), 400, "PNG, JPEG, WebP, GIF or BMP"),
        (of(&huge), 413, "16384x16384 pixels"),
        (of(&format!("data:;base64,{}", "A".repeat(28 << 20))), 413, "bytes; it may have"),
        (many, 413, "65 images; it may have 64"),
        (json!([{"type": "image_url"}]), 400, "input[0].image_url"),
        (json!([{"type": "audio"}]), 400, "'audio'"),
        (json!([{"url": "x"}]), 400, "input[0].type"),
        (json!([]), 400, "0 items"),
        (json!({"a": 1}), 400, "'input.type' is missing"),
        (json!([300, 1]), 400, "300"),
    ] {
        let (got, answer) = post(&rig, "/v1/embeddings", &json!({"input": input})).await;
        let text = answer.to_string();
        assert!(got == status && text.contains(said), "{said}: {got} {}", &text[..text.len().min(400)]);
    }
    let (_, answer) = post(&rig, "/v1/embeddings", &json!({"input": of("https://x/y")})).await;
    assert_eq!(answer["error"]["param"], "input[1].image_url.url");
    assert_eq!(post(&rig, "/v1/embeddings", &json!({"input": "a"})).await.0, 200, "it goes on");
    assert_eq!(post(&rig, "/v1/chat/completions", &json!({})).await.0, 404);
}
