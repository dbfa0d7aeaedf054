//! Which sites may talk to us. A web page anywhere can make a browser send requests to a loopback port, and can give its
//! own host name our address (DNS rebinding): the names in Host and Origin tell those requests apart. There is no CORS:
//! no page of another site ever reads an answer.

use std::net::{IpAddr, Ipv6Addr};

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Uri};
use model_boss_protocol::{ApiError, ErrorCode};

/// The names that mean this server.
#[derive(Clone, Debug)]
pub(crate) struct AllowedHosts {
    names: Vec<String>,
}

impl AllowedHosts {
    /// The loopback names, `configured`, and the address we listen on unless that is a wildcard.
    pub(crate) fn new(configured: &[String], listening: IpAddr) -> Self {
        let mut names: Vec<String> = configured.iter().map(|name| name.trim().to_ascii_lowercase()).collect();
        if !listening.is_unspecified() {
            names.push(listening.to_string());
        }
        Self { names }
    }

    /// Whether a request with this target and these headers may come in.
    pub(crate) fn check(&self, target: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().ok(),
            (None, _) => None,
            (Some(_), Some(_)) => return Err(forbidden("there is more than one Host header")),
        };
        let Some(host) = host else { return Err(forbidden("the Host header is missing or unreadable")) };
        // An absolute target outranks Host for whoever routes by it, so it must be allowed as well.
        for authority in std::iter::once(host).chain(target.authority().map(http::uri::Authority::as_str)) {
            if !self.allows_authority(authority) {
                return Err(forbidden(&format!(
                    "the Host '{authority}' is not allowed; add its name to allowed_hosts"
                )));
            }
        }
        for origin in headers.get_all(ORIGIN) {
            if !origin.to_str().is_ok_and(|origin| self.allows_origin(origin)) {
                let shown = String::from_utf8_lossy(origin.as_bytes());
                return Err(forbidden(&format!("the Origin '{shown}' is not allowed; add its name to allowed_hosts")));
            }
        }
        Ok(())
    }

    fn allows_origin(&self, origin: &str) -> bool {
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        matches!(scheme, "http" | "https") && self.allows_authority(authority)
    }

    /// `name`, `name:port`, `[v6]` or `[v6]:port`. The port says nothing about who somebody is.
    fn allows_authority(&self, authority: &str) -> bool {
        let (name, port) = match authority.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((address, rest)) => {
                    let Ok(address) = address.parse::<Ipv6Addr>() else { return false };
                    return port_is_sane(rest) && self.allows_address(address.into());
                }
                None => return false,
            },
            None => authority.find(':').map_or((authority, ""), |colon| authority.split_at(colon)),
        };
        port_is_sane(port) && self.allows_name(name)
    }

    fn allows_name(&self, name: &str) -> bool {
        if let Ok(address) = name.parse::<IpAddr>() {
            return self.allows_address(address);
        }
        let name = name.to_ascii_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        !name.is_empty() && (name == "localhost" || self.names.iter().any(|allowed| allowed == name))
    }

    fn allows_address(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.names.iter().any(|allowed| allowed.parse() == Ok(address))
    }
}

/// Nothing, or a colon and digits.
fn port_is_sane(port: &str) -> bool {
    port.is_empty()
        || port.strip_prefix(':').is_some_and(|digits| digits.parse::<u16>().is_ok_and(|_| !digits.starts_with('+')))
}

fn forbidden(why: &str) -> ApiError {
    ApiError::new(ErrorCode::ForbiddenOrigin, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hosts: &[&str], origins: &[&str], target: &str) -> bool {
        let allowed = AllowedHosts::new(&["boss.lan".into(), "10.0.0.7".into()], "192.168.1.5".parse().unwrap());
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, host.parse().unwrap());
        }
        for origin in origins {
            headers.append(ORIGIN, origin.parse().unwrap());
        }
        allowed.check(&target.parse().unwrap(), &headers).is_ok()
    }

    #[test]
    fn op_5_hosts() {
        for (host, allowed) in [
            ("localhost", true),
            ("localhost:8210", true),
            ("LOCALHOST:1", true),
            ("localhost.", true),
            ("localhost.:8210", true),
            ("127.0.0.1", true),
            ("127.0.0.1:8210", true),
            ("127.8.9.10:80", true),
            ("[::1]", true),
            ("[::1]:8210", true),
            ("[0:0:0:0:0:0:0:1]:8210", true),
            ("boss.lan", true),
            ("Boss.LAN:9999", true),
            ("boss.lan.", true),
            ("10.0.0.7:8210", true),
            ("192.168.1.5:8210", true),
            ("evil.example", false),
            ("evil.example:8210", false),
            ("localhost.evil.example", false),
            ("evil-localhost", false),
            ("sub.localhost", false),
            ("127.0.0.1.evil.example", false),
            ("127.0.0.1.nip.io:8210", false),
            ("127.1", false),
            ("2130706433", false),
            ("0x7f000001", false),
            ("0177.0.0.1", false),
            ("0.0.0.0:8210", false),
            ("[::]:8210", false),
            ("[::ffff:127.0.0.1]:8210", false),
            ("[::1", false),
            ("[::1]x", false),
            ("::1", false),
            ("10.0.0.8", false),
            ("192.168.1.6", false),
            ("user@localhost", false),
            ("localhost@evil.example", false),
            ("localhost:8210@evil.example", false),
            ("localhost:port", false),
            ("localhost:+80", false),
            ("localhost:99999", false),
            ("localhost:80:80", false),
            ("localhost evil.example", false),
            ("localhost/evil", false),
            ("xboss.lan", false),
            ("", false),
            (".", false),
        ] {
            assert_eq!(check(&[host], &[], "/v1/models"), allowed, "{host:?}");
        }
    }

    #[test]
    fn op_5_origins() {
        for (origin, allowed) in [
            ("http://localhost:8210", true),
            ("https://localhost", true),
            ("http://127.0.0.1:3000", true),
            ("http://[::1]:8210", true),
            ("http://boss.lan", true),
            ("null", false),
            ("", false),
            ("localhost", false),
            ("file://", false),
            ("file://localhost", false),
            ("chrome-extension://localhost", false),
            ("https://evil.example", false),
            ("http://localhost.evil.example", false),
            ("http://localhost:8210/path", false),
            ("http://localhost@evil.example", false),
            ("http://evil.example#localhost", false),
            ("http://evil.example http://localhost", false),
            ("HTTP://localhost", false),
        ] {
            assert_eq!(check(&["localhost"], &[origin], "/v1/models"), allowed, "{origin:?}");
        }
    }

    #[test]
    fn op_5_ambiguous_requests_are_refused() {
        assert!(!check(&[], &[], "/"));
        assert!(!check(&["localhost", "evil.example"], &[], "/"));
        assert!(!check(&["localhost", "localhost"], &[], "/"));
        assert!(!check(&["localhost"], &["http://localhost", "https://evil.example"], "/"));
        assert!(!check(&["localhost"], &[], "http://evil.example/v1/models"));
        assert!(check(&["localhost"], &[], "http://localhost:8210/v1/models"));
    }
}
