//! The rules of the ledger, one file each.

mod acquire;
mod apply;
mod attach;
mod crowd;
mod end;
mod expire;
mod fit;
mod grant;
mod held;
mod nominate;
mod nominated;
mod observe;
mod preempt;
mod reassert;
mod recover;
mod renew;
mod resize;

pub use apply::apply;
pub use nominate::nominations;
pub use recover::{after_loss, read_from};
