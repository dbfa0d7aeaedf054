//! The user at the other end of a connection. TCP carries no credentials, so the user is that of the socket in the
//! kernel's table. A caller on another host has no user here.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, OnceLock};

use model_boss_host::tcp_table;
use model_boss_lease_store::Caller;

/// The uid that the kernel shows for a user unknown to this user namespace (user_namespaces(7)).
const OVERFLOW: &str = "/proc/sys/kernel/overflowuid";
/// The map of a user namespace that has every user.
const WHOLE_MAP: [&str; 3] = ["0", "0", "4294967295"];

/// One connection. The table is read at most once for it, and only if a route needs it.
#[derive(Clone, Debug)]
pub struct Peer(Arc<Ends>);

#[derive(Debug)]
struct Ends {
    client: SocketAddr,
    server: SocketAddr,
    caller: OnceLock<Caller>,
}

impl Peer {
    /// The connection between these two addresses.
    pub fn new(client: SocketAddr, server: SocketAddr) -> Self {
        let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        Self(Arc::new(Ends { client: plain(client), server: plain(server), caller: OnceLock::new() }))
    }

    /// The address at the other end.
    pub fn client(&self) -> SocketAddr {
        self.0.client
    }

    /// The caller at the other end. The connection has to be open: the kernel forgets the owner of a closed socket.
    pub async fn caller(&self) -> Caller {
        if let Some(caller) = self.0.caller.get() {
            return *caller;
        }
        let ends = Arc::clone(&self.0);
        // The table has a line for every connection of the host, so it is not read on the thread that serves all of
        // them.
        let looked = tokio::task::spawn_blocking(move || ends.look()).await.unwrap_or(Caller::Unknown);
        if looked != Caller::Unknown {
            // Another request of the same connection may have stored the same result.
            let _ = self.0.caller.set(looked);
        }
        looked
    }
}

impl Ends {
    fn look(&self) -> Caller {
        let found = tcp_table::find(|socket| socket.local == self.client && socket.remote == self.server);
        match found {
            Some(socket) if socket.inode != 0 && is_told(socket.uid) => Caller::User(socket.uid),
            Some(_) => Caller::Unknown,
            None if is_of_this_host(self.client.ip()) => Caller::Unknown,
            None => Caller::Remote,
        }
    }
}

/// Whether an address is one of this host's: only those can be bound.
fn is_of_this_host(address: IpAddr) -> bool {
    address.is_loopback() || UdpSocket::bind((address, 0)).is_ok()
}

/// Whether this uid means one user. Inside a user namespace, all users from outside share one uid.
fn is_told(uid: u32) -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    if read(OVERFLOW).trim().parse() != Ok(uid) {
        return true;
    }
    read("/proc/self/uid_map").split_ascii_whitespace().eq(WHOLE_MAP)
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    fn connected(listen: &str, connect: &str) -> (TcpStream, TcpStream, Peer) {
        let listener = TcpListener::bind(listen).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect((connect, port)).unwrap();
        let (server, from) = listener.accept().unwrap();
        let peer = Peer::new(from, server.local_addr().unwrap());
        (client, server, peer)
    }

    #[tokio::test]
    async fn a_client_of_this_host_is_known_by_its_user() {
        let me = Caller::User(nix::unistd::getuid().as_raw());
        let (client, _server, peer) = connected("127.0.0.1:0", "127.0.0.1");
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(peer.caller().await, me, "also after it said all it has to say");
        // A listener for both families sees an IPv4 client inside an IPv6 address.
        if TcpListener::bind("[::]:0").is_ok() {
            let (_client, _server, peer) = connected("[::]:0", "127.0.0.1");
            assert_eq!(peer.caller().await, me);
            let (_client, _server, peer) = connected("[::]:0", "::1");
            assert_eq!(peer.caller().await, me);
        }
    }

    #[tokio::test]
    async fn a_client_that_has_left_is_nobody_and_not_root() {
        let (client, _server, peer) = connected("127.0.0.1:0", "127.0.0.1");
        drop(client);
        assert_eq!(peer.caller().await, Caller::Unknown);
    }

    #[test]
    fn who_has_an_address_of_another_host_is_remote() {
        let (server, client) = ("127.0.0.1:80".parse().unwrap(), "192.0.2.1:50000".parse().unwrap());
        assert_eq!(Ends { client, server, caller: OnceLock::new() }.look(), Caller::Remote);
    }
}
