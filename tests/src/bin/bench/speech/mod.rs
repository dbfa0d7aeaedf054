//! `scripts/bench speech`: the time to the first sound and seconds of sound in a second, over HTTP, beside
//! `transformers` in a process of its own. Both take turns in every round, on the same weights and texts.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use model_boss_tests::{Boss, Sandbox};
use serde_json::{Value, json};

use crate::peer::peer;
use crate::table::{Table, milliseconds};

/// A short text and a long one.
const TEXTS: [(&str, &str); 2] = [
    ("one sentence", "The train to the harbour leaves at a quarter past seven from the second platform."),
    (
        "a paragraph",
        "The harbour was quiet when the first boats came in. Nobody had expected them before noon. The men on the pier \
         laid down their nets and looked out over the water. A cold wind came from the north, and with it the smell of \
         snow. Someone had lit a fire behind the sheds, and the children stood around it with red hands. It would be a \
         long winter, said the old man who mended the sails, and this time all of them believed him.",
    ),
];

struct Options {
    rounds: usize,
    threads: usize,
    /// The folder of a VITS model; one of random weights without it.
    model: Option<PathBuf>,
    json: Option<PathBuf>,
}

impl Options {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut options = Self { rounds: 5, threads, model: None, json: None };
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
    let options = match Options::read(words) {
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
        eprintln!("bench: --model must be a folder of VITS, or MODEL_BOSS_PEER_PYTHON a Python with transformers");
        return ExitCode::from(2);
    };
    println!("- machine: {processor}, {} threads", options.threads);
    let about =
        if options.model.is_some() { model.display().to_string() } else { "random, of mms-tts' sizes".to_owned() };
    println!("- model: {about}");
    println!("- rounds: {}, interleaved; ours over HTTP, transformers in its own process", options.rounds);
    let mut other = match python {
        Ok(python) => TransformersPeer::start(&python, &model, options.threads),
        Err(why) => {
            println!("- transformers: {why}");
            None
        }
    };
    sandbox.model("voice", &model, &format!("category = \"tts\"\nthreads = {}", options.threads));
    let boss = sandbox.start_with_real_worker().await;
    let mut table = Table::default();
    // The model is loaded, and both have run once.
    ours(&boss, TEXTS[0].1).await;
    if let Some(other) = &mut other {
        other.speak(TEXTS[0].1);
    }
    for _ in 0..options.rounds {
        for (name, text) in TEXTS {
            let (first, whole, sound) = ours(&boss, text).await;
            let theirs = other.as_mut().map(|other| other.speak(text));
            let their_first = theirs.map(|(took, _)| took * 1e3);
            table.add(&format!("{name}: first sound, ms"), Some(milliseconds(first)), their_first);
            let rate = theirs.map(|(took, sound)| sound / took);
            table.add(&format!("{name}: seconds of sound in one"), Some(sound / whole.as_secs_f64()), rate);
        }
    }
    boss.finish().await;
    println!("{}", table.markdown("transformers"));
    if let Some(file) = &options.json {
        fs::write(file, serde_json::to_vec_pretty(&table).unwrap()).unwrap();
    }
    ExitCode::SUCCESS
}

/// The time to the first sound, that of all, and the seconds of sound.
async fn ours(boss: &Boss, text: &str) -> (Duration, Duration, f64) {
    let begun = Instant::now();
    let body = json!({ "model": "voice", "input": text, "response_format": "pcm", "seed": 1 });
    let mut stream = boss.client().stream("/v1/audio/speech", &body).await;
    assert!(stream.status.is_success(), "{}", stream.status);
    let (mut first, mut bytes) = (None, 0);
    while let Some(piece) = stream.piece().await {
        first.get_or_insert_with(|| begun.elapsed());
        bytes += piece.len();
    }
    (first.expect("there is sound"), begun.elapsed(), bytes as f64 / 2.0 / 24_000.0)
}

/// A model of random weights in the usual sizes.
fn random(python: &Path, folder: &Path) -> bool {
    let status = Command::new(python).arg(script()).args(["--make".as_ref(), folder.as_os_str()]).status();
    status.is_ok_and(|status| status.success())
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/reference/speech_peer.py")
}

/// `transformers`, which `scripts/reference/speech_peer.py` runs: a line with a text in, a line with its times out.
struct TransformersPeer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl TransformersPeer {
    fn start(python: &Path, model: &Path, threads: usize) -> Option<Self> {
        let mut command = Command::new(python);
        command.arg(script()).arg(model).arg(threads.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let (stdin, stdout) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut started = Self { child, stdin, stdout };
        let Some(ready) = started.line() else {
            println!("- transformers: not measured, MODEL_BOSS_PEER_PYTHON has no such library");
            return None;
        };
        println!("- {}", ready["version"].as_str().unwrap_or_default());
        Some(started)
    }

    /// The seconds that it took, and those of the sound.
    fn speak(&mut self, text: &str) -> (f64, f64) {
        writeln!(self.stdin, "{}", json!({ "text": text })).expect("the library reads");
        let answer = self.line().expect("the library answers");
        let number = |field: &str| answer[field].as_f64().expect("it tells its times");
        (number("seconds"), number("sound"))
    }

    fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Drop for TransformersPeer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
