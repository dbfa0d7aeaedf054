//! The processes that listen on a port. An external engine has no secret to prove its identity. Its answers count only
//! when they come through a socket that one of its own processes holds (RC-15). The module reads `/proc`.

use std::collections::BTreeSet;
use std::fs;

use model_boss_host::tcp_table::{TcpSocket, sockets};
use model_boss_lease_store::ProcessTree;

/// The owner of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortOwner {
    /// A process of the tree listens, on loopback only.
    Ours,
    /// A process of the tree listens, where other machines may reach it.
    OursInTheOpen,
    /// No process listens, or one outside of the tree.
    NotOurs,
}

/// Whether `root`, or a process below it, listens on `port`.
pub(super) fn listener(root: u32, port: u16) -> PortOwner {
    let listening: Vec<TcpSocket> =
        sockets().filter(|socket| socket.listens && socket.local.port() == port && socket.inode != 0).collect();
    if listening.is_empty() {
        return PortOwner::NotOurs;
    }
    let held: BTreeSet<u64> =
        ProcessTree::below(root).iter().map(|below| below.pid).chain([root]).flat_map(sockets_of).collect();
    let ours: Vec<&TcpSocket> = listening.iter().filter(|socket| held.contains(&socket.inode)).collect();
    match () {
        () if ours.is_empty() => PortOwner::NotOurs,
        () if ours.iter().all(|socket| socket.local.ip().is_loopback()) => PortOwner::Ours,
        () => PortOwner::OursInTheOpen,
    }
}

/// The inodes of the sockets that a process holds. The list is empty for a process that has ended or may not be
/// inspected.
fn sockets_of(pid: u32) -> Vec<u64> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let inode = |link: std::path::PathBuf| {
        let text = fs::read_link(link).ok()?;
        text.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    files.filter_map(|file| inode(file.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn rc_15_a_socket_of_another_tree_is_not_ours() {
        let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = stranger.local_addr().unwrap().port();
        let (own, parent) = (std::process::id(), nix::unistd::getppid().as_raw().cast_unsigned());
        assert_eq!(listener(own, port), PortOwner::Ours);
        assert_eq!(listener(parent, port), PortOwner::Ours, "below it");
        let mut other = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert_eq!(listener(other.id(), port), PortOwner::NotOurs);
        drop(other.stdin.take());
        other.wait().unwrap();
        let open = TcpListener::bind("0.0.0.0:0").unwrap();
        assert_eq!(listener(own, open.local_addr().unwrap().port()), PortOwner::OursInTheOpen);
    }
}
