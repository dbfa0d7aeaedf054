//! The coordinator's port, and who holds it.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use model_boss_client::{Client, ClientError};
use model_boss_config::Config;
use model_boss_host::tcp_table::{self, TcpSocket};
use model_boss_protocol::chain;
use nix::unistd::geteuid;
use serde_json::Value;
use tokio::time::timeout;

use super::super::checks::door::{DoorAnswer, DoorFacts, PortHolder};
use super::machine::{number, processes, text, user_name};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(3);

/// The facts about the address of `client`.
pub(crate) async fn door(client: &Client, config: &Config) -> DoorFacts {
    let (port, is_here) = (client.port(), client.is_on_this_machine());
    let range = text("/proc/sys/net/ipv4/ip_local_port_range");
    let outgoing = range.and_then(|range| {
        let mut numbers = range.split_whitespace().filter_map(|number| number.parse::<u16>().ok());
        Some(numbers.next()?..=numbers.next()?)
    });
    let listening: BTreeSet<u16> =
        tcp_table::sockets().filter(|socket| socket.listens).map(|socket| socket.local.port()).collect();
    DoorFacts {
        url: client.url().to_owned(),
        port,
        is_here,
        answer: answer(client).await,
        holder: is_here.then(|| holder(port)).flatten(),
        own_version: env!("CARGO_PKG_VERSION").to_owned(),
        first_free_port: number("/proc/sys/net/ipv4/ip_unprivileged_port_start")
            .and_then(|port| u16::try_from(port).ok())
            .unwrap_or(1024),
        is_root: geteuid().is_root(),
        worker_ports: config.worker_ports.clone(),
        taken: listening.range(config.worker_ports.clone()).count(),
        outgoing,
    }
}

async fn answer(client: &Client) -> DoorAnswer {
    let Ok(answered) = timeout(PATIENCE, client.get("/api/v1/health")).await else {
        return DoorAnswer::Stranger(format!("it takes connections and has not answered for {} s", PATIENCE.as_secs()));
    };
    match answered {
        Ok(health) if health["leases"].is_object() && health["version"].is_string() => known(&health),
        Ok(_) => DoorAnswer::Stranger("its answers are not those of a coordinator".to_owned()),
        Err(ClientError::NoCoordinator(..)) => DoorAnswer::Nothing,
        Err(ClientError::Api(_)) => locked(client).await,
        Err(error) => DoorAnswer::Stranger(chain(&error)),
    }
}

fn known(health: &Value) -> DoorAnswer {
    let texts = |value: &Value| {
        let all = value.as_array().into_iter().flatten();
        all.filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    DoorAnswer::Coordinator {
        version: health["version"].as_str().unwrap_or_default().to_owned(),
        status: health["status"].as_str().map(str::to_owned),
        problems: texts(&health["problems"]),
        loaded: health["all_models_loaded"].as_array().map_or(0, Vec::len),
    }
}

/// A coordinator that wants a key says its version in the description of its API.
async fn locked(client: &Client) -> DoorAnswer {
    match timeout(PATIENCE, client.get("/openapi.json")).await {
        Ok(Ok(description)) if description["info"]["version"].is_string() => DoorAnswer::Coordinator {
            version: description["info"]["version"].as_str().unwrap_or_default().to_owned(),
            status: None,
            problems: Vec::new(),
            loaded: 0,
        },
        _ => DoorAnswer::Stranger("it refuses the request, and is no coordinator".to_owned()),
    }
}

/// The process that listens on a port of this machine.
fn holder(port: u16) -> Option<PortHolder> {
    let socket = tcp_table::find(|socket| socket.listens && socket.local.port() == port)?;
    let (pid, program) = process_of(&socket).map_or((None, "a program".to_owned()), |(pid, name)| (Some(pid), name));
    Some(PortHolder { pid, program, user: user_name(socket.uid) })
}

/// The process that has a socket open, if this user may see that.
fn process_of(socket: &TcpSocket) -> Option<(u32, String)> {
    let link = format!("socket:[{}]", socket.inode);
    processes().find(|(pid, _)| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|target| target.as_os_str() == link.as_str())
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn op_1_the_holder_of_a_port_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let holder = holder(listener.local_addr().unwrap().port()).unwrap();
        assert_eq!(holder.pid, Some(std::process::id()));
        assert!(!holder.user.is_empty());
    }
}
