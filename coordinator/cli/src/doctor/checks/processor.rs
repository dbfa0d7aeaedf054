//! The processor: its instructions, the kernels that are used, and cores that a process may use.

use model_boss_protocol::InstructionSet;

use super::super::finding::{Area, Finding};

/// Facts about the processor.
#[derive(Clone, Debug)]
pub(crate) struct ProcessorFacts {
    pub(crate) name: String,
    /// The processors that this process may use, and those of the machine.
    pub(crate) usable: usize,
    pub(crate) all: usize,
    /// The quota of the control group, in processors.
    pub(crate) quota: Option<f64>,
    /// The instructions that this machine has, best last.
    pub(crate) available: Vec<InstructionSet>,
    /// The setting `cpu_features`.
    pub(crate) chosen: Option<InstructionSet>,
    /// The instructions and threads that the worker said it uses.
    pub(crate) worker: Option<(InstructionSet, usize)>,
    /// The governor of the clock rate.
    pub(crate) governor: Option<String>,
}

pub(crate) fn judge(facts: &ProcessorFacts) -> Vec<Finding> {
    let area = Area::Processor;
    let threads =
        facts.worker.map(|(_, threads)| format!("; a model computes with {threads} threads")).unwrap_or_default();
    let mut findings = vec![Finding::ok(
        area,
        "cores",
        format!("{}, {} of {} processors may be used{threads}", facts.name, facts.usable, facts.all),
    )];
    findings.push(kernels(facts));
    if let Some(quota) = facts.quota.filter(|quota| *quota < facts.usable as f64) {
        findings.push(
            Finding::note(area, "quota", format!("a control group permits the time of {quota:.1} processors"))
                .why("Workers use as many threads as fit, since a group over its quota is stopped as a whole")
                .remedy("Raise the quota (CPUQuota=, docker --cpus) if more is meant"),
        );
    }
    if facts.governor.as_deref() == Some("powersave") {
        findings.push(
            Finding::note(area, "governor", "the clock rate's governor is powersave")
                .why("On some machines it keeps the rate low under load; measured rates then vary")
                .remedy("`cpupower frequency-set -g performance` before measurements"),
        );
    }
    findings
}

fn kernels(facts: &ProcessorFacts) -> Finding {
    let area = Area::Processor;
    let names = facts.available.iter().map(|set| set.name()).collect::<Vec<_>>().join(", ");
    let best = facts.available.last().copied().unwrap_or(InstructionSet::Portable);
    let used = facts.chosen.or(facts.worker.map(|(set, _)| set)).unwrap_or(best);
    let found = format!("products on the CPU use {}; this machine has {names}", used.name());
    if let Some(chosen) = facts.chosen.filter(|chosen| !facts.available.contains(chosen)) {
        return Finding::failure(
            area,
            "kernels",
            format!("cpu_features is {}, and this machine has {names}", chosen.name()),
        )
        .why("Every worker ends at its start")
        .remedy("Remove the setting: the fastest one is then used");
    }
    if used == InstructionSet::Portable {
        return Finding::warning(area, "kernels", found)
            .why("Products without vector instructions are several times slower")
            .remedy("Remove cpu_features if it is set; a virtual machine may hide instructions of its host (cpu mode host-passthrough)");
    }
    if facts.chosen.is_some() && used != best {
        return Finding::note(area, "kernels", found)
            .why("cpu_features chooses slower instructions than the machine has")
            .remedy("Remove the setting after the comparison");
    }
    Finding::ok(area, "kernels", found)
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    #[test]
    fn op_1_kernels_and_cores_are_told() {
        let good = ProcessorFacts {
            name: "CPU".into(),
            usable: 8,
            all: 8,
            quota: None,
            available: vec![InstructionSet::Portable, InstructionSet::Avx2],
            chosen: None,
            worker: None,
            governor: None,
        };
        assert_eq!(results(&judge(&good)), [("cores", Grade::Ok), ("kernels", Grade::Ok)]);
        let portable = vec![InstructionSet::Portable];
        for (facts, expected) in [
            (ProcessorFacts { available: portable.clone(), ..good.clone() }, ("kernels", Grade::Warning)),
            (ProcessorFacts { chosen: Some(InstructionSet::Portable), ..good.clone() }, ("kernels", Grade::Warning)),
            (ProcessorFacts { chosen: Some(InstructionSet::Avx512), ..good.clone() }, ("kernels", Grade::Failure)),
            (ProcessorFacts { quota: Some(2.0), ..good.clone() }, ("quota", Grade::Note)),
            (ProcessorFacts { governor: Some("powersave".into()), ..good.clone() }, ("governor", Grade::Note)),
        ] {
            let found = results(&judge(&facts));
            assert!(found.contains(&expected), "{expected:?} in {found:?}");
        }
        let slower = vec![InstructionSet::Portable, InstructionSet::Avx2, InstructionSet::Avx512];
        let slower = ProcessorFacts { available: slower, chosen: Some(InstructionSet::Avx2), ..good };
        assert_eq!(results(&judge(&slower))[1], ("kernels", Grade::Note));
    }
}
