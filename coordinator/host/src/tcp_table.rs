//! The kernel's table of TCP sockets (proc(5), `/proc/net/tcp` and `tcp6`): addresses, user and inode of each. The
//! module reads the table and decides nothing.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state of a listening socket, in hexadecimal.
const LISTEN: &str = "0A";
/// The table of IPv4 is read first, because most clients on loopback use it.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// The local address. An IPv4 address mapped into IPv6 is given as IPv4.
    pub local: SocketAddr,
    /// The peer's address, in the same form.
    pub remote: SocketAddr,
    /// Whether the socket listens.
    pub listens: bool,
    /// The user whose process created the socket. The number means nothing when `inode` is 0: the kernel then writes 0,
    /// which is root.
    pub uid: u32,
    /// The socket's inode; 0 when no process holds the socket any more.
    pub inode: u64,
}

/// The first socket that satisfies `wanted`. The table is read no further than that.
pub fn find(wanted: impl Fn(&TcpSocket) -> bool) -> Option<TcpSocket> {
    sockets().find(wanted)
}

/// Every socket of this network namespace.
pub fn sockets() -> impl Iterator<Item = TcpSocket> {
    let open = |path: &str| File::open(path).ok().map(BufReader::new);
    let lines = TABLES.into_iter().filter_map(open).flat_map(|table| table.lines().skip(1).map_while(Result::ok));
    lines.filter_map(|line| TcpSocket::read(&line))
}

impl TcpSocket {
    fn read(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        // The fields after the state are both queues and timers, then the user, the time-out and the inode.
        let (local, remote, state) = (address(fields.nth(1)?)?, address(fields.next()?)?, fields.next()?);
        let (uid, inode) = (fields.nth(3)?.parse().ok()?, fields.nth(1)?.parse().ok()?);
        Some(Self { local, remote, listens: state == LISTEN, uid, inode })
    }
}

/// An address as the kernel writes it, such as `0100007F:206C`: 32-bit words in the machine's byte order, then the
/// port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.rsplit_once(':')?;
    let words = address.as_bytes().chunks(8).map(|word| {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        Some(word.to_ne_bytes())
    });
    let bytes = words.collect::<Option<Vec<_>>>()?.concat();
    let ip: IpAddr = match bytes.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn the_kernels_lines_are_read() {
        let listens =
            "   0: 0100007F:206C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0";
        let socket = TcpSocket::read(listens).unwrap();
        assert_eq!((socket.local, socket.listens), ("127.0.0.1:8300".parse().unwrap(), true));
        assert_eq!((socket.uid, socket.inode), (1000, 4711));
        let connected = "   1: 0000000000000000FFFF00000100007F:C350 0000000000000000FFFF00000100007F:206C 01 \
                         00000000:00000000 00:00000000 00000000     7        0 12 1 0";
        let socket = TcpSocket::read(connected).unwrap();
        assert_eq!(socket.local, "127.0.0.1:50000".parse().unwrap(), "an address inside another is itself");
        assert_eq!((socket.remote, socket.listens), ("127.0.0.1:8300".parse().unwrap(), false));
        let v6 =
            "   1: 00000000000000000000000001000000:C350 00000000000000000000000001000000:206C 01 0:0 0:0 0 7 0 12 1";
        assert_eq!(TcpSocket::read(v6).unwrap().remote, "[::1]:8300".parse().unwrap());
        assert_eq!(TcpSocket::read("  sl  local_address rem_address   st"), None);
    }
}
