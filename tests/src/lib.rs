//! The harness of whole-system tests: it starts real processes, observes them, and checks that none is left.
//!
//! A test makes a [`Sandbox`], a temporary folder with manifests and a state folder, and starts the real coordinator in
//! it as a [`Boss`]. It sends HTTP requests to the coordinator, and steers the fake workers through a [`FakeModel`].
//! Processes are observed only from outside: their HTTP, their output, `/proc`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap here is a failed test with a line number")]

mod binaries;
mod boss;
mod client;
mod collector;
mod dice;
mod failing_writes;
mod fake_gpus;
mod fake_hub;
mod fake_model;
mod faulty_disk;
mod held_file;
mod lone_worker;
mod mounts;
mod ports;
mod processes;
mod prometheus;
mod redis;
mod sandbox;
mod wait;

pub use binaries::{BIN_DIR_VARIABLE, binary};
pub use boss::{Boss, GONE_WITHIN, Launch, Output, question};
pub use client::{Answer, Client, Event, Streamed, text_of_events};
pub use collector::{CollectedSpan, Collector, CollectorMode};
pub use dice::{Dice, amount};
pub use failing_writes::FailingWrites;
pub use fake_gpus::{CALLS, FakeGpus, GPU_IS_LOST, Listing, UNKNOWN_ERROR};
pub use fake_hub::{FakeHub, HubBehaviour, HubHost, HubRequest};
pub use fake_model::{FakeModel, FakeWorker, Received};
pub use faulty_disk::{DirectReads, FaultyDisk, Trouble};
pub use held_file::HeldFile;
pub use lone_worker::LoneWorker;
pub use model_boss_fake_worker::behaviour::{Behaviour, FakeError, Malformed, RawAnswer};
pub use mounts::Mounts;
pub use ports::own_ports;
pub use processes::{PeakMemory, Processes};
pub use prometheus::{Prometheus, promtool};
pub use redis::RedisServer;
pub use sandbox::Sandbox;
pub use wait::{PATIENCE, until, within};
