//! Whole-process tests: the real coordinator with stand-in workers, and both real binaries with a tiny model.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "tests, and helpers of tests")]

mod bad_requests;
mod chat;
mod cli;
mod clients;
mod cloud;
mod comments;
mod config;
mod coordinator_death;
mod dialects;
mod disconnect;
mod drain;
mod engines;
mod events;
mod eviction;
mod files;
mod isolation;
mod lease_chaos;
mod lease_run;
mod lease_store;
mod leases;
mod load_failures;
mod observability;
mod operators;
mod ports;
mod proxies;
mod queue;
mod real_model;
mod residency;
mod simulation;
mod single_flight;
mod streaming;
mod tasks;
mod views;
mod worker_contract;
mod worker_death;
