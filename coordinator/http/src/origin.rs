//! The sites whose pages may send requests. A web page anywhere can make a browser send requests to a loopback port. It
//! can also give its own host name this server's address (DNS rebinding). The names in Host and Origin reveal such
//! requests. Pages of other sites read no answer, unless `allowed_origins` names their site (CORS).

use std::net::{IpAddr, Ipv6Addr};

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, request};
use model_boss_config::Hosts;
use model_boss_config::origins::OriginPattern;
use model_boss_protocol::{ApiError, ErrorCode};

/// Names that this machine has inside containers and virtual machines that run on it. They cannot be registered as
/// domains.
const GUESTS_NAMES: [&str; 4] =
    ["host.docker.internal", "gateway.docker.internal", "host.containers.internal", "host.lima.internal"];
/// Routes of monitoring programs, some of which speak HTTP/1.0 and send no Host.
const WATCHED: [&str; 3] = ["/live", "/ready", "/health"];
/// The seconds for which a browser may cache a preflight answer.
const PREFLIGHT_AGE: HeaderValue = HeaderValue::from_static("600");
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE, OPTIONS");
/// The header that makes caches separate the answers to different sites.
const VARIES: HeaderValue = HeaderValue::from_static("Origin, Access-Control-Request-Headers");
/// Chrome's question whether public pages may reach private addresses.
const REQUEST_PRIVATE: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// The names of this server, and the sites that may call it.
#[derive(Clone, Debug)]
pub struct AllowedHosts {
    names: Vec<String>,
    /// Whether the server listens on loopback only.
    is_local: bool,
    origins: Vec<OriginPattern>,
}

/// Another site whose pages may read the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrossOrigin(HeaderValue);

impl CrossOrigin {
    /// Adds the headers that let the site's pages read an answer.
    pub fn allow(&self, answer: &mut HeaderMap) {
        answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.0.clone());
        answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
        answer.insert(VARY, VARIES);
    }

    /// The headers of an answer to a browser's preflight request; `None` for other requests.
    pub(crate) fn preflight(&self, asked: &request::Parts) -> Option<HeaderMap> {
        if !is_preflight(asked) {
            return None;
        }
        let mut answer = HeaderMap::new();
        self.allow(&mut answer);
        answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        answer.insert(ACCESS_CONTROL_MAX_AGE, PREFLIGHT_AGE);
        // A wildcard would not include Authorization.
        if let Some(names) = asked.headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        if asked.headers.contains_key(REQUEST_PRIVATE) {
            answer.insert(ALLOW_PRIVATE, HeaderValue::from_static("true"));
        }
        Some(answer)
    }
}

/// Whether a browser asks which sites may send a request, before it sends one.
pub(crate) fn is_preflight(asked: &request::Parts) -> bool {
    asked.method == Method::OPTIONS && asked.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

impl AllowedHosts {
    /// The loopback names, `configured`, and the addresses that the server listens on unless one is a wildcard. Invalid
    /// `origins` are skipped here: reading the configuration reports them.
    pub fn new(configured: &[String], origins: &[String], listening: &Hosts) -> Self {
        let mut names: Vec<String> = configured.iter().map(|name| name.trim().to_ascii_lowercase()).collect();
        names.extend(listening.iter().filter(|address| !address.is_unspecified()).map(|address| address.to_string()));
        let origins = origins.iter().filter_map(|origin| origin.parse().ok()).collect();
        Self { names, is_local: listening.open_to_others().is_none(), origins }
    }

    /// Whether a request is accepted, and which other site's pages may read the answer.
    pub fn check(&self, request: &request::Parts) -> Result<Option<CrossOrigin>, ApiError> {
        self.check_host(request)?;
        let mut origins = request.headers.get_all(ORIGIN).iter();
        let (Some(origin), second) = (origins.next(), origins.next()) else { return Ok(None) };
        let text = origin.to_str().unwrap_or_default();
        if second.is_none() && self.origins.iter().any(|pattern| pattern.matches(text)) {
            return Ok(Some(CrossOrigin(origin.clone())));
        }
        let ours = request.headers.get_all(ORIGIN).iter().all(|origin| origin.to_str().is_ok_and(|o| self.is_ours(o)));
        if ours && !is_preflight(request) {
            return Ok(None);
        }
        let shown = String::from_utf8_lossy(origin.as_bytes());
        Err(forbidden(&format!(
            "pages of the Origin '{shown}' may not call this server; add it to allowed_origins (--allowed-origins, \
             MODEL_BOSS_ALLOWED_ORIGINS)"
        )))
    }

    fn check_host(&self, request: &request::Parts) -> Result<(), ApiError> {
        let mut hosts = request.headers.get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().ok(),
            (None, _) if request.version == Version::HTTP_10 && is_watched(&request.uri) => return Ok(()),
            (None, _) => None,
            (Some(_), Some(_)) => return Err(forbidden("there is more than one Host header")),
        };
        let Some(host) = host else { return Err(forbidden("the Host header is missing or unreadable")) };
        // Routers prefer an absolute target to Host, so its name must be allowed as well.
        for authority in std::iter::once(host).chain(request.uri.authority().map(http::uri::Authority::as_str)) {
            if !self.allows_authority(authority) && !self.is_guests(authority) {
                return Err(forbidden(&format!(
                    "the Host '{authority}' is not allowed; add its name to allowed_hosts (--allowed-hosts, \
                     MODEL_BOSS_ALLOWED_HOSTS)"
                )));
            }
        }
        Ok(())
    }

    /// Whether a program on this machine uses a name that only its containers have.
    fn is_guests(&self, authority: &str) -> bool {
        let (name, port) = authority.find(':').map_or((authority, ""), |colon| authority.split_at(colon));
        self.is_local && port_is_sane(port) && GUESTS_NAMES.iter().any(|guests| name.eq_ignore_ascii_case(guests))
    }

    fn is_ours(&self, origin: &str) -> bool {
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        matches!(scheme, "http" | "https") && self.allows_authority(authority)
    }

    /// Whether `name`, `name:port`, `[v6]` or `[v6]:port` names this server. The port is ignored, as it does not
    /// identify a site.
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

fn is_watched(target: &Uri) -> bool {
    target.authority().is_none() && WATCHED.contains(&target.path())
}

/// Whether `port` is empty, or a colon and digits.
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

    fn allowed(listening: &str, origins: &[&str]) -> AllowedHosts {
        let listening = Hosts::new(listening.split(' ').map(|address| address.parse().unwrap())).unwrap();
        let origins: Vec<String> = origins.iter().map(|origin| (*origin).to_owned()).collect();
        AllowedHosts::new(&["boss.lan".into(), "10.0.0.7".into()], &origins, &listening)
    }

    fn parts(method: Method, target: &str, headers: &[(&str, &str)]) -> request::Parts {
        let mut request = http::Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn check(hosts: &[&str], origins: &[&str], target: &str) -> bool {
        let headers: Vec<(&str, &str)> =
            hosts.iter().map(|host| ("host", *host)).chain(origins.iter().map(|origin| ("origin", *origin))).collect();
        allowed("192.168.1.5", &[]).check(&parts(Method::GET, target, &headers)).is_ok()
    }

    #[test]
    fn op_5_containers_of_this_machine_know_it_by_another_name() {
        let check = |listening: &str, host: &str| {
            allowed(listening, &[]).check(&parts(Method::GET, "/v1/models", &[("host", host)])).map_err(|e| e.message)
        };
        for host in ["host.docker.internal:8210", "Host.Docker.Internal", "host.containers.internal"] {
            assert_eq!(check("127.0.0.1 ::1", host), Ok(None), "{host}");
            let refused = check("127.0.0.1 192.168.1.5", host).unwrap_err();
            assert!(refused.contains(host) && refused.contains("--allowed-hosts"), "{refused}");
        }
        assert!(check("127.0.0.1", "host.docker.internal.evil.example").is_err());
        assert!(check("127.0.0.1", "host.docker.internal:80:80").is_err());
        let page = [("host", "localhost"), ("origin", "http://host.docker.internal")];
        assert!(allowed("127.0.0.1", &[]).check(&parts(Method::GET, "/", &page)).is_err(), "a page is no container");
    }

    #[test]
    fn op_5_watchers_of_old_send_no_host() {
        let check = |version: Version, target: &str, headers: &[(&str, &str)]| {
            let mut parts = parts(Method::GET, target, headers);
            parts.version = version;
            allowed("127.0.0.1", &[]).check(&parts).is_ok()
        };
        for target in WATCHED {
            assert!(check(Version::HTTP_10, target, &[]), "{target}");
            assert!(!check(Version::HTTP_11, target, &[]), "{target}");
            assert!(!check(Version::HTTP_10, target, &[("host", "evil.example")]), "{target}");
        }
        assert!(!check(Version::HTTP_10, "/v1/models", &[]));
        assert!(!check(Version::HTTP_10, "http://evil.example/live", &[]));
    }

    #[test]
    fn op_5_a_site_on_the_list_may_read_answers_and_no_other() {
        let sites = allowed("127.0.0.1", &["https://chat.example", "app://"]);
        let asked = |method: &Method, origin: &str, more: &[(&str, &str)]| {
            let headers = [&[("host", "localhost"), ("origin", origin)], more].concat();
            let parts = parts(method.clone(), "/v1/chat/completions", &headers);
            sites.check(&parts).map(|site| site.map(|site| (site.preflight(&parts), site)))
        };
        let wants = [
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,content-type"),
            ("access-control-request-private-network", "true"),
        ];
        for origin in ["https://chat.example", "app://obsidian.md"] {
            let (preflight, site) = asked(&Method::OPTIONS, origin, &wants).unwrap().unwrap();
            let preflight = preflight.unwrap();
            assert_eq!(preflight[ACCESS_CONTROL_ALLOW_ORIGIN], origin);
            assert_eq!(preflight[ACCESS_CONTROL_ALLOW_HEADERS], "authorization,content-type");
            assert_eq!(preflight[ALLOW_PRIVATE], "true");
            let mut answer = HeaderMap::new();
            site.allow(&mut answer);
            assert_eq!((&answer[ACCESS_CONTROL_ALLOW_ORIGIN], &answer[VARY]), (&site.0, &VARIES));
            let (preflight, _) = asked(&Method::POST, origin, &[]).unwrap().unwrap();
            assert_eq!(preflight, None, "the request itself");
        }
        for origin in ["https://evil.example", "null", "apps://x", "http://chat.example"] {
            for method in [Method::OPTIONS, Method::POST] {
                let refused = asked(&method, origin, &wants).unwrap_err();
                assert!(refused.message.contains("allowed_origins"), "{refused}");
            }
        }
        // A program on a port of this machine may call, but its pages read no answer.
        assert_eq!(asked(&Method::POST, "http://localhost:3000", &[]), Ok(None));
        assert!(asked(&Method::OPTIONS, "http://localhost:3000", &wants).is_err());
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
