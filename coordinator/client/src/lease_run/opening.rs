//! Opens the ledger that a command uses: at a coordinator, or in Redis.

use std::io;

use model_boss_lease_store::{Owner, OwnerKind, this_process};
use nix::unistd::getuid;

use super::desk::{Desk, LeaseRequest};
use super::error::LeaseError;
use super::http_desk::HttpDesk;
use super::redis_desk::RedisDesk;
use super::whereabouts::Whereabouts;

/// Opens the ledger; `request` distinguishes the requests of this process.
pub(super) fn open(
    whereabouts: &Whereabouts,
    wanted: LeaseRequest,
    request: &str,
) -> Result<Box<dyn Desk>, LeaseError> {
    let owner = Owner::new(this_process()?, wanted.label.clone(), OwnerKind::Job).of_user(Some(getuid().as_raw()));
    let process = &owner.process;
    let namespace: String = process.pid_ns.chars().filter(char::is_ascii_digit).collect();
    // The request's id must be secret, because any process that has the id can fetch the answer.
    let secret = getrandom::u64().map_err(|error| LeaseError::System("draw a name", io::Error::other(error)))?;
    let request_id = format!("job-{namespace}-{}-{}-{request}-{secret:016x}", process.pid, process.start_time);
    Ok(match whereabouts {
        Whereabouts::Redis { url, runtime_dir } => {
            Box::new(RedisDesk::open(url, runtime_dir.as_deref(), owner, wanted, request_id)?)
        }
        Whereabouts::Coordinator(client) => Box::new(HttpDesk::open(client.clone(), &owner, wanted, request_id)?),
    })
}
