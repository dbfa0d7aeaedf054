//! The facts of a Redis server that decide whether it can keep leases. Reading them writes nothing.

use crate::error::StoreError;

use super::address::Address;
use super::link::RedisLink;

/// A server as its `INFO` describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisFacts {
    /// The server's address, without credentials.
    pub server: String,
    /// The version, such as `7.2.4`.
    pub version: String,
    /// Whether the version has all that leases need.
    pub is_new_enough: bool,
    /// `maxmemory-policy`.
    pub eviction: String,
    /// `maxmemory` in bytes; 0 is no limit.
    pub most_memory: u64,
    /// The memory in use, in bytes.
    pub used_memory: u64,
    /// Whether every change is appended to a file.
    pub appends: bool,
    /// Changes since the last snapshot.
    pub unsaved: u64,
    /// Whether the last snapshot and the last write of the append-only file succeeded.
    pub is_saving_well: bool,
    /// `master` or `slave`.
    pub role: String,
    /// Whether the server is a member of a cluster.
    pub is_cluster: bool,
    /// The server's time of day, in microseconds since 1970.
    pub time_us: u64,
}

impl RedisFacts {
    /// Asks the server of this URL.
    pub fn ask(url: &str) -> Result<Self, StoreError> {
        let mut link = RedisLink::new(Address::parse(url)?);
        let (info, time): (String, (u64, u64)) = link.ask(|connection| {
            let info: Vec<String> = ["server", "memory", "persistence", "replication", "cluster"]
                .into_iter()
                .map(|section| redis::cmd("INFO").arg(section).query(connection))
                .collect::<Result<_, _>>()?;
            Ok((info.concat(), redis::cmd("TIME").query(connection)?))
        })?;
        let time_us = time.0.saturating_mul(1_000_000).saturating_add(time.1);
        Ok(Self { server: link.server(), time_us, ..Self::of(&info) })
    }

    /// The facts in the text of `INFO`.
    fn of(info: &str) -> Self {
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().trim().to_owned()
        };
        let number = |name: &str| field(name).parse::<u64>().unwrap_or(0);
        let version = field("redis_version");
        Self {
            server: String::new(),
            is_new_enough: is_new_enough(&version),
            version,
            eviction: field("maxmemory_policy"),
            most_memory: number("maxmemory"),
            used_memory: number("used_memory"),
            appends: number("aof_enabled") == 1,
            unsaved: number("rdb_changes_since_last_save"),
            is_saving_well: field("rdb_last_bgsave_status") != "err" && field("aof_last_write_status") != "err",
            role: field("role"),
            is_cluster: number("cluster_enabled") == 1,
            time_us: 0,
        }
    }
}

/// Whether the version is 6.2 or newer. In older ones, a script that reads the time cannot write.
pub(super) fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn le_1_the_facts_of_a_server_are_read_from_its_info() {
        let info = "# Server\r\nredis_version:7.0.15\r\n# Memory\r\nused_memory:1000\r\nmaxmemory:2000\r\n\
                    maxmemory_policy:allkeys-lru\r\naof_enabled:0\r\nrdb_changes_since_last_save:3\r\n\
                    rdb_last_bgsave_status:err\r\naof_last_write_status:ok\r\nrole:slave\r\ncluster_enabled:1\r\n";
        let facts = RedisFacts::of(info);
        assert_eq!((facts.version.as_str(), facts.is_new_enough), ("7.0.15", true));
        assert_eq!((facts.eviction.as_str(), facts.most_memory, facts.used_memory), ("allkeys-lru", 2000, 1000));
        assert_eq!((facts.appends, facts.unsaved, facts.is_saving_well), (false, 3, false));
        assert_eq!((facts.role.as_str(), facts.is_cluster), ("slave", true));
        assert!(!RedisFacts::of("redis_version:6.0.16\r\n").is_new_enough);
    }
}
