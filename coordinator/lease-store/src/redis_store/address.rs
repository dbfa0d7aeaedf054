//! Addresses of Redis servers: parsed from URLs, and shown without credentials.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::StoreError;

/// The port of a sentinel when none is given.
const SENTINEL_PORT: u16 = 26_379;

/// The address of a server.
#[derive(Clone, Debug)]
pub(super) enum Address {
    /// A fixed address.
    Direct(ConnectionInfo),
    /// An address that sentinels report.
    Sentinels {
        /// The connections to the sentinels.
        sentinels: Vec<ConnectionInfo>,
        /// The sentinels' name of the server.
        service: String,
        /// The connection to the server, without its address.
        server: ConnectionInfo,
    },
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let bad = |detail: String| StoreError::BadUrl { url: without_credentials(url), detail };
        if let Some(rest) = url.strip_prefix("redis+sentinel://") {
            return sentinels("redis", rest).map_err(bad);
        }
        if let Some(rest) = url.strip_prefix("rediss+sentinel://") {
            return sentinels("rediss", rest).map_err(bad);
        }
        url.into_connection_info().map(Self::Direct).map_err(|error| {
            bad(format!(
                "{}; write redis://HOST:PORT, rediss://HOST:PORT for TLS, redis+unix:///PATH or redis+sentinel://HOST:PORT,HOST:PORT/SERVICE",
                error.detail().unwrap_or("it cannot be read")
            ))
        })
    }

    /// The address for messages, never with credentials.
    pub(super) fn show(&self) -> String {
        match self {
            Self::Direct(info) => format!("{}/{}", info.addr(), info.redis_settings().db()),
            Self::Sentinels { sentinels, service, server } => {
                let places: Vec<String> = sentinels.iter().map(|sentinel| sentinel.addr().to_string()).collect();
                format!("{service}/{} of the sentinels {}", server.redis_settings().db(), places.join(", "))
            }
        }
    }
}

/// `[user:password@]host:port,host:port/service[/db]`. The credentials are the server's.
fn sentinels(scheme: &str, rest: &str) -> Result<Address, String> {
    let (credentials, rest) = rest.rsplit_once('@').map_or(("", rest), |(credentials, rest)| (credentials, rest));
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (service, db) = path.split_once('/').unwrap_or((path, "0"));
    if service.is_empty() {
        return Err("it names no service; write redis+sentinel://HOST:PORT/SERVICE".to_owned());
    }
    let at = if credentials.is_empty() { "" } else { "@" };
    let read = |text: String| {
        let info = text.as_str().into_connection_info();
        info.map_err(|error| error.detail().unwrap_or("it cannot be read").to_owned())
    };
    let server = read(format!("{scheme}://{credentials}{at}localhost/{db}"))?;
    let with_port = |host: &str| {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if has_port { host.to_owned() } else { format!("{host}:{SENTINEL_PORT}") }
    };
    let sentinels =
        hosts.split(',').map(|host| read(format!("{scheme}://{}", with_port(host)))).collect::<Result<Vec<_>, _>>()?;
    Ok(Address::Sentinels { sentinels, service: service.to_owned(), server })
}

/// The settings of a connection with another address.
pub(super) fn at_place(server: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let addr = match server.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    server.clone().set_addr(addr)
}

fn without_credentials(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_without_credentials() {
        for (url, shown) in [
            ("redis://localhost", "localhost:6379/0"),
            ("redis://user:secret@h:7000/2", "h:7000/2"),
            ("rediss://h:7000", "h:7000/0"),
            ("redis+unix:///run/redis.sock", "/run/redis.sock/0"),
            ("redis+sentinel://a,b:5/main", "main/0 of the sentinels a:26379, b:5"),
            ("rediss+sentinel://user:secret@a/main/3", "main/3 of the sentinels a:26379"),
        ] {
            assert_eq!(Address::parse(url).unwrap().show(), shown, "{url}");
        }
        let Address::Sentinels { sentinels, server, .. } = Address::parse("rediss+sentinel://u:p%40@a/main").unwrap()
        else {
            panic!("not sentinels")
        };
        assert!(matches!(sentinels[0].addr(), ConnectionAddr::TcpTls { .. }));
        assert_eq!(server.redis_settings().password(), Some("p@"));
        assert_eq!(at_place(&server, "m".to_owned(), 9).addr().to_string(), "m:9");
    }

    #[test]
    fn a_wrong_address_is_named_without_its_password() {
        for url in ["http://u:secret@host", "redis://u:secret@host/notanumber", "redis+sentinel://u:secret@host"] {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains("host") && error.contains("write redis") || error.contains("no address"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
