//! The state of the fake worker, and what its behaviour makes of it.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use model_boss_fake_worker::behaviour::Behaviour;
use model_boss_protocol::{
    ApiError, ByteCount, DeviceId, ErrorCode, ResidencyMode, StreamStats, WorkerCores, WorkerSpec,
};
use tokio::sync::SetOnce;
use tokio::time::Instant;

use crate::canned::{CannedAnswer, refuse, whole};
use crate::control::Control;
use crate::decode::{Decode, FakeCounters};
use crate::llama_server;
use crate::shapes::Manner;
use crate::whole_answer::WholeAnswers;

/// The state that all connections share.
pub(crate) struct FakeWorker {
    pub(crate) spec: Arc<WorkerSpec>,
    pub(crate) behaviour: Arc<Behaviour>,
    pub(crate) control: Arc<Control>,
    pub(crate) manner: Manner,
    pub(crate) counters: Arc<FakeCounters>,
    pub(crate) answers: WholeAnswers,
    pub(crate) ready: SetOnce<()>,
    pub(crate) started: Instant,
}

impl FakeWorker {
    pub(crate) fn refuse(&self, error: &ApiError) -> CannedAnswer {
        match self.manner {
            Manner::Worker => refuse(error),
            Manner::LlamaServer => {
                let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                whole(status, llama_server::error(error).to_string().into())
            }
        }
    }

    /// Refuses a prompt of so many tokens.
    pub(crate) fn refuse_length(&self, tokens: u64) -> CannedAnswer {
        let limit = self.context_length();
        if self.manner == Manner::LlamaServer {
            return whole(StatusCode::BAD_REQUEST, llama_server::overflow(tokens, limit).to_string().into());
        }
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, the prompt has {tokens} tokens; shorten \
             it, or use a model with a longer context"
        );
        refuse(&ApiError::new(ErrorCode::ContextLengthExceeded, message))
    }

    /// The share of the simulated load that is done.
    pub(crate) fn progress(&self) -> f32 {
        if self.ready.get().is_some() {
            return 1.0;
        }
        let whole = Duration::from_millis(self.behaviour.load_ms);
        if whole.is_zero() { 0.5 } else { (self.started.elapsed().as_secs_f32() / whole.as_secs_f32()).min(0.99) }
    }

    /// The bytes the worker holds on each device at present.
    pub(crate) fn held(&self) -> Vec<(DeviceId, ByteCount)> {
        let leased: ByteCount = self.spec.parts.iter().map(|(_, bytes)| *bytes).sum();
        let holds = self.behaviour.holds.unwrap_or(leased).0 as f64 / leased.0.max(1) as f64;
        let share = holds * f64::from(self.progress());
        self.spec.parts.iter().map(|(device, bytes)| (device.clone(), bytes.scaled(share))).collect()
    }

    /// Simulated counts of a model that is to be streamed: half of its layers are streamed, without stalls.
    pub(crate) fn streaming(&self, ready: bool) -> Option<StreamStats> {
        (ready && self.spec.residency.mode == ResidencyMode::Stream).then(|| {
            let steps = self.counters.engine().steps;
            StreamStats {
                resident_layers: 12,
                streamed_layers: 12,
                slots: self.spec.residency.window.unwrap_or(1) + 1,
                store: "pretended".to_owned(),
                steps,
                overlap: 1.0,
                ..StreamStats::default()
            }
        })
    }

    /// The cores of a model on the host, as the behaviour sets them.
    pub(crate) fn cores(&self) -> Option<WorkerCores> {
        let cores = NonZero::new(self.behaviour.cores).filter(|_| self.spec.device == DeviceId::Cpu)?;
        Some(WorkerCores { threads: self.spec.threads.unwrap_or(cores), cores })
    }

    /// Starts an answer to a request of this number, with so many tokens of its prompt and this limit.
    pub(crate) fn decode(&self, (number, prompt_tokens, limit): (u64, u64, Option<u64>), text: Option<&str>) -> Decode {
        let shared = (Arc::clone(&self.behaviour), Arc::clone(&self.counters), Arc::clone(&self.control));
        Decode::start(number, prompt_tokens, limit, text, shared.0, shared.1, shared.2)
    }

    pub(crate) fn context_length(&self) -> u64 {
        self.spec.context_length.unwrap_or(self.behaviour.context_length)
    }
}
