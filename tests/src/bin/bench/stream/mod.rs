//! `scripts/bench stream`: a model larger than its memory, which a control group limits. The worker keeps the layers
//! that fit and streams the rest past the page cache. The peer is llama.cpp's mmap in the same group. Also measured are
//! the disk's rate with the best number of readers, and the cost of streaming where memory is ample.

mod group;
mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use model_boss_protocol::ByteCount;
use model_boss_tests::{Sandbox, binary};
use serde_json::{Value, json};

pub(crate) use self::group::{Group, Memory};
pub(crate) use self::report::Figures;
use self::report::STREAMS;
use crate::peer::peer;

struct Options {
    shape: String,
    model: Option<PathBuf>,
    limit: ByteCount,
    rounds: usize,
    tokens: usize,
    threads: usize,
    json: Option<PathBuf>,
}

impl Options {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            shape: "qwen3-4b-q8_0".to_owned(),
            model: None,
            limit: ByteCount::gib(2),
            rounds: 3,
            tokens: 8,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            json: None,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            let number = |text: String| text.parse::<usize>().map_err(|_| format!("'{text}' is no whole number"));
            match word.as_str() {
                "--shape" => options.shape = value()?,
                "--model" => options.model = Some(value()?.into()),
                "--limit" => options.limit = value()?.parse().map_err(|error| format!("--limit: {error}"))?,
                "--rounds" => options.rounds = number(value()?)?.max(1),
                "--tokens" => options.tokens = number(value()?)?.max(1),
                "--threads" => options.threads = number(value()?)?.max(1),
                "--json" => options.json = Some(value()?.into()),
                _ => {
                    return Err(format!(
                        "'{word}' is none of --shape NAME, --model FILE.gguf, --limit 2GiB, --rounds N, --tokens N, \
                         --threads N, --json FILE"
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// Runs the measurement; `words` are the arguments after its name. A model that it writes is removed at the end.
pub(crate) fn run(words: impl Iterator<Item = String>, processor: &str) -> ExitCode {
    let options = match Options::read(words) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("bench: {error}");
            return ExitCode::from(2);
        }
    };
    let sandbox = Sandbox::new();
    let model = options.model.clone().unwrap_or_else(|| {
        let file = sandbox.path(&format!("{}.gguf", options.shape));
        eprintln!("writing {} with random weights", options.shape);
        let status = Command::new(binary("model-boss-worker")).args(["synth", &options.shape]).arg(&file).status();
        assert!(status.is_ok_and(|status| status.success()), "the model could not be written");
        file
    });
    let bytes = fs::metadata(&model).expect("the model is a file").len();
    println!("machine: {processor}, {} threads", options.threads);
    println!("model: {}, {:.2} GB; limit {}", model.display(), bytes as f64 / 1e9, options.limit);
    // The memory is enough for everything: the model, keys and values, and a step's activations.
    let ample = ByteCount(bytes + bytes / 4 + (1 << 30));
    let groups = Group::new(options.limit).and_then(|tight| Ok((tight, Group::new(ample)?)));
    let (tight, ample) = match groups {
        Ok(groups) => groups,
        Err(why) => {
            println!("pending: no memory control group can be made here: {why}");
            return ExitCode::SUCCESS;
        }
    };
    let llama = peer("MODEL_BOSS_BENCH_LLAMA_BENCH", "llama-bench");
    let batched = peer("MODEL_BOSS_BENCH_LLAMA_BATCHED", "llama-batched-bench");
    for (name, found) in [("llama-bench", &llama), ("llama-batched-bench", &batched)] {
        if let Err(why) = found {
            println!("{name}: {why}");
        }
    }
    let bench = Bench { options: &options, model: &model };
    let mut rows: Vec<Value> = Vec::new();
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        for streams in STREAMS {
            let before = disk(&model);
            let (ours, memory) =
                bench.ours(streams, "auto", &tight).unwrap_or_else(|why| panic!("the worker failed: {why}"));
            let after = disk(&model);
            let llama = match streams {
                1 => llama.as_ref().ok().and_then(|program| bench.llama_bench(program, &tight)),
                _ => batched.as_ref().ok().and_then(|program| bench.llama_batched(program, streams, &tight)),
            };
            let mut row = json!({
                "round": round,
                "streams": streams,
                "disk_bytes_per_second": best(&before).max(best(&after)),
                "disk": [before, after],
                "ours": ours,
                "memory": memory,
                "llama": llama,
            });
            if streams == 1 {
                row["with_room"] = bench.with_room(&ample, round);
            }
            eprintln!("{}", report::line(&row));
            rows.push(row);
        }
    }
    if let Some(store) = rows.first().map(|row| &row["ours"]["streaming"]["plan"]["store"]) {
        println!("store: {}", store.as_str().unwrap_or("all layers stay: the limit leaves room for everything"));
    }
    report::print(&rows);
    if let Some(file) = &options.json {
        fs::write(file, serde_json::to_vec_pretty(&rows).expect("numbers and words")).expect("the file can be written");
    }
    ExitCode::SUCCESS
}

struct Bench<'a> {
    options: &'a Options,
    model: &'a Path,
}

impl Bench<'_> {
    /// The worker's report in a group. The worker reads its budget from the group's limit itself.
    fn ours(&self, streams: usize, residency: &str, group: &Group) -> Result<(Value, Memory), String> {
        let mut command = group.command(&binary("model-boss-worker"));
        command.arg("residency").arg(self.model).args(["--json", "--residency", residency]);
        command.args(["--streams", &streams.to_string(), "--tokens", &self.options.tokens.to_string()]);
        command.env("RAYON_NUM_THREADS", self.options.threads.to_string());
        let (output, memory) = group.run(command)?;
        let report = serde_json::from_str(output.trim()).map_err(|error| error.to_string())?;
        Ok((report, memory))
    }

    /// The cost of streaming where memory is ample. The order of the two runs alternates between rounds.
    fn with_room(&self, group: &Group, round: usize) -> Value {
        let mut ways = ["auto", "resident", "stream"];
        ways.rotate_left(round % 3);
        let mut rates = json!({});
        for way in ways {
            match self.ours(1, way, group) {
                Ok((report, _)) => rates[way] = report["tokens_per_second"].clone(),
                Err(why) => eprintln!("{way}, with room: {why}"),
            }
        }
        rates
    }

    /// The decoding speed of llama.cpp with its file mapped; `None` if the group's limit ends it.
    fn llama_bench(&self, program: &Path, group: &Group) -> Option<f64> {
        let mut command = group.command(program);
        command.arg("-m").arg(self.model).args(["-r", "1", "-o", "jsonl", "-ngl", "0", "-p", "0", "-fa", "0"]);
        command.args(["-n", &self.options.tokens.to_string(), "-t", &self.options.threads.to_string()]);
        rate(group, command, "llama-bench", "avg_ts")
    }

    /// The rate of llama.cpp for several sequences in a batch, in tokens per second.
    fn llama_batched(&self, program: &Path, streams: usize, group: &Group) -> Option<f64> {
        let mut command = group.command(program);
        let (tokens, streams) = (self.options.tokens.to_string(), streams.to_string());
        command
            .arg("-m")
            .arg(self.model)
            .args(["-npp", "8", "-ntg", &tokens, "-npl", &streams, "-c", "256", "-ngl", "0"]);
        command.args(["--output-format", "jsonl", "-t", &self.options.threads.to_string()]);
        rate(group, command, "llama-batched-bench", "speed_tg")
    }
}

/// The disk's rate with one, two and four readers.
pub(crate) fn disk(model: &Path) -> Value {
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    let output = Command::new(binary("model-boss-worker")).arg("disk").arg(model).arg("--json").output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// A field of the first line of JSON in a program's output.
fn rate(group: &Group, command: Command, name: &str, field: &str) -> Option<f64> {
    let (output, _) = group.run(command).map_err(|why| eprintln!("{name}: {why}")).ok()?;
    let line = output.lines().find_map(|line| serde_json::from_str::<Value>(line).ok())?;
    line[field].as_f64()
}

/// The highest rate of any number of readers, in bytes per second.
pub(crate) fn best(measured: &Value) -> f64 {
    let rates = measured.as_array().into_iter().flatten().filter_map(|ceiling| ceiling["bytes_per_second"].as_f64());
    rates.fold(0.0, f64::max)
}
