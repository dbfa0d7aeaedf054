//! The processor and the cores that this process may use.

use model_boss_config::Config;
use model_boss_protocol::{InstructionSet, WorkerAbout};

use super::super::checks::processor::ProcessorFacts;
use super::machine::{control_groups, field, text};

/// The facts, where a worker may have told its own.
pub(crate) fn processor(config: &Config, worker: Option<&WorkerAbout>) -> ProcessorFacts {
    let info = text("/proc/cpuinfo").unwrap_or_default();
    let all = info.lines().filter(|line| line.starts_with("processor")).count().max(1);
    let allowed = text("/proc/self/status").and_then(|status| field(&status, "Cpus_allowed_list"));
    let mut available = InstructionSet::available();
    available.sort();
    ProcessorFacts {
        name: field(&info, "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        usable: allowed.as_deref().map_or(all, listed),
        all,
        quota: quota(),
        available,
        chosen: config.cpu_features,
        worker: worker.map(|about| (about.cpu_features, about.threads)),
        governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    }
}

/// How many numbers a list such as `0-3,8` has.
fn listed(list: &str) -> usize {
    let count = |part: &str| match part.split_once('-') {
        Some((first, last)) => {
            let (first, last) = (first.parse::<usize>().unwrap_or(0), last.parse::<usize>().unwrap_or(0));
            last.saturating_sub(first) + 1
        }
        None => 1,
    };
    list.split(',').map(count).sum()
}

/// The lowest quota of the control groups, in processors.
fn quota() -> Option<f64> {
    let of = |group: std::path::PathBuf| {
        if let Some(limit) = text(group.join("cpu.max")) {
            let mut numbers = limit.split_whitespace().map(str::parse::<f64>);
            return Some(numbers.next()?.ok()? / numbers.next()?.ok()?);
        }
        let number = |name: &str| text(group.join(name))?.parse::<f64>().ok();
        let quota = number("cpu.cfs_quota_us").filter(|quota| *quota > 0.0)?;
        Some(quota / number("cpu.cfs_period_us")?)
    };
    control_groups("cpu").into_iter().filter_map(of).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_in_a_list_are_counted() {
        assert_eq!((listed("0"), listed("0-3"), listed("0-3,8,10-11")), (1, 4, 7));
    }
}
