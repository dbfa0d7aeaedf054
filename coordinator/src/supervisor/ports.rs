//! Ports of workers: taken in sequence, busy ones skipped (RC-15). A taken port is released when dropped.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

/// The range of `worker_ports`, and the ports in use by this coordinator's workers.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    shared: Arc<Mutex<Taken>>,
}

#[derive(Debug)]
struct Taken {
    range: RangeInclusive<u16>,
    next: u16,
    held: BTreeSet<u16>,
}

/// A taken port, released when dropped.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    shared: Arc<Mutex<Taken>>,
}

impl Ports {
    /// All ports of `range`, free.
    pub(crate) fn new(range: RangeInclusive<u16>) -> Self {
        let next = *range.start();
        Self { shared: Arc::new(Mutex::new(Taken { range, next, held: BTreeSet::new() })) }
    }

    /// The next port that neither a worker nor another program uses; `None` when the whole range is busy.
    pub(crate) fn take(&self) -> Option<Port> {
        let mut taken = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in taken.range.clone() {
            let number = taken.next;
            taken.next = if number == *taken.range.end() { *taken.range.start() } else { number + 1 };
            if !taken.held.contains(&number) && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                taken.held.insert(number);
                return Some(Port { number, shared: Arc::clone(&self.shared) });
            }
        }
        None
    }
}

impl Port {
    /// The port number.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Whether no program listens on the port.
    pub(crate) fn is_free(&self) -> bool {
        TcpListener::bind((Ipv4Addr::LOCALHOST, self.number)).is_ok()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).held.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A range of ports that is free right now, so that tests in parallel do not collide.
    fn free_range(length: u16) -> RangeInclusive<u16> {
        let start = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let start = start.min(u16::MAX - length);
        start..=start + length - 1
    }

    #[test]
    fn rc_15_ports_come_in_sequence_and_held_ones_are_skipped() {
        let range = free_range(40);
        let ports = Ports::new(range.clone());
        let first = ports.take().unwrap();
        let second = ports.take().unwrap();
        assert!(first.number() < second.number());
        assert!(range.contains(&first.number()));
    }

    #[test]
    fn rc_15_a_busy_port_is_skipped_and_an_exhausted_range_says_so() {
        let stranger = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let busy = stranger.local_addr().unwrap().port();
        assert!(Ports::new(busy..=busy).take().is_none());
        drop(stranger);
        let ports = Ports::new(busy..=busy);
        let port = ports.take();
        assert_eq!(port.as_ref().map(Port::number), Some(busy));
        assert!(ports.take().is_none());
        drop(port);
        assert!(ports.take().is_some());
    }
}
