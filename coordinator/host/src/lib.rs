//! The machine: its devices, its started processes and the guards that end them. The crate also has files that survive
//! a restart, signals, file descriptors, clocks and the terminal. Models and requests are not part of this crate.

pub mod clocks;
pub mod descriptors;
pub mod driver;
pub mod environment;
pub mod guard;
pub mod hangup;
pub mod log_filter;
pub mod owner;
pub mod plain_file;
pub mod probe;
pub mod process;
pub mod programs;
pub mod sandbox;
pub mod state_folder;
pub mod tcp_table;
pub mod terminal;
pub mod watched_file;
