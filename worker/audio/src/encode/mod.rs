//! Encoding: samples become files and streams of clients.
