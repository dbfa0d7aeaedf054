//! Single rules of the protocol, each as a short story.

mod basics;
mod degraded;
mod preemption;
mod recovery;
mod story;
mod waiting;
