//! Answers of one model without drafts, with drafts that are looked up, and with those of a draft model; beside
//! llama.cpp's server without and with the same draft model.

use std::path::Path;
use std::time::Instant;

use model_boss_tests::{Client, Sandbox};
use serde_json::json;

use super::options::{Options, ours};
use crate::peer::LlamaServer;
use crate::table::Table;

/// The context of each sequence in tokens.
const CONTEXT: usize = 2_048;

/// The ways of our own, by the names of their models, with what their manifests add.
const WAYS: [(&str, &str); 3] = [
    ("plain", "speculation = \"off\""),
    ("lookup", "speculation = \"lookup\""),
    ("drafted", "speculation = \"lookup\""),
];

/// Texts to go on with: one that goes on freely, and one that repeats what it has.
const FREE: &str = "Write a long story about a lighthouse keeper who finds a letter in a bottle.";
const REPEATED: &str = "Repeat this list three times, exactly as it is:\n- 8210: the door\n- 8300: the first worker\n\
                        - 8301: the second worker\n- 6379: the ledger\n- 9090: the metrics\n";

/// One measured answer.
struct Measured {
    text: String,
    /// Tokens per second behind the first one.
    speed: f64,
    drafted: f64,
    accepted: f64,
}

/// Measures every way in turn, round by round.
pub(super) async fn run(
    sandbox: &Sandbox,
    llama: Option<&Path>,
    (file, draft): (&Path, &Path),
    options: &Options,
    table: &mut Table,
) {
    for (name, more) in WAYS {
        let draft = match name {
            "drafted" => format!("draft = {{ path = \"{}\" }}", draft.display()),
            _ => String::new(),
        };
        sandbox.model(name, file, &format!("context_length = {CONTEXT}\nmax_concurrent = 1\n{more}\n{draft}"));
    }
    let megabytes = |path: &Path| std::fs::metadata(path).map_or(0, |about| about.len() >> 20);
    println!("- model: {} MiB; draft model: {} MiB; {} tokens", megabytes(file), megabytes(draft), options.tokens);
    let boss = ours(sandbox, options).await;
    let (threads, context) = (options.threads.to_string(), CONTEXT.to_string());
    let (model, small) = (file.to_string_lossy(), draft.to_string_lossy());
    let base = ["-m", &*model, "-t", &*threads, "-np", "1", "-c", &*context];
    let mut theirs = Vec::new();
    if let Some(program) = llama {
        theirs.push(LlamaServer::start(program, &base).await);
        let with = [&base[..], &["-md", &*small, "-cd", &*context]].concat();
        theirs.push(LlamaServer::start(program, &with).await);
    }
    // The first answers load the models, and tell the engine the times of its steps.
    for (name, _) in WAYS {
        answer(boss.client(), name, FREE, 0.0, options.tokens).await;
    }
    for server in &theirs {
        answer(server.client, "any", FREE, 0.0, options.tokens).await;
    }
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        for (kind, prompt, temperature) in [
            ("a free text", FREE, 0.0),
            ("a repeated list", REPEATED, 0.0),
            ("a free text at temperature 1", FREE, 1.0),
        ] {
            let prompt = format!("{prompt} ({round})");
            let mut all = Vec::new();
            for (name, _) in WAYS {
                all.push(answer(boss.client(), name, &prompt, temperature, options.tokens).await);
            }
            assert!(all.iter().all(|one| one.text == all[0].text), "drafts changed an answer to {prompt:?}");
            let mut peers = Vec::new();
            for server in &theirs {
                peers.push(answer(server.client, "any", &prompt, temperature, options.tokens).await);
            }
            let plain = peers.first().map(|one| one.speed);
            let drafted = peers.get(1).map(|one| one.speed);
            table.add(&format!("{kind}: without drafts, tokens/s"), Some(all[0].speed), plain);
            table.add(&format!("{kind}: looked up, over without"), Some(all[1].speed / all[0].speed), None);
            table.add(&format!("{kind}: with a draft model, tokens/s"), Some(all[2].speed), drafted);
            let share = drafted.zip(plain).map(|(with, without)| with / without);
            table.add(&format!("{kind}: with a draft model, over without"), Some(all[2].speed / all[0].speed), share);
            if all[2].drafted > 0.0 {
                let right = peers.get(1).filter(|one| one.drafted > 0.0).map(|one| one.accepted / one.drafted);
                table.add(
                    &format!("{kind}: drafted tokens that were right"),
                    Some(all[2].accepted / all[2].drafted),
                    right,
                );
            }
        }
    }
    boss.finish().await;
}

async fn answer(door: Client, model: &str, prompt: &str, temperature: f64, tokens: usize) -> Measured {
    let body = json!({
        "model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "ignore_eos": true,
        "temperature": temperature, "seed": 7,
    });
    let begun = Instant::now();
    let answer = door.post("/v1/chat/completions", &body).await;
    let took = begun.elapsed().as_secs_f64();
    assert!(answer.status.is_success(), "{answer:?}");
    let answer = answer.json();
    let timing = |name: &str| answer["timings"][name].as_f64();
    let seconds = timing("predicted_ms").map_or(took, |milliseconds| milliseconds / 1e3);
    Measured {
        text: answer["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned(),
        speed: answer["usage"]["completion_tokens"].as_f64().unwrap_or_default() / seconds,
        drafted: timing("draft_n").unwrap_or_default(),
        accepted: timing("draft_n_accepted").unwrap_or_default(),
    }
}

/// The model and its draft model, as the command line names them.
pub(super) fn files(options: &Options) -> Result<(&Path, &Path), String> {
    let missing = || {
        "speculation needs --model FILE.gguf and --draft SMALL.gguf of the same vocabulary; \
         scripts/reference/draft_pair.py makes such a pair of one model"
            .to_owned()
    };
    options.model.as_deref().zip(options.draft.as_deref()).ok_or_else(missing)
}
