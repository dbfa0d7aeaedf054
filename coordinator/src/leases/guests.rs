//! Leases that other processes of this host hold through the coordinator instead of opening the store themselves. The
//! coordinator keeps no state of them: they renew with their tokens, and state their leases again after a loss.

use std::time::Duration;

use model_boss_client::lease_http::{
    AcquireBody, AskedBody, AttachBody, CancelBody, GrantedBody, LeaseBody, LeaseList, OneLease, OwnerBody, PartBody,
    QueueNotice, ReassertBody, ReleaseBody, ReleasedBody, RenewBody, RenewedBody, ResizeBody, warning,
};
use model_boss_lease_store::{
    AcquireRequest, Caller, GuestAcquired, GuestHandle, GuestLease, GuestRecord, GuestReleased, LeaseId, LeaseWish,
    Mode, Process, StoreError, Yielding,
};
use model_boss_protocol::{ApiError, ByteCount, DeviceId, ErrorCode, Label};
use nix::unistd::getuid;

use super::handle::Leases;
use super::ledger::LedgerOwner;
use super::refused::GuestRefusal;

/// The interval at which a queued caller repeats its request, well within the term, so that its place in the queue is
/// kept.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The most devices and processes of one request: they are written into a document that is read often.
const DEVICES: usize = 64;

const PROCESSES: usize = 256;

/// A hint where processes do not end.
const FORCE: &str = "an operator can end the lease without them: model-boss lease release --force";

/// The result of a request: an answer, or the reason to repeat the request.
pub(crate) enum GuestAnswer<T> {
    /// The request is answered.
    Done(Box<T>),
    /// The request is queued.
    Waits(QueueNotice),
}

impl Leases {
    /// Requests memory for a process of this host.
    pub(crate) async fn acquire_for(
        &self,
        caller: Caller,
        body: AcquireBody,
    ) -> Result<GuestAnswer<GrantedBody>, ApiError> {
        let request = request(&body)?;
        self.guest(move |ledger| ledger.acquire_for(caller, &body, request)).await
    }

    /// Attaches processes to a lease, which lets them pass the gate.
    pub(crate) async fn attach_for(&self, caller: Caller, id: LeaseId, body: AttachBody) -> Result<OneLease, ApiError> {
        few("pids", body.pids.len())?;
        if body.pids.is_empty() {
            return Err(ApiError::invalid("pids", "'pids' names no process"));
        }
        self.guest(move |ledger| {
            let handle = GuestHandle { lease: id, proof: body.token };
            let attached = ledger.holder.attach_for(caller, &handle, &body.pids);
            ledger.done(&attached);
            Ok(one(attached.map_err(|error| GuestRefusal::from(error).about("pids"))?))
        })
        .await
    }

    /// Renews any number of leases.
    pub(crate) async fn renew_for(&self, caller: Caller, body: RenewBody) -> Result<RenewedBody, ApiError> {
        self.guest(move |ledger| {
            let handles: Vec<_> =
                body.leases.into_iter().map(|held| GuestHandle { lease: held.id, proof: held.token }).collect();
            let (leases, lost) = ledger.renew_for(caller, &handles)?;
            Ok(RenewedBody { leases: leases.into_iter().map(with_token).collect(), lost })
        })
        .await
    }

    /// Renews one lease, and changes its size if the body has one.
    pub(crate) async fn resize_for(&self, caller: Caller, id: LeaseId, body: ResizeBody) -> Result<OneLease, ApiError> {
        let parts = body.parts.map(|parts| parts_of("parts", parts)).transpose()?;
        self.guest(move |ledger| {
            let handle = GuestHandle { lease: id.clone(), proof: body.token };
            let Some(parts) = parts else {
                let (leases, _) = ledger.renew_for(caller, std::slice::from_ref(&handle))?;
                return leases.into_iter().next().map(one).ok_or_else(|| StoreError::Lost(id).into());
            };
            ledger.look_again();
            let resized = ledger.holder.resize_for(caller, &handle, &parts);
            ledger.done(&resized);
            match resized? {
                Ok(lease) => Ok(one(lease)),
                Err(reason) => {
                    let message = format!("{id} stays as large as it is: {reason}");
                    Err(GuestRefusal(ApiError::new(ErrorCode::LeaseNoRoom, message).with_param("parts")))
                }
            }
        })
        .await
    }

    /// Restores a lease as its holder remembers it, after the store lost it.
    pub(crate) async fn reassert_for(
        &self,
        caller: Caller,
        id: LeaseId,
        body: ReassertBody,
    ) -> Result<GuestAnswer<OneLease>, ApiError> {
        let parts = parts_of("parts", body.parts)?;
        named_well("request_id", &body.request_id)?;
        few("processes", body.processes.len())?;
        let yielding = Yielding {
            preemptible: body.preemptible,
            grace: body.grace,
            min_hold: body.min_hold,
            ..Yielding::default()
        };
        let request = AcquireRequest::new(body.request_id, body.owner.label.clone(), body.priority, parts);
        let record = GuestRecord {
            handle: GuestHandle { lease: id, proof: body.token },
            request: AcquireRequest { yielding, ..request },
            owner: body.owner.owner().of_user(user_of(caller)),
            processes: body.processes.into_iter().map(Process::from).collect(),
        };
        self.guest(move |ledger| {
            ledger.may_name(caller, &body.owner)?;
            ledger.look_again();
            let stated = ledger.holder.reassert_for(caller, record);
            ledger.done(&stated);
            Ok(match stated.map_err(|error| GuestRefusal::from(error).about("processes"))? {
                Ok(lease) => GuestAnswer::Done(Box::new(one(lease))),
                Err(reason) => GuestAnswer::Waits(waiting(1, reason, false)),
            })
        })
        .await
    }

    /// Releases a lease. Its holder needs the token; any caller may release it once the holder is gone.
    pub(crate) async fn release_for(
        &self,
        caller: Caller,
        id: LeaseId,
        body: ReleaseBody,
    ) -> Result<ReleasedBody, ApiError> {
        self.guest(move |ledger| {
            let Some(proof) = body.token else { return ledger.end_abandoned(&id) };
            ledger.look_again();
            let showing = ledger.showing();
            let released = ledger.holder.release_for(caller, &GuestHandle { lease: id, proof }, &showing);
            ledger.done(&released);
            Ok(match released? {
                GuestReleased::Free => free(),
                GuestReleased::Counted(living) => {
                    ledger.unsettled = true;
                    let reason = format!("it stays counted until its processes are gone: {}", names(&living));
                    ReleasedBody {
                        released: false,
                        state: Some("limbo".to_owned()),
                        reason: Some(reason),
                        warning: None,
                    }
                }
            })
        })
        .await
    }

    /// Ends a lease although its processes are alive. Only operators may do this: root of this host, or the user that
    /// runs the coordinator.
    pub(crate) async fn force(&self, caller: Caller, id: LeaseId) -> Result<ReleasedBody, ApiError> {
        let operator = match caller {
            Caller::User(user) if user == 0 || user == getuid().as_raw() => user,
            _ => {
                let message = "a lease is forced by root, or by the user that runs the coordinator, from this host";
                return Err(ApiError::new(ErrorCode::InsufficientScope, message).with_param("force"));
            }
        };
        self.guest(move |ledger| {
            ledger.look_again();
            let forced = ledger.holder.force(&id, &format!("user {operator}"));
            ledger.done(&forced);
            match forced {
                Ok(None) => Ok(free()),
                Ok(Some(forced)) => {
                    let warning = warning(&forced);
                    tracing::warn!(lease = %id, operator, "{warning}");
                    Ok(ReleasedBody { warning: Some(warning), ..free() })
                }
                Err(StoreError::Lost(id)) => Err(no_such(&id)),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    /// Cancels a request.
    pub(crate) async fn cancel_for(&self, caller: Caller, body: CancelBody) -> Result<(), ApiError> {
        named_well("request_id", &body.request_id)?;
        self.guest(move |ledger| {
            ledger.may_name(caller, &body.owner)?;
            let cancelled = ledger.holder.cancel_for(&body.owner.owner().process, &body.request_id);
            ledger.done(&cancelled);
            Ok(cancelled?)
        })
        .await
    }

    /// All leases and queued requests, read anew.
    pub(crate) async fn list(&self) -> Result<LeaseList, ApiError> {
        self.guest(|ledger| {
            // While the store is unreachable, the last known state is shown.
            let _ = ledger.refresh();
            Ok(LeaseList {
                leases: ledger.holder.leases().into_iter().map(Into::into).collect(),
                waiters: ledger.holder.waiters().into_iter().map(Into::into).collect(),
                forced: ledger.holder.forced().into_iter().map(Into::into).collect(),
            })
        })
        .await
    }

    /// The lease with this id.
    pub(crate) async fn show(&self, id: LeaseId) -> Result<OneLease, ApiError> {
        self.guest(move |ledger| {
            ledger.refresh()?;
            let found = ledger.holder.lease(&id).ok_or_else(|| no_such(&id))?;
            Ok(OneLease { lease: found.into() })
        })
        .await
    }

    async fn guest<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut LedgerOwner) -> Result<T, GuestRefusal> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.on_thread(act).await.map_err(|GuestRefusal(error)| error)
    }
}

impl LedgerOwner {
    fn acquire_for(
        &mut self,
        caller: Caller,
        body: &AcquireBody,
        mut request: AcquireRequest,
    ) -> Result<GuestAnswer<GrantedBody>, GuestRefusal> {
        self.may_name(caller, &body.owner)?;
        if let LeaseWish::AnyOf { devices, count, .. } = &mut request.wish
            && devices.is_empty()
        {
            devices.clone_from(&self.gpus());
            if devices.len() < *count {
                let message = format!("{count} GPUs are wanted and {} can be leased here", devices.len());
                return Err(GuestRefusal(ApiError::new(ErrorCode::LeaseNeverFits, message).with_param("any")));
            }
        }
        // Devices are sampled before each grant, so that no grant relies on an old or missing sample.
        self.look_again();
        let acquired = self.holder.acquire_for(body.owner.owner().of_user(user_of(caller)), request);
        self.done(&acquired);
        // The scheduler learns of a queued request at once.
        self.tell_others();
        Ok(match acquired? {
            GuestAcquired::Granted(lease) => GuestAnswer::Done(Box::new(GrantedBody {
                lease: with_token(*lease),
                heartbeat_ms: millis(self.holder.heartbeat()),
                term_ms: millis(self.holder.term()),
            })),
            GuestAcquired::Wait { position, reason, asked } => {
                let asked = asked
                    .into_iter()
                    .map(|asked| AskedBody { label: asked.label, grace_left_ms: millis(asked.remaining) });
                GuestAnswer::Waits(QueueNotice { asked: asked.collect(), ..waiting(position, reason, false) })
            }
            GuestAcquired::Recovering(left) if !body.wait => return Err(StoreError::Recovering(left).into()),
            GuestAcquired::Recovering(left) => {
                GuestAnswer::Waits(waiting(1, StoreError::Recovering(left).to_string(), true))
            }
            GuestAcquired::NeverFits(reason) => {
                let param = if body.any.is_some() { "any" } else { "parts" };
                return Err(GuestRefusal(ApiError::new(ErrorCode::LeaseNeverFits, reason).with_param(param)));
            }
        })
    }

    fn renew_for(
        &mut self,
        caller: Caller,
        handles: &[GuestHandle],
    ) -> Result<(Vec<GuestLease>, Vec<LeaseId>), GuestRefusal> {
        let kept = self.holder.renew_for(caller, handles);
        self.done(&kept);
        Ok(kept?)
    }

    fn end_abandoned(&mut self, id: &LeaseId) -> Result<ReleasedBody, GuestRefusal> {
        let ended = self.holder.end_abandoned(id);
        self.done(&ended);
        match ended {
            Ok(GuestReleased::Free) => Ok(free()),
            Ok(GuestReleased::Counted(living)) => {
                let message = if living.is_empty() {
                    format!("{id} cannot be shown to be abandoned from here; {FORCE}")
                } else {
                    format!("{id} is held: end its processes first: {}; {FORCE}", names(&living))
                };
                Err(GuestRefusal(ApiError::new(ErrorCode::LeaseInUse, message)))
            }
            Err(StoreError::Lost(id)) => Err(no_such(&id)),
            Err(error) => Err(error.into()),
        }
    }

    fn refresh(&mut self) -> Result<(), StoreError> {
        let refreshed = self.holder.refresh();
        self.done(&refreshed);
        refreshed
    }

    /// Checks that a lease's owner is a process of this host and of the caller.
    fn may_name(&mut self, caller: Caller, owner: &OwnerBody) -> Result<(), GuestRefusal> {
        let named = self.holder.may_name(caller, &owner.owner().process);
        named.map_err(|error| GuestRefusal::from(StoreError::from(error)).about("owner"))
    }

    /// The GPUs that have a UUID, and so can be leased.
    fn gpus(&self) -> Vec<DeviceId> {
        let samples = self.table.samples();
        samples.into_iter().filter(|sample| sample.uuid.is_some()).map(|sample| sample.device).collect()
    }

    /// The processes that a driver lists. The host's memory is omitted, because it is free as soon as a process is
    /// gone.
    pub(super) fn showing(&self) -> Vec<u32> {
        let samples = self.table.samples();
        let drivers = samples.iter().filter(|sample| sample.device != DeviceId::Cpu);
        drivers.flat_map(|sample| sample.processes.iter().map(|(pid, _)| *pid)).collect()
    }
}

/// The caller's user, if the kernel reports it.
fn user_of(caller: Caller) -> Option<u32> {
    match caller {
        Caller::User(user) => Some(user),
        Caller::Remote | Caller::Unknown => None,
    }
}

/// The request in the ledger's type, or the fault of its body.
fn request(body: &AcquireBody) -> Result<AcquireRequest, ApiError> {
    named_well("request_id", &body.request_id)?;
    if !Label::fits(&body.owner.label) {
        let message = format!("'owner.label' must be printable text of at most {} bytes", Label::LIMIT);
        return Err(ApiError::invalid("owner", message));
    }
    let wish = match (&body.parts, &body.any) {
        (Some(parts), None) => LeaseWish::Parts(parts_of("parts", parts.clone())?),
        (None, Some(any)) => {
            if any.count == 0 {
                return Err(ApiError::invalid("any", "'any.count' must be at least 1"));
            }
            some("any", any.memory)?;
            let among = any.among.clone().unwrap_or_default();
            if any.among.is_some() && among.len() < any.count {
                let message = format!("'any.among' names {} devices and {} are wanted", among.len(), any.count);
                return Err(ApiError::invalid("any", message));
            }
            among.iter().try_for_each(|device| named("any", device))?;
            LeaseWish::AnyOf { count: any.count, bytes: any.memory, devices: among }
        }
        (Some(_), Some(_)) => return Err(ApiError::invalid("any", "give 'parts' or 'any', not both")),
        (None, None) => {
            return Err(ApiError::invalid(
                "parts",
                "give 'parts' with a device and memory each, or 'any' with a count",
            ));
        }
    };
    let mode = match (body.wait, body.preempt) {
        (false, false) => Mode::Try,
        (true, false) => Mode::Wait,
        (true, true) => Mode::Preempt,
        (false, true) => {
            let message = "'preempt' asks others to make way, which takes time: it goes with 'wait'";
            return Err(ApiError::invalid("preempt", message));
        }
    };
    let (preemptible, grace, min_hold) = (body.preemptible, body.grace, body.min_hold);
    let yielding = Yielding { preemptible, grace, min_hold, reload: Duration::ZERO };
    let (request_id, label) = (body.request_id.clone(), body.owner.label.clone());
    Ok(AcquireRequest { request_id, label, priority: body.priority, wish, yielding, mode })
}

fn parts_of(param: &str, parts: Vec<PartBody>) -> Result<Vec<(DeviceId, ByteCount)>, ApiError> {
    if parts.is_empty() {
        return Err(ApiError::invalid(param, format!("'{param}' names no device")));
    }
    if parts.len() > DEVICES {
        return Err(ApiError::invalid(param, format!("'{param}' names more than {DEVICES} devices")));
    }
    let mut wanted: Vec<(DeviceId, ByteCount)> = Vec::with_capacity(parts.len());
    for PartBody { device, memory } in parts {
        named(param, &device)?;
        some(param, memory)?;
        if wanted.iter().any(|(other, _)| *other == device) {
            return Err(ApiError::invalid(param, format!("'{param}' names {device} twice")));
        }
        wanted.push((device, memory));
    }
    Ok(wanted)
}

fn named(param: &str, device: &DeviceId) -> Result<(), ApiError> {
    match device {
        DeviceId::Auto => Err(ApiError::invalid(param, "a lease is for named devices; 'auto' names none; use 'any'")),
        _ => Ok(()),
    }
}

fn some(param: &str, memory: ByteCount) -> Result<(), ApiError> {
    let none = memory == ByteCount::ZERO;
    if none { Err(ApiError::invalid(param, "'memory' must be at least one byte")) } else { Ok(()) }
}

fn waiting(position: usize, reason: String, recovering: bool) -> QueueNotice {
    QueueNotice { position, reason, retry_after_ms: millis(ASK_AGAIN), recovering, asked: Vec::new() }
}

fn one(lease: GuestLease) -> OneLease {
    OneLease { lease: with_token(lease) }
}

fn with_token(lease: GuestLease) -> LeaseBody {
    LeaseBody { token: Some(lease.proof), ..lease.view.into() }
}

fn free() -> ReleasedBody {
    ReleasedBody { released: true, state: None, reason: None, warning: None }
}

fn no_such(id: &LeaseId) -> GuestRefusal {
    let message = format!("no lease is called '{id}'; GET /api/v1/leases lists them");
    GuestRefusal(ApiError::new(ErrorCode::LeaseNotFound, message))
}

fn names(processes: &[Process]) -> String {
    let names: Vec<String> = processes.iter().map(|process| process.pid.to_string()).collect();
    names.join(", ")
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Limits the processes of a request: a lease is stored with every attached process.
fn few(param: &str, processes: usize) -> Result<(), ApiError> {
    if processes <= PROCESSES {
        return Ok(());
    }
    let message = format!("'{param}' names more than {PROCESSES} processes; descendants need no naming");
    Err(ApiError::invalid(param, message))
}

/// Checks a request's id, which is written into the ledger.
fn named_well(param: &str, name: &str) -> Result<(), ApiError> {
    if name.is_empty() || !Label::fits(name) {
        let message = format!("'{param}' must be printable text of 1 to {} bytes", Label::LIMIT);
        return Err(ApiError::invalid(param, message));
    }
    Ok(())
}
