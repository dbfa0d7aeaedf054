//! `scripts/bench experts`: a mixture of experts of twice its memory, which a control group limits. Three ways to
//! decode take turns on one file: experts in pages, whole layers streamed, and llama.cpp's mmap. The routers of the
//! file have a skewed choice by Zipf's law, which the token decides, so that every program plays the same trace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use model_boss_protocol::ByteCount;
use model_boss_tests::{Sandbox, binary};
use serde_json::{Value, json};

use crate::peer::peer;
use crate::stream::{Figures, Group, Memory, best, disk};

struct Options {
    shape: String,
    model: Option<PathBuf>,
    limit: Option<ByteCount>,
    rounds: usize,
    tokens: usize,
    /// Tokens of each of llama.cpp's two repetitions. One may take seconds there.
    llama_tokens: usize,
    threads: usize,
    json: Option<PathBuf>,
}

impl Options {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            shape: "qwen3moe-small".to_owned(),
            model: None,
            limit: None,
            rounds: 3,
            tokens: 96,
            llama_tokens: 16,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            json: None,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            let number = |text: String| text.parse::<usize>().map_err(|_| format!("'{text}' is no whole number"));
            match word.as_str() {
                "--shape" => options.shape = value()?,
                "--model" => options.model = Some(value()?.into()),
                "--limit" => options.limit = Some(value()?.parse().map_err(|error| format!("--limit: {error}"))?),
                "--rounds" => options.rounds = number(value()?)?.max(1),
                "--tokens" => options.tokens = number(value()?)?.max(1),
                "--llama-tokens" => options.llama_tokens = number(value()?)?.max(1),
                "--threads" => options.threads = number(value()?)?.max(1),
                "--json" => options.json = Some(value()?.into()),
                _ => {
                    return Err(format!(
                        "'{word}' is none of --shape NAME, --model FILE.gguf, --limit 2GiB, --rounds N, --tokens N, \
                         --llama-tokens N, --threads N, --json FILE"
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
        eprintln!("writing {} with random weights and a skewed choice of experts", options.shape);
        let status = Command::new(binary("model-boss-worker")).args(["synth", &options.shape]).arg(&file).status();
        assert!(status.is_ok_and(|status| status.success()), "the model could not be written");
        file
    });
    let bytes = fs::metadata(&model).expect("the model is a file").len();
    let limit = options.limit.unwrap_or(ByteCount(bytes / 2));
    println!("machine: {processor}, {} threads", options.threads);
    println!("model: {}, {:.2} GB; limit {limit}", model.display(), bytes as f64 / 1e9);
    let group = match Group::new(limit) {
        Ok(group) => group,
        Err(why) => {
            println!("pending: no memory control group can be made here: {why}");
            return ExitCode::SUCCESS;
        }
    };
    let llama = peer("MODEL_BOSS_BENCH_LLAMA_BENCH", "llama-bench");
    if let Err(why) = &llama {
        println!("llama-bench: {why}");
    }
    let bench = Bench { options: &options, model: &model, group };
    let mut rows: Vec<Value> = Vec::new();
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        let before = disk(&model);
        let (pages, memory) = bench.pages().unwrap_or_else(|why| panic!("the worker failed: {why}"));
        let (layers, _) = bench.layers().unwrap_or_else(|why| panic!("the worker failed: {why}"));
        let llama = llama.as_ref().ok().and_then(|program| bench.llama(program));
        let after = disk(&model);
        rows.push(json!({
            "round": round,
            "disk_bytes_per_second": best(&before).max(best(&after)),
            "pages": pages,
            "memory": memory,
            "layers": layers,
            "llama": llama,
        }));
        eprintln!("{}", table(&rows[rows.len() - 1..]));
    }
    println!("{}", table(&rows));
    if let Some(file) = &options.json {
        fs::write(file, serde_json::to_vec_pretty(&rows).expect("numbers and words")).expect("the file can be written");
    }
    ExitCode::SUCCESS
}

struct Bench<'a> {
    options: &'a Options,
    model: &'a Path,
    group: Group,
}

impl Bench<'_> {
    /// The worker with experts in pages. As many tokens as are measured come before, and fill the memory.
    fn pages(&self) -> Result<(Value, Memory), String> {
        let tokens = self.options.tokens.to_string();
        self.worker(&["--residency", "auto", "--tokens", &tokens, "--settle", &tokens])
    }

    /// The worker with whole layers, each of which is a block. Every token takes the same time, so few are measured.
    fn layers(&self) -> Result<(Value, Memory), String> {
        self.worker(&["--residency", "auto", "--block", "1", "--tokens", "8", "--settle", "8"])
    }

    fn worker(&self, arguments: &[&str]) -> Result<(Value, Memory), String> {
        let mut command = self.group.command(&binary("model-boss-worker"));
        command.arg("residency").arg(self.model).arg("--json").args(arguments);
        command.env("RAYON_NUM_THREADS", self.options.threads.to_string());
        let (output, memory) = self.group.run(command)?;
        let report = serde_json::from_str(output.trim()).map_err(|error| error.to_string())?;
        Ok((report, memory))
    }

    /// The decoding speed of llama.cpp with its file mapped; `None` if the group's limit ends it. Of two repetitions
    /// the second counts, because the first fills the page cache. Repacking would make a copy of all weights in memory.
    fn llama(&self, program: &Path) -> Option<f64> {
        let mut command = self.group.command(program);
        command.arg("-m").arg(self.model).args(["-r", "2", "-o", "jsonl", "-ngl", "0", "-p", "0", "-fa", "0"]);
        command.args(["-n", &self.options.llama_tokens.to_string(), "-t", &self.options.threads.to_string()]);
        command.args(["-lm", "mmap", "--repack", "0"]);
        let (output, _) = self.group.run(command).map_err(|why| eprintln!("llama-bench: {why}")).ok()?;
        let line = output.lines().find_map(|line| serde_json::from_str::<Value>(line).ok())?;
        line["samples_ts"].as_array()?.last()?.as_f64()
    }
}

/// Medians and ranges of some rounds.
fn table(rows: &[Value]) -> String {
    let column = |value: &dyn Fn(&Value) -> Option<f64>| Figures::of(rows.iter().filter_map(value)).show();
    let rate = |row: &Value, way: &str| row[way]["tokens_per_second"].as_f64();
    let count = |row: &Value, name: &str| row["pages"]["streaming"]["experts"][name].as_f64();
    let per_token = |row: &Value, bytes: f64| bytes / row["pages"]["tokens"].as_f64().unwrap_or(1.0);
    let read = |row: &Value| Some(per_token(row, count(row, "bytes")?));
    format!(
        "| tokens/s in pages | whole layers | pages / layers | llama.cpp mmap | pages / llama.cpp | uses in memory | foreseen of \
         reads | MiB read a token | share of time in which the disk reads | GB/s of the disk | peak MiB |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n\
         | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        column(&|row| rate(row, "pages")),
        column(&|row| rate(row, "layers")),
        column(&|row| Some(rate(row, "pages")? / rate(row, "layers")?)),
        column(&|row| row["llama"].as_f64()),
        column(&|row| Some(rate(row, "pages")? / row["llama"].as_f64()?)),
        column(&|row| Some((count(row, "hits")? - count(row, "foreseen")?) / count(row, "uses")?)),
        column(&|row| Some((count(row, "foreseen")? + count(row, "late")?) / count(row, "reads")?)),
        column(&|row| Some(read(row)? / f64::from(1 << 20))),
        column(&|row| {
            let totals = &row["pages"]["streaming"]["totals"];
            Some(totals["read_seconds"].as_f64()? / totals["wall_seconds"].as_f64()?)
        }),
        column(&|row| Some(row["disk_bytes_per_second"].as_f64()? / 1e9)),
        column(&|row| Some(row["memory"]["peak_bytes"].as_f64()? / f64::from(1 << 20))),
    )
}
