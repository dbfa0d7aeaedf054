//! The store of leases: an embedded file, or a Redis server that must not lose them.

use std::time::Duration;

use model_boss_lease_store::RedisFacts;

use super::super::finding::{Area, Finding};

/// The share of Redis' memory from which writes may soon fail.
const NEARLY_FULL: f64 = 0.9;
/// A difference of clocks that shows in times of logs and limits.
const APART: Duration = Duration::from_secs(2);

/// The store.
#[derive(Clone, Debug)]
pub(crate) enum LeaseStoreFacts {
    /// A file in the state folder.
    Embedded,
    /// A Redis server: its facts and how far its clock is from ours, or why it gave none.
    Redis { server: String, facts: Result<(RedisFacts, Duration), String> },
}

pub(crate) fn judge(facts: &LeaseStoreFacts) -> Vec<Finding> {
    let area = Area::Leases;
    match facts {
        LeaseStoreFacts::Embedded => vec![Finding::ok(area, "store", "leases are kept in a file of the state folder")],
        LeaseStoreFacts::Redis { server, facts: Err(why) } => vec![
            Finding::failure(area, "store", format!("the Redis server at {server} gives no answers: {why}"))
                .why("Loaded models serve on, and nothing is loaded or evicted until it is back")
                .remedy("Start it, and check redis_url, its password and the firewall"),
        ],
        LeaseStoreFacts::Redis { facts: Ok((redis, apart)), .. } => of_redis(redis, *apart),
    }
}

fn of_redis(redis: &RedisFacts, apart: Duration) -> Vec<Finding> {
    let area = Area::Leases;
    let found = format!("Redis {} at {}", redis.version, redis.server);
    let mut findings = vec![if redis.is_new_enough {
        Finding::ok(area, "version", found)
    } else {
        Finding::failure(area, "version", found)
            .why("In versions before 6.2 a script that reads the time cannot write")
            .remedy("Install Redis 6.2 or newer, or Valkey")
    }];
    findings.push(if redis.eviction == "noeviction" {
        Finding::ok(area, "eviction", "it evicts no keys (maxmemory-policy noeviction)")
    } else {
        Finding::failure(area, "eviction", format!("maxmemory-policy is {}", redis.eviction))
            .why("It would delete the ledger when its memory gets short, so a coordinator refuses it")
            .remedy("`redis-cli config set maxmemory-policy noeviction`, and the same in redis.conf. For a server that is a cache of others, use one of its own")
    });
    let share = redis.used_memory as f64 / redis.most_memory.max(1) as f64;
    if redis.most_memory > 0 && share > NEARLY_FULL {
        findings.push(
            Finding::warning(area, "store_memory", format!("it uses {:.0} % of its maxmemory", share * 100.0))
                .why("A full server refuses writes, and no lease can be granted or renewed")
                .remedy("Raise maxmemory, or give leases a server of their own"),
        );
    }
    if redis.role != "master" {
        findings.push(
            Finding::failure(area, "role", format!("it is a replica (role {})", redis.role))
                .why("Leases have to be written, and a replica takes none or loses them")
                .remedy("Name the master, or sentinels: redis+sentinel://HOST:PORT/SERVICE"),
        );
    }
    if redis.is_cluster {
        findings.push(
            Finding::warning(area, "cluster", "it is a member of a cluster")
                .why("The ledger's key may be on another member, and a failover loses the last writes")
                .remedy("Use a single server, with sentinels if it must not fail"),
        );
    }
    if !redis.is_saving_well {
        findings.push(
            Finding::failure(area, "saving", "its last write to disk failed")
                .why("Redis then refuses all writes, and so every lease")
                .remedy("Look at its log and the disk's free space"),
        );
    } else if !redis.appends {
        findings.push(
            Finding::note(area, "persistence", "it does not append each change to a file (appendonly no)")
                .why("After its crash holders report their leases again, and nothing is granted meanwhile. Settings stored at run time can be lost")
                .remedy("`redis-cli config set appendonly yes`, and the same in redis.conf"),
        );
    } else {
        findings.push(Finding::ok(area, "persistence", "it appends each change to a file"));
    }
    if apart > APART {
        findings.push(
            Finding::note(area, "store_clock", format!("its clock is {} s from ours", apart.as_secs()))
                .why("Leases use the server's clock alone, but times in logs of several machines do not fit together")
                .remedy("Synchronise both machines"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    fn redis() -> RedisFacts {
        RedisFacts {
            version: "7.0".into(),
            is_new_enough: true,
            eviction: "noeviction".into(),
            appends: true,
            is_saving_well: true,
            role: "master".into(),
            ..RedisFacts::default()
        }
    }

    #[test]
    fn op_1_a_redis_that_would_lose_leases_is_found() {
        let of = |redis: RedisFacts, apart: Duration| {
            results(&judge(&LeaseStoreFacts::Redis { server: "r".into(), facts: Ok((redis, apart)) }))
        };
        let good = ["version", "eviction", "persistence"].map(|check| (check, Grade::Ok));
        assert_eq!(of(redis(), Duration::ZERO), good);
        let full = RedisFacts { most_memory: 100, used_memory: 95, ..redis() };
        for (redis, expected) in [
            (RedisFacts { is_new_enough: false, ..redis() }, ("version", Grade::Failure)),
            (RedisFacts { eviction: "allkeys-lru".into(), ..redis() }, ("eviction", Grade::Failure)),
            (full, ("store_memory", Grade::Warning)),
            (RedisFacts { role: "slave".into(), ..redis() }, ("role", Grade::Failure)),
            (RedisFacts { is_cluster: true, ..redis() }, ("cluster", Grade::Warning)),
            (RedisFacts { is_saving_well: false, ..redis() }, ("saving", Grade::Failure)),
            (RedisFacts { appends: false, ..redis() }, ("persistence", Grade::Note)),
        ] {
            assert!(of(redis.clone(), Duration::ZERO).contains(&expected), "{expected:?} of {redis:?}");
        }
        assert!(of(redis(), Duration::from_secs(60)).contains(&("store_clock", Grade::Note)));
        let away = LeaseStoreFacts::Redis { server: "r".into(), facts: Err("refused".into()) };
        assert_eq!(results(&judge(&away)), [("store", Grade::Failure)]);
        assert_eq!(results(&judge(&LeaseStoreFacts::Embedded)), [("store", Grade::Ok)]);
    }
}
