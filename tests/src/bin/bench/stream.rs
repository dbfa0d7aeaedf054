//! `scripts/bench stream`: a model larger than the memory it is given, in a memory control group: the worker, which keeps
//! what fits and streams the rest past the page cache, beside llama.cpp's mmap in the same group; and what a disk gives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use model_boss_protocol::ByteCount;
use model_boss_tests::{Sandbox, binary};
use serde_json::{Value, json};

use crate::peer::peer;

/// Sequences that decode together.
const STREAMS: [usize; 2] = [1, 8];

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
            tokens: 6,
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

/// Runs the measurement with what stands behind its name on the command line.
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
    let mut rows: Vec<Value> = Vec::new();
    println!("machine: {processor}, {} threads", options.threads);
    println!("model: {}, {:.2} GB; limit {}", model.display(), bytes as f64 / 1e9, options.limit);
    let group = match Group::new(options.limit) {
        Ok(group) => group,
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
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        for streams in STREAMS {
            let disk = disk_rate(&model);
            let ours = ours(&model, &options, streams, &group);
            let theirs = match streams {
                1 => llama.as_ref().ok().and_then(|program| llama_bench(program, &model, &options, &group)),
                _ => {
                    batched.as_ref().ok().and_then(|program| llama_batched(program, &model, &options, streams, &group))
                }
            };
            let row = json!({"round": round, "streams": streams, "disk_bytes_per_second": disk, "ours": ours, "llama": theirs});
            eprintln!("{}", line(&row));
            rows.push(row);
        }
    }
    // What streaming costs when it is not needed: the same model with room for everything, both ways.
    println!(
        "| streams | tokens/s | llama.cpp mmap | ratio | GB/s of the disk's | share | overlap | predicted / measured step |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for streams in STREAMS {
        let of: Vec<&Value> = rows.iter().filter(|row| row["streams"] == streams).collect();
        let median = |value: &dyn Fn(&Value) -> Option<f64>| median(of.iter().filter_map(|row| value(row)).collect());
        let show = |value: Option<f64>| value.map_or("pending".to_owned(), |value| format!("{value:.3}"));
        let ours = median(&|row| row["ours"]["tokens_per_second"].as_f64());
        let theirs = median(&|row| row["llama"].as_f64());
        let rate = median(&|row| row["ours"]["streaming"]["bytes_per_second"].as_f64());
        let disk = median(&|row| row["disk_bytes_per_second"].as_f64());
        let share = median(&|row| {
            Some(row["ours"]["streaming"]["bytes_per_second"].as_f64()? / row["disk_bytes_per_second"].as_f64()?)
        });
        let overlap = median(&|row| row["ours"]["streaming"]["overlap"].as_f64());
        let predicted = median(&|row| {
            let predicted = row["ours"]["streaming"]["plan"]["predicted_step_seconds"].as_f64()?;
            Some(predicted / row["ours"]["seconds_per_step"].as_f64()?)
        });
        println!(
            "| {streams} | {} | {} | {} | {:.2} of {:.2} | {} | {} | {} |",
            show(ours),
            show(theirs),
            show(ours.zip(theirs).map(|(ours, theirs)| ours / theirs)),
            rate.unwrap_or(0.0) / 1e9,
            disk.unwrap_or(0.0) / 1e9,
            show(share),
            show(overlap),
            show(predicted)
        );
    }
    if let Some(file) = &options.json {
        fs::write(file, serde_json::to_vec_pretty(&rows).unwrap()).unwrap();
    }
    ExitCode::SUCCESS
}

fn line(row: &Value) -> String {
    let (ours, streaming) = (&row["ours"], &row["ours"]["streaming"]);
    format!(
        "{} streams: {:.3} tokens/s, overlap {:.3}, {:.2} of {:.2} GB/s; llama.cpp {}",
        row["streams"],
        ours["tokens_per_second"].as_f64().unwrap_or(0.0),
        streaming["overlap"].as_f64().unwrap_or(0.0),
        streaming["bytes_per_second"].as_f64().unwrap_or(0.0) / 1e9,
        row["disk_bytes_per_second"].as_f64().unwrap_or(0.0) / 1e9,
        row["llama"]
    )
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The worker's report in the group. It finds its budget in the group's limit by itself.
fn ours(model: &Path, options: &Options, streams: usize, group: &Group) -> Value {
    let mut command = group.command(&binary("model-boss-worker"));
    command.arg("residency").arg(model).args(["--json", "--streams", &streams.to_string()]);
    command.args(["--tokens", &options.tokens.to_string()]).env("RAYON_NUM_THREADS", options.threads.to_string());
    let output = group.run(command);
    let output = output.unwrap_or_else(|why| panic!("the worker failed: {why}"));
    serde_json::from_str(output.trim()).expect("the report is JSON")
}

/// llama.cpp's decoding with its file mapped; none if the group's limit ends it.
fn llama_bench(program: &Path, model: &Path, options: &Options, group: &Group) -> Option<f64> {
    let mut command = group.command(program);
    command.arg("-m").arg(model).args(["-r", "1", "-o", "jsonl", "-ngl", "0", "-p", "0", "-fa", "0"]);
    command.args(["-n", &options.tokens.to_string(), "-t", &options.threads.to_string()]);
    let output = group.run(command).map_err(|why| eprintln!("llama-bench: {why}")).ok()?;
    let line = output.lines().find_map(|line| serde_json::from_str::<Value>(line).ok())?;
    line["avg_ts"].as_f64()
}

/// The same for several sequences together.
fn llama_batched(program: &Path, model: &Path, options: &Options, streams: usize, group: &Group) -> Option<f64> {
    let mut command = group.command(program);
    let (tokens, streams) = (options.tokens.to_string(), streams.to_string());
    command.arg("-m").arg(model).args(["-npp", "8", "-ntg", &tokens, "-npl", &streams, "-c", "256", "-ngl", "0"]);
    command.args(["--output-format", "jsonl", "-t", &options.threads.to_string()]);
    let output = group.run(command).map_err(|why| eprintln!("llama-batched-bench: {why}")).ok()?;
    let line = output.lines().find_map(|line| serde_json::from_str::<Value>(line).ok())?;
    line["speed_tg"].as_f64()
}

/// Bytes per second of direct reads over the model's file: the ceiling.
fn disk_rate(model: &Path) -> f64 {
    const MIB: u64 = 16;
    let count = (fs::metadata(model).map_or(0, |about| about.len()) / (MIB << 20)).clamp(1, 64);
    let begun = Instant::now();
    let input = format!("if={}", model.display());
    let arguments =
        [input.as_str(), "of=/dev/null", "bs=16M", "iflag=direct", &format!("count={count}")].map(str::to_owned);
    let read = Command::new("dd").args(arguments).output();
    let seconds = begun.elapsed().as_secs_f64();
    if read.is_ok_and(|read| read.status.success()) { (count * (MIB << 20)) as f64 / seconds } else { 0.0 }
}

/// A memory control group of this measurement alone, version 1 or 2.
struct Group {
    folder: PathBuf,
}

impl Group {
    fn new(limit: ByteCount) -> Result<Self, String> {
        let name = format!("model-boss-bench-{}", std::process::id());
        let roots = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        let mut why = String::new();
        for (root, file) in roots {
            let folder = Path::new(root).join(&name);
            let made = fs::create_dir(&folder).and_then(|()| fs::write(folder.join(file), limit.0.to_string()));
            match made {
                Ok(()) => return Ok(Self { folder }),
                Err(error) => {
                    let _ = fs::remove_dir(&folder);
                    why = format!("{}: {error}", folder.display());
                }
            }
        }
        Err(why)
    }

    /// A program that begins its life in the group. What others have in the page cache would not count against it, so the
    /// caches are dropped before.
    fn command(&self, program: &Path) -> Command {
        let _ = fs::write("/proc/sys/vm/drop_caches", "3");
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(self.folder.join("cgroup.procs")).arg(program);
        command
    }

    fn run(&self, mut command: Command) -> Result<String, String> {
        let output = command.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}
