//! One connection to the server. No step lasts longer than the operation timeout, and an unreachable server is not
//! tried in a tight loop.

use std::time::{Duration, Instant};

use model_boss_protocol::Later;
use redis::{Client, Connection, ConnectionInfo, RedisError};

use super::address::{Address, at_place};
use crate::error::Unreachable;
use crate::{StoreError, host};

/// The longest that connecting, writing or waiting for an answer may take.
const OPERATION: Duration = Duration::from_millis(500);
/// The average pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause; each failure in a row doubles it up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A connection to a Redis server that is opened when it is needed, for the stores of this host's processes.
pub struct RedisLink {
    address: Address,
    connection: Option<Connection>,
    failures: u32,
    /// The time before which no attempt is made, and the last error.
    resting: Option<(Instant, String)>,
}

impl RedisLink {
    /// A link to the server of this URL. The call opens no connection.
    pub fn to(url: &str) -> Result<Self, StoreError> {
        Ok(Self::new(Address::parse(url)?))
    }

    pub(super) fn new(address: Address) -> Self {
        if matches!(&address, Address::Direct(info) | Address::Sentinels { server: info, .. } if is_tls(info)) {
            // An error means that this process has chosen a provider already.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Self { address, connection: None, failures: 0, resting: None }
    }

    /// The server's address, human-readable.
    pub fn server(&self) -> String {
        self.address.show()
    }

    /// Sends one query and returns its answer. After an error the connection is not used again, because a late answer
    /// would be taken for the next one's. A connection that was closed while idle is opened again. A query may then
    /// be sent twice, which every swap withstands, because its etag matches once.
    pub fn ask<T>(&mut self, question: impl Fn(&mut Connection) -> Result<T, RedisError>) -> Result<T, StoreError> {
        let reused = self.connection.take();
        let answer = match reused {
            Some(mut connection) => match question(&mut connection) {
                Err(error) if error.is_connection_dropped() => None,
                answer => Some((connection, answer)),
            },
            None => None,
        };
        let (connection, answer) = match answer {
            Some(answered) => answered,
            None => {
                let mut connection = self.connect()?;
                let answer = question(&mut connection);
                (connection, answer)
            }
        };
        match answer {
            Ok(answer) => {
                self.connection = Some(connection);
                (self.failures, self.resting) = (0, None);
                Ok(answer)
            }
            Err(error) => Err(self.failed(Unreachable::Answer(error))),
        }
    }

    fn connect(&mut self) -> Result<Connection, StoreError> {
        if let Some((until, why)) = &self.resting
            && Instant::now() < *until
        {
            let source = Unreachable::JustTried(why.clone());
            return Err(StoreError::Unavailable { server: self.server(), source });
        }
        let connected = match &self.address {
            Address::Direct(info) => open(info.clone()).map_err(Unreachable::Connect),
            Address::Sentinels { sentinels, service, server } => {
                master(sentinels, service, server).and_then(|info| open(info).map_err(Unreachable::Connect))
            }
        };
        connected.map_err(|error| self.failed(error))
    }

    fn failed(&mut self, source: Unreachable) -> StoreError {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.connection = None;
        let why = model_boss_protocol::chain(&source);
        self.resting = Some((Instant::now().later(host::jittered(pause)), why));
        StoreError::Unavailable { server: self.server(), source }
    }
}

fn open(info: ConnectionInfo) -> Result<Connection, RedisError> {
    let connection = Client::open(info)?.get_connection_with_timeout(OPERATION)?;
    connection.set_read_timeout(Some(OPERATION))?;
    connection.set_write_timeout(Some(OPERATION))?;
    Ok(connection)
}

/// The master's address, requested from one sentinel after the other.
fn master(sentinels: &[ConnectionInfo], service: &str, server: &ConnectionInfo) -> Result<ConnectionInfo, Unreachable> {
    let mut last = None;
    for sentinel in sentinels {
        let place = open(sentinel.clone()).and_then(|mut connection| {
            let mut question = redis::cmd("SENTINEL");
            question.arg("GET-MASTER-ADDR-BY-NAME").arg(service).query::<Option<(String, u16)>>(&mut connection)
        });
        match place {
            Ok(Some((host, port))) => return Ok(at_place(server, host, port)),
            Ok(None) => {}
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| Unreachable::NoMaster(service.to_owned()), Unreachable::Connect))
}

fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. })
}
