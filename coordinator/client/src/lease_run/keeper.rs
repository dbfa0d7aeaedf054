//! The thread that requests a lease and keeps it: its heartbeat does not depend on the program.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use model_boss_protocol::{Later, chain};
use tokio::sync::{mpsc as news, oneshot};

use super::desk::{Desk, Granted, Granting, Released, RevokeNotice};
use super::error::LeaseError;

/// The interval of repeated requests: well within the lease's term, so that the place in the queue is kept.
const ASK: Duration = Duration::from_secs(1);
/// The interval of tries to attach a process while the ledger is out of reach.
const ATTACH_INTERVAL: Duration = Duration::from_millis(200);
/// The longest time of such tries: after it the lease is about to expire.
const ATTACH_LIMIT: Duration = Duration::from_secs(10);
/// The interval between samples of the device after the program has ended.
const RELEASE_INTERVAL: Duration = Duration::from_millis(50);
/// The longest time of such samples. After it the memory stays counted until a later check finds it free.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);

/// Events of the lease.
#[derive(Debug)]
pub(super) enum LeaseEvent {
    /// The ledger's address, once it could be reached.
    Asks(String),
    /// The request is queued, for this reason.
    Waits(String),
    /// The memory is promised.
    Granted(Granted),
    /// The lease was revoked.
    Revoked(RevokeNotice),
    /// The lease is lost: the program must end.
    Lost,
    /// The ledger cannot be reached, or can be reached again. Existing leases stay valid.
    Away(String),
    Back,
    /// The request will never be granted.
    Failed(LeaseError),
}

/// Whether the lease's processes end with its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// The lease's processes have ended, or are about to.
    Ending,
    /// The lease's processes may continue: memory that they still use stays counted until they end.
    LivingOn,
}

enum KeeperOrder {
    Attach { pid: u32, reply: oneshot::Sender<Result<(), LeaseError>> },
    Release { leaving: Leaving, reply: oneshot::Sender<Option<String>> },
    Cancel { reply: oneshot::Sender<()> },
}

/// The handle of the thread that renews the lease. Dropping it without a release leaves the lease to expire.
#[derive(Clone)]
pub(super) struct Keeper {
    orders: mpsc::Sender<KeeperOrder>,
}

/// The events of the thread that renews the lease.
pub(super) type LeaseEvents = news::UnboundedReceiver<LeaseEvent>;

impl Keeper {
    /// Starts the thread that renews the lease. It opens the ledger and sends the request.
    pub(super) fn start(
        open: impl FnOnce() -> Result<Box<dyn Desk>, LeaseError> + Send + 'static,
    ) -> Result<(Self, LeaseEvents), LeaseError> {
        let (orders, inbox) = mpsc::channel();
        let (news, listener) = news::unbounded_channel();
        std::thread::Builder::new()
            .name("lease".to_owned())
            .spawn(move || match open() {
                Ok(desk) => {
                    let lease = KeptLease { desk, news, held: false, away: false };
                    lease.tell(LeaseEvent::Asks(lease.desk.describe()));
                    lease.run(&inbox);
                }
                // The handle was dropped, so there is no receiver.
                Err(error) => drop(news.send(LeaseEvent::Failed(error))),
            })
            .map_err(|error| LeaseError::System("start the thread that keeps the lease", error))?;
        Ok((Self { orders }, listener))
    }

    /// Passes a process through the gate.
    pub(super) async fn attach(&self, pid: u32) -> Result<(), LeaseError> {
        let (reply, attached) = oneshot::channel();
        self.order(KeeperOrder::Attach { pid, reply });
        attached.await.map_err(|_| LeaseError::Keeper)?
    }

    /// Releases the memory. Returns why some of it stays counted, if any does.
    pub(super) async fn release(&self, leaving: Leaving) -> Option<String> {
        let (reply, done) = oneshot::channel();
        self.order(KeeperOrder::Release { leaving, reply });
        // A thread that has ended renews no lease: the lease expires, and the next check of the ledger ends it.
        done.await.ok().flatten()
    }

    /// Cancels the request.
    pub(super) async fn cancel(&self) {
        let (reply, done) = oneshot::channel();
        self.order(KeeperOrder::Cancel { reply });
        let _ = done.await;
    }

    fn order(&self, order: KeeperOrder) {
        // The thread ends only after this handle, or after its last order.
        let _ = self.orders.send(order);
    }
}

/// The state of the thread that renews the lease.
struct KeptLease {
    desk: Box<dyn Desk>,
    news: news::UnboundedSender<LeaseEvent>,
    held: bool,
    away: bool,
}

impl KeptLease {
    fn run(mut self, inbox: &mpsc::Receiver<KeeperOrder>) {
        let mut due = Instant::now();
        loop {
            if Instant::now() >= due {
                if self.held {
                    self.renew();
                } else if let Err(error) = self.acquire() {
                    return self.tell(LeaseEvent::Failed(error));
                }
                due = Instant::now().later(if self.held { self.desk.heartbeat() } else { ASK });
            }
            match inbox.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(KeeperOrder::Attach { pid, reply }) => drop(reply.send(self.attach(pid))),
                Ok(KeeperOrder::Release { leaving, reply }) => return drop(reply.send(self.release(leaving))),
                Ok(KeeperOrder::Cancel { reply }) => {
                    if let Err(error) = self.desk.cancel() {
                        tracing::debug!("the request could not be taken back: {}", chain(&error));
                    }
                    // An error means that the caller was dropped.
                    let _ = reply.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn acquire(&mut self) -> Result<(), LeaseError> {
        match self.desk.acquire() {
            Ok(Granting::Granted(granted)) => {
                self.held = true;
                self.tell(LeaseEvent::Granted(granted));
            }
            Ok(Granting::Waits(reason)) => self.tell(LeaseEvent::Waits(reason)),
            Err(error) if error.is_outage() => self.tell(LeaseEvent::Waits(chain(&error))),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Repeats the request while answers are lost: attaching a process twice has the same result.
    fn attach(&mut self, pid: u32) -> Result<(), LeaseError> {
        let deadline = Instant::now().later(ATTACH_LIMIT);
        loop {
            match self.desk.attach(pid) {
                Err(error) if error.is_outage() && Instant::now() < deadline => {
                    tracing::debug!("a process is not let through yet: {}", chain(&error));
                    std::thread::park_timeout(ATTACH_INTERVAL);
                }
                answer => return answer,
            }
        }
    }

    fn renew(&mut self) {
        match self.desk.renew() {
            Ok(kept) => {
                if std::mem::take(&mut self.away) {
                    self.tell(LeaseEvent::Back);
                }
                if let Some(revoked) = kept.revoked {
                    self.tell(LeaseEvent::Revoked(revoked));
                }
                if kept.lost {
                    self.tell(LeaseEvent::Lost);
                }
            }
            // The lease is not known to be lost: the program continues, and no new lease is requested.
            Err(error) => {
                if !std::mem::replace(&mut self.away, true) {
                    self.tell(LeaseEvent::Away(chain(&error)));
                }
            }
        }
    }

    /// Releases the lease. Returns why some of its memory stays counted, if any does.
    fn release(&mut self, leaving: Leaving) -> Option<String> {
        if !self.held {
            return self.desk.cancel().err().map(|error| chain(&error));
        }
        let deadline = Instant::now().later(RELEASE_LIMIT);
        // The smallest lease promises no memory; memory that is still in use is counted as measured.
        if leaving == Leaving::LivingOn
            && let Err(error) = self.desk.shrink()
        {
            tracing::debug!("the lease could not be made smaller: {}", chain(&error));
        }
        loop {
            let for_good = leaving == Leaving::LivingOn || Instant::now() > deadline;
            let why = match self.desk.release(for_good) {
                Ok(Released::Free) => return None,
                Ok(Released::Counted(why)) => why,
                // The lease expires, and the next check that finds its processes gone ends it.
                Err(error) if !error.is_outage() => return Some(chain(&error)),
                Err(error) if Instant::now() > deadline => return Some(chain(&error)),
                Err(error) => {
                    tracing::debug!("the lease cannot be released yet: {}", chain(&error));
                    std::thread::park_timeout(RELEASE_INTERVAL);
                    continue;
                }
            };
            if for_good {
                return Some(why);
            }
            std::thread::park_timeout(RELEASE_INTERVAL);
        }
    }

    fn tell(&self, news: LeaseEvent) {
        // A missing receiver means that the program is about to end.
        let _ = self.news.send(news);
    }
}
