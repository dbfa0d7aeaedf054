//! Single rules of the protocol, one scenario for each test.

mod basics;
mod degraded;
mod preemption;
mod recovery;
mod story;
mod waiting;
