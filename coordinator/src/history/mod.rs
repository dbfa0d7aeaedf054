//! The last hour of the service in a bounded ring, for charts: tokens, times to the first token, loads, swaps, and who
//! held the memory of each device.

mod latencies;
mod live;
mod ring;
mod views;

pub(crate) use live::LiveHistory;
pub(crate) use ring::POINTS;
pub(crate) use views::HistoryAnswer;
