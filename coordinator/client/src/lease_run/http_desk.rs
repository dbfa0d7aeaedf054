//! Leases at a coordinator over HTTP, which samples the devices and keeps the ledger. This side only keeps its own
//! lease, and reasserts it if a restarted coordinator does not have it.

use std::time::Duration;

use http::{Method, StatusCode};
use model_boss_lease_store::{LeaseId, Owner, Process, Proof, is_gone, process};
use model_boss_protocol::{ByteCount, ErrorCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::desk::{Desk, Granted, GrantedPart, Granting, LeaseRequest, Released, Renewed, RevokeNotice, asked};
use super::error::LeaseError;
use crate::lease_http::{
    AcquireBody, AnyBody, AttachBody, CancelBody, GrantedBody, HandleBody, LeaseBody, LeaseList, OneLease, OwnerBody,
    PartBody, ReassertBody, ReleaseBody, ReleasedBody, RenewBody, RenewedBody, ResizeBody, WaitingBody,
};
use crate::{Client, ClientError};

/// The longest wait for an answer. A coordinator samples its devices before it answers.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// The heartbeat interval until the coordinator states one.
const HEARTBEAT: Duration = Duration::from_secs(3);
const ROUTE: &str = "/api/v1/leases";
/// The smallest possible lease.
const LEAST: ByteCount = ByteCount(1);

pub(super) struct HttpDesk {
    line: BlockingClient,
    wish: AcquireBody,
    held: Option<LeaseRecord>,
    heartbeat: Duration,
}

/// A coordinator, called from a thread that blocks on its answers.
pub(super) struct BlockingClient {
    client: Client,
    runtime: Runtime,
}

/// The record of the lease.
struct LeaseRecord {
    id: LeaseId,
    token: Proof,
    parts: Vec<PartBody>,
    attached: Vec<Process>,
}

impl HttpDesk {
    /// Fetches the coordinator's list once, so that a wrong address or key is reported here.
    pub(super) fn open(
        client: Client,
        owner: &Owner,
        wanted: LeaseRequest,
        request_id: String,
    ) -> Result<Self, LeaseError> {
        let line = BlockingClient::new(client)?;
        line.get::<LeaseList>(ROUTE)?;
        let LeaseRequest { label, memory, devices, count, priority, preempt, yielding } = wanted;
        let part = |device| PartBody { device, memory };
        let (parts, any) = if devices.is_empty() {
            (None, Some(AnyBody { count, memory, among: None }))
        } else {
            (Some(devices.into_iter().map(part).collect()), None)
        };
        let wish = AcquireBody {
            request_id,
            owner: OwnerBody::of(&owner.process, label),
            priority,
            preemptible: yielding.preemptible,
            grace: yielding.grace,
            min_hold: yielding.min_hold,
            parts,
            any,
            wait: true,
            preempt,
        };
        Ok(Self { line, wish, held: None, heartbeat: HEARTBEAT })
    }

    fn held(&mut self) -> Result<&mut LeaseRecord, LeaseError> {
        self.held.as_mut().ok_or(LeaseError::NotGranted)
    }

    /// Reasserts the lease at a coordinator that does not have it. The coordinator's answer is final.
    fn reassert(&mut self) -> Result<Renewed, LeaseError> {
        let wish = self.wish.clone();
        let held = self.held()?;
        let living: Vec<Process> = held.attached.iter().filter(|process| !is_gone(process)).cloned().collect();
        if living.is_empty() {
            // No process has passed the gate, so no memory is in use.
            return Ok(Renewed { lost: true, revoked: None });
        }
        let body = ReassertBody {
            token: held.token.clone(),
            request_id: wish.request_id,
            owner: wish.owner,
            priority: wish.priority,
            preemptible: wish.preemptible,
            grace: wish.grace,
            min_hold: wish.min_hold,
            parts: held.parts.clone(),
            processes: living.into_iter().map(Into::into).collect(),
        };
        let path = format!("{ROUTE}/{}/reassert", held.id);
        match self.line.ask(Method::POST, &path, &body) {
            Ok((StatusCode::OK, answer)) => {
                let OneLease { lease } = read(answer)?;
                // The coordinator may have granted less than was stated.
                self.held()?.parts = promised(&lease);
                Ok(Renewed::default())
            }
            // The coordinator does not yet know the memory of this process: the next heartbeat repeats the report.
            Ok(_) => Ok(Renewed::default()),
            Err(error) if is(&error, ErrorCode::LeaseLost) => Ok(Renewed { lost: true, revoked: None }),
            Err(error) => Err(error),
        }
    }
}

impl Desk for HttpDesk {
    fn describe(&self) -> String {
        self.line.describe()
    }

    fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    fn acquire(&mut self) -> Result<Granting, LeaseError> {
        let (status, answer) = match self.line.ask(Method::POST, ROUTE, &self.wish) {
            Err(error) if is(&error, ErrorCode::LeaseNeverFits) => {
                return Err(LeaseError::NeverFits(error.to_string()));
            }
            answer => answer?,
        };
        if status == StatusCode::ACCEPTED {
            let WaitingBody { waiting } = read(answer)?;
            let victims = waiting.asked.iter().map(|v| (v.label.as_str(), Duration::from_millis(v.grace_left_ms)));
            let asked = asked(victims);
            return Ok(Granting::Waits(format!("{} in the queue: {}{asked}", waiting.position, waiting.reason)));
        }
        let GrantedBody { lease, heartbeat_ms, .. } = read(answer)?;
        let token =
            lease.token.clone().ok_or_else(|| LeaseError::Answer("it grants a lease without its token".to_owned()))?;
        let mut parts = Vec::new();
        for part in &lease.parts {
            let device = part.device.parse().map_err(|error| LeaseError::Answer(format!("{error}")))?;
            parts.push(GrantedPart { device, bytes: part.bytes, uuid: part.uuid.clone() });
        }
        self.heartbeat = Duration::from_millis(heartbeat_ms).max(Duration::from_millis(10));
        self.held = Some(LeaseRecord { id: lease.id.clone(), token, parts: promised(&lease), attached: Vec::new() });
        Ok(Granting::Granted(Granted { lease: lease.id.to_string(), parts }))
    }

    fn attach(&mut self, pid: u32) -> Result<(), LeaseError> {
        let attached = process(pid)?;
        let held = self.held()?;
        let (path, token) = (format!("{ROUTE}/{}/attach", held.id), held.token.clone());
        let answer = self.line.ask(Method::POST, &path, &AttachBody { token, pids: vec![pid] });
        // If the answer was lost, the coordinator may have recorded the process.
        if answer.as_ref().err().is_none_or(LeaseError::is_outage) {
            let attachments = &mut self.held()?.attached;
            attachments.retain(|known| *known != attached);
            attachments.push(attached);
        }
        answer.map(drop)
    }

    fn renew(&mut self) -> Result<Renewed, LeaseError> {
        let held = self.held()?;
        let body = RenewBody { leases: vec![HandleBody { id: held.id.clone(), token: held.token.clone() }] };
        let renewed = match self.line.ask(Method::PUT, ROUTE, &body) {
            Err(error) if is(&error, ErrorCode::LeaseLost) => return self.reassert(),
            answer => answer?.1,
        };
        let RenewedBody { leases, lost } = read(renewed)?;
        if !lost.is_empty() {
            return self.reassert();
        }
        let revoke = leases.into_iter().find_map(|lease| lease.revoke);
        let revoked = revoke.map(|revoke| RevokeNotice {
            remaining: Duration::from_millis(revoke.grace_left_ms),
            wanted_by: revoke.by,
        });
        Ok(Renewed { revoked, lost: false })
    }

    fn shrink(&mut self) -> Result<(), LeaseError> {
        let held = self.held()?;
        let parts: Vec<_> = held.parts.iter().map(|part| PartBody { memory: LEAST, ..part.clone() }).collect();
        let (path, body) =
            (format!("{ROUTE}/{}", held.id), ResizeBody { token: held.token.clone(), parts: Some(parts) });
        self.line.ask(Method::PUT, &path, &body)?;
        Ok(())
    }

    fn release(&mut self, _for_good: bool) -> Result<Released, LeaseError> {
        let held = self.held()?;
        let (path, body) =
            (format!("{ROUTE}/{}", held.id), ReleaseBody { token: Some(held.token.clone()), force: false });
        let answer = match self.line.ask(Method::DELETE, &path, &body) {
            // An earlier release reached the coordinator, though its answer was lost.
            Err(error) if is(&error, ErrorCode::LeaseLost) || is(&error, ErrorCode::LeaseNotFound) => {
                return Ok(Released::Free);
            }
            answer => answer?.1,
        };
        let answer: ReleasedBody = read(answer)?;
        Ok(match answer.released {
            true => Released::Free,
            false => Released::Counted(answer.reason.unwrap_or_else(|| "its processes live".to_owned())),
        })
    }

    fn cancel(&mut self) -> Result<(), LeaseError> {
        let AcquireBody { request_id, owner, .. } = self.wish.clone();
        self.line.ask(Method::DELETE, ROUTE, &CancelBody { request_id, owner }).map(drop)
    }
}

impl BlockingClient {
    pub(super) fn new(client: Client) -> Result<Self, LeaseError> {
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(|error| LeaseError::System("start", error))?;
        Ok(Self { client, runtime })
    }

    /// The coordinator's address, human-readable.
    pub(super) fn describe(&self) -> String {
        format!("the coordinator at {}", self.client.url())
    }

    /// The answer to `GET path`, parsed.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, LeaseError> {
        read(self.answer(Method::GET, path, None)?.1)
    }

    /// The status and the answer to a request with a body.
    pub(super) fn ask(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<(StatusCode, Value), LeaseError> {
        let body = serde_json::to_value(body).map_err(LeaseError::Json)?;
        self.answer(method, path, Some(&body))
    }

    fn answer(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(StatusCode, Value), LeaseError> {
        self.runtime.block_on(async {
            match tokio::time::timeout(ANSWER_LIMIT, self.client.ask(method, path, body)).await {
                Ok(answer) => Ok(answer?),
                Err(_) => Err(LeaseError::Slow { url: self.client.url().to_owned(), limit: ANSWER_LIMIT }),
            }
        })
    }
}

/// Whether `error` is the coordinator's error with this code.
pub(super) fn is(error: &LeaseError, code: ErrorCode) -> bool {
    matches!(error, LeaseError::Client(ClientError::Api(body)) if body.error.code.as_deref() == Some(code.as_str()))
}

pub(super) fn read<T: DeserializeOwned>(answer: Value) -> Result<T, LeaseError> {
    serde_json::from_value(answer).map_err(|error| LeaseError::Answer(error.to_string()))
}

/// The promised size on each device.
fn promised(lease: &LeaseBody) -> Vec<PartBody> {
    let parts = lease.parts.iter().filter(|part| part.bytes > ByteCount::ZERO);
    parts.filter_map(|part| Some(PartBody { device: part.device.parse().ok()?, memory: part.bytes })).collect()
}
