//! NVIDIA GPUs: the driver, its libraries, the rights to its device files, and what our worker was built for.

use std::path::PathBuf;

use model_boss_host::driver::{DriverFacts, GpuFacts};

use super::super::finding::{Area, Finding};

/// The oldest driver that serves CUDA 13, with which our worker is built.
const OLDEST_CUDA: (i32, i32) = (13, 0);
/// The compute capability from which bf16 models are computed as they are stored.
const BF16: u32 = 80;

/// A device file of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceFile {
    pub(crate) path: PathBuf,
    /// Whether this user may read and write it.
    pub(crate) is_usable: bool,
    pub(crate) group: String,
}

/// Facts about GPUs.
#[derive(Clone, Debug)]
pub(crate) struct GpuMachineFacts {
    pub(crate) driver: DriverFacts,
    /// NVIDIA's display controllers on the PCI bus.
    pub(crate) on_bus: usize,
    /// Whether the open driver `nouveau` has one of them.
    pub(crate) has_nouveau: bool,
    pub(crate) files: Vec<DeviceFile>,
    /// Libraries that our worker opens on a GPU, and where each was found.
    pub(crate) libraries: Vec<(&'static str, Option<PathBuf>)>,
    /// The lowest compute capability of our worker's build: `None` where it could not be asked.
    pub(crate) worker_cuda: Option<Option<u32>>,
    /// `CUDA_VISIBLE_DEVICES` of this process.
    pub(crate) visible: Option<String>,
    pub(crate) is_wsl: bool,
    pub(crate) container: Option<String>,
}

pub(crate) fn judge(facts: &GpuMachineFacts) -> Vec<Finding> {
    let area = Area::Gpu;
    let (version, cuda, gpus) = match &facts.driver {
        DriverFacts::Absent => return vec![without_driver(facts)],
        DriverFacts::Broken(why) => return broken(facts, why),
        DriverFacts::Works { gpus, .. } if gpus.is_empty() => {
            return vec![
                Finding::warning(area, "driver", "the driver works and lists no GPU")
                    .why("Models run on the CPU")
                    .remedy("Look at `nvidia-smi` and `dmesg`; in a container, start it with the GPUs (--gpus all)"),
            ];
        }
        DriverFacts::Works { version, cuda, gpus } => (version, *cuda, gpus),
    };
    let newest = cuda.map_or_else(|| "an unknown CUDA".to_owned(), |(major, minor)| format!("CUDA {major}.{minor}"));
    let found = format!("driver {version} serves {newest}");
    let uses_cuda = matches!(facts.worker_cuda, Some(Some(_)));
    let mut findings = vec![match cuda {
        Some(cuda) if cuda < OLDEST_CUDA && uses_cuda => Finding::failure(area, "driver", found)
            .why("Our worker is built with CUDA 13 and cannot use an older driver")
            .remedy("Install driver 580 or newer"),
        Some(cuda) if cuda < OLDEST_CUDA => Finding::note(area, "driver", found)
            .why("Our worker's build for GPUs needs CUDA 13, and driver 580 or newer has it")
            .remedy("Install driver 580 or newer before that build is used"),
        _ => Finding::ok(area, "driver", found),
    }];
    findings.extend(files(facts));
    if uses_cuda {
        findings.extend(libraries(facts));
    }
    findings.extend(gpus.iter().enumerate().flat_map(|(index, gpu)| gpu_findings(index, gpu, facts)));
    findings.extend(build(facts, gpus));
    if let Some(visible) = &facts.visible {
        findings.push(
            Finding::note(area, "visible_devices", format!("CUDA_VISIBLE_DEVICES is set here: '{visible}'"))
                .why("The coordinator ignores it, and gives each worker the UUIDs of its own GPUs")
                .remedy("To leave a GPU to other programs, use `model-boss free cuda:N` or a lease"),
        );
    }
    findings
}

fn without_driver(facts: &GpuMachineFacts) -> Finding {
    let area = Area::Gpu;
    if facts.on_bus == 0 {
        return Finding::ok(area, "driver", "no NVIDIA GPU and no driver: models run on the CPU");
    }
    let which = if facts.has_nouveau { "; the driver nouveau has it, which cannot compute" } else { "" };
    let to_do = match &facts.container {
        Some(_) => "Start the container with the GPUs (docker: --gpus all, with the NVIDIA container toolkit)",
        None if facts.is_wsl => "Install the driver in Windows, and none inside WSL",
        None => "Install NVIDIA's driver 580 or newer",
    };
    let many =
        if facts.on_bus == 1 { "1 NVIDIA GPU is".to_owned() } else { format!("{} NVIDIA GPUs are", facts.on_bus) };
    Finding::failure(
        area,
        "driver",
        format!("{many} on the bus, and the driver's library (libnvidia-ml.so.1) is missing{which}"),
    )
    .why("No GPU can be used, and models run on the CPU")
    .remedy(to_do)
}

fn broken(facts: &GpuMachineFacts, why: &str) -> Vec<Finding> {
    let mismatch = why.to_lowercase().contains("mismatch");
    let to_do = match (&facts.container, mismatch) {
        (_, true) => "The driver was updated while its module ran: restart the machine, or load the module again",
        (Some(_), _) => "Start the container with the GPUs (docker: --gpus all), and compare with `nvidia-smi` outside",
        (None, _) => "Look at `nvidia-smi` and `dmesg`; the module (nvidia.ko) may not be loaded",
    };
    let finding = if facts.on_bus == 0 && facts.files.is_empty() {
        Finding::note(Area::Gpu, "driver", format!("the driver's library is here and does not work: {why}"))
    } else {
        Finding::failure(Area::Gpu, "driver", format!("the driver does not work: {why}"))
    };
    let mut findings = vec![finding.why("No GPU can be used, and models run on the CPU").remedy(to_do)];
    findings.extend(files(facts));
    findings
}

fn files(facts: &GpuMachineFacts) -> Vec<Finding> {
    let area = Area::Gpu;
    let closed: Vec<&DeviceFile> = facts.files.iter().filter(|file| !file.is_usable).collect();
    if let Some(first) = closed.first() {
        let names: Vec<String> = closed.iter().map(|file| file.path.display().to_string()).collect();
        return vec![
            Finding::failure(area, "device_files", format!("this user may not open {}", names.join(", ")))
                .why("Workers run as this user and open these files")
                .remedy(format!(
                    "Add the user to the group {} and log in again, or correct the files' mode",
                    first.group
                )),
        ];
    }
    let has_unified = facts.files.iter().any(|file| file.path.ends_with("nvidia-uvm"));
    match facts.files.len() {
        0 if facts.is_wsl => Vec::new(),
        0 => vec![
            Finding::failure(area, "device_files", "there are no files /dev/nvidia*")
                .why("CUDA opens them")
                .remedy("Run `nvidia-modprobe` as root, or `nvidia-smi` once; in a container, pass the GPUs"),
        ],
        _ if !has_unified => vec![
            Finding::failure(area, "device_files", "/dev/nvidia-uvm is missing")
                .why("CUDA does not start without it, while `nvidia-smi` works: this is often so after a restart")
                .remedy("Run `nvidia-modprobe -u` as root, or let the persistence daemon do it at each start"),
        ],
        many => vec![Finding::ok(area, "device_files", format!("this user may open all {many} files /dev/nvidia*"))],
    }
}

fn libraries(facts: &GpuMachineFacts) -> Vec<Finding> {
    let missing: Vec<&str> =
        facts.libraries.iter().filter(|(_, place)| place.is_none()).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return vec![Finding::ok(Area::Gpu, "libraries", "libcuda, cuBLAS and cuRAND are found")];
    }
    vec![
        Finding::failure(Area::Gpu, "libraries", format!("not found: {}", missing.join(", ")))
            .why("Our worker opens them when it uses a GPU, and ends without them")
            .remedy("Install CUDA 13's libraries, or set LD_LIBRARY_PATH to the nvidia/*/lib folders of an environment with torch (docs/cuda.md)"),
    ]
}

fn gpu_findings(index: usize, gpu: &GpuFacts, facts: &GpuMachineFacts) -> Vec<Finding> {
    let area = Area::Gpu;
    if let Some(why) = &gpu.trouble {
        return vec![
            Finding::failure(area, "gpu", format!("cuda:{index} gives no answers: {why}"))
                .why("Nothing is placed there")
                .remedy(
                    "Look at `dmesg` for NVRM and Xid lines; a GPU that fell off the bus comes back with a restart",
                ),
        ];
    }
    let capability =
        gpu.capability.map_or_else(|| "unknown".to_owned(), |number| format!("{}.{}", number / 10, number % 10));
    let found = format!("cuda:{index} {}, compute capability {capability}, {}", gpu.name, gpu.uuid);
    let lowest = facts.worker_cuda.flatten();
    let mut findings = vec![match (gpu.capability, lowest) {
        (Some(own), Some(lowest)) if own < lowest => Finding::failure(area, "gpu", found)
            .why(format!(
                "Our worker is built for {}.{} and newer, and has no code for this GPU",
                lowest / 10,
                lowest % 10
            ))
            .remedy(format!("Build it with `scripts/cuda-toolkit {own}`, or run models of this GPU by llama-server")),
        (Some(own), Some(_)) if own < BF16 => Finding::note(area, "gpu", found)
            .why("Models stored in bf16 are computed in f32 on it, which takes twice the memory")
            .remedy("Prefer quantised models there"),
        _ => Finding::ok(area, "gpu", found),
    }];
    if !gpu.tells_processes || facts.is_wsl {
        let found = format!("cuda:{index}: the driver does not tell the memory of processes apart");
        findings.push(
            Finding::note(area, "accounting", found)
                .why("Memory of other programs cannot be told from that of models, so loads take turns there (WSL, some MIG, containers)")
                .remedy("Set leases.foreign to what other programs take (docs/leases.md)"),
        );
    }
    if gpu.is_exclusive {
        findings.push(
            Finding::warning(area, "compute_mode", format!("cuda:{index} lets only one process compute, or none"))
                .why("A second model on it fails to load")
                .remedy("`nvidia-smi -c 0` as root permits several"),
        );
    }
    if gpu.is_divided {
        findings.push(
            Finding::note(area, "mig", format!("cuda:{index} is divided (MIG)"))
                .why("Its parts are not placed one by one; memory figures may be those of the whole GPU")
                .remedy("Leave it whole for model-boss, or give a container one part"),
        );
    }
    if gpu.persists == Some(false) && !facts.is_wsl {
        findings.push(
            Finding::note(area, "persistence", format!("cuda:{index} is not kept ready while nothing uses it"))
                .why("The first load after a pause waits for the driver, for seconds")
                .remedy("`nvidia-smi -pm 1` as root, or the service nvidia-persistenced"),
        );
    }
    if gpu.memory_errors > 0 {
        let found = format!("cuda:{index} had {} errors of memory that could not be corrected", gpu.memory_errors);
        findings.push(
            Finding::warning(area, "memory_errors", found)
                .why("Programs on it end, and answers may be wrong")
                .remedy("Restart the machine; if they come again, the GPU is broken"),
        );
    }
    findings
}

fn build(facts: &GpuMachineFacts, gpus: &[GpuFacts]) -> Option<Finding> {
    let finding = Finding::warning(
        Area::Gpu,
        "worker_build",
        format!(
            "our worker is built without CUDA, and there {} here",
            if gpus.len() == 1 { "is 1 GPU" } else { "are GPUs" }
        ),
    );
    matches!(facts.worker_cuda, Some(None)).then(|| {
        finding
            .why("Models that our worker runs stay on the CPU")
            .remedy("Build it with CUDA (docs/cuda.md), or run models on the GPU by llama-server (docs/engines.md)")
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    fn gpu() -> GpuFacts {
        let (name, uuid) = ("H100".into(), "GPU-1".into());
        GpuFacts {
            name,
            uuid,
            capability: Some(90),
            tells_processes: true,
            persists: Some(true),
            ..GpuFacts::default()
        }
    }

    fn file(path: &str, is_usable: bool) -> DeviceFile {
        DeviceFile { path: path.into(), is_usable, group: "video".into() }
    }

    fn works(gpus: Vec<GpuFacts>) -> GpuMachineFacts {
        GpuMachineFacts {
            driver: DriverFacts::Works { version: "580.1".into(), cuda: Some((13, 0)), gpus },
            on_bus: 1,
            has_nouveau: false,
            files: vec![file("/dev/nvidia0", true), file("/dev/nvidia-uvm", true)],
            libraries: vec![("libcuda.so.1", Some("/l".into()))],
            worker_cuda: Some(Some(80)),
            visible: None,
            is_wsl: false,
            container: None,
        }
    }

    #[test]
    fn op_1_a_machine_with_a_gpu_and_all_it_needs_is_good() {
        let checks = ["driver", "device_files", "libraries", "gpu"].map(|check| (check, Grade::Ok));
        assert_eq!(results(&judge(&works(vec![gpu()]))), checks);
    }

    #[test]
    fn op_1_each_missing_part_of_a_gpu_is_named() {
        let good = || works(vec![gpu()]);
        let absent = GpuMachineFacts { driver: DriverFacts::Absent, ..good() };
        let broken = |why: &str| GpuMachineFacts { driver: DriverFacts::Broken(why.into()), ..good() };
        let old = DriverFacts::Works { version: "550".into(), cuda: Some((12, 4)), gpus: vec![gpu()] };
        for (facts, expected) in [
            (GpuMachineFacts { on_bus: 0, ..absent.clone() }, ("driver", Grade::Ok)),
            (absent, ("driver", Grade::Failure)),
            (broken("Driver/library version mismatch"), ("driver", Grade::Failure)),
            (GpuMachineFacts { on_bus: 0, files: Vec::new(), ..broken("no") }, ("driver", Grade::Note)),
            (works(Vec::new()), ("driver", Grade::Warning)),
            (GpuMachineFacts { driver: old.clone(), ..good() }, ("driver", Grade::Failure)),
            (GpuMachineFacts { driver: old, worker_cuda: Some(None), ..good() }, ("driver", Grade::Note)),
            (GpuMachineFacts { files: vec![file("/dev/nvidia0", false)], ..good() }, ("device_files", Grade::Failure)),
            (GpuMachineFacts { files: vec![file("/dev/nvidia0", true)], ..good() }, ("device_files", Grade::Failure)),
            (GpuMachineFacts { files: Vec::new(), ..good() }, ("device_files", Grade::Failure)),
            (GpuMachineFacts { libraries: vec![("libcublas", None)], ..good() }, ("libraries", Grade::Failure)),
            (works(vec![GpuFacts { capability: Some(75), ..gpu() }]), ("gpu", Grade::Failure)),
            (works(vec![GpuFacts { trouble: Some("lost".into()), ..gpu() }]), ("gpu", Grade::Failure)),
            (works(vec![GpuFacts { is_exclusive: true, ..gpu() }]), ("compute_mode", Grade::Warning)),
            (works(vec![GpuFacts { is_divided: true, ..gpu() }]), ("mig", Grade::Note)),
            (works(vec![GpuFacts { persists: Some(false), ..gpu() }]), ("persistence", Grade::Note)),
            (works(vec![GpuFacts { memory_errors: 1, ..gpu() }]), ("memory_errors", Grade::Warning)),
            (works(vec![GpuFacts { tells_processes: false, ..gpu() }]), ("accounting", Grade::Note)),
            (GpuMachineFacts { worker_cuda: Some(None), ..good() }, ("worker_build", Grade::Warning)),
            (GpuMachineFacts { visible: Some("0".into()), ..good() }, ("visible_devices", Grade::Note)),
        ] {
            let found = results(&judge(&facts));
            assert!(found.contains(&expected), "{expected:?} in {found:?}");
        }
    }

    #[test]
    fn op_1_a_mismatch_after_an_update_is_told_from_a_container_without_gpus() {
        let of = |why: &str, container: Option<&str>| {
            let driver = DriverFacts::Broken(why.into());
            let facts = GpuMachineFacts { driver, container: container.map(str::to_owned), ..works(Vec::new()) };
            judge(&facts)[0].to_do.clone().unwrap()
        };
        assert!(of("library version mismatch", Some("docker")).contains("restart"));
        assert!(of("unknown error", Some("docker")).contains("--gpus all"));
        assert!(of("unknown error", None).contains("nvidia.ko"));
    }
}
