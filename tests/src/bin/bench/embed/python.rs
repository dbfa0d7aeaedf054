//! Libraries in a Python process, which `scripts/reference/embed_peer.py` runs: a line with texts in, a line with the
//! time that it took out.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::peer::peer;

/// The libraries, by the names that the script knows them by.
const LIBRARIES: [&str; 3] = ["onnxruntime", "torch", "torch-bf16"];

/// A library that has loaded the model.
pub(super) struct PythonPeer {
    name: &'static str,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl PythonPeer {
    /// All libraries that the Python interpreter has. Says of each other why it is not measured.
    pub(super) fn all(model: &Path, threads: usize) -> Vec<Self> {
        let python = match peer("MODEL_BOSS_PEER_PYTHON", "python3") {
            Ok(python) => python,
            Err(why) => {
                println!("- libraries: {why}");
                return Vec::new();
            }
        };
        LIBRARIES.into_iter().filter_map(|name| Self::start(&python, name, model, threads)).collect()
    }

    fn start(python: &Path, name: &'static str, model: &Path, threads: usize) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/reference/embed_peer.py");
        let mut command = Command::new(python);
        command.arg(script).arg(name).arg(model).arg(threads.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let (stdin, stdout) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut started = Self { name, child, stdin, stdout };
        let Some(ready) = started.line() else {
            println!("- {name}: not measured, MODEL_BOSS_PEER_PYTHON has no such library");
            return None;
        };
        println!("- {name}: {}", ready["version"].as_str().unwrap_or_default());
        Some(started)
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The time of all texts, some in each call.
    pub(super) fn bulk(&mut self, texts: &[String], at_once: usize) -> Duration {
        let answer = self.ask(&json!({"texts": texts, "at_once": at_once}));
        Duration::from_secs_f64(answer["seconds"].as_f64().expect("it says its time"))
    }

    /// The times of texts, one in each call, the shortest first.
    pub(super) fn singles(&mut self, texts: &[String]) -> Vec<Duration> {
        let answer = self.ask(&json!({"texts": texts, "at_once": 1}));
        let each: Vec<f64> = serde_json::from_value(answer["each"].clone()).expect("it says each call's time");
        let mut times: Vec<Duration> = each.into_iter().map(Duration::from_secs_f64).collect();
        times.sort_unstable();
        times
    }

    pub(super) fn vectors(&mut self, texts: &[String]) -> Vec<Vec<f32>> {
        let answer = self.ask(&json!({"texts": texts, "at_once": texts.len(), "vectors": true}));
        serde_json::from_value(answer["vectors"].clone()).expect("it gives vectors")
    }

    fn ask(&mut self, question: &Value) -> Value {
        writeln!(self.stdin, "{question}").expect("the library reads");
        self.line().expect("the library answers")
    }

    fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Drop for PythonPeer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
