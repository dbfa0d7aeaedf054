//! Attempts to leave a sandbox, by a real process in a real one. Each fails with the error that is expected, and each
//! succeeds outside of a sandbox or for what is allowed, so that a failure has no other cause.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests, and helpers of tests")]

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

const PROBE: &str = env!("CARGO_BIN_EXE_model-boss-sandbox-probe");

const ACCESS: i32 = 13;
const PERMISSION: i32 = 1;
const NO_SUCH_CALL: i32 = 38;

/// The exit code of a probe that confined itself: the error of its attempt, 0 for none, 255 if that was impossible.
fn probe(kind: &str, allowed: &Path, attempt: &str, argument: &str) -> i32 {
    let status: ExitStatus = Command::new(PROBE)
        .args([kind.as_ref(), allowed.as_os_str(), attempt.as_ref(), argument.as_ref()])
        .stdin(Stdio::null())
        .status()
        .unwrap();
    status.code().unwrap_or_else(|| panic!("{attempt}: {status}"))
}

/// Whether this kernel has both Landlock and seccomp; if not, the line says that the test was left out.
fn confines() -> bool {
    let whole = probe("worker", Path::new("/"), "nothing", "") == 0;
    if !whole {
        eprintln!("left out: this kernel has no Landlock or no seccomp");
    }
    whole
}

/// A folder with a model's file and a secret beside it.
fn rig() -> (tempfile::TempDir, String, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("model")).unwrap();
    let of = |name: &str| folder.path().join(name).display().to_string();
    let (model, secret) = (of("model/m.gguf"), of("secret"));
    fs::write(&model, "GGUF").unwrap();
    fs::write(&secret, "secret").unwrap();
    (folder, model, secret)
}

#[test]
fn op_5_a_confined_process_reads_its_model_and_no_other_file() {
    if !confines() {
        return;
    }
    let (folder, model, secret) = rig();
    for kind in ["worker", "text-host"] {
        for allowed in [folder.path().join("model"), folder.path().join("model/m.gguf")] {
            assert_eq!(probe(kind, &allowed, "read", &model), 0, "{kind}");
        }
        let allowed = folder.path().join("model");
        assert_eq!(probe("outside", &allowed, "read", &secret), 0);
        for (attempt, argument) in [("read", secret.as_str()), ("read", "/etc/passwd"), ("list", "/"), ("memory", "")] {
            assert_eq!(probe(kind, &allowed, attempt, argument), ACCESS, "{kind}: {attempt} {argument}");
        }
    }
}

#[test]
fn op_5_a_confined_process_changes_no_file() {
    if !confines() {
        return;
    }
    let (folder, model, secret) = rig();
    let (allowed, new) = (folder.path().join("model"), folder.path().join("model/new").display().to_string());
    for attempt in ["write", "create", "remove", "rename", "mode"] {
        for file in if attempt == "create" { [&new, &new] } else { [&model, &secret] } {
            let error = probe("worker", &allowed, attempt, file);
            assert!([ACCESS, NO_SUCH_CALL].contains(&error), "{attempt} {file}: {error}");
            assert_eq!(probe("text-host", &allowed, attempt, file), NO_SUCH_CALL, "{attempt} {file}");
        }
    }
    let free = folder.path().join("free").display().to_string();
    for attempt in ["create", "write", "mode", "remove"] {
        assert_eq!(probe("outside", &allowed, attempt, &free), 0, "{attempt}");
    }
    assert_eq!((fs::read(&model).unwrap(), fs::read(&secret).unwrap()), (b"GGUF".to_vec(), b"secret".to_vec()));
    assert!(!Path::new(&new).exists());
}

#[test]
fn op_5_a_confined_process_reaches_no_socket_but_its_own() {
    if !confines() {
        return;
    }
    let (folder, _, _) = rig();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap().to_string();
    let path = folder.path().join("model/socket");
    let _unix = UnixListener::bind(&path).unwrap();
    let name = format!("model-boss-probe-{}", std::process::id());
    let _hidden = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let allowed = folder.path().join("model");
    for kind in ["worker", "text-host"] {
        let attempts = [
            ("connect", address.as_str()),
            ("fastopen", address.as_str()),
            ("bind", ""),
            ("udp", ""),
            ("unix", path.to_str().unwrap()),
            ("abstract", &name),
        ];
        for (attempt, argument) in attempts {
            assert_eq!(probe("outside", &allowed, attempt, argument), 0, "{attempt}");
            assert_eq!(probe(kind, &allowed, attempt, argument), NO_SUCH_CALL, "{kind}: {attempt}");
        }
    }
    assert_eq!(probe("worker", &allowed, "accept", ""), 0);
    assert_eq!(probe("worker", &allowed, "pair", ""), 0);
    assert_eq!(probe("text-host", &allowed, "accept", ""), NO_SUCH_CALL);
    assert_eq!(probe("text-host", &allowed, "pair", ""), NO_SUCH_CALL);
}

#[test]
fn op_5_a_confined_process_starts_and_touches_no_other() {
    if !confines() {
        return;
    }
    let (folder, _, _) = rig();
    for kind in ["worker", "text-host"] {
        for attempt in ["exec", "signal", "executable"] {
            assert_eq!(probe("outside", folder.path(), attempt, ""), 0, "{attempt}");
        }
        for attempt in ["exec", "attach", "peek", "signal", "executable"] {
            assert_eq!(probe(kind, folder.path(), attempt, ""), NO_SUCH_CALL, "{kind}: {attempt}");
        }
        assert_eq!(probe(kind, folder.path(), "thread", ""), 0, "{kind}");
        assert_ne!(probe(kind, folder.path(), "spawn", ""), 0, "{kind}");
    }
    assert_eq!(probe("worker", folder.path(), "kill", ""), NO_SUCH_CALL);
    // A text host may end processes that it forked. Landlock keeps others out of its reach, from ABI 6 on.
    if abi() >= 6 {
        assert_eq!(probe("text-host", folder.path(), "kill", ""), PERMISSION);
    }
}

/// The version of the kernel's Landlock.
fn abi() -> u32 {
    use landlock::{LandlockStatus, RestrictSelf};
    match RestrictSelf::default().no_new_privs(false).apply().unwrap().landlock {
        LandlockStatus::Available { effective_abi, .. } => (effective_abi as i32).unsigned_abs(),
        _ => 0,
    }
}
