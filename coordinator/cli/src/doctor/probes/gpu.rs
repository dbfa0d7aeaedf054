//! NVIDIA's driver, its device files and libraries.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use model_boss_host::driver::DriverFacts;
use nix::unistd::{AccessFlags, Gid, Group, access};

use super::super::checks::gpu::{DeviceFile, GpuMachineFacts};
use super::machine::text;

/// NVIDIA's number on the PCI bus.
const VENDOR: &str = "0x10de";
/// Libraries that our worker opens on a GPU, each under any of its names.
const LIBRARIES: [(&str, &[&str]); 4] = [
    ("libcuda.so.1", &["libcuda.so.1"]),
    ("libcublas.so (13 or 12)", &["libcublas.so.13", "libcublas.so.12", "libcublas.so"]),
    ("libcublasLt.so (13 or 12)", &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"]),
    ("libcurand.so.10", &["libcurand.so.10", "libcurand.so"]),
];
/// Folders of libraries that the loader searches by itself on some systems.
const FOLDERS: [&str; 5] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib"];

/// The facts, where the worker said what it is built for.
pub(crate) fn gpu(worker_cuda: Option<Option<u32>>, is_wsl: bool, container: Option<String>) -> GpuMachineFacts {
    let on_bus = controllers();
    GpuMachineFacts {
        driver: DriverFacts::read(),
        on_bus: on_bus.len(),
        has_nouveau: on_bus.iter().any(|driver| driver.as_deref() == Some("nouveau")),
        files: device_files(),
        libraries: libraries(),
        worker_cuda,
        visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        is_wsl,
        container,
    }
}

/// NVIDIA's display controllers on the bus, each with the name of its driver.
fn controllers() -> Vec<Option<String>> {
    let devices = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_gpu = |device: &PathBuf| {
        let class = text(device.join("class")).unwrap_or_default();
        text(device.join("vendor")).as_deref() == Some(VENDOR) && class.starts_with("0x03")
    };
    let driver = |device: PathBuf| {
        let link = fs::read_link(device.join("driver")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    };
    devices.filter(is_gpu).map(driver).collect()
}

fn device_files() -> Vec<DeviceFile> {
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let is_needed = |name: &str| {
        name == "nvidiactl"
            || name == "nvidia-uvm"
            || name
                .strip_prefix("nvidia")
                .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|c| c.is_ascii_digit()))
    };
    let paths = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_needed)).map(|entry| entry.path());
    let mut files: Vec<DeviceFile> = paths
        .map(|path| {
            let gid = path.metadata().map_or(0, |about| about.gid());
            let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
            let group = group.map_or_else(|| gid.to_string(), |group| group.name);
            DeviceFile { is_usable: access(&path, AccessFlags::R_OK | AccessFlags::W_OK).is_ok(), group, path }
        })
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn libraries() -> Vec<(&'static str, Option<PathBuf>)> {
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&variable).chain(FOLDERS.map(PathBuf::from)).collect();
    // The loader's own list; a system without the program has the folders only.
    let listed = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|program| Path::new(program).is_file());
    let listed = listed.and_then(|program| Command::new(program).arg("-p").output().ok());
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let in_list = |name: &str| {
        let line = listed.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")))?;
        Some(PathBuf::from(line.rsplit_once("=> ")?.1))
    };
    let find = |names: &[&str]| {
        names.iter().find_map(|name| {
            folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file()).or_else(|| in_list(name))
        })
    };
    LIBRARIES.iter().map(|(shown, names)| (*shown, find(names))).collect()
}
