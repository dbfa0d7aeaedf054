//! The interface of the scheduler within the coordinator: reports, the handle for requests and orders, tickets and
//! their verdicts. The task that owns the scheduler is [`crate::driver`].

mod background;
mod events;
mod handle;
mod pulse;
#[cfg(test)]
mod tests;
mod ticket;
mod verdict;

pub(crate) use background::{BackgroundRun, RunStage};
pub(crate) use events::{DriverInput, Inbox, News};
pub(crate) use handle::{Scheduling, Wish};
pub(crate) use pulse::Pulse;
pub(crate) use ticket::Ticket;
pub(crate) use verdict::{Destination, Dispatched, Recall, Ruling};
