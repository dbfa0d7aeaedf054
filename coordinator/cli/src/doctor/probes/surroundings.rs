//! System, user and container.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use model_boss_config::Config;
use nix::sys::utsname::uname;
use nix::unistd::geteuid;

use super::super::checks::surroundings::SurroundingFacts;
use super::machine::{field, mount_of, text, user_name};

/// The number of the first namespace of processes, which Linux fixes.
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Programs that reap orphans as process 1.
const INITS: [&str; 10] = [
    "systemd",
    "init",
    "tini",
    "dumb-init",
    "docker-init",
    "catatonit",
    "s6-svscan",
    "runit",
    "launchd",
    "openrc-init",
];
/// Variables that change how programs load libraries.
const LOADER: [&str; 3] = ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT"];

/// The surroundings of this process.
pub(crate) fn surroundings(config: &Config, has_gpu: bool) -> SurroundingFacts {
    let release = text("/etc/os-release").and_then(|release| field(&release, "PRETTY_NAME"));
    let kernel = uname().ok();
    let kernel = kernel.map(|kernel| {
        let word = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        format!("{} {} {}", word(kernel.sysname()), word(kernel.release()), word(kernel.machine()))
    });
    let first = text("/proc/1/comm").unwrap_or_default();
    SurroundingFacts {
        system: [release, kernel].into_iter().flatten().collect::<Vec<_>>().join(", "),
        user: user_name(geteuid().as_raw()),
        is_root: geteuid().is_root(),
        container: container(),
        wsl: wsl(),
        sees_host: Path::new("/proc/self/ns/pid").metadata().is_ok_and(|about| about.ino() == FIRST_NAMESPACE),
        has_gpu,
        is_loopback: config.host.iter().all(|address: IpAddr| address.is_loopback()),
        is_first_process_reaping: INITS.contains(&first.as_str()),
        hides_processes: mount_of(Path::new("/proc")).is_some_and(|(_, options)| {
            options
                .split(',')
                .any(|option| option.starts_with("hidepid=") && !option.ends_with("=0") && !option.ends_with("=off"))
        }),
        loader_variables: LOADER
            .into_iter()
            .filter(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
            .map(str::to_owned)
            .collect(),
    }
}

/// The kind of container that this process is in.
pub(crate) fn container() -> Option<String> {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some("kubernetes".to_owned());
    }
    for (file, kind) in [("/.dockerenv", "docker"), ("/run/.containerenv", "podman")] {
        if Path::new(file).exists() {
            return Some(kind.to_owned());
        }
    }
    if let Some(kind) = text("/run/systemd/container").filter(|kind| !kind.is_empty()) {
        return Some(kind);
    }
    let groups = text("/proc/1/cgroup").unwrap_or_default();
    ["docker", "kubepods", "lxc", "libpod", "containerd"]
        .into_iter()
        .find(|kind| groups.contains(kind))
        .map(str::to_owned)
}

/// The version of the Windows Subsystem for Linux.
pub(crate) fn wsl() -> Option<u8> {
    let release = text("/proc/sys/kernel/osrelease")?.to_lowercase();
    release
        .contains("microsoft")
        .then(|| if release.contains("wsl2") || release.contains("microsoft-standard") { 2 } else { 1 })
}
