//! The processor's cores as a process may use them, and the plan of the threads that compute on them. Reading the
//! system's files and planning are apart: a plan is made from numbers only.

mod plan;
mod quota;
mod read;
mod topology;

pub use plan::{ThreadPlan, plan};
pub use read::read;
pub use topology::{CpuTopology, LogicalCpu};
