//! The connection to a test: reports out, behaviour and commands in. Outside of tests it does not exist and costs no
//! time.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use model_boss_fake_worker::behaviour::{Behaviour, FakeCommand, Report};
use model_boss_protocol::WorkerSpec;
use tokio::sync::watch;

/// The reason why the connection to a test cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    #[error("cannot read the behaviour")]
    Read(#[source] std::io::Error),
    #[error("the behaviour is malformed")]
    Malformed(#[source] serde_json::Error),
}

/// The connection for reports, and the commands received so far.
pub(crate) struct Control {
    stream: Option<Mutex<UnixStream>>,
    finish_load: watch::Receiver<bool>,
    decode: watch::Receiver<bool>,
    // A worker without a test's control gets no command. Its receivers must not see a closed channel, so the senders
    // are kept.
    _senders: (watch::Sender<bool>, watch::Sender<bool>),
}

impl Control {
    /// Connects if the behaviour names a socket, and reads the behaviour that the test sends.
    pub(crate) fn open(own: Behaviour, spec: &WorkerSpec) -> Result<(Behaviour, Self), ControlError> {
        let (finish_load, finish_load_seen) = watch::channel(false);
        let (decode, decode_seen) = watch::channel(false);
        let senders = (finish_load.clone(), decode.clone());
        let Some(path) = &own.control else {
            let control = Self { stream: None, finish_load: finish_load_seen, decode: decode_seen, _senders: senders };
            return Ok((own, control));
        };
        let stream = UnixStream::connect(path).map_err(ControlError::Connect)?;
        let mut commands = BufReader::new(stream.try_clone().map_err(ControlError::Connect)?);
        let control = Self {
            stream: Some(Mutex::new(stream)),
            finish_load: finish_load_seen,
            decode: decode_seen,
            _senders: senders,
        };
        control.report(&spawned(spec));
        let mut line = String::new();
        commands.read_line(&mut line).map_err(ControlError::Read)?;
        let behaviour = serde_json::from_str(&line).map_err(ControlError::Malformed)?;
        std::thread::spawn(move || {
            for line in commands.lines() {
                match line.map(|line| serde_json::from_str(&line)) {
                    Ok(Ok(FakeCommand::FinishLoad)) => _ = finish_load.send(true),
                    Ok(Ok(FakeCommand::Decode)) => _ = decode.send(true),
                    Ok(Err(error)) => eprintln!("model-boss-fake-worker: unknown command: {error}"),
                    // The test has ended; the lifeline, not this socket, decides when the worker ends.
                    Err(_) => return,
                }
            }
        });
        Ok((behaviour, control))
    }

    /// Whether a test listens; expensive reports are made only in that case.
    pub(crate) fn listens(&self) -> bool {
        self.stream.is_some()
    }

    /// Sends a report to the test. The write blocks, so that the report is sent before a crash.
    pub(crate) fn report(&self, report: &Report) {
        let Some(stream) = &self.stream else { return };
        let Ok(mut line) = serde_json::to_vec(report) else { return };
        line.push(b'\n');
        let mut stream = stream.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // An error means that the test stopped listening; the worker continues to serve.
        _ = stream.write_all(&line);
    }

    /// Waits for [`FakeCommand::FinishLoad`].
    pub(crate) async fn finish_load(&self) {
        _ = self.finish_load.clone().wait_for(|released| *released).await;
    }

    /// Waits for [`FakeCommand::Decode`].
    pub(crate) async fn decode(&self) {
        _ = self.decode.clone().wait_for(|released| *released).await;
    }

    /// Whether [`FakeCommand::Decode`] was received.
    pub(crate) fn may_decode(&self) -> bool {
        *self.decode.borrow()
    }
}

fn spawned(spec: &WorkerSpec) -> Report {
    let mut shown = serde_json::to_value(spec).unwrap_or_default();
    if let Some(fields) = shown.as_object_mut() {
        fields.remove("token");
        fields.remove("proof");
    }
    Report::Spawned {
        pid: std::process::id(),
        port: spec.port,
        generation: spec.generation,
        env: std::env::vars().collect::<BTreeMap<_, _>>(),
        spec: shown,
    }
}
