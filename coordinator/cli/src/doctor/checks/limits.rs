//! Limits on descriptors and processes, against what the settings can need.

use super::super::finding::{Area, Finding};

/// Connections that a small machine needs.
const FEW_CONNECTIONS: usize = 64;
/// Threads and processes of a coordinator with some models.
const FEW_PROCESSES: u64 = 512;

/// The limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitFacts {
    /// RLIMIT_NOFILE as this process got it, and its hard limit.
    pub(crate) descriptors: Option<(u64, u64)>,
    /// Connections of clients that a coordinator would serve with the hard limit.
    pub(crate) connections: usize,
    /// Requests that may wait in all, each with a connection.
    pub(crate) queue: usize,
    /// RLIMIT_NPROC.
    pub(crate) processes: Option<u64>,
    /// `pids.max` of the control group.
    pub(crate) group_processes: Option<u64>,
    /// RLIMIT_CORE.
    pub(crate) dumps_cores: bool,
}

pub(crate) fn judge(facts: &LimitFacts) -> Vec<Finding> {
    let area = Area::Limits;
    let mut findings = vec![descriptors(facts)];
    for (check, name, limit) in [
        ("processes", "RLIMIT_NPROC", facts.processes),
        ("group_processes", "pids.max of the control group", facts.group_processes),
    ] {
        if let Some(limit) = limit.filter(|limit| *limit < FEW_PROCESSES) {
            findings.push(
                Finding::warning(area, check, format!("{name} is {limit}"))
                    .why("Each model has processes and threads of its own; beyond the limit none can be started")
                    .remedy("Raise it: `ulimit -u`, TasksMax= in the service, --pids-limit of docker"),
            );
        }
    }
    if facts.dumps_cores {
        findings.push(
            Finding::note(area, "core_files", "a program that crashes leaves a core file")
                .why("That of a worker has the weights and the prompts in it, and is as large as the model")
                .remedy("`ulimit -c 0`, unless a fault is being looked for"),
        );
    }
    findings
}

fn descriptors(facts: &LimitFacts) -> Finding {
    let area = Area::Limits;
    let Some((soft, hard)) = facts.descriptors else {
        return Finding::note(area, "descriptors", "the system does not tell RLIMIT_NOFILE");
    };
    let found = format!(
        "up to {} connections at once, of {soft} descriptors that can be raised to {hard}; {} requests may wait",
        facts.connections, facts.queue
    );
    let to_do = "LimitNOFILE=65536 in the service, or raise the hard limit in /etc/security/limits.conf";
    if facts.connections < FEW_CONNECTIONS {
        Finding::warning(area, "descriptors", found)
            .why("Further clients are refused, and a proxy in front needs more")
            .remedy(to_do)
    } else if facts.connections < facts.queue {
        Finding::note(area, "descriptors", found)
            .why("Each waiting request has a connection, so the queue cannot become as long as it may")
            .remedy(to_do)
    } else {
        Finding::ok(area, "descriptors", found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    const GOOD: LimitFacts = LimitFacts {
        descriptors: Some((1_024, 65_536)),
        connections: 8_192,
        queue: 4_096,
        processes: Some(30_000),
        group_processes: None,
        dumps_cores: false,
    };

    #[test]
    fn op_1_descriptors_are_judged_by_what_the_settings_can_need() {
        for (connections, grade) in [(8_192, Grade::Ok), (400, Grade::Note), (10, Grade::Warning)] {
            assert_eq!(results(&judge(&LimitFacts { connections, ..GOOD })), [("descriptors", grade)]);
        }
        let tight = LimitFacts { processes: Some(10), group_processes: Some(100), dumps_cores: true, ..GOOD };
        let expected =
            [("processes", Grade::Warning), ("group_processes", Grade::Warning), ("core_files", Grade::Note)];
        assert_eq!(results(&judge(&tight))[1..], expected);
    }
}
