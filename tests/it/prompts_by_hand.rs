//! The worker's commands that render, tokenise and detokenise: one line of output for each line of input, whatever the
//! line and the model's files contain.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use model_boss_tests::binary;
use serde_json::{Value, json};

use crate::real_model::guide;

/// Runs a command of the worker with this standard input. Returns the lines that it wrote.
fn lines(args: &[&str], source: &Path, input: &[Value]) -> Vec<Value> {
    let input: String = input.iter().map(|line| format!("{line}\n")).collect();
    let (output, _) = run(args, source, &input);
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Standard output, and standard error.
fn run(args: &[&str], source: &Path, input: &str) -> (String, String) {
    let mut worker = Command::new(binary("model-boss-worker"))
        .arg(args[0])
        .arg(source)
        .args(&args[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its files reads no input.
    let _ = worker.stdin.take().unwrap().write_all(input.as_bytes());
    let output = worker.wait_with_output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn en_4_a_template_is_rendered_by_hand_and_a_fault_costs_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("chat.jinja");
    let source = "{% if attack %}{% for a in range(9999) %}{{ 'x' * 99999 }}{% endfor %}{% endif %}\
                  {% if boom %}{{ ('x' * 99999999999) | length }}{% endif %}\
                  {{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ m.gone.field if m.role == 'x' }}\
                  {% endfor %}{% if tools %}{{ tools | length }} tools{% endif %}{{ ', open' if add_generation_prompt }}";
    std::fs::write(&template, source).unwrap();
    let user = json!([{"role": "user", "content": "é\u{1b}"}]);
    let written = lines(
        &["render", "--jsonl"],
        &template,
        &[
            json!({"messages": user, "bos_token": "<s>", "add_generation_prompt": true}),
            json!({"messages": user, "tools": [{}], "add_generation_prompt": false}),
            json!({"messages": [{"role": "x", "content": ""}]}),
            json!({"messages": user, "attack": true}),
            json!({"messages": user, "boom": true}),
            json!(["no conversation"]),
            json!({"messages": []}),
        ],
    );
    assert_eq!(written[0], json!({"text": "<s>[user] é\u{1b}, open"}));
    assert_eq!(written[1], json!({"text": "[user] é\u{1b}1 tools"}));
    let error = |line: &Value| line["error"].as_str().unwrap_or_default().to_owned();
    assert!(error(&written[2]).contains("has no attribute 'gone'"), "{}", written[2]);
    assert!(error(&written[3]).contains("64 MiB"), "{}", written[3]);
    assert!(!error(&written[4]).is_empty(), "{}", written[4]);
    assert!(error(&written[5]).contains("'messages'"), "{}", written[5]);
    assert_eq!(written[6], json!({"text": ", open"}), "the commands go on behind a fault");
    assert_eq!(written.len(), 7);
    let (text, _) = run(&["render"], &template, &json!({"messages": [], "bos_token": "<s>"}).to_string());
    assert_eq!(text, "<s>, open\n");
    // A template that cannot be used is the answer to every line.
    std::fs::write(&template, "{% if %}").unwrap();
    let written = lines(&["render", "--jsonl"], &template, &[json!({"messages": user}), json!({"messages": []})]);
    assert!(written.len() == 2 && written.iter().all(|line| error(line).contains("chat.jinja")), "{written:?}");
}

#[test]
fn en_4_a_models_own_template_and_vocabulary_are_used_by_hand() {
    let model = guide();
    let conversation = json!({"messages": [{"role": "user", "content": "What is a lease?"}]});
    let rendered = lines(&["render", "--jsonl"], &model, &[conversation]);
    let text = rendered[0]["text"].as_str().unwrap();
    // This template writes words of the user in lower case, without punctuation.
    assert!(text.contains("what is a lease"), "{text}");
    let texts = [json!(text), json!(""), json!("a \u{1f642} é\n\n"), json!({"no": "text"})];
    let ids = lines(&["tokenize", "--jsonl"], &model, &texts);
    assert!(ids[0].as_array().unwrap().len() > 5 && ids[1] == json!([]), "{ids:?}");
    assert!(ids[3]["error"].as_str().unwrap().contains("a string"), "{}", ids[3]);
    let file = lines(&["tokenize", "--jsonl"], &model.join("tokenizer.json"), &texts);
    assert_eq!(ids, file);
    let back = lines(&["detokenize", "--jsonl"], &model, &[ids[0].clone(), ids[2].clone(), json!([99_999_999])]);
    assert_eq!(back[..2], [texts[0].clone(), texts[2].clone()]);
    assert!(back[2]["error"].as_str().unwrap().contains("no token 99999999"), "{}", back[2]);
}

/// A tokenizer of two words that puts a token on each side of a text.
fn two_words() -> Value {
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
               "special": true})
    };
    let single = json!([
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]);
    let around = json!({
        "[CLS]": {"id": "[CLS]", "ids": [0], "tokens": ["[CLS]"]},
        "[SEP]": {"id": "[SEP]", "ids": [1], "tokens": ["[SEP]"]},
    });
    json!({
        "version": "1.0",
        "added_tokens": [special(0, "[CLS]"), special(1, "[SEP]")],
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": around},
        "model": {
            "type": "WordLevel",
            "vocab": {"[CLS]": 0, "[SEP]": 1, "hello": 2, "world": 3},
            "unk_token": "[CLS]",
        },
    })
}

#[test]
fn en_4_special_tokens_are_added_and_hidden_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokenizer.json");
    std::fs::write(&file, two_words().to_string()).unwrap();
    let text = [json!("hello world")];
    assert_eq!(lines(&["tokenize", "--jsonl"], &file, &text), [json!([2, 3])]);
    assert_eq!(lines(&["tokenize", "--jsonl", "--special"], &file, &text), [json!([0, 2, 3, 1])]);
    let ids = [json!([0, 2, 3, 1])];
    assert_eq!(lines(&["detokenize", "--jsonl"], &file, &ids), [json!("[CLS] hello world [SEP]")]);
    assert_eq!(lines(&["detokenize", "--jsonl", "--hide-special"], &file, &ids), text);
}

#[test]
fn en_4_a_gguf_file_says_what_its_folder_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("guide.gguf");
    let model = guide();
    let (_, error) = run(&["convert", file.to_str().unwrap(), "--type", "f16"], &model, "");
    assert!(file.is_file(), "{error}");
    let conversation = json!({"messages": [{"role": "user", "content": "What is a lease?"}]});
    let texts = [json!("What is a lease?"), json!("a \u{1f642} é\n\n")];
    for (command, input) in [("render", &[conversation][..]), ("tokenize", &texts)] {
        assert_eq!(lines(&[command, "--jsonl"], &file, input), lines(&[command, "--jsonl"], &model, input));
    }
    let ids = lines(&["tokenize", "--jsonl"], &file, &texts);
    assert_eq!(lines(&["detokenize", "--jsonl"], &file, &ids), texts);
}

#[test]
fn en_4_files_that_are_none_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.jinja");
    std::fs::write(&broken, "{% if").unwrap();
    for (command, file, said) in [
        ("render", "absent.jinja", "no chat template"),
        ("render", "broken.jinja", "not a valid Jinja template"),
        ("tokenize", "absent.gguf", "absent.gguf"),
        ("detokenize", "absent", "absent"),
    ] {
        let (output, error) = run(&[command, "--jsonl"], &folder.path().join(file), "");
        assert!(output.is_empty() && error.contains(said), "{command} {file}: {error}");
    }
}
