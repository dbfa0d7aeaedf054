//! The stores of records: the embedded one and Redis. Both keep every change before they report it as kept, and both
//! refuse the changes of a process whose place another one has taken.

mod embedded;
mod error;
mod redis_records;
#[cfg(test)]
mod tests;
mod traits;

pub use embedded::RedbRecords;
pub use error::JobStoreError;
pub use redis_records::RedisRecords;
pub use traits::{RecordChange, RecordStore, SCHEMA};
