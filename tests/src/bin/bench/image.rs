//! `scripts/bench image`: the time of a picture and of its steps, over HTTP, beside `diffusers` in a process of its
//! own. Both take turns in every round, with the same weights, sizes and steps. The worker's memory is compared with
//! its weights and the activations that its lease has.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use model_boss_tests::{Boss, Event, Sandbox};
use serde_json::{Value, json};

use crate::peer::peer;
use crate::table::{Table, milliseconds};

/// Sides of pictures in pixels, and steps.
const PICTURES: [(usize, usize); 2] = [(256, 8), (512, 4)];

struct ImageOptions {
    rounds: usize,
    threads: usize,
    /// A folder of Stable Diffusion; one of random weights without it.
    model: Option<PathBuf>,
    json: Option<PathBuf>,
}

impl ImageOptions {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut options = Self { rounds: 3, threads, model: None, json: None };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            let number = |text: String| text.parse::<usize>().map_err(|_| format!("'{text}' is no whole number"));
            match word.as_str() {
                "--rounds" => options.rounds = number(value()?)?.max(1),
                "--threads" => options.threads = number(value()?)?.max(1),
                "--model" => options.model = Some(value()?.into()),
                "--json" => options.json = Some(value()?.into()),
                _ => return Err(format!("'{word}' is none of --model FOLDER, --rounds N, --threads N, --json FILE")),
            }
        }
        Ok(options)
    }
}

/// Runs the measurement; `words` are the arguments after its name.
pub(crate) async fn run(words: impl Iterator<Item = String>, processor: &str) -> ExitCode {
    let options = match ImageOptions::read(words) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("bench: {error}");
            return ExitCode::from(2);
        }
    };
    let sandbox = Sandbox::new();
    let made = sandbox.path("models/random");
    let python = peer("MODEL_BOSS_PEER_PYTHON", "python3");
    let model = match (&options.model, &python) {
        (Some(folder), _) => folder.canonicalize().ok(),
        (None, Ok(python)) => random(python, &made).then_some(made),
        (None, Err(_)) => None,
    };
    let Some(model) = model else {
        eprintln!("bench: --model must be a folder of diffusers, or MODEL_BOSS_PEER_PYTHON a Python with diffusers");
        return ExitCode::from(2);
    };
    println!("- machine: {processor}, {} threads", options.threads);
    let about = "random, the blocks of Stable Diffusion 1.5 with half as many channels";
    let about = options.model.as_ref().map_or_else(|| about.to_owned(), |_| model.display().to_string());
    println!("- model: {about}");
    println!("- rounds: {}, interleaved; ours over HTTP, diffusers in its own process", options.rounds);
    let mut other = match python {
        Ok(python) => DiffusersPeer::start(&python, &model, options.threads),
        Err(why) => {
            println!("- diffusers: {why}");
            None
        }
    };
    sandbox.model("brush", &model, &format!("threads = {}", options.threads));
    let boss = sandbox.start_with_real_worker().await;
    let mut table = Table::default();
    // The model is loaded, and both have run once.
    ours(&boss, 128, 2).await;
    if let Some(other) = &mut other {
        other.paint(128, 2);
    }
    for _ in 0..options.rounds {
        for (side, steps) in PICTURES {
            let (took, timings) = ours(&boss, side, steps).await;
            let theirs = other.as_mut().map(|other| other.paint(side, steps));
            let name = format!("{side}x{side}, {steps} steps");
            table.add(
                &format!("{name}: the whole, ms"),
                Some(milliseconds(took)),
                theirs.map(|(whole, _)| whole * 1e3),
            );
            table.add(
                &format!("{name}: a step, ms"),
                timings["per_step_ms"].as_f64(),
                theirs.map(|(_, step)| step * 1e3),
            );
            table.add(&format!("{name}: the decoder, ms"), timings["decode_ms"].as_f64(), None);
        }
    }
    let slots = boss.read("/api/v1/slots").await;
    let weights = other.as_ref().map(|other| other.weights);
    if let (Some(peak), Some(weights)) = (peak_of_worker(&slots), weights) {
        let side = PICTURES[1].0 as u64;
        let activations = side * side * model_boss_protocol::PICTURE_BYTES_PER_PIXEL;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "- memory: the worker's peak {:.0} MiB; weights {:.0}, and {:.0} of activations in the lease: {:.2}x",
            mib(peak),
            mib(weights),
            mib(activations),
            peak as f64 / (weights + activations) as f64
        );
    }
    boss.finish().await;
    println!("{}", table.markdown("diffusers"));
    if let Some(file) = &options.json {
        fs::write(file, serde_json::to_vec_pretty(&table).unwrap()).unwrap();
    }
    ExitCode::SUCCESS
}

/// The most memory that the worker had at any time, in bytes. The slot's process is its guard, and the worker a child.
fn peak_of_worker(slots: &Value) -> Option<u64> {
    let pid = slots["slots"].as_array()?.iter().find_map(|slot| slot["pid"].as_u64())?;
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let all = std::iter::once(pid.to_string()).chain(children.split_whitespace().map(str::to_owned));
    all.filter_map(|pid| peak_of(&pid)).max()
}

fn peak_of(pid: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// The time of a picture, and its timings.
async fn ours(boss: &Boss, side: usize, steps: usize) -> (Duration, Value) {
    let begun = Instant::now();
    let body = json!({ "model": "brush", "prompt": "a blue cat on the dog", "size": format!("{side}x{side}"),
        "steps": steps, "seed": 7, "stream": true });
    // A stream has comments until its picture is there, so that no client gives it up.
    let mut stream = boss.client().stream("/v1/images/generations", &body).await;
    assert!(stream.status.is_success(), "{}", stream.status);
    let last = loop {
        match stream.next().await {
            Some(Event::Data(event)) => break event,
            Some(_) => {}
            None => panic!("the stream has no picture"),
        }
    };
    (begun.elapsed(), last["timings"].clone())
}

/// A pipeline of random weights.
fn random(python: &Path, folder: &Path) -> bool {
    let status = Command::new(python).arg(script()).args(["--make".as_ref(), folder.as_os_str()]).status();
    status.is_ok_and(|status| status.success())
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/reference/image_peer.py")
}

/// `diffusers`, which `scripts/reference/image_peer.py` runs: a line with a wish in, a line with its times out.
struct DiffusersPeer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Bytes of the weights in f32.
    weights: u64,
}

impl DiffusersPeer {
    fn start(python: &Path, model: &Path, threads: usize) -> Option<Self> {
        let mut command = Command::new(python);
        command.arg(script()).arg(model).arg(threads.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let (stdin, stdout) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut started = Self { child, stdin, stdout, weights: 0 };
        let Some(ready) = started.line() else {
            println!("- diffusers: not measured, MODEL_BOSS_PEER_PYTHON has no such library");
            return None;
        };
        started.weights = ready["weights"].as_u64()?;
        println!("- {}", ready["version"].as_str().unwrap_or_default());
        Some(started)
    }

    /// The seconds of the whole, and of a step.
    fn paint(&mut self, side: usize, steps: usize) -> (f64, f64) {
        writeln!(self.stdin, "{}", json!({ "size": side, "steps": steps, "seed": 7 })).expect("the library reads");
        let answer = self.line().expect("the library answers");
        let number = |field: &str| answer[field].as_f64().expect("it tells its times");
        (number("seconds"), number("step"))
    }

    fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Drop for DiffusersPeer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
