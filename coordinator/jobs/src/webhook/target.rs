//! The place that a webhook goes to, and the rule about which are allowed.

use http::Uri;
use http::uri::Scheme;
use serde::{Deserialize, Serialize};

/// The longest URL.
const MAX_URL: usize = 2_000;

/// The hosts that webhooks may go to. Without any, there are no webhooks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookRules {
    /// Hosts whose addresses are of the internet.
    pub hosts: Vec<String>,
    /// Hosts whose addresses may be private too, and that may speak plain HTTP.
    pub private_hosts: Vec<String>,
}

/// A place that was allowed when the job was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookTarget {
    /// The URL as it was given.
    pub url: String,
}

/// The reason why a webhook is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookUrlError {
    /// The text is no URL of this kind.
    #[error("'{0}' is no URL for a webhook; write https://HOST/PATH")]
    Malformed(String),
    /// No host may get webhooks.
    #[error("webhooks are off; the operator may allow hosts by jobs.webhook_hosts")]
    Off,
    /// The host is not allowed.
    #[error("webhooks may not go to '{0}'; the operator may add it to jobs.webhook_hosts")]
    Host(String),
    /// The URL is not encrypted.
    #[error("webhooks to '{0}' need https://; plain HTTP is for hosts in jobs.webhook_private_hosts")]
    Plain(String),
}

/// The parts of a URL that a connection needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookPlace {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
    /// The path with its query.
    pub path: String,
    /// Whether the host's addresses may be private.
    pub may_be_private: bool,
}

impl WebhookRules {
    /// Checks a URL at the time of an order.
    pub fn admit(&self, url: &str) -> Result<HookTarget, HookUrlError> {
        self.place(&HookTarget { url: url.to_owned() })?;
        Ok(HookTarget { url: url.to_owned() })
    }

    /// Checks a target at the time of a delivery: the configuration may have changed since the order.
    pub fn place(&self, target: &HookTarget) -> Result<HookPlace, HookUrlError> {
        if self.hosts.is_empty() && self.private_hosts.is_empty() {
            return Err(HookUrlError::Off);
        }
        let malformed = || HookUrlError::Malformed(target.url.chars().take(200).collect());
        if target.url.len() > MAX_URL {
            return Err(malformed());
        }
        let uri: Uri = target.url.parse().map_err(|_| malformed())?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else { return Err(malformed()) };
        let is_tls = *scheme == Scheme::HTTPS;
        if (!is_tls && *scheme != Scheme::HTTP) || authority.as_str().contains('@') {
            return Err(malformed());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let is_in = |list: &[String]| list.iter().any(|allowed| allowed.eq_ignore_ascii_case(&host));
        let may_be_private = is_in(&self.private_hosts);
        if !may_be_private && !is_in(&self.hosts) {
            return Err(HookUrlError::Host(host));
        }
        if !is_tls && !may_be_private {
            return Err(HookUrlError::Plain(host));
        }
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(HookPlace { host, port, is_tls, path, may_be_private })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_26_webhooks_are_off_and_go_to_named_hosts_only() {
        let off = WebhookRules::default();
        assert_eq!(off.admit("https://hooks.example/x"), Err(HookUrlError::Off));
        let rules = WebhookRules {
            hosts: vec!["hooks.example".to_owned()],
            private_hosts: vec!["127.0.0.1".to_owned(), "::1".to_owned()],
        };
        let place = |url: &str| rules.place(&HookTarget { url: url.to_owned() });
        let good = place("https://Hooks.Example:8443/a?b=1").unwrap();
        assert_eq!(
            (good.host.as_str(), good.port, good.is_tls, good.path.as_str()),
            ("hooks.example", 8443, true, "/a?b=1")
        );
        assert!(!good.may_be_private && place("http://127.0.0.1:9/").unwrap().may_be_private);
        assert_eq!(place("http://[::1]:9/").unwrap().host, "::1");
        assert_eq!(place("http://hooks.example/"), Err(HookUrlError::Plain("hooks.example".to_owned())));
        for other in ["https://other.example/", "https://hooks.example.other/", "https://10.0.0.1/"] {
            assert!(matches!(place(other), Err(HookUrlError::Host(_))), "{other}");
        }
        for bad in ["hooks.example", "ftp://hooks.example/", "https://user@hooks.example/", "/path", ""] {
            assert!(matches!(place(bad), Err(HookUrlError::Malformed(_))), "{bad}");
        }
    }
}
