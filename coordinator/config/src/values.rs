//! Values of settings that are not plain text or numbers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use model_boss_lease_store::redis_server;
use model_boss_protocol::KeepAlive;

/// The addresses to listen on; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<IpAddr>);

impl Default for Hosts {
    fn default() -> Self {
        Self(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)])
    }
}

impl Hosts {
    /// The addresses, each once; `None` where there are none.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Option<Self> {
        let mut hosts = Vec::new();
        for address in addresses {
            if !hosts.contains(&address) {
                hosts.push(address);
            }
        }
        (!hosts.is_empty()).then_some(Self(hosts))
    }

    /// All addresses, in order.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.0.iter().copied()
    }

    /// The first address that other machines can reach, if there is one.
    pub fn open_to_others(&self) -> Option<IpAddr> {
        self.iter().find(|address| !address.is_loopback())
    }
}

/// The value of `MODEL_BOSS_MODEL_IDLE_SECS`: a bare number is seconds, and 0 disables unloading for idleness (BC-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleTime(pub KeepAlive);

/// A Redis server's URL, which may contain a password. Messages show it without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(String);

impl RedisUrl {
    /// Parses a URL that names a server.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        redis_server(text).map(|_| Self(text.to_owned())).map_err(|error| error.to_string())
    }

    /// The URL with its password, to connect with.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// The server's address, human-readable.
    pub fn server(&self) -> String {
        redis_server(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({})", self.server())
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.split_once("://"), self.0.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, place))) => write!(f, "{scheme}://***@{place}"),
            _ => f.write_str(&self.0),
        }
    }
}

/// The level of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    const WORDS: [(Self, &'static str); 6] = [
        (Self::Off, "off"),
        (Self::Error, "error"),
        (Self::Warn, "warn"),
        (Self::Info, "info"),
        (Self::Debug, "debug"),
        (Self::Trace, "trace"),
    ];

    /// The names of all levels.
    pub fn names() -> [&'static str; 6] {
        Self::WORDS.map(|(_, word)| word)
    }

    /// The level with this name.
    pub fn named(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(_, known)| *known == word).map(|(level, _)| *level)
    }

    /// The name of the value.
    pub fn as_str(self) -> &'static str {
        Self::WORDS.iter().find(|(level, _)| *level == self).map_or("off", |(_, word)| word)
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum LogFormat {
    Text,
    Json,
}

/// The place where parked prefixes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkingPlace {
    /// In the memory of the coordinator. They end with it.
    Memory,
    /// In files of the state folder.
    Files,
    /// Nowhere.
    Off,
}
