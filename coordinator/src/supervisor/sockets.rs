//! Who listens on a port: an engine of others has no secret to show, so its answers count only when they come through a
//! socket that one of its own processes holds (RC-15). Reads `/proc`.

use std::collections::BTreeSet;
use std::fs;

use model_boss_lease_store::ProcessTree;

/// What is seen of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listener {
    /// A process of the session listens there, on loopback only.
    Ours,
    /// A process of the session listens there, where other machines may reach it.
    OursInTheOpen,
    /// Nobody, or somebody else.
    NotOurs,
}

/// Whether a process of the session of `leader` listens on `port`.
pub(super) fn listener(leader: u32, port: u16) -> Listener {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let listening: Vec<Socket> = tables.iter().flat_map(|table| listening(table, port)).collect();
    if listening.is_empty() {
        return Listener::NotOurs;
    }
    let held: BTreeSet<u64> = ProcessTree::session(leader).into_iter().flat_map(sockets_of).collect();
    let ours: Vec<&Socket> = listening.iter().filter(|socket| held.contains(&socket.inode)).collect();
    match () {
        () if ours.is_empty() => Listener::NotOurs,
        () if ours.iter().all(|socket| socket.is_loopback) => Listener::Ours,
        () => Listener::OursInTheOpen,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Socket {
    inode: u64,
    is_loopback: bool,
}

/// The sockets of a table of the kernel (proc(5), `/proc/net/tcp`) that listen on `port`.
fn listening(table: &str, port: u16) -> Vec<Socket> {
    const LISTEN: &str = "0A";
    let read = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, number) = fields.get(1)?.rsplit_once(':')?;
        let listens = *fields.get(3)? == LISTEN && u16::from_str_radix(number, 16).ok()? == port;
        let inode = fields.get(9)?.parse().ok().filter(|inode| *inode != 0)?;
        listens.then_some(Socket { inode, is_loopback: is_loopback(address) })
    };
    table.lines().skip(1).filter_map(read).collect()
}

/// The kernel writes an address as 32-bit words in the byte order of the machine.
fn is_loopback(address: &str) -> bool {
    let words: Vec<u32> = address
        .as_bytes()
        .chunks(8)
        .filter_map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok())
        .collect();
    let in_127 = |word: u32| word.to_ne_bytes()[0] == 127;
    match words[..] {
        [v4] => in_127(v4),
        [0, 0, 0, last] => last.to_ne_bytes() == [0, 0, 0, 1],
        // An IPv4 address inside an IPv6 one.
        [0, 0, mapped, v4] => mapped.to_ne_bytes() == [0, 0, 0xff, 0xff] && in_127(v4),
        _ => false,
    }
}

/// The inodes of the sockets a process holds. Nothing of a process that is gone or may not be looked at.
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

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:206C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0
   1: 0100007F:206C 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0 20 4 30 10 -1
   2: 00000000:206D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0 0 10 0
   3: 0100007F:206C 00000000:0000 06 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1
";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_kernels_table_is_read() {
        assert_eq!(listening(TABLE, 8300), [Socket { inode: 4711, is_loopback: true }]);
        assert_eq!(listening(TABLE, 8301), [Socket { inode: 4713, is_loopback: false }]);
        assert!(listening(TABLE, 8302).is_empty());
        assert!(is_loopback("00000000000000000000000001000000"));
        assert!(is_loopback("0000000000000000FFFF00000100007F"));
        assert!(!is_loopback("00000000000000000000000000000000"));
    }

    #[test]
    fn rc_15_a_socket_of_another_session_is_not_ours() {
        let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = stranger.local_addr().unwrap().port();
        let session = u32::try_from(nix::unistd::getsid(None).unwrap().as_raw()).unwrap();
        assert_eq!(listener(session, port), Listener::Ours);
        assert_eq!(listener(1, port), Listener::NotOurs);
        let open = TcpListener::bind("0.0.0.0:0").unwrap();
        assert_eq!(listener(session, open.local_addr().unwrap().port()), Listener::OursInTheOpen);
    }
}
