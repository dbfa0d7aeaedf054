//! Files that would need more memory than they have bytes, such as headers of models. The test measures the most memory
//! that the coordinator ever took.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use model_boss_tests::{Boss, Sandbox};
use serde_json::{Value, json};

/// The limit of the coordinator's memory for all these files together, in MiB.
const MOST: u64 = 96;

/// The most memory that a process ever held, in MiB.
fn peak(boss: &Boss) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", boss.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel says it");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() / 1024
}

/// A safetensors file whose header has `bytes` bytes of tensors without data.
fn safetensors(path: &Path, bytes: usize, mut tensor: impl FnMut(usize) -> String) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    file.write_all(&(bytes as u64).to_le_bytes()).unwrap();
    let (mut written, mut number) = (1, 0);
    file.write_all(b"{").unwrap();
    loop {
        let comma = if number == 0 { "" } else { "," };
        let entry = format!("{comma}{}", tensor(number));
        if written + entry.len() >= bytes {
            break;
        }
        file.write_all(entry.as_bytes()).unwrap();
        (written, number) = (written + entry.len(), number + 1);
    }
    write!(file, "}}{:width$}", "", width = bytes - written - 1).unwrap();
}

fn many_tensors(number: usize) -> String {
    format!(r#""{number}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#)
}

/// A GGUF file with these keys, each given with its type and value.
fn gguf(path: &Path, keys: u64, tensors: u64, mut body: impl FnMut(&mut dyn Write)) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    file.write_all(b"GGUF\x03\0\0\0").unwrap();
    file.write_all(&tensors.to_le_bytes()).unwrap();
    file.write_all(&keys.to_le_bytes()).unwrap();
    body(&mut file);
}

fn text(file: &mut dyn Write, text: &str) {
    file.write_all(&(text.len() as u64).to_le_bytes()).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn gguf_files(folder: &Path) -> Vec<&'static str> {
    const STRING: u32 = 8;
    const ARRAY: u32 = 9;
    gguf(&folder.join("strings.gguf"), 60_000, 0, |file| {
        for number in 0..60_000 {
            text(file, &format!("key.{number}"));
            file.write_all(&STRING.to_le_bytes()).unwrap();
            text(file, &"x".repeat(500));
        }
    });
    gguf(&folder.join("vocabulary.gguf"), 1, 0, |file| {
        text(file, "tokenizer.ggml.tokens");
        file.write_all(&ARRAY.to_le_bytes()).unwrap();
        file.write_all(&STRING.to_le_bytes()).unwrap();
        file.write_all(&1_000_000_u64.to_le_bytes()).unwrap();
        for _ in 0..1_000_000 {
            file.write_all(&0_u64.to_le_bytes()).unwrap();
        }
    });
    gguf(&folder.join("tensors.gguf"), 0, 100_000, |file| {
        for number in 0..100_000_u64 {
            text(file, &format!("blk.{number}.w"));
            file.write_all(&1_u32.to_le_bytes()).unwrap();
            file.write_all(&1_u64.to_le_bytes()).unwrap();
            file.write_all(&0_u32.to_le_bytes()).unwrap();
            file.write_all(&0_u64.to_le_bytes()).unwrap();
        }
    });
    vec!["strings", "vocabulary", "tensors"]
}

#[tokio::test]
async fn op_10_no_header_and_no_file_beside_weights_swells_the_coordinator() {
    let sandbox = Sandbox::new();
    let config = r#"{"num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64,"model_type":"llama"}"#;
    let model = |name: &str| {
        let folder = sandbox.path("models").join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("config.json"), config).unwrap();
        sandbox.model(name, &folder, "");
        folder
    };
    let mut names = vec!["long", "names", "layers", "texts", "tree"];
    // The header is as long as the format permits, with as many tensors as fit.
    safetensors(&model("long").join("model.safetensors"), 84 << 20, many_tensors);
    let name = "n".repeat(60_000);
    let long_name = |number| format!(r#""{number}{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    safetensors(&model("names").join("model.safetensors"), 8 << 20, long_name);
    let layer = |number| format!(r#""model.layers.{number}.w":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    safetensors(&model("layers").join("model.safetensors"), 6 << 20, layer);
    let folder = model("texts");
    safetensors(&folder.join("model.safetensors"), 12 << 20, |number| {
        if number > 0 { many_tensors(number) } else { format!(r#""__metadata__":{{"a":"{}"}}"#, "x".repeat(11 << 20)) }
    });
    // The files beside weights are as long as permitted, and consist of brackets and commas.
    let folder = model("tree");
    safetensors(&folder.join("model.safetensors"), 100, many_tensors);
    for file in ["config.json", "tokenizer_config.json"] {
        std::fs::write(folder.join(file), format!("{{\"a\":[{}0]}}", "[],".repeat(5 << 20))).unwrap();
    }
    std::fs::write(folder.join("chat_template.jinja"), "x".repeat(16 << 20)).unwrap();
    // The folder has many small models.
    let many: Vec<String> = (0..48).map(|number| format!("small-{number}")).collect();
    for name in &many {
        safetensors(&model(name).join("model.safetensors"), 128 << 10, many_tensors);
    }
    let folder = sandbox.path("models");
    for name in gguf_files(&folder) {
        sandbox.model(name, &folder.join(format!("{name}.gguf")), "");
        names.push(name);
    }
    names.extend(many.iter().map(String::as_str));

    let boss = sandbox.start().await;
    for name in names {
        let shown = boss.read(&format!("/v1/models/{name}")).await;
        assert_eq!(shown["id"], name);
        let plan = boss.client().post("/api/v1/plan", &json!({ "model": name })).await;
        assert!(plan.status.as_u16() < 500 || plan.json()["error"]["code"].is_string(), "{plan:?}");
    }
    let tags: Value = boss.read("/api/tags").await;
    assert!(tags["models"].as_array().is_some_and(|models| models.len() > 48), "{tags}");
    let peak = peak(&boss);
    boss.finish().await;
    assert!(peak < MOST, "the coordinator took {peak} MiB");
}
