//! The use of a decoder's devices, for observers in other threads.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model_boss_protocol::DeviceId;
use serde::Serialize;

/// The use of one device by a decoder: a range of its layers, with their keys and values. Reading it never waits for
/// a step. Clones count together.
#[derive(Clone, Debug)]
pub struct PlaceUse {
    device: DeviceId,
    layers: Range<usize>,
    weight_bytes: u64,
    host_bytes: u64,
    kv_bytes_per_token: usize,
    state_bytes: usize,
    kv_bytes: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    received_bytes: Arc<AtomicU64>,
}

/// A reading of [`PlaceUse`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlaceReport {
    /// The device, by the name it has inside the worker.
    pub device: DeviceId,
    /// Its first layer.
    pub first_layer: usize,
    /// The number of layers it computes.
    pub layers: usize,
    /// Bytes of weights on it, device slots included.
    pub weight_bytes: u64,
    /// Bytes of host memory that weights pass through or are held in; 0 where its memory is the host's.
    pub host_bytes: u64,
    /// Bytes of keys, values and states of sequences on it now.
    pub kv_bytes: u64,
    /// The number of copies of activations to it from the previous device.
    pub received: u64,
    /// Bytes of them.
    pub received_bytes: u64,
}

impl PlaceUse {
    /// The use of a device before any step. The bytes of a token's keys and values, and those of a sequence's state,
    /// are of its own layers.
    pub fn new(
        device: DeviceId,
        layers: Range<usize>,
        (weight_bytes, host_bytes): (u64, u64),
        (kv_bytes_per_token, state_bytes): (usize, usize),
    ) -> Self {
        Self {
            device,
            layers,
            weight_bytes,
            host_bytes,
            kv_bytes_per_token,
            state_bytes,
            kv_bytes: Arc::default(),
            received: Arc::default(),
            received_bytes: Arc::default(),
        }
    }

    /// Bytes of keys and values for one token.
    pub fn kv_bytes_per_token(&self) -> usize {
        self.kv_bytes_per_token
    }

    /// Notes for how many tokens in all there is room, and how many states are kept.
    pub fn holds(&self, tokens: usize, states: usize) {
        let held = tokens * self.kv_bytes_per_token + states * self.state_bytes;
        self.kv_bytes.store(held as u64, Ordering::Relaxed);
    }

    /// Counts a copy of activations from the previous device.
    pub fn received(&self, bytes: u64) {
        self.received.fetch_add(1, Ordering::Relaxed);
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The present values.
    pub fn report(&self) -> PlaceReport {
        PlaceReport {
            device: self.device.clone(),
            first_layer: self.layers.start,
            layers: self.layers.len(),
            weight_bytes: self.weight_bytes,
            host_bytes: self.host_bytes,
            kv_bytes: self.kv_bytes.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
        }
    }
}
