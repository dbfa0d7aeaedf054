//! The coordinator's port: who holds it, and whether a coordinator answers. Workers' ports too.

use std::ops::RangeInclusive;

use super::super::finding::{Area, Finding};

/// The program that answers at the coordinator's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DoorAnswer {
    /// No program listens.
    Nothing,
    /// A coordinator. Without a permitted key only its version is known.
    Coordinator { version: String, status: Option<String>, problems: Vec<String>, loaded: usize },
    /// Something that is no coordinator, with the reason for this belief.
    Stranger(String),
}

/// A process that holds a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortHolder {
    pub(crate) pid: Option<u32>,
    pub(crate) program: String,
    pub(crate) user: String,
}

/// Ports and who has them.
#[derive(Clone, Debug)]
pub(crate) struct DoorFacts {
    pub(crate) url: String,
    pub(crate) port: u16,
    /// Whether the address is on this machine.
    pub(crate) is_here: bool,
    pub(crate) answer: DoorAnswer,
    pub(crate) holder: Option<PortHolder>,
    pub(crate) own_version: String,
    /// The lowest port that a user without rights may take.
    pub(crate) first_free_port: u16,
    pub(crate) is_root: bool,
    pub(crate) worker_ports: RangeInclusive<u16>,
    /// Ports of that range that other programs listen on.
    pub(crate) taken: usize,
    /// The ports that the system gives to outgoing connections.
    pub(crate) outgoing: Option<RangeInclusive<u16>>,
}

pub(crate) fn judge(facts: &DoorFacts) -> Vec<Finding> {
    let area = Area::Coordinator;
    let mut findings = vec![answer(facts)];
    if let DoorAnswer::Coordinator { version, status, problems, .. } = &facts.answer {
        if *version != facts.own_version {
            let found = format!("the coordinator is version {version}, and this program is {}", facts.own_version);
            findings.push(
                Finding::warning(area, "version", found)
                    .why("Commands and coordinator may not understand each other, and a fault may be fixed already")
                    .remedy("Restart the coordinator after an update"),
            );
        }
        if let Some(status) = status.as_ref().filter(|status| *status != "ok") {
            findings.push(
                Finding::warning(area, "status", format!("its status is {status}"))
                    .why("It loads no model in this state")
                    .remedy("See the lines below, and `GET /api/v1/health`"),
            );
        }
        findings.extend(problems.iter().map(|problem| {
            Finding::warning(area, "reported_problem", format!("it reports: {problem}"))
                .why("The coordinator works around it, without the part that is named")
                .remedy("Correct what the line names; the coordinator sees it without a restart")
        }));
    }
    if facts.is_here && facts.port != 0 && facts.port < facts.first_free_port && !facts.is_root {
        findings.push(
            Finding::failure(area, "low_port", format!("port {} is below {}", facts.port, facts.first_free_port))
                .why("Only root may listen there")
                .remedy("Choose another port, or give the service CAP_NET_BIND_SERVICE"),
        );
    }
    if facts.is_here {
        findings.extend(worker_ports(facts));
    }
    findings
}

fn answer(facts: &DoorFacts) -> Finding {
    let (area, url) = (Area::Coordinator, &facts.url);
    let holder = facts.holder.as_ref().map(|holder| {
        let pid = holder.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
        format!("{}{pid} of {}", holder.program, holder.user)
    });
    match (&facts.answer, holder) {
        (DoorAnswer::Coordinator { version, status, loaded, .. }, _) => {
            let state = match (status, loaded) {
                (None, _) => "; it tells no more without a key (MODEL_BOSS_API_KEY)".to_owned(),
                (Some(_), 1) => ", 1 model loaded".to_owned(),
                (Some(_), many) => format!(", {many} models loaded"),
            };
            Finding::ok(area, "coordinator", format!("a coordinator answers at {url}: version {version}{state}"))
        }
        (DoorAnswer::Nothing, None) => {
            let free = if facts.is_here { format!("; port {} is free", facts.port) } else { String::new() };
            Finding::note(area, "coordinator", format!("no coordinator answers at {url}{free}"))
                .why("Commands such as `ps` and `load` need one")
                .remedy("`model-boss serve` starts one; --url or MODEL_BOSS_URL names another address")
        }
        (DoorAnswer::Nothing, Some(holder)) => Finding::failure(
            area,
            "coordinator",
            format!("port {} is held by {holder}, which does not answer", facts.port),
        )
        .why("A coordinator cannot listen there")
        .remedy("End that program, or choose another port: `model-boss serve --port NUMBER`"),
        (DoorAnswer::Stranger(why), holder) => {
            let holder =
                holder.map_or_else(|| "another program".to_owned(), |holder| format!("another program, {holder}"));
            Finding::failure(area, "coordinator", format!("{url} is held by {holder}: {why}"))
                .why("A coordinator cannot listen there, and commands would talk to the wrong program")
                .remedy("End that program, or choose another port: `model-boss serve --port NUMBER`, and MODEL_BOSS_URL for commands")
        }
    }
}

fn worker_ports(facts: &DoorFacts) -> Vec<Finding> {
    let area = Area::Coordinator;
    let (first, last) = (*facts.worker_ports.start(), *facts.worker_ports.end());
    let all = usize::from(last.saturating_sub(first)) + 1;
    let free = all.saturating_sub(facts.taken);
    let found = format!("{free} of {all} ports for workers are free ({first}–{last})");
    let mut findings = vec![match free {
        0 => Finding::failure(area, "worker_ports", found)
            .why("Each worker listens on a port of 127.0.0.1, so no model can be loaded")
            .remedy("Set worker_ports to a free range"),
        1..8 => Finding::warning(area, "worker_ports", found)
            .why("Each loaded model takes one")
            .remedy("Set worker_ports to a free range"),
        _ => Finding::ok(area, "worker_ports", found),
    }];
    if let Some(outgoing) = &facts.outgoing
        && first <= *outgoing.end()
        && *outgoing.start() <= last
    {
        let found = format!(
            "they overlap the system's ports for outgoing connections ({}–{})",
            outgoing.start(),
            outgoing.end()
        );
        findings.push(
            Finding::note(area, "outgoing_ports", found)
                .why("A connection of another program may take one at any moment; a worker then gets the next")
                .remedy("Set worker_ports below that range, or reserve them in net.ipv4.ip_local_reserved_ports"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    fn facts() -> DoorFacts {
        DoorFacts {
            url: "http://127.0.0.1:8210".into(),
            port: 8210,
            is_here: true,
            answer: DoorAnswer::Nothing,
            holder: None,
            own_version: "1.0".into(),
            first_free_port: 1024,
            is_root: false,
            worker_ports: 8300..=8499,
            taken: 0,
            outgoing: Some(32768..=60999),
        }
    }

    fn coordinator(version: &str, status: Option<&str>, problems: &[&str]) -> DoorAnswer {
        DoorAnswer::Coordinator {
            version: version.into(),
            status: status.map(str::to_owned),
            problems: problems.iter().map(|problem| (*problem).to_owned()).collect(),
            loaded: 1,
        }
    }

    #[test]
    fn op_1_the_port_is_free_a_coordinators_or_a_strangers() {
        let holder = Some(PortHolder { pid: Some(7), program: "nginx".into(), user: "www".into() });
        for (answer, holder, grade) in [
            (DoorAnswer::Nothing, None, Grade::Note),
            (DoorAnswer::Nothing, holder.clone(), Grade::Failure),
            (DoorAnswer::Stranger("it is nginx".into()), holder.clone(), Grade::Failure),
            (DoorAnswer::Stranger("it is nginx".into()), None, Grade::Failure),
            (coordinator("1.0", Some("ok"), &[]), holder.clone(), Grade::Ok),
            (coordinator("1.0", None, &[]), None, Grade::Ok),
        ] {
            let facts = DoorFacts { answer, holder, ..facts() };
            assert_eq!(results(&judge(&facts))[0], ("coordinator", grade), "{facts:?}");
        }
    }

    #[test]
    fn op_1_what_a_coordinator_reports_is_passed_on() {
        let facts = DoorFacts { answer: coordinator("0.9", Some("draining"), &["a", "b"]), ..facts() };
        let expected = ["coordinator", "version", "status", "reported_problem", "reported_problem", "worker_ports"];
        assert_eq!(results(&judge(&facts)).iter().map(|(check, _)| *check).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn op_1_ports_of_workers_are_counted() {
        for (taken, grade) in [(0, Grade::Ok), (195, Grade::Warning), (200, Grade::Failure)] {
            let facts = DoorFacts { taken, ..facts() };
            assert_eq!(results(&judge(&facts))[1], ("worker_ports", grade));
        }
        let facts = DoorFacts { worker_ports: 40_000..=40_100, port: 80, ..facts() };
        let found = results(&judge(&facts));
        assert!(found.contains(&("outgoing_ports", Grade::Note)) && found.contains(&("low_port", Grade::Failure)));
        let elsewhere = DoorFacts { is_here: false, ..facts };
        assert_eq!(results(&judge(&elsewhere)).len(), 1, "ports of another machine are not known");
    }
}
