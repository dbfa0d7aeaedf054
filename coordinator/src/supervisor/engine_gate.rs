//! The gate of an external engine: `model-boss engine-gate`. An external engine does not read start lines. The gate
//! waits for the line, and then replaces itself by the program in it.

use std::io::{self, BufRead};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use model_boss_engines::Launch;

/// The name of the hidden command that runs the gate.
pub(crate) const ENGINE_GATE: &str = "engine-gate";
/// The exit codes of shells for a program that does not exist, or cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// Waits for the line and becomes the program.
pub(crate) fn engine_gate() -> ExitCode {
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        // The coordinator ended before it wrote the line, which is no fault of the engine.
        Ok(0) => return ExitCode::SUCCESS,
        Ok(_) => {}
        Err(error) => return failed(1, &format!("the start line cannot be read: {error}")),
    }
    let launch: Launch = match serde_json::from_str(&line) {
        Ok(launch) => launch,
        Err(error) => return failed(1, &format!("the start line is not one: {error}")),
    };
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).envs(&launch.env).stdin(Stdio::null());
    if let Some(folder) = &launch.folder {
        command.current_dir(folder);
    }
    let error = command.exec();
    let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
    failed(code, &format!("{} cannot be started: {error}", launch.program.display()))
}

fn failed(code: u8, why: &str) -> ExitCode {
    model_boss_host::terminal::say(&format!("model-boss: {why}"));
    ExitCode::from(code)
}
