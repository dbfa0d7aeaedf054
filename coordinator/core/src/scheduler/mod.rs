//! The scheduler applies each input to queue, pool and devices, and returns the effects to carry out. It has no clock
//! and no I/O. Its state is in [`state`]; the other modules are its rules, by subject.

mod budget;
mod cancelling;
mod claims;
mod clients;
mod cores;
mod devices;
mod forgetting;
mod ladders;
mod ledger;
mod loading;
mod looks;
mod measure;
mod moves;
mod operator;
mod places;
mod plan;
mod pressure;
mod requests;
mod room;
mod second_try;
mod sizing;
mod slots;
mod state;
mod staying;
#[cfg(test)]
mod tests;
mod turn;
mod views;
mod yielding;

pub use state::Scheduler;
