//! What devices there are and how full they are. Each probe runs on its own thread behind a deadline: a driver that hangs
//! makes its devices unknown, and nothing else. Unknown is never zero (RC-21). Knows no leases beyond the pids it is given.

mod cgroup;
mod declared;
mod host;
mod nvidia;
mod simulated;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use model_boss_protocol::{ByteCount, DeviceId};
use serde::Serialize;

pub(crate) use declared::DeclaredProbe;
pub(crate) use host::HostProbe;
pub(crate) use nvidia::NvidiaProbe;
pub(crate) use simulated::{SimulatedMachine, SimulationError};

/// Looks at one kind of device. May block; never panics on what the system says.
pub(crate) trait Probe: Send + 'static {
    /// All its devices now. `leased` are the roots of the process trees that hold leases.
    fn sample(&mut self, leased: &[u32]) -> Vec<DeviceSample>;
}

/// One device at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct DeviceSample {
    /// Which device.
    pub(crate) device: DeviceId,
    /// What it is called.
    pub(crate) name: String,
    /// A GPU's identity.
    pub(crate) uuid: Option<String>,
    /// The memory that may be used for models in all.
    pub(crate) capacity: Option<ByteCount>,
    /// Kept free for others.
    pub(crate) reserve: ByteCount,
    /// In use by anybody.
    pub(crate) used: Option<ByteCount>,
    /// In use by each process that could be told apart; of the leased ones, all that could.
    #[serde(skip)]
    pub(crate) processes: Vec<(u32, ByteCount)>,
    /// Whether the driver says what each process uses. Some do not (WSL, some MIG, containers).
    pub(crate) told_apart: bool,
    /// What models may keep here while idle (BC-1).
    #[serde(skip)]
    pub(crate) retention: Option<ByteCount>,
    /// Only one model at a time may use it (MM-5).
    #[serde(skip)]
    pub(crate) exclusive: bool,
    /// When this was seen.
    #[serde(skip)]
    pub(crate) sampled_at: Instant,
}

/// All probes of the machine. Lives on the thread that keeps the ledger.
pub(crate) struct Probes {
    probes: Vec<ProbeThread>,
}

struct ProbeThread {
    orders: SyncSender<(Vec<u32>, SyncSender<Vec<DeviceSample>>)>,
    /// The answer to an order that missed its deadline; no second order is given before it comes.
    late: Option<Receiver<Vec<DeviceSample>>>,
    last: Vec<DeviceSample>,
}

impl Probes {
    /// Starts one thread for each probe.
    pub(crate) fn start(probes: Vec<Box<dyn Probe>>) -> std::io::Result<Self> {
        Ok(Self { probes: probes.into_iter().map(ProbeThread::start).collect::<Result<_, _>>()? })
    }

    /// Every device now. A probe that does not answer within `limit` gives its devices as they were last seen, with
    /// everything that changes unknown.
    pub(crate) fn sample(&mut self, leased: &[u32], limit: Duration) -> Vec<DeviceSample> {
        let deadline = Instant::now() + limit;
        self.probes.iter_mut().flat_map(|probe| probe.sample(leased, deadline)).collect()
    }
}

impl ProbeThread {
    fn start(mut probe: Box<dyn Probe>) -> std::io::Result<Self> {
        let (orders, inbox) = mpsc::sync_channel::<(Vec<u32>, SyncSender<Vec<DeviceSample>>)>(1);
        std::thread::Builder::new().name("probe".into()).spawn(move || {
            while let Ok((leased, reply)) = inbox.recv() {
                // Nobody waits any more: the next order will be newer.
                let _ = reply.send(probe.sample(&leased));
            }
        })?;
        Ok(Self { orders, late: None, last: Vec::new() })
    }

    fn sample(&mut self, leased: &[u32], deadline: Instant) -> Vec<DeviceSample> {
        if let Some(late) = &self.late {
            match late.try_recv() {
                // Old news, but the thread is free again.
                Ok(_) | Err(mpsc::TryRecvError::Disconnected) => self.late = None,
                Err(mpsc::TryRecvError::Empty) => return self.unknown(),
            }
        }
        let (reply, answer) = mpsc::sync_channel(1);
        if self.orders.send((leased.to_vec(), reply)).is_err() {
            return self.unknown();
        }
        match answer.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(samples) => {
                self.last.clone_from(&samples);
                samples
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!("a device probe does not answer; its devices count as unknown until it does");
                self.late = Some(answer);
                self.unknown()
            }
            Err(RecvTimeoutError::Disconnected) => self.unknown(),
        }
    }

    fn unknown(&self) -> Vec<DeviceSample> {
        let forget = |sample: &DeviceSample| DeviceSample { used: None, processes: Vec::new(), ..sample.clone() };
        self.last.iter().map(forget).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(used: u64) -> DeviceSample {
        DeviceSample {
            device: DeviceId::Cpu,
            name: "fake".into(),
            uuid: None,
            capacity: Some(ByteCount(1000)),
            reserve: ByteCount(100),
            used: Some(ByteCount(used)),
            told_apart: true,
            processes: Vec::new(),
            retention: None,
            exclusive: false,
            sampled_at: Instant::now(),
        }
    }

    /// Answers once for each permit it is given.
    struct Gated(Receiver<()>);

    impl Probe for Gated {
        fn sample(&mut self, _: &[u32]) -> Vec<DeviceSample> {
            let _ = self.0.recv();
            vec![sample(500)]
        }
    }

    #[test]
    fn rc_21_a_probe_that_hangs_makes_its_devices_unknown_and_recovers() {
        let (permits, gate) = mpsc::channel();
        let mut probes = Probes::start(vec![Box::new(Gated(gate))]).unwrap();
        permits.send(()).unwrap();
        let long = Duration::from_secs(60);
        assert_eq!(probes.sample(&[], long)[0].used, Some(ByteCount(500)));
        let hung = probes.sample(&[], Duration::from_millis(1));
        assert_eq!((hung[0].used, hung[0].capacity), (None, Some(ByteCount(1000))));
        // Still hung: answers at once, with nothing new asked of the driver.
        assert_eq!(probes.sample(&[], long)[0].used, None);
        permits.send(()).unwrap();
        permits.send(()).unwrap();
        while probes.sample(&[], long)[0].used.is_none() {
            std::thread::yield_now();
        }
    }
}
