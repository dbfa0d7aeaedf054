//! The thread that asks for a lease and keeps it: its heartbeat depends on nothing that the program does.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use model_boss_host::error_chain::chain;
use model_boss_protocol::Later;
use tokio::sync::{mpsc as news, oneshot};

use super::desk::{Answer, Desk, Granted, Released, Revoked};
use super::error::LeaseError;

/// Who waits asks this often: well within the lease time, so that the place in the queue is kept.
const ASK: Duration = Duration::from_secs(1);
/// While the ledger is out of reach a process is let through again and again this often,
const ATTACH_INTERVAL: Duration = Duration::from_millis(200);
/// for at most so long: then the promise is about to expire.
const ATTACH_LIMIT: Duration = Duration::from_secs(10);
/// After the program has ended the device is looked at this often,
const RELEASE_INTERVAL: Duration = Duration::from_millis(50);
/// for at most so long; then the memory stays counted until somebody sees it free.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);

/// What has happened to the lease.
#[derive(Debug)]
pub(super) enum News {
    /// Where leases are kept, which could be reached.
    Asks(String),
    /// Not yet granted, and why.
    Waits(String),
    /// The memory is promised.
    Granted(Granted),
    /// It is asked back.
    Revoked(Revoked),
    /// It is gone: the program must end.
    Lost,
    /// Where it is kept cannot be reached, or can again. What is held stays held.
    Away(String),
    Back,
    /// It will never be granted.
    Failed(LeaseError),
}

/// How the memory is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// Its processes have ended, or are about to.
    Ending,
    /// Its processes may live on: what they still use stays counted until they end.
    LivingOn,
}

enum Order {
    Attach { pid: u32, reply: oneshot::Sender<Result<(), LeaseError>> },
    Release { leaving: Leaving, reply: oneshot::Sender<Option<String>> },
    Cancel { reply: oneshot::Sender<()> },
}

/// The handle of the thread. Whoever drops it without a word leaves the lease to expire.
#[derive(Clone)]
pub(super) struct Keeper {
    orders: mpsc::Sender<Order>,
}

/// What the thread has to tell.
pub(super) type Listener = news::UnboundedReceiver<News>;

impl Keeper {
    /// Goes where leases are kept and begins to ask.
    pub(super) fn start(
        open: impl FnOnce() -> Result<Box<dyn Desk>, LeaseError> + Send + 'static,
    ) -> Result<(Self, Listener), LeaseError> {
        let (orders, inbox) = mpsc::channel();
        let (news, listener) = news::unbounded_channel();
        std::thread::Builder::new()
            .name("lease".to_owned())
            .spawn(move || match open() {
                Ok(desk) => {
                    let lease = Lease { desk, news, held: false, away: false };
                    lease.tell(News::Asks(lease.desk.describe()));
                    lease.run(&inbox);
                }
                // Nobody listens any more.
                Err(error) => drop(news.send(News::Failed(error))),
            })
            .map_err(|error| LeaseError::System("start the thread that keeps the lease", error))?;
        Ok((Self { orders }, listener))
    }

    /// The gate.
    pub(super) async fn attach(&self, pid: u32) -> Result<(), LeaseError> {
        let (reply, attached) = oneshot::channel();
        self.order(Order::Attach { pid, reply });
        attached.await.map_err(|_| LeaseError::Keeper)?
    }

    /// Gives the memory back. Answers why some of it stays counted, if it does.
    pub(super) async fn release(&self, leaving: Leaving) -> Option<String> {
        let (reply, done) = oneshot::channel();
        self.order(Order::Release { leaving, reply });
        // A thread that has ended keeps nothing alive: the lease expires, and is ended by whoever looks next.
        done.await.ok().flatten()
    }

    /// Takes the request back.
    pub(super) async fn cancel(&self) {
        let (reply, done) = oneshot::channel();
        self.order(Order::Cancel { reply });
        let _ = done.await;
    }

    fn order(&self, order: Order) {
        // The thread ends only after this handle, or after its last order.
        let _ = self.orders.send(order);
    }
}

/// What the thread owns.
struct Lease {
    desk: Box<dyn Desk>,
    news: news::UnboundedSender<News>,
    held: bool,
    away: bool,
}

impl Lease {
    fn run(mut self, inbox: &mpsc::Receiver<Order>) {
        let mut due = Instant::now();
        loop {
            if Instant::now() >= due {
                if self.held {
                    self.renew();
                } else if let Err(error) = self.ask() {
                    return self.tell(News::Failed(error));
                }
                due = Instant::now().later(if self.held { self.desk.heartbeat() } else { ASK });
            }
            match inbox.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Order::Attach { pid, reply }) => drop(reply.send(self.attach(pid))),
                Ok(Order::Release { leaving, reply }) => return drop(reply.send(self.release(leaving))),
                Ok(Order::Cancel { reply }) => {
                    if let Err(error) = self.desk.cancel() {
                        tracing::debug!("the request could not be taken back: {}", chain(&error));
                    }
                    // Nobody waits any more.
                    let _ = reply.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn ask(&mut self) -> Result<(), LeaseError> {
        match self.desk.ask() {
            Ok(Answer::Granted(granted)) => {
                self.held = true;
                self.tell(News::Granted(granted));
            }
            Ok(Answer::Waits(reason)) => self.tell(News::Waits(reason)),
            Err(error) if error.is_outage() => self.tell(News::Waits(chain(&error))),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// An answer that was lost is asked for again: whoever was let through hears so as often as it asks.
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
                    self.tell(News::Back);
                }
                if let Some(revoked) = kept.revoked {
                    self.tell(News::Revoked(revoked));
                }
                if kept.lost {
                    self.tell(News::Lost);
                }
            }
            // Nothing is known to be lost: the program goes on, and nothing new is begun.
            Err(error) => {
                if !std::mem::replace(&mut self.away, true) {
                    self.tell(News::Away(chain(&error)));
                }
            }
        }
    }

    /// Why some of it stays counted, if it does.
    fn release(&mut self, leaving: Leaving) -> Option<String> {
        if !self.held {
            return self.desk.cancel().err().map(|error| chain(&error));
        }
        let deadline = Instant::now().later(RELEASE_LIMIT);
        // Nothing more is promised then: what is still in use is counted as it is seen.
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
                // It expires, and is ended by whoever looks next and finds its processes gone.
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

    fn tell(&self, news: News) {
        // Nobody listens any more: the program is about to end.
        let _ = self.news.send(news);
    }
}
