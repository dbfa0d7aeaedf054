//! The programs that are started: our worker, the fake worker, llama-server.

use std::path::PathBuf;

use model_boss_protocol::WorkerAbout;

use super::super::finding::{Area, Finding};

/// A program that was looked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProgramLook<T> {
    pub(crate) path: PathBuf,
    /// The answer of the program about itself, or why there is none.
    pub(crate) said: Result<T, String>,
}

/// The programs.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgramFacts {
    /// Our worker, or why it was not found.
    pub(crate) worker: Option<ProgramLook<WorkerAbout>>,
    pub(crate) no_worker: Option<String>,
    pub(crate) fake_worker: Option<PathBuf>,
    /// Each build of llama-server, with its version.
    pub(crate) llama_servers: Vec<(String, ProgramLook<String>)>,
    /// Models that need llama-server.
    pub(crate) need_llama_server: Vec<String>,
    pub(crate) own_version: String,
    pub(crate) is_simulated: bool,
}

pub(crate) fn judge(facts: &ProgramFacts) -> Vec<Finding> {
    let mut findings = vec![worker(facts)];
    findings.extend(fake_worker(facts));
    findings.extend(llama_servers(facts));
    findings
}

fn worker(facts: &ProgramFacts) -> Finding {
    let area = Area::Programs;
    let Some(look) = &facts.worker else {
        let found = facts.no_worker.clone().unwrap_or_else(|| "model-boss-worker was not found".to_owned());
        return Finding::failure(area, "worker", found)
            .why("It runs every model that no other engine runs, and a coordinator does not start without it")
            .remedy("Put model-boss-worker beside model-boss or on PATH, or set worker_binary");
    };
    let path = look.path.display();
    match &look.said {
        Err(why) => Finding::failure(area, "worker", format!("{path} does not start: {why}"))
            .why("No model can be loaded by it")
            .remedy("Run it by hand with `about`. A missing library or another processor are frequent reasons; build it on this machine"),
        Ok(about) if about.version != facts.own_version => {
            let found = format!("{path} is version {}, and this program is {}", about.version, facts.own_version);
            Finding::warning(area, "worker", found)
                .why("Coordinator and worker are tested together only in the same version")
                .remedy("Install both from the same build")
        }
        Ok(about) => {
            let cuda = about.cuda.map_or_else(|| "without CUDA".to_owned(), |lowest| {
                format!("with CUDA for compute capability {}.{} and newer", lowest / 10, lowest % 10)
            });
            Finding::ok(area, "worker", format!("{path} starts: version {}, {cuda}", about.version))
        }
    }
}

fn fake_worker(facts: &ProgramFacts) -> Option<Finding> {
    let area = Area::Programs;
    match (&facts.fake_worker, facts.is_simulated) {
        (Some(path), true) => {
            Some(Finding::ok(area, "fake_worker", format!("{} runs the simulated models", path.display())))
        }
        (None, true) => Some(
            Finding::failure(area, "fake_worker", "model-boss-fake-worker was not found")
                .why("`simulate` runs every model with it")
                .remedy("Put it beside model-boss or on PATH"),
        ),
        (_, false) => None,
    }
}

fn llama_servers(facts: &ProgramFacts) -> Vec<Finding> {
    let area = Area::Programs;
    if facts.llama_servers.is_empty() {
        let found = "llama-server was not found";
        let install = "Install llama.cpp, then put llama-server on PATH or set llama_server (docs/engines.md)";
        return vec![match facts.need_llama_server.as_slice() {
            [] => Finding::note(area, "llama_server", format!("{found}; no model here needs it")).remedy(install),
            models => {
                Finding::failure(area, "llama_server", format!("{found}, and it is needed by {}", models.join(", ")))
                    .why("Their files cannot be run by our worker")
                    .remedy(install)
            }
        }];
    }
    let look = |(name, look): &(String, ProgramLook<String>)| match &look.said {
        Ok(version) => Finding::ok(area, "llama_server", format!("{name}: {}, {version}", look.path.display())),
        Err(why) => {
            Finding::failure(area, "llama_server", format!("{name}: {} does not start: {why}", look.path.display()))
                .why("Models that it should run cannot be loaded")
                .remedy("Run it by hand with --version. A build for another CUDA or processor is a frequent reason")
        }
    };
    facts.llama_servers.iter().map(look).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;
    use model_boss_protocol::{InstructionSet, SandboxState};

    fn about(version: &str) -> WorkerAbout {
        WorkerAbout {
            version: version.into(),
            cpu_features: InstructionSet::best(),
            sandbox: SandboxState::default(),
            threads: 1,
            cuda: None,
        }
    }

    #[test]
    fn op_1_a_worker_is_found_starts_and_is_of_this_version() {
        let with = |worker: Option<Result<WorkerAbout, String>>| ProgramFacts {
            worker: worker.map(|said| ProgramLook { path: "/w".into(), said }),
            own_version: "1.0".into(),
            ..ProgramFacts::default()
        };
        for (facts, grade) in [
            (with(None), Grade::Failure),
            (with(Some(Err("no libc".into()))), Grade::Failure),
            (with(Some(Ok(about("0.9")))), Grade::Warning),
            (with(Some(Ok(about("1.0")))), Grade::Ok),
        ] {
            assert_eq!(results(&judge(&facts))[0], ("worker", grade));
        }
    }

    #[test]
    fn op_1_llama_server_is_missed_only_where_a_model_needs_it() {
        let none = ProgramFacts::default();
        assert_eq!(results(&judge(&none))[1], ("llama_server", Grade::Note));
        let needed = ProgramFacts { need_llama_server: vec!["m".into()], ..none.clone() };
        assert_eq!(results(&judge(&needed))[1], ("llama_server", Grade::Failure));
        let look = |said: Result<&str, &str>| {
            let said = said.map(str::to_owned).map_err(str::to_owned);
            ("cuda".to_owned(), ProgramLook { path: "/l".into(), said })
        };
        let two = ProgramFacts { llama_servers: vec![look(Ok("b1")), look(Err("no libcuda"))], ..none.clone() };
        assert_eq!(results(&judge(&two))[1..], [("llama_server", Grade::Ok), ("llama_server", Grade::Failure)]);
        let simulated = ProgramFacts { is_simulated: true, ..none };
        assert_eq!(results(&judge(&simulated))[1], ("fake_worker", Grade::Failure));
    }
}
