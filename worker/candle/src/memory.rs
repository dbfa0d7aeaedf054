//! How much host memory is to be had. A process that takes more is killed without a word, so it is asked before a load.

/// Bytes the system could give without swapping; `None` where it does not say.
pub(crate) fn available() -> Option<u64> {
    available_in(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_words() {
        let meminfo = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   1048576 kB\n";
        assert_eq!(available_in(meminfo), Some(1 << 30));
        assert_eq!(available_in("MemTotal: 3 kB\n"), None);
        assert_eq!(available_in("MemAvailable: lots\n"), None);
    }
}
