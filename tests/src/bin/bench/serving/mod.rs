//! `scripts/bench swap`, `batch`, `prefix`, `parking`, `speculation`, `agents` and `schema`. They measure the wait of a
//! client when models replace each other in memory, the throughput of several clients, a prompt that begins as an
//! earlier one did, conversations that go on after a swap, drafts, conversations with tools, and answers under a
//! schema. The coordinator and llama.cpp's server take turns in every round, on the same files.

mod agents;
mod memory;
mod options;
mod parking;
mod prompts;
mod schema;
mod speculation;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use model_boss_tests::{Client, Processes, Sandbox, binary};
use serde_json::json;

use crate::peer::{LlamaServer, peer};
use crate::table::{Table, milliseconds};
use memory::resident_of;
use options::{Options, ours};
use prompts::{KnownPrompt, SHARED_WORDS, WORDS, first_of, words};

/// The shape of the measured model.
const SHAPE: &str = "qwen3-0.6b";
/// The context of each sequence in tokens, for both servers.
const CONTEXT: usize = 4_096;
/// The same in `agents`, whose conversations have some fifty turns.
const AGENT_CONTEXT: usize = 8_192;

/// A measurement that this command can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Models that replace each other, and one that is loaded from a cold file.
    Swap,
    /// One client alone, then eight clients at once.
    Batch,
    /// A long prompt, and another one with the same beginning.
    Prefix,
    /// A conversation that goes on after its model left memory for another.
    Parking,
    /// Answers with drafts and without.
    Speculation,
    /// Eight conversations at once, each turn a call of a tool.
    Agents,
    /// Answers that keep to a JSON schema.
    Schema,
}

/// Runs the measurement; `words` are the arguments after its name.
pub(crate) async fn run(part: Part, words: impl Iterator<Item = String>, processor: &str) -> ExitCode {
    let options = match Options::read(words) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("bench: {error}");
            return ExitCode::from(2);
        }
    };
    let pair = match (part == Part::Speculation).then(|| speculation::files(&options)).transpose() {
        Ok(pair) => pair,
        Err(error) => {
            eprintln!("bench: {error}");
            return ExitCode::from(2);
        }
    };
    // Models of `speculation` are compared with each other, and all stay.
    let most = if pair.is_some() { 3 } else { 1 };
    let mut sandbox = Sandbox::new().with_config(&format!("max_loaded_models = {most}"));
    if let Some(set) = options.cpu_features {
        sandbox = sandbox.with_config(&format!("cpu_features = \"{set}\""));
        println!("- instructions: {set}; llama.cpp's are those of its build");
    }
    let llama = peer("MODEL_BOSS_LLAMA_SERVER", "llama-server");
    println!("- machine: {processor}, {} threads", options.threads);
    println!("- rounds: {}, interleaved", options.rounds);
    match &llama {
        Ok(program) => println!("- llama-server: {}", version(program)),
        Err(why) => println!("- llama-server: {why}"),
    }
    let mut table = Table::default();
    match part {
        Part::Swap => swap(&sandbox, llama.ok().as_deref(), &options, &mut table).await,
        Part::Batch => batch(&sandbox, llama.ok().as_deref(), &options, &mut table).await,
        Part::Prefix => prefix(&sandbox, llama.ok().as_deref(), &options, &mut table).await,
        Part::Parking => parking(&sandbox, llama.ok().as_deref(), &options, &mut table).await,
        Part::Speculation => {
            if let Some(pair) = pair {
                speculation::run(&sandbox, llama.ok().as_deref(), pair, &options, &mut table).await;
            }
        }
        Part::Agents => agents(&sandbox, llama.ok().as_deref(), &options, &mut table).await,
        Part::Schema => schema(&sandbox, llama.ok().as_deref(), &options, &mut table).await,
    }
    println!("{}", table.markdown("llama-server"));
    if let Some(file) = &options.json {
        fs::write(file, serde_json::to_vec_pretty(&table).unwrap()).unwrap();
    }
    ExitCode::SUCCESS
}

/// Two models with memory for one, then one from a file that is not in the page cache.
async fn swap(sandbox: &Sandbox, llama: Option<&Path>, options: &Options, table: &mut Table) {
    let folder = sandbox.path("gguf");
    fs::create_dir_all(&folder).unwrap();
    for (name, seed) in [("a", 1), ("b", 2)] {
        let file = synthetic(&folder, name, seed);
        sandbox.model(name, &file, &format!("context_length = {CONTEXT}\nmax_concurrent = 1"));
    }
    let first = folder.join("a.gguf");
    println!(
        "- models: two of {SHAPE}, Q4_K_M, {} MiB each, random weights",
        fs::metadata(&first).unwrap().len() >> 20
    );

    let boss = ours(sandbox, options).await;
    let (threads, context) = (options.threads.to_string(), CONTEXT.to_string());
    let router = match llama {
        Some(program) => {
            let models = folder.to_string_lossy();
            let arguments = ["--models-dir", &*models, "--models-max", "1", "-t", &threads, "-np", "1", "-c", &context];
            Some(LlamaServer::start(program, &arguments).await)
        }
        None => None,
    };
    let mut doors = vec![("ours", boss.client())];
    doors.extend(router.as_ref().map(|router| ("theirs", router.client)));
    // Both servers begin with model b in memory and files in the page cache.
    for (_, door) in &doors {
        for name in ["a", "b"] {
            first_of(*door, name, "hello", KnownPrompt::ComputedAgain).await;
        }
    }
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        for name in ["a", "b"] {
            let (mut swapped, mut resident) = ([None; 2], [None; 2]);
            for (place, (_, door)) in doors.iter().enumerate() {
                swapped[place] = Some(first_of(*door, name, "hello", KnownPrompt::ComputedAgain).await);
                resident[place] = Some(first_of(*door, name, "hello", KnownPrompt::ComputedAgain).await);
            }
            table.add("request to first token, the other model is loaded: ms", swapped[0], swapped[1]);
            table.add("request to first token, this model is loaded: ms", resident[0], resident[1]);
        }
    }
    let size = fs::metadata(&first).unwrap().len() as f64;
    let of_theirs = router.as_ref().map(|router| resident_of(Processes::below(router.process.id()).pids()) / size);
    let of_ours = resident_of(Processes::below(boss.pid()).pids()) / size;
    table.add("memory of the worker over the bytes of its weights", Some(of_ours), of_theirs);
    drop(router);

    let cold = fs::write("/proc/sys/vm/drop_caches", "1");
    if let Err(error) = &cold {
        println!("- from a cold file: not measured, the page cache cannot be dropped here ({error})");
    }
    for round in 0..if cold.is_ok() { options.rounds } else { 0 } {
        eprintln!("cold round {} of {}", round + 1, options.rounds);
        assert!(boss.client().post("/api/v1/unload", &json!({})).await.status.is_success());
        let disk = direct_read(&first) * 1e3;
        drop_caches();
        let begun = Instant::now();
        let loaded = boss.client().post("/api/v1/load", &json!({"model_name": "a"})).await;
        let took = milliseconds(begun.elapsed());
        assert!(loaded.status.is_success(), "{loaded:?}");
        table.add("bare direct read of the same file: ms", Some(disk), None);
        table.add("cold file to a ready worker: share of the disk's rate", Some(disk / took), None);
        let mut theirs = None;
        if let Some(program) = llama {
            let path = first.to_string_lossy();
            for way in ["dio", "mmap"] {
                drop_caches();
                let arguments = ["-m", &*path, "-t", &threads, "-np", "1", "-c", &context, "-lm", way];
                let ready = milliseconds(LlamaServer::start(program, &arguments).await.ready_after);
                theirs = Some(theirs.map_or(ready, |best: f64| best.min(ready)));
            }
        }
        table.add("cold file to a ready worker (theirs: the better of dio and mmap): ms", Some(took), theirs);
    }
    boss.finish().await;
}

/// One sequence, then eight at once, on the same loaded model.
async fn batch(sandbox: &Sandbox, llama: Option<&Path>, options: &Options, table: &mut Table) {
    let file = model(sandbox, options);
    sandbox.model("a", &file, &format!("context_length = {}\nmax_concurrent = 8", CONTEXT / 8));
    println!("- {} tokens for each request", options.tokens);
    let boss = ours(sandbox, options).await;
    let (threads, context, path) = (options.threads.to_string(), CONTEXT.to_string(), file.to_string_lossy());
    let mut ways = Vec::new();
    for way in ["on", "off"] {
        if let Some(program) = llama {
            let arguments = ["-m", &*path, "-t", &threads, "-np", "8", "-cb", "-c", &context, "-fa", way];
            ways.push(LlamaServer::start(program, &arguments).await);
        }
    }
    for client in [boss.client()].into_iter().chain(ways.iter().map(|server| server.client)) {
        together(client, 1, 8).await;
    }
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        let mut alone = 0.0;
        for streams in [1, 8] {
            let ours = together(boss.client(), streams, options.tokens).await;
            let mut theirs = None;
            for server in &ways {
                let speed = together(server.client, streams, options.tokens).await;
                theirs = Some(theirs.map_or(speed, |best: f64| best.max(speed)));
            }
            table.add(
                &format!("{streams} streams: tokens/s in all (theirs: the better of -fa on and off)"),
                Some(ours),
                theirs,
            );
            if streams == 1 {
                alone = ours;
            } else {
                table.add("8 streams over our own single stream", Some(ours / alone), None);
            }
        }
    }
    boss.finish().await;
}

/// A prompt that no earlier one began like, then another one with nine tenths of it.
async fn prefix(sandbox: &Sandbox, llama: Option<&Path>, options: &Options, table: &mut Table) {
    const LONG: usize = 16_384;
    let file = model(sandbox, options);
    sandbox.model("a", &file, &format!("context_length = {LONG}\nmax_concurrent = 1"));
    println!("- prompts of {WORDS} words, {SHARED_WORDS} of them shared");
    println!("- ceiling: {:.2} of the words are new", (WORDS - SHARED_WORDS) as f64 / WORDS as f64);
    let boss = ours(sandbox, options).await;
    let (threads, context, path) = (options.threads.to_string(), LONG.to_string(), file.to_string_lossy());
    let server = match llama {
        Some(program) => {
            let arguments = ["-m", &*path, "-t", &threads, "-np", "1", "-c", &context];
            Some(LlamaServer::start(program, &arguments).await)
        }
        None => None,
    };
    let mut doors = vec![boss.client()];
    doors.extend(server.as_ref().map(|server| server.client));
    for door in &doors {
        first_of(*door, "a", &words(0, 0), KnownPrompt::Used).await;
    }
    let body = json!({"model": "a", "prompt": words(0, 1), "max_tokens": 1, "ignore_eos": true, "cache_prompt": true});
    let usage = boss.client().post("/v1/completions", &body).await.json()["usage"].clone();
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    println!("- tokens of the second prompt: {}, of which {cached} are found in the cache", usage["prompt_tokens"]);
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        let (mut cold, mut warm) = ([None; 2], [None; 2]);
        for (place, door) in doors.iter().enumerate() {
            cold[place] = Some(first_of(*door, "a", &words(round, 0), KnownPrompt::Used).await);
            warm[place] = Some(first_of(*door, "a", &words(round, 1), KnownPrompt::Used).await);
        }
        table.add("first token of a new prompt: ms", cold[0], cold[1]);
        table.add("first token of a prompt that begins as the one before: ms", warm[0], warm[1]);
        let share = |place: usize| Some(warm[place]? / cold[place]?);
        table.add("the second over the first", share(0), share(1));
    }
    boss.finish().await;
    drop(server);
    let prompts: Vec<String> = (0..=memory::KEPT).map(|round| words(round, 0)).collect();
    memory::kept(&file, LONG, &prompts, table).await;
}

/// A long conversation in one of two models, with room for one of them.
async fn parking(sandbox: &Sandbox, llama: Option<&Path>, options: &Options, table: &mut Table) {
    const LONG: usize = 4_096;
    let file = model(sandbox, options);
    // The same file under two names, so that both models are as large.
    let folder = sandbox.path("two");
    fs::create_dir_all(&folder).unwrap();
    let without = Sandbox::new().with_config("max_loaded_models = 1\n[parking]\nplace = \"off\"");
    for name in ["a", "b"] {
        let linked = folder.join(format!("{name}.gguf"));
        std::os::unix::fs::symlink(&file, &linked).unwrap();
        for sandbox in [sandbox, &without] {
            sandbox.model(name, &linked, &format!("context_length = {LONG}\nmax_concurrent = 1"));
        }
    }
    println!("- a conversation of {WORDS} words, whose next turn ends in {} other ones", WORDS - SHARED_WORDS);
    let (boss, plain) = (ours(sandbox, options).await, ours(&without, options).await);
    let (threads, context, models) = (options.threads.to_string(), LONG.to_string(), folder.to_string_lossy());
    let router = match llama {
        Some(program) => {
            let arguments = ["--models-dir", &*models, "--models-max", "1", "-t", &threads, "-np", "1", "-c", &context];
            Some(LlamaServer::start(program, &arguments).await)
        }
        None => None,
    };
    let doors = parking::ParkingDoors {
        with: boss.client(),
        without: plain.client(),
        peer: router.as_ref().map(|router| router.client),
    };
    parking::round(&doors, (&words(0, 0), &words(0, 1)), &mut Table::default()).await;
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        parking::round(&doors, (&words(round, 0), &words(round, 1)), table).await;
    }
    let report = boss.read("/api/v1/stats").await["parking"].clone();
    let bytes = report["models"].as_array().into_iter().flatten().filter_map(|model| model["bytes"].as_u64()).max();
    println!(
        "- parked at the end: {} MiB, {} tokens restored in all",
        bytes.unwrap_or(0) >> 20,
        report["restored_tokens"]
    );
    boss.finish().await;
    plain.finish().await;
}

/// Conversations that grow from round to round.
async fn agents(sandbox: &Sandbox, llama: Option<&Path>, options: &Options, table: &mut Table) {
    let file = model(sandbox, options);
    let at_once = agents::AGENTS;
    let speculation = &options.speculation;
    let manifest =
        format!("context_length = {AGENT_CONTEXT}\nmax_concurrent = {at_once}\nspeculation = \"{speculation}\"");
    sandbox.model("a", &file, &manifest);
    println!("- speculation: {speculation}");
    let boss = ours(sandbox, options).await;
    let (threads, path) = (options.threads.to_string(), file.to_string_lossy());
    let (streams, context) = (at_once.to_string(), (at_once * AGENT_CONTEXT).to_string());
    let server = match llama {
        Some(program) => {
            let arguments = ["-m", &*path, "-t", &threads, "-np", &streams, "-cb", "-c", &context, "--jinja"];
            Some(LlamaServer::start(program, &arguments).await)
        }
        None => None,
    };
    let mut doors = vec![boss.client()];
    doors.extend(server.as_ref().map(|server| server.client));
    let conversations = || (0..at_once).map(agents::Agent::new).collect::<Vec<_>>();
    let mut all: Vec<Vec<agents::Agent>> = doors.iter().map(|_| conversations()).collect();
    for door in &doors {
        first_of(*door, "a", "hello", KnownPrompt::ComputedAgain).await;
    }
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        agents::round(&doors, &mut all, table).await;
    }
    boss.finish().await;
}

/// Answers under schemas that no earlier request had, in turn with free ones.
async fn schema(sandbox: &Sandbox, llama: Option<&Path>, options: &Options, table: &mut Table) {
    let file = model(sandbox, options);
    sandbox.model("a", &file, &format!("context_length = {CONTEXT}\nmax_concurrent = 2"));
    let boss = ours(sandbox, options).await;
    let (threads, context, path) = (options.threads.to_string(), (2 * CONTEXT).to_string(), file.to_string_lossy());
    let server = match llama {
        Some(program) => {
            let arguments = ["-m", &*path, "-t", &threads, "-np", "2", "-c", &context, "--jinja"];
            Some(LlamaServer::start(program, &arguments).await)
        }
        None => None,
    };
    let mut doors = vec![boss.client()];
    doors.extend(server.as_ref().map(|server| server.client));
    for door in &doors {
        first_of(*door, "a", "hello", KnownPrompt::ComputedAgain).await;
    }
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        schema::round(&doors, round, options.tokens, table).await;
    }
    boss.finish().await;
}

/// The file of the one model that is measured: the one named, else random weights.
fn model(sandbox: &Sandbox, options: &Options) -> PathBuf {
    if let Some(file) = &options.model {
        println!("- model: {}", file.file_name().unwrap_or_default().display());
        return file.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    println!("- model: {SHAPE}, Q4_K_M, random weights");
    let folder = sandbox.path("gguf");
    fs::create_dir_all(&folder).unwrap();
    synthetic(&folder, "a", 1)
}

fn synthetic(folder: &Path, name: &str, seed: u64) -> PathBuf {
    let file = folder.join(format!("{name}.gguf"));
    eprintln!("writing {SHAPE} with random weights");
    let status = Command::new(binary("model-boss-worker"))
        .args(["synth", SHAPE, "--seed", &seed.to_string()])
        .arg(&file)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "the model could not be written");
    file
}

/// Tokens per second of `streams` clients together, each with a prompt of its own.
async fn together(door: Client, streams: usize, tokens: usize) -> f64 {
    let begun = Instant::now();
    let asked: Vec<_> = (0..streams)
        .map(|stream| {
            let prompt = format!("{stream} is the number of this request");
            let body = json!({"model": "a", "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "cache_prompt": false});
            tokio::spawn(async move { door.post("/v1/completions", &body).await })
        })
        .collect();
    let mut written = 0;
    for answer in asked {
        let answer = answer.await.unwrap();
        assert!(answer.status.is_success(), "{answer:?}");
        written += answer.json()["usage"]["completion_tokens"].as_u64().expect("answers count their tokens");
    }
    assert_eq!(written, (streams * tokens) as u64, "an answer ended early");
    written as f64 / begun.elapsed().as_secs_f64()
}

/// Seconds to read the file past the page cache, in pieces of 16 MiB.
fn direct_read(file: &Path) -> f64 {
    let begun = Instant::now();
    let read = Command::new("dd")
        .arg(format!("if={}", file.display()))
        .args(["of=/dev/null", "bs=16M", "iflag=direct"])
        .output();
    assert!(read.is_ok_and(|read| read.status.success()), "dd cannot read {} directly", file.display());
    begun.elapsed().as_secs_f64()
}

/// Drops the page cache; the kernel's own tables stay.
fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "1").expect("it could be written a moment ago");
}

fn version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output();
    let output = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    let text = String::from_utf8_lossy(&output);
    text.lines().find(|line| line.contains("version")).unwrap_or("does not say its version").trim().to_owned()
}
