//! Images in conversations: their tokens, limits and refusals.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model_boss_engine::fake::Script;
use model_boss_images::{GridLayout, ImageLayout, Resample, SightFacts};
use serde_json::{Value, json};

use super::rig::{Rig, Setup};

/// A template with a mark for images among parts, and one that takes texts only.
const PARTS: &str = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}\
{% for p in m.content %}{% if p.type == 'image' %}\u{1}{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}";
const TEXTS: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}";
/// One that shows parts only.
const PARTS_ONLY: &str = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}\
{% if p.type == 'image' %}\u{1}{% elif p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}\n{% endfor %}";

/// Places of four pixels on a side, up to 25 of them.
fn sight() -> SightFacts {
    let layout = GridLayout { side: 4, min_pixels: 16, max_pixels: 400, resizes: true, resample: Resample::Bicubic };
    let place = "\u{1}".to_owned();
    SightFacts { both_ways: false, mark: place.clone(), token: 1, place, layout: ImageLayout::Grid(layout) }
}

async fn rig(template: &'static str) -> Rig {
    let setup = Setup { script: Script::Hash(90), template: Some(template), ..Setup::default() };
    setup.start_gated(|decoder| decoder.see_by(sight())).await.0
}

/// A BMP of one colour as a URL.
fn bmp(width: u32, height: u32, colour: u8) -> String {
    let stride = (width as usize * 3).next_multiple_of(4);
    let pixels = vec![colour; stride * height as usize];
    let mut file = b"BM".to_vec();
    file.extend((54 + pixels.len() as u32).to_le_bytes());
    file.extend([0; 4]);
    file.extend([54_u32, 40, width, height].map(u32::to_le_bytes).concat());
    file.extend([1, 0, 24, 0]);
    file.extend([0; 24]);
    file.extend(pixels);
    format!("data:image/bmp;base64,{}", STANDARD.encode(file))
}

fn seen(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn said(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn asked(parts: &[Value]) -> Value {
    json!({"messages": [{"role": "user", "content": parts}], "max_tokens": 5, "ignore_eos": true})
}

async fn answered(rig: &Rig, body: &Value) -> (String, u64) {
    let answer = rig.chat(body.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    (text, answer["usage"]["prompt_tokens"].as_u64().unwrap())
}

#[tokio::test]
async fn em_4_images_count_as_the_tokens_that_they_take() {
    for template in [PARTS, PARTS_ONLY] {
        let rig = rig(template).await;
        let (_, plain) = answered(&rig, &asked(&[said("hi")])).await;
        assert_eq!(plain, 7, "user:hi");
        let (one, places) = answered(&rig, &asked(&[seen(&bmp(12, 8, 10)), said("hi")])).await;
        assert_eq!(places - plain, 3 * 2);
        let (_, large) = answered(&rig, &asked(&[seen(&bmp(400, 400, 10)), said("hi")])).await;
        assert_eq!(large - plain, 5 * 5);
        let (other, _) = answered(&rig, &asked(&[seen(&bmp(12, 8, 200)), said("hi")])).await;
        assert_ne!(one, other, "another image, another answer");
        let (_, several) = answered(&rig, &asked(&[seen(&bmp(12, 8, 1)), said("hi"), seen(&bmp(4, 8, 2))])).await;
        assert_eq!(several - plain, 6 + 2);
    }
}

#[tokio::test]
async fn em_4_a_template_of_texts_gets_the_mark_in_the_text() {
    let rig = rig(TEXTS).await;
    let (_, tokens) = answered(&rig, &asked(&[seen(&bmp(12, 8, 10)), said("hi")])).await;
    let (_, plain) = answered(&rig, &asked(&[said("hi")])).await;
    assert_eq!(tokens, plain + 6 + 1, "a line's end is between them");
}

#[tokio::test]
async fn em_4_the_same_image_is_found_again_and_another_is_not() {
    let rig = rig(PARTS).await;
    let long = said(&"x".repeat(60));
    let of = |colour| asked(&[seen(&bmp(20, 20, colour)), long.clone()]);
    let cached = async |body: &Value| {
        let answer = rig.chat(body.clone()).await.json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    };
    assert_eq!(cached(&of(10)).await, 0);
    assert_eq!(cached(&of(10)).await, 5 + 25 + 60 - 1);
    assert_eq!(cached(&of(11)).await, 5, "the text in front of the image");
}

#[tokio::test]
async fn em_4_several_answers_see_the_same_image() {
    let rig = rig(PARTS).await;
    let mut body = asked(&[seen(&bmp(12, 8, 10)), said("hi")]);
    body["n"] = json!(3);
    let answer = rig.chat(body).await.json();
    let texts: Vec<&Value> = answer["choices"].as_array().unwrap().iter().map(|choice| &choice["message"]).collect();
    assert!(texts.len() == 3 && texts.iter().all(|text| *text == texts[0]));
    assert_eq!(rig.control.looks().len(), 1);
}

#[tokio::test]
async fn em_4_tokens_of_images_are_counted_without_an_answer() {
    let rig = rig(PARTS).await;
    let body = asked(&[seen(&bmp(12, 8, 10)), said("hi")]);
    let counted = rig.post("/tokenize", &body).await.json();
    assert_eq!(counted["count"], 7 + 6);
}

#[tokio::test]
async fn em_4_what_is_no_image_is_refused_with_its_place() {
    let rig = rig(PARTS).await;
    let refused = async |parts: &[Value], said: &str| {
        let answer = rig.chat(asked(parts)).await;
        let (status, code, param) = answer.error();
        let large = ["60000x60000", "may have 64"].contains(&said);
        let expected = if large { (413, "request_too_large") } else { (400, "invalid_request") };
        assert_eq!((status, code.as_str()), expected, "{}", answer.text());
        assert!(answer.text().contains(said), "{}", answer.text());
        param
    };
    let place = "messages[0].content[1].image_url.url";
    let fetched = [said("hi"), seen("http://127.0.0.1:9/a.png")];
    assert_eq!(refused(&fetched, "not fetched").await, place);
    let file = [said("hi"), seen("file:///etc/passwd")];
    assert_eq!(refused(&file, "not fetched").await, place);
    let text = [said("hi"), seen("data:image/png;base64,aGVsbG8=")];
    assert_eq!(refused(&text, "format").await, place);
    let broken = [said("hi"), seen("data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAA")];
    assert_eq!(refused(&broken, "decoded").await, place);
    // A header of a bomb: 60,000 pixels on each side.
    let mut bomb = STANDARD.decode(&bmp(4, 4, 0)["data:image/bmp;base64,".len()..]).unwrap();
    bomb[18..26].copy_from_slice(&[60_000_u32, 60_000].map(u32::to_le_bytes).concat());
    let bomb = [said("hi"), seen(&format!("data:image/bmp;base64,{}", STANDARD.encode(bomb)))];
    assert_eq!(refused(&bomb, "60000x60000").await, place);
    let narrow = [said("hi"), seen(&bmp(500, 2, 0))];
    assert_eq!(refused(&narrow, "200 times").await, place);
    assert_eq!(refused(&[json!({"type": "image_url"})], "missing").await, "messages[0].content[0].image_url");
    let many: Vec<Value> = (0..65).map(|_| seen(&bmp(4, 4, 0))).collect();
    assert_eq!(refused(&many, "may have 64").await, "messages[0].content[64].image_url.url");
    let marked = [said("hi \u{1}"), seen(&bmp(4, 4, 0))];
    assert_eq!(refused(&marked, "leave the mark out").await, "messages");
}

#[tokio::test]
async fn em_4_images_beyond_the_context_are_refused_before_they_are_looked_at() {
    let rig = rig(PARTS).await;
    let many: Vec<Value> = (0..20).map(|_| seen(&bmp(20, 20, 0))).collect();
    let refused = rig.chat(asked(&many)).await;
    assert_eq!(
        refused.error(),
        (400, "context_length_exceeded".to_owned(), "messages[0].content[16].image_url.url".to_owned())
    );
    assert!(rig.control.looks().is_empty());
}

#[tokio::test]
async fn em_4_a_model_that_reads_text_only_says_so_and_what_to_do() {
    let rig = Setup::default().start().await;
    let refused = rig.chat(asked(&[said("hi"), seen(&bmp(4, 4, 0))])).await;
    let place = "messages[0].content[1].image_url.url".to_owned();
    assert_eq!(refused.error(), (400, "unsupported_by_model".to_owned(), place));
    let text = refused.text();
    assert!(text.contains("test/tiny") && text.contains("input_modalities"), "{text}");
}
