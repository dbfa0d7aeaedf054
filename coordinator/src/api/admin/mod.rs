//! Routes of operators: views of everything, orders about models and devices, settings, leases, events and metrics.

pub(super) mod access;
pub(super) mod adapters;
pub(super) mod clients;
pub(super) mod config;
pub(super) mod dashboard;
pub(super) mod events;
pub(super) mod history;
pub(super) mod keys;
pub(super) mod leases;
pub(super) mod logs;
pub(super) mod manage;
pub(super) mod openapi;
pub(super) mod plan;
pub(super) mod prometheus;
pub(super) mod providers;
pub(super) mod requests;
pub(super) mod status;
pub(super) mod tasks;
pub(super) mod view_bodies;
