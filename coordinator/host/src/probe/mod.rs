//! The devices of the machine and their memory in use. Each probe runs on its own thread behind a deadline: a driver
//! that hangs makes its own devices unknown, and no others. Unknown never counts as zero (RC-21). Of leases, the probes
//! get only the pids.

mod cgroup;
mod declared;
mod host;
mod nvidia;
mod sample;
mod simulated;

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use model_boss_protocol::{DeviceId, Later};

pub use declared::DeclaredProbe;
pub use host::{HostProbe, SpareMemory};
pub use nvidia::NvidiaProbe;
pub use sample::{DeviceSample, Probe, Trouble};
pub use simulated::{SimulatedMachine, SimulationError};

/// A device that is missing from this many consecutive answers is lost. It is unknown from the first.
const LOST_AFTER: u32 = 2;

/// All probes of the machine. The ledger's thread owns them.
pub struct Probes {
    probes: Vec<ProbeThread>,
}

/// An answer of a probe: its devices, and the probe's own fault.
type ProbeAnswer = (Vec<DeviceSample>, Option<String>);

struct ProbeThread {
    orders: SyncSender<(Vec<u32>, SyncSender<ProbeAnswer>)>,
    /// The pending answer that missed its deadline, and when its order was given. No second order is given before it
    /// arrives.
    late: Option<(Receiver<ProbeAnswer>, Instant)>,
    /// Every device that was ever seen, with its last sample.
    last: Vec<DeviceSample>,
    /// The number of consecutive answers in which each device was missing.
    missing: BTreeMap<DeviceId, u32>,
    problem: Option<String>,
}

impl Probes {
    /// Starts one thread for each probe.
    pub fn start(probes: Vec<Box<dyn Probe>>) -> std::io::Result<Self> {
        Ok(Self { probes: probes.into_iter().map(ProbeThread::start).collect::<Result<_, _>>()? })
    }

    /// Samples every device. A probe that does not answer within `limit` gives the devices of its last answer, with
    /// every changing figure unknown.
    pub fn sample(&mut self, leased: &[u32], limit: Duration) -> Vec<DeviceSample> {
        let deadline = Instant::now().later(limit);
        self.probes.iter_mut().flat_map(|probe| probe.sample(leased, deadline)).collect()
    }

    /// The probes' own faults, as of the last sample.
    pub fn problems(&self) -> Vec<String> {
        self.probes.iter().filter_map(|probe| probe.problem.clone()).collect()
    }
}

impl ProbeThread {
    fn start(mut probe: Box<dyn Probe>) -> std::io::Result<Self> {
        let (orders, inbox) = mpsc::sync_channel::<(Vec<u32>, SyncSender<ProbeAnswer>)>(1);
        std::thread::Builder::new().name("probe".into()).spawn(move || {
            while let Ok((leased, reply)) = inbox.recv() {
                // A closed channel means that the order was given up: the next one is newer.
                let samples = probe.sample(&leased);
                let _ = reply.send((samples, probe.problem()));
            }
        })?;
        Ok(Self { orders, late: None, last: Vec::new(), missing: BTreeMap::new(), problem: None })
    }

    fn sample(&mut self, leased: &[u32], deadline: Instant) -> Vec<DeviceSample> {
        if let Some((late, _)) = &self.late {
            match late.try_recv() {
                // The late answer is outdated, but the thread is free again.
                Ok(_) | Err(mpsc::TryRecvError::Disconnected) => self.late = None,
                Err(mpsc::TryRecvError::Empty) => return self.unknown(),
            }
        }
        let (reply, answer) = mpsc::sync_channel(1);
        let asked = Instant::now();
        if self.orders.send((leased.to_vec(), reply)).is_err() {
            return self.unknown();
        }
        match answer.recv_timeout(deadline.saturating_duration_since(asked)) {
            Ok((samples, problem)) => {
                self.problem = problem;
                self.take(samples)
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!("a device probe does not answer; its devices count as unknown until it does");
                self.late = Some((answer, asked));
                self.unknown()
            }
            Err(RecvTimeoutError::Disconnected) => self.unknown(),
        }
    }

    /// An answer, completed by the known devices that are missing from it: the figures of a missing device are not
    /// kept.
    fn take(&mut self, mut samples: Vec<DeviceSample>) -> Vec<DeviceSample> {
        for sample in &samples {
            if self.missing.remove(&sample.device).is_some() {
                tracing::info!(device = %sample.device, "the device is listed by its driver again");
            }
        }
        for known in &self.last {
            if samples.iter().any(|sample| sample.device == known.device) {
                continue;
            }
            let times = self.missing.entry(known.device.clone()).or_default();
            *times = times.saturating_add(1);
            let trouble = if *times < LOST_AFTER {
                Trouble::Unreadable("its driver does not list it".to_owned())
            } else {
                Trouble::Lost
            };
            if *times == LOST_AFTER {
                tracing::error!(device = %known.device, uuid = known.uuid, "the device is gone: its driver does not list it any more");
            }
            samples.push(known.without_figures(trouble));
        }
        samples.sort_by(|a, b| a.device.cmp(&b.device));
        self.last.clone_from(&samples);
        samples
    }

    /// Every known device, with unknown figures, while the probe does not answer. A lost device stays lost.
    fn unknown(&self) -> Vec<DeviceSample> {
        let why = match &self.late {
            Some((_, asked)) => {
                format!("its driver has not answered for {:.0} s", asked.elapsed().as_secs_f64().ceil())
            }
            None => "its probe has ended".to_owned(),
        };
        let forget = |sample: &DeviceSample| match &sample.trouble {
            Some(Trouble::Lost) => sample.without_figures(Trouble::Lost),
            _ => sample.without_figures(Trouble::Unreadable(why.clone())),
        };
        self.last.iter().map(forget).collect()
    }
}

#[cfg(test)]
mod tests {
    use model_boss_protocol::ByteCount;

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
            trouble: None,
            exclusive: false,
            sampled_at: Instant::now(),
        }
    }

    /// A probe that answers once for each permit.
    struct Gated(Receiver<()>);

    impl Probe for Gated {
        fn sample(&mut self, _: &[u32]) -> Vec<DeviceSample> {
            let _ = self.0.recv();
            vec![sample(500)]
        }
    }

    /// A probe that gives these answers one after the other.
    struct Scripted(Vec<Vec<DeviceSample>>);

    impl Probe for Scripted {
        fn sample(&mut self, _: &[u32]) -> Vec<DeviceSample> {
            self.0.remove(0)
        }
    }

    #[test]
    fn rc_21_a_device_that_is_not_listed_any_more_is_unknown_at_once_and_then_lost() {
        let other = DeviceSample { device: DeviceId::Cuda(0), ..sample(1) };
        let (both, one) = (vec![sample(500), other], vec![sample(500)]);
        let answers = vec![both.clone(), one.clone(), one, Vec::new(), both];
        let mut probes = Probes::start(vec![Box::new(Scripted(answers))]).unwrap();
        let long = Duration::from_secs(60);
        let mut look = || {
            let samples = probes.sample(&[], long);
            assert_eq!(samples.len(), 2, "none is forgotten");
            let troubles: Vec<Option<Trouble>> = samples.iter().map(|sample| sample.trouble.clone()).collect();
            assert!(samples.iter().all(|sample| sample.used.is_some() == sample.trouble.is_none()));
            troubles
        };
        let unreadable = || Some(Trouble::Unreadable("its driver does not list it".to_owned()));
        assert_eq!(look(), [None, None]);
        assert_eq!(look(), [None, unreadable()]);
        assert_eq!(look(), [None, Some(Trouble::Lost)]);
        assert_eq!(look(), [unreadable(), Some(Trouble::Lost)]);
        assert_eq!(look(), [None, None]);
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
        // The driver still hangs: the answer arrives at once, without a new query.
        assert_eq!(probes.sample(&[], long)[0].used, None);
        permits.send(()).unwrap();
        permits.send(()).unwrap();
        while probes.sample(&[], long)[0].used.is_none() {
            std::thread::yield_now();
        }
    }
}
