//! The addresses of the server. An address other than loopback requires API keys.

use std::io;
use std::net::SocketAddr;

use model_boss_access::KeyFile;
use model_boss_config::Config;
use tokio::net::TcpListener;

use super::error::ServeError;

/// The keys that clients need; `None` where every caller on loopback is accepted.
pub(super) fn keys(config: &Config) -> Result<Option<KeyFile>, ServeError> {
    let keys = config.keys()?;
    if let (None, Some(host)) = (&keys, config.host.open_to_others()) {
        return Err(ServeError::OpenToAll(host));
    }
    Ok(keys)
}

/// Binds every address to the same port.
pub(super) async fn bind(config: &Config) -> Result<Vec<TcpListener>, ServeError> {
    // A port that the system chose for the first address may be taken at the next.
    const TRIES: usize = 8;
    for _ in 1..TRIES {
        match bind_once(config).await {
            Err(ServeError::Bind(_, error)) if config.port == 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
    bind_once(config).await
}

async fn bind_once(config: &Config) -> Result<Vec<TcpListener>, ServeError> {
    let (mut listeners, mut port) = (Vec::new(), config.port);
    for host in config.host.iter() {
        let address = SocketAddr::new(host, port);
        let failed = |error| ServeError::Bind(address, error);
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        port = listener.local_addr().map_err(failed)?.port();
        listeners.push(listener);
    }
    Ok(listeners)
}
