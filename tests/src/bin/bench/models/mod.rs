//! `scripts/bench decode` and `prefill`: the worker's speed beside llama.cpp's own measurement. Both take turns in
//! every round, on the same file of random weights, which this command writes.

mod memory;
mod report;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use model_boss_tests::{Sandbox, binary};
use serde_json::Value;

use crate::peer::peer;
use report::Report;

/// The shape of the measured model.
const SHAPE: &str = "qwen3-0.6b";

/// A measurement that this command can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Decode,
    Prefill,
}

/// One row of the table, named as in llama-bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Test {
    prompt: usize,
    tokens: usize,
    depth: usize,
}

impl Test {
    fn name(self) -> String {
        let what = if self.prompt > 0 { format!("pp{}", self.prompt) } else { format!("tg{}", self.tokens) };
        if self.depth > 0 { format!("{what} at depth {}", self.depth) } else { what }
    }
}

/// The options of the command line.
struct Options {
    rounds: usize,
    threads: usize,
    depths: Vec<usize>,
    model: Option<PathBuf>,
    json: Option<PathBuf>,
    /// The worker's instructions. llama.cpp has those that it was built with.
    cpu_features: Option<String>,
}

impl Options {
    fn read(part: Part, mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            rounds: 3,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            depths: if part == Part::Decode { vec![0, 4_096] } else { vec![0] },
            model: None,
            json: None,
            cpu_features: None,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            let number = |text: &str| text.parse::<usize>().map_err(|_| format!("'{text}' is no whole number"));
            match word.as_str() {
                "--rounds" => options.rounds = number(&value()?)?,
                "--threads" => options.threads = number(&value()?)?.max(1),
                "--depths" => options.depths = value()?.split(',').map(number).collect::<Result<_, _>>()?,
                "--model" => options.model = Some(value()?.into()),
                "--json" => options.json = Some(value()?.into()),
                "--cpu-features" => options.cpu_features = Some(value()?),
                _ => {
                    return Err(format!(
                        "'{word}' is none of --rounds N, --threads N, --depths N,N, --model FILE.gguf, --json FILE, \
                         --cpu-features SET"
                    ));
                }
            }
        }
        Ok(options)
    }

    fn tests(&self, part: Part) -> Vec<Test> {
        let test = |depth: &usize| match part {
            Part::Prefill => Test { prompt: 512, tokens: 0, depth: *depth },
            // With a long context each token takes long, and no warm-up is needed.
            Part::Decode => Test { prompt: 0, tokens: if *depth == 0 { 64 } else { 32 }, depth: *depth },
        };
        self.depths.iter().map(test).collect()
    }
}

/// Runs the measurement; `words` are the arguments after its name.
pub(crate) fn run(part: Part, words: impl Iterator<Item = String>, processor: &str) -> ExitCode {
    let options = match Options::read(part, words) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("bench: {error}");
            return ExitCode::from(2);
        }
    };
    let sandbox = Sandbox::new();
    let model = options.model.clone().unwrap_or_else(|| {
        let file = sandbox.path(&format!("{SHAPE}.gguf"));
        eprintln!("writing {SHAPE} with random weights");
        let status = Command::new(binary("model-boss-worker")).args(["synth", SHAPE]).arg(&file).status();
        assert!(status.is_ok_and(|status| status.success()), "the model could not be written");
        file
    });
    let bytes = std::fs::metadata(&model).expect("the model is a file").len();
    let llama = peer("MODEL_BOSS_BENCH_LLAMA_BENCH", "llama-bench");
    let mut report = Report::new(bytes);
    let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    report.about("machine", format!("{processor}, {} threads", options.threads));
    report.about("model", format!("{name}, {:.1} MiB", bytes as f64 / f64::from(1 << 20)));
    report.about("rounds", format!("{}, interleaved", options.rounds));
    if let Some(set) = &options.cpu_features {
        report.about("instructions", format!("{set}; llama.cpp's are those of its build"));
    }
    if let Err(why) = &llama {
        report.about("llama.cpp", why.clone());
    }
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        report.bandwidth(memory::read_bandwidth(options.threads));
        for test in options.tests(part) {
            let ours = ours(&model, test, &options);
            let mut theirs = [None; 2];
            if let Ok(program) = &llama {
                for (flash, speed) in theirs.iter_mut().enumerate() {
                    let (found, build) = llama_bench(program, &model, test, options.threads, flash);
                    *speed = Some(found);
                    report.about("llama.cpp", build);
                }
            }
            report.add(test.name(), ours, theirs);
        }
    }
    println!("{}", report.markdown());
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_vec_pretty(&report).unwrap()).unwrap();
    }
    ExitCode::SUCCESS
}

/// The worker's own measurement, in a process of its own as llama-bench's is.
fn ours(model: &Path, test: Test, options: &Options) -> f64 {
    let mut command = Command::new(binary("model-boss-worker"));
    command.arg("bench").arg(model).args(["--rounds", "1", "--json"]);
    for (option, value) in [("--prompt", test.prompt), ("--tokens", test.tokens), ("--depth", test.depth)] {
        command.args([option, &value.to_string()]);
    }
    if let Some(set) = &options.cpu_features {
        command.args(["--cpu-features", set]);
    }
    command.env("RAYON_NUM_THREADS", options.threads.to_string());
    let lines = lines(command);
    let speeds = &lines[0][if test.prompt > 0 { "prompt" } else { "decode" }];
    speeds[0].as_f64().expect("a speed")
}

/// The measurement of llama-bench after its own warm-up, and its build.
fn llama_bench(program: &Path, model: &Path, test: Test, threads: usize, flash: usize) -> (f64, String) {
    let mut command = Command::new(program);
    command.arg("-m").arg(model).args(["-r", "1", "-o", "jsonl", "-ngl", "0"]);
    for (option, value) in
        [("-p", test.prompt), ("-n", test.tokens), ("-d", test.depth), ("-t", threads), ("-fa", flash)]
    {
        command.args([option, &value.to_string()]);
    }
    let lines = lines(command);
    let build = format!("llama-bench {} ({})", lines[0]["build_commit"], lines[0]["cpu_info"]).replace('"', "");
    (lines[0]["avg_ts"].as_f64().expect("a speed"), build)
}

/// The output of a program, one JSON value for each line.
fn lines(mut command: Command) -> Vec<Value> {
    let output = command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(!lines.is_empty(), "{command:?} printed no JSON: {text}");
    lines
}
