//! The programs that a coordinator starts, each asked for its version.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use model_boss_catalog::find_llama_server;
use model_boss_config::Config;
use model_boss_host::programs::Programs;
use model_boss_protocol::{Backend, WorkerAbout};
use tokio::process::Command;
use tokio::time::timeout;

use super::super::checks::programs::{ProgramFacts, ProgramLook};

/// How long a program may take to tell its version: drivers of GPUs start slowly.
const PATIENCE: Duration = Duration::from_secs(15);
/// The longest answer that is shown.
const LONGEST: usize = 200;

/// The programs; `need_llama_server` are models that only llama-server runs.
pub(crate) async fn programs(config: &Config, need_llama_server: Vec<String>) -> ProgramFacts {
    let (mut worker, mut no_worker, mut fake_worker) = (None, None, None);
    match Programs::find(config.worker_binary.as_deref()) {
        Err(error) => no_worker = Some(error.to_string()),
        Ok(programs) => {
            match programs.of(Backend::Candle) {
                Ok(path) => {
                    let said = ask(path, &["about"]).await;
                    let said = said.and_then(|(out, _)| about(&out));
                    worker = Some(ProgramLook { path: path.clone(), said });
                }
                Err(error) => no_worker = Some(error.to_string()),
            }
            fake_worker = programs.of(Backend::Fake).ok().cloned();
        }
    }
    let usual = config.llama_server.clone().or_else(find_llama_server);
    let usual = usual.map(|path| ("llama-server".to_owned(), path));
    let builds = config.backends.builds.iter().map(|(name, path)| (name.clone(), path.clone()));
    let mut llama_servers = Vec::new();
    for (name, path) in usual.into_iter().chain(builds) {
        let said = ask(&path, &["--version"]).await.map(|(out, err)| version(&format!("{out}\n{err}")));
        llama_servers.push((name, ProgramLook { path, said }));
    }
    ProgramFacts {
        worker,
        no_worker,
        fake_worker,
        llama_servers,
        need_llama_server,
        own_version: env!("CARGO_PKG_VERSION").to_owned(),
        is_simulated: config.simulate.is_some(),
    }
}

fn about(out: &str) -> Result<WorkerAbout, String> {
    let line = out.lines().last().unwrap_or_default();
    serde_json::from_str(line)
        .map_err(|_| "it does not know `about`, so it is another version or another program".to_owned())
}

/// The line of a program's output that has its version.
fn version(out: &str) -> String {
    let line =
        out.lines().find(|line| line.contains("version")).or_else(|| out.lines().find(|line| !line.trim().is_empty()));
    line.unwrap_or("it tells no version").trim().chars().take(LONGEST).collect()
}

/// The texts that a program writes to standard output and standard error, or why it failed.
pub(crate) async fn ask(program: &Path, arguments: &[&str]) -> Result<(String, String), String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = match timeout(PATIENCE, command.output()).await {
        Err(_) => return Err(format!("it has not ended for {} s", PATIENCE.as_secs())),
        Ok(Err(error)) => return Err(error.to_string()),
        Ok(Ok(output)) => output,
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() {
        return Ok((out, err));
    }
    let last: String = err.lines().last().unwrap_or_default().chars().take(LONGEST).collect();
    Err(format!("{}{}{last}", output.status, if last.is_empty() { "" } else { ": " }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn op_1_a_program_says_its_version_or_why_not() {
        let shell = Path::new("/bin/sh");
        let said = ask(shell, &["-c", "echo a; echo 'version: 5 (b)' >&2"]).await.unwrap();
        assert_eq!(version(&format!("{}\n{}", said.0, said.1)), "version: 5 (b)");
        let failed = ask(shell, &["-c", "echo no such library >&2; exit 3"]).await.unwrap_err();
        assert!(failed.contains('3') && failed.ends_with("no such library"), "{failed}");
        assert!(ask(Path::new("/nowhere"), &[]).await.is_err());
        assert!(about("usage: …").unwrap_err().contains("about"));
    }
}
