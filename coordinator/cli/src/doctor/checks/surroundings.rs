//! Where the process runs: system, user, containers and their traps.

use super::super::finding::{Area, Finding};

/// The surroundings.
#[derive(Clone, Debug, Default)]
pub(crate) struct SurroundingFacts {
    pub(crate) system: String,
    pub(crate) user: String,
    pub(crate) is_root: bool,
    /// The kind of container.
    pub(crate) container: Option<String>,
    /// The version of the Windows Subsystem for Linux.
    pub(crate) wsl: Option<u8>,
    /// Whether the process sees the other processes of the host.
    pub(crate) sees_host: bool,
    pub(crate) has_gpu: bool,
    /// Whether the coordinator would listen on loopback only.
    pub(crate) is_loopback: bool,
    /// Whether process 1 reaps orphans.
    pub(crate) is_first_process_reaping: bool,
    /// Whether /proc hides the processes of other users.
    pub(crate) hides_processes: bool,
    /// Variables that change how programs load libraries.
    pub(crate) loader_variables: Vec<String>,
}

pub(crate) fn judge(facts: &SurroundingFacts) -> Vec<Finding> {
    let area = Area::Surroundings;
    let mut findings = vec![Finding::ok(area, "system", format!("{}, user {}", facts.system, facts.user))];
    if let Some(kind) = &facts.container {
        findings.push(Finding::ok(area, "container", format!("this is a container ({kind})")));
        findings.extend(in_container(facts));
    }
    match facts.wsl {
        Some(1) => findings.push(
            Finding::failure(area, "wsl", "this is WSL 1")
                .why("It has no Linux kernel: control groups, sandboxes and GPUs do not work")
                .remedy("`wsl --set-version DISTRIBUTION 2` in Windows"),
        ),
        Some(version) => findings.push(
            Finding::note(area, "wsl", format!("this is WSL {version}"))
                .why("Windows shows no memory of single processes, keeps half of the memory for itself, and reads /mnt/c slowly")
                .remedy("Keep models on the Linux disk, set memory= in .wslconfig, and install the GPU's driver in Windows only"),
        ),
        None => {}
    }
    if facts.is_root && facts.container.is_none() {
        findings.push(
            Finding::note(area, "root", "this is root")
                .why("A coordinator of root serves models of all users, and a fault in it has all rights")
                .remedy("Run the service as a user of its own, with the groups of the GPUs' files"),
        );
    }
    if facts.hides_processes && !facts.is_root {
        findings.push(
            Finding::note(area, "hidepid", "/proc hides the processes of other users")
                .why("Holders of memory and ports that belong to others are not named")
                .remedy("Add the user to the group that /proc is mounted with (gid=)"),
        );
    }
    if !facts.loader_variables.is_empty() {
        findings.push(
            Finding::note(area, "loader", format!("{} is set", facts.loader_variables.join(", ")))
                .why("Workers may load other libraries than those of the system; a service does not have these variables")
                .remedy("Keep it only where a library is found no other way"),
        );
    }
    findings
}

fn in_container(facts: &SurroundingFacts) -> Vec<Finding> {
    let area = Area::Surroundings;
    let mut findings = Vec::new();
    if facts.is_loopback {
        findings.push(
            Finding::note(area, "container_port", "the coordinator listens on 127.0.0.1 of the container")
                .why("A published port (-p) does not reach it")
                .remedy("host = \"0.0.0.0\" with API keys and allowed_hosts, published as 127.0.0.1:8210:8210; or --network host"),
        );
    }
    if facts.has_gpu && !facts.sees_host {
        findings.push(
            Finding::note(area, "container_processes", "the container has process numbers of its own")
                .why("The GPU's driver names processes by the host's numbers, so memory is accounted by sums only, and loads take turns")
                .remedy("docker: --pid host, or set leases.foreign to what other programs take"),
        );
    }
    if !facts.is_first_process_reaping {
        findings.push(
            Finding::note(area, "container_init", "process 1 of the container is an ordinary program")
                .why("Ended processes that nobody reaps stay in the list; model-boss reaps its own")
                .remedy("docker: --init"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    #[test]
    fn op_1_traps_of_containers_and_wsl_are_told() {
        let good = SurroundingFacts { is_first_process_reaping: true, sees_host: true, ..SurroundingFacts::default() };
        assert_eq!(results(&judge(&good)), [("system", Grade::Ok)]);
        let docker = SurroundingFacts { container: Some("docker".into()), ..good.clone() };
        assert_eq!(results(&judge(&docker)), [("system", Grade::Ok), ("container", Grade::Ok)]);
        for (facts, expected) in [
            (SurroundingFacts { wsl: Some(1), ..good.clone() }, ("wsl", Grade::Failure)),
            (SurroundingFacts { wsl: Some(2), ..good.clone() }, ("wsl", Grade::Note)),
            (SurroundingFacts { is_root: true, ..good.clone() }, ("root", Grade::Note)),
            (SurroundingFacts { hides_processes: true, ..good.clone() }, ("hidepid", Grade::Note)),
            (SurroundingFacts { loader_variables: vec!["LD_PRELOAD".into()], ..good.clone() }, ("loader", Grade::Note)),
            (SurroundingFacts { is_loopback: true, ..docker.clone() }, ("container_port", Grade::Note)),
            (
                SurroundingFacts { has_gpu: true, sees_host: false, ..docker.clone() },
                ("container_processes", Grade::Note),
            ),
            (SurroundingFacts { is_first_process_reaping: false, ..docker.clone() }, ("container_init", Grade::Note)),
        ] {
            let found = results(&judge(&facts));
            assert!(found.contains(&expected), "{expected:?} in {found:?}");
        }
    }
}
