//! The processor time that control groups grant this process, version 1 and 2.

use std::fs;
use std::path::{Component, Path};

/// The smallest quota of this process's group and of the groups around it, in processors.
pub(crate) fn quota(root: &Path) -> Option<f64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounted = root.join("sys/fs/cgroup");
    let mut quotas = Vec::new();
    for line in groups.lines() {
        // The line is "0::/path" in version 2 and "4:cpu,cpuacct:/path" in version 1.
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if number == "0" && controllers.is_empty() {
            climb(&mounted, path, version_2, &mut quotas);
            climb(&mounted.join("unified"), path, version_2, &mut quotas);
        } else if controllers.split(',').any(|name| name == "cpu") {
            climb(&mounted.join("cpu"), path, version_1, &mut quotas);
            climb(&mounted.join(controllers), path, version_1, &mut quotas);
        }
    }
    quotas.into_iter().filter(|quota| quota.is_finite() && *quota > 0.0).reduce(f64::min)
}

/// Reads the group at `path` and every group above it. In a container the path may name a group that is not visible
/// there; then only the visible groups count, above all the mounted root.
fn climb(mounted: &Path, path: &str, read: fn(&Path) -> Option<f64>, quotas: &mut Vec<f64>) {
    let relative = Path::new(path.trim_start_matches('/'));
    let visible = relative.ancestors().filter(|group| group.components().all(|part| part != Component::ParentDir));
    quotas.extend(visible.filter_map(|group| read(&mounted.join(group))));
}

fn version_2(group: &Path) -> Option<f64> {
    let text = fs::read_to_string(group.join("cpu.max")).ok()?;
    let (time, period) = text.trim().split_once(' ')?;
    Some(time.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
}

fn version_1(group: &Path) -> Option<f64> {
    let number = |name| fs::read_to_string(group.join(name)).ok()?.trim().parse::<f64>().ok();
    Some(number("cpu.cfs_quota_us")? / number("cpu.cfs_period_us")?)
}
