//! State that the parts of a worker share: the start line, the progress of loading and, after it, the channel to the
//! engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use model_boss_engine::residency::Monitor;
use model_boss_engine::speech::SpeechInfo;
use model_boss_engine::{
    Activity, AdapterLoader, EncodedForm, EncoderInfo, EngineInfo, Generate, ImageDigests, PlaceReport, PlaceUse,
    Reply, SequenceId, SightInfo, Work,
};
use model_boss_protocol::{
    ApiError, ByteCount, DeviceId, ErrorCode, InstructionSet, Readiness, SandboxState, SpawnToken, WorkerCores,
    WorkerHealth, WorkerSpec,
};
use tokio::sync::{Semaphore, SetOnce, mpsc, oneshot};

use crate::adapters::AdapterTable;
use crate::defaults::RequestDefaults;
use crate::encoding::{EncodeError, EncodeItem, EncodeJob, EncodedRows, TextTokens, asked_priority};
use crate::forms::Forms;
use crate::gate::ShareOrders;
use crate::gone::engine_gone;
use crate::hearing::HearJob;
use crate::meter::{WorkMeter, WorkMeters};
use crate::metrics::WorkerMetrics;
use crate::painting::PaintingSide;
use crate::parking::{ParkOrder, RestoreOrder};
use crate::speaking::Speaking;
use crate::stream_stats::stream_stats;
use crate::text::TextSide;
use crate::threads::ComputeThreads;

/// The state of a worker process.
pub(crate) struct WorkerState {
    pub(crate) spec: WorkerSpec,
    pub(crate) access: Access,
    pub(crate) defaults: RequestDefaults,
    pub(crate) activity: Arc<Activity>,
    pub(crate) metrics: WorkerMetrics,
    pub(crate) meters: WorkMeters,
    pub(crate) started: Instant,
    /// The instructions of the processor that products use.
    pub(crate) instructions: InstructionSet,
    /// The threads that compute on the CPU.
    pub(crate) threads: ComputeThreads,
    /// The share of them that the coordinator ordered last.
    pub(crate) shares: ShareOrders,
    /// The confinement of this process.
    pub(crate) sandbox: SandboxState,
    progress: AtomicU32,
    draining: AtomicBool,
    serving: SetOnce<Serving>,
    /// A model or program that speaks, in place of [`Serving`].
    speaking: SetOnce<Speaking>,
    /// A model that paints, in place of [`Serving`].
    painting: SetOnce<PaintingSide>,
}

/// Callers that are let in.
#[derive(Debug)]
pub(crate) enum Access {
    /// Callers that present the spawn's token.
    Token(SpawnToken),
    /// Any caller on this machine, for a worker that is run by hand.
    Open,
}

/// A loaded model.
pub(crate) struct Serving {
    pub(crate) text: TextSide,
    pub(crate) forms: Forms,
    pub(crate) info: EngineInfo,
    pub(crate) images: ImageDesk,
    /// The adapters beside the model.
    pub(crate) adapters: AdapterTable,
    /// Places for requests whose sound is decoded.
    pub(crate) listening: Semaphore,
    /// The monitor of streamed layers.
    monitor: Option<Arc<Monitor>>,
    places: Arc<[PlaceUse]>,
    inbox: EngineInbox,
    next_sequence: AtomicU64,
    /// The key of parked prefixes, where there are any.
    parking: Option<String>,
}

/// The place where images of requests become pictures.
pub(crate) struct ImageDesk {
    /// Makes the digests by which prompts share what was computed.
    pub(crate) digests: ImageDigests,
    /// Requests whose images are decoded at the same time: a large image takes a hundred times its file's memory.
    pub(crate) places: Semaphore,
}

/// Requests whose sound is decoded at the same time: four hours take 440 MiB.
const MOST_LISTENING: usize = 2;

/// Requests whose images are decoded at the same time.
const MOST_DECODING: usize = 2;

/// The way to the engine's thread.
pub(crate) enum EngineInbox {
    /// To a decoder: sequences.
    Sequences(mpsc::Sender<EngineCommand>),
    /// To a model that turns sound into text.
    Sounds(Box<SpeechInfo>, mpsc::Sender<HearJob>),
    /// To an encoder: texts, and images where it reads them.
    Texts(Box<EncoderFacts>, mpsc::Sender<EncodeJob>),
}

/// The facts of an encoder that requests are checked by.
pub(crate) struct EncoderFacts {
    pub(crate) info: EncoderInfo,
    /// Of a model that reads images.
    pub(crate) sight: Option<SightInfo>,
    /// The forms of vectors that it gives.
    pub(crate) forms: Vec<EncodedForm>,
}

/// A command to the thread of an engine that writes text.
pub(crate) enum EngineCommand {
    /// Compute a sequence.
    Submit(Box<Submit>),
    /// Give prefixes out.
    Park(ParkOrder),
    /// Take prefixes of an earlier process.
    Restore(RestoreOrder),
}

/// A sequence that is submitted to the engine's thread.
pub(crate) struct Submit {
    pub(crate) id: SequenceId,
    pub(crate) work: Work,
    pub(crate) reply: Box<dyn Reply>,
}

impl WorkerState {
    pub(crate) fn new(
        spec: WorkerSpec,
        access: Access,
        defaults: RequestDefaults,
        (instructions, threads, shares): (InstructionSet, ComputeThreads, ShareOrders),
        sandbox: SandboxState,
    ) -> Self {
        let metrics = WorkerMetrics::new();
        let activity = Arc::new(Activity::new(metrics.histograms()));
        Self {
            spec,
            access,
            defaults,
            activity,
            metrics,
            meters: WorkMeters::default(),
            started: Instant::now(),
            instructions,
            threads,
            sandbox,
            shares,
            progress: AtomicU32::new(0.0_f32.to_bits()),
            draining: AtomicBool::new(false),
            serving: SetOnce::new(),
            speaking: SetOnce::new(),
            painting: SetOnce::new(),
        }
    }

    /// The cores that the worker computes with; `None` for a model on another device.
    pub(crate) fn cores(&self) -> Option<WorkerCores> {
        (self.spec.device == DeviceId::Cpu).then(|| self.threads.as_cores())
    }

    /// Notes the share of the weights that is read.
    pub(crate) fn progressed(&self, share: f32) {
        self.progress.store(share.clamp(0.0, 1.0).to_bits(), Ordering::Relaxed);
    }

    /// From now on the model answers.
    pub(crate) fn serve(&self, serving: Serving) {
        self.progressed(1.0);
        // Loading happens once; a second call would have no effect.
        let _ = self.serving.set(serving);
    }

    /// Waits until the model answers, but no longer than that.
    pub(crate) async fn ready_within(&self, limit: Duration) {
        // The caller looks for itself how it ended.
        let ready = async {
            tokio::select! {
                _ = self.serving.wait() => {}
                _ = self.speaking.wait() => {}
                _ = self.painting.wait() => {}
            }
        };
        let _ = tokio::time::timeout(limit, ready).await;
    }

    /// From now on new requests are refused.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// From now on the model or program speaks.
    pub(crate) fn speak(&self, speaking: Speaking) {
        self.progressed(1.0);
        // Loading happens once; a second call would have no effect.
        let _ = self.speaking.set(speaking);
    }

    /// From now on the model paints.
    pub(crate) fn paint(&self, painting: PaintingSide) {
        self.progressed(1.0);
        // Loading happens once; a second call would have no effect.
        let _ = self.painting.set(painting);
    }

    /// Whether the model answers.
    pub(crate) fn is_ready(&self) -> bool {
        self.serving.get().is_some() || self.speaking.get().is_some() || self.painting.get().is_some()
    }

    /// The loaded model, or the reason why it cannot be used now.
    pub(crate) fn serving(&self) -> Result<&Serving, ApiError> {
        self.loaded(self.serving.get())
    }

    /// The loaded model or program that speaks, or the reason why it cannot be used now.
    pub(crate) fn speaking(&self) -> Result<&Speaking, ApiError> {
        self.loaded(self.speaking.get())
    }

    /// The loaded model that paints, or the reason why it cannot be used now.
    pub(crate) fn painting(&self) -> Result<&PaintingSide, ApiError> {
        self.loaded(self.painting.get())
    }

    fn loaded<'a, T>(&self, model: Option<&'a T>) -> Result<&'a T, ApiError> {
        if self.draining.load(Ordering::Relaxed) {
            return Err(ApiError::new(ErrorCode::Draining, "this worker is going away"));
        }
        model.ok_or_else(|| {
            let percent = f32::from_bits(self.progress.load(Ordering::Relaxed)) * 100.0;
            let message = format!("the model is being loaded ({percent:.0} %); try again soon");
            ApiError::new(ErrorCode::NoCapacity, message).retry_after(std::time::Duration::from_secs(1))
        })
    }

    /// The use of devices, and the most bytes beside the weights, once the model is loaded.
    fn device_use(&self) -> Option<(&[PlaceUse], u64)> {
        let of_text = self.serving.get().map(|serving| (&serving.places[..], serving.info.workspace_bytes));
        let of_speech = || self.speaking.get().map(Speaking::device_use);
        of_text.or_else(of_speech).or_else(|| self.painting.get().map(PaintingSide::device_use))
    }

    /// The report on streamed layers; none before the model is loaded, and where all layers are resident.
    pub(crate) fn monitor(&self) -> Option<&Monitor> {
        self.serving.get()?.monitor.as_deref()
    }

    /// The use of the model's devices; empty before the model is loaded.
    pub(crate) fn places(&self) -> Vec<PlaceReport> {
        self.device_use().map_or_else(Vec::new, |(places, _)| places.iter().map(PlaceUse::report).collect())
    }

    /// A device's name in the lease.
    fn leased_name(&self, place: &PlaceReport) -> DeviceId {
        let on_cpu = self.spec.device == DeviceId::Cpu;
        let mut leased = self.spec.parts.iter().filter(|(name, _)| on_cpu || *name != DeviceId::Cpu);
        let at = self.spec.places().iter().position(|(device, _)| *device == place.device);
        at.and_then(|at| leased.nth(at)).map_or_else(|| place.device.clone(), |(name, _)| name.clone())
    }

    /// Bytes of weights, keys and values on each device, by the names of the lease.
    fn held(&self) -> Vec<(DeviceId, ByteCount)> {
        let reports = self.places();
        let held = |place: &PlaceReport| (self.leased_name(place), ByteCount(place.weight_bytes + place.kv_bytes));
        let host: u64 = reports.iter().map(|place| place.host_bytes).sum();
        let host = (host > 0).then_some((DeviceId::Cpu, ByteCount(host)));
        let mut all: Vec<(DeviceId, ByteCount)> = reports.iter().map(held).chain(host).collect();
        self.add_adapters(&mut all);
        all
    }

    /// Adds the bytes of adapters. Their parts are small and on the devices of their layers; they count on the first.
    fn add_adapters(&self, places: &mut [(DeviceId, ByteCount)]) {
        let bytes = self.serving.get().map_or(ByteCount::ZERO, Serving::adapter_bytes);
        if let Some((_, first)) = places.first_mut() {
            *first = *first + bytes;
        }
    }

    /// The most bytes it will hold on each device, by the names of the lease; empty without a limit on keys and values.
    fn may_hold(&self) -> Vec<(DeviceId, ByteCount)> {
        let tokens = match self.serving.get() {
            Some(serving) => serving.info.kv_tokens,
            // One that speaks or paints keeps nothing of a text.
            None => Some(0),
        };
        let Some((tokens, (places, workspace))) = tokens.zip(self.device_use()) else { return Vec::new() };
        let beside = |place: &PlaceUse| {
            let kv = (tokens as u64).saturating_mul(place.kv_bytes_per_token() as u64);
            ByteCount(kv.saturating_add(workspace))
        };
        let weights = |place: &PlaceUse| ByteCount(place.report().weight_bytes);
        let mut all: Vec<(DeviceId, ByteCount)> = Vec::new();
        for place in places {
            let bytes = weights(place) + beside(place);
            all.push((self.leased_name(&place.report()), bytes));
        }
        let host: u64 = places.iter().map(|place| place.report().host_bytes).sum();
        all.extend((host > 0).then_some((DeviceId::Cpu, ByteCount(host))));
        self.add_adapters(&mut all);
        all
    }

    /// Bytes of keys and values of one token on all devices, once the model is loaded.
    pub(crate) fn kv_bytes_per_token(&self) -> Option<usize> {
        self.serving.get().map(|serving| serving.info.kv_bytes_per_token)
    }

    /// The body of `GET /health`.
    pub(crate) fn health(&self) -> WorkerHealth {
        let serving = self.serving.get();
        WorkerHealth {
            status: if self.is_ready() { Readiness::Ok } else { Readiness::Loading },
            generation: self.spec.generation,
            proof: self.spec.proof.clone(),
            progress: f32::from_bits(self.progress.load(Ordering::Relaxed)),
            context_length: serving.map(|serving| serving.info.context_length as u64),
            weight_bytes: serving
                .map(|serving| serving.info.weight_bytes)
                .or_else(|| self.speaking.get().map(Speaking::weight_bytes))
                .or_else(|| self.painting.get().map(PaintingSide::weight_bytes)),
            held: self.held(),
            may_hold: self.may_hold(),
            engine: self.activity.stats(),
            cores: self.cores(),
            streaming: self.monitor().map(stream_stats),
            sandbox: Some(self.sandbox.clone()),
        }
    }
}

impl Serving {
    pub(crate) fn new(
        text: TextSide,
        info: EngineInfo,
        (monitor, places): (Option<Arc<Monitor>>, Arc<[PlaceUse]>),
        inbox: EngineInbox,
    ) -> Self {
        let images = ImageDesk { digests: ImageDigests::default(), places: Semaphore::new(MOST_DECODING) };
        let listening = Semaphore::new(MOST_LISTENING);
        let next_sequence = AtomicU64::new(0);
        let (adapters, parking) = (AdapterTable::new(None), None);
        let forms = Forms::new();
        Self { text, forms, info, images, adapters, listening, monitor, places, inbox, next_sequence, parking }
    }

    /// The same whose prefixes are parked by this key.
    pub(crate) fn with_parking(self, parking: Option<String>) -> Self {
        Self { parking, ..self }
    }

    /// The same with adapters, which this loader makes.
    pub(crate) fn with_adapters(self, loader: Option<Arc<dyn AdapterLoader>>) -> Self {
        Self { adapters: AdapterTable::new(loader), ..self }
    }

    /// Bytes of the adapters.
    fn adapter_bytes(&self) -> ByteCount {
        ByteCount(self.adapters.bytes())
    }

    /// The facts of an encoder.
    pub(crate) fn encoder(&self) -> Result<&EncoderInfo, ApiError> {
        self.encoder_facts().map(|facts| &facts.info)
    }

    fn encoder_facts(&self) -> Result<&EncoderFacts, ApiError> {
        match &self.inbox {
            EngineInbox::Texts(facts, _) => Ok(facts),
            EngineInbox::Sequences(_) | EngineInbox::Sounds(..) => {
                Err(ApiError::new(ErrorCode::UnsupportedByModel, "this model gives no vectors"))
            }
        }
    }

    /// The facts of a model that reads images.
    pub(crate) fn sight(&self) -> Result<&SightInfo, ApiError> {
        self.encoder_facts()?
            .sight
            .as_ref()
            .ok_or_else(|| ApiError::new(ErrorCode::UnsupportedByModel, "this model reads no images"))
    }

    /// The vectors of texts, each with its special tokens.
    pub(crate) async fn encode(&self, texts: Vec<TextTokens>) -> Result<Result<Vec<Vec<f32>>, EncodeError>, ApiError> {
        let items = texts.into_iter().map(EncodeItem::Text).collect();
        let rows = self.encode_items(items, EncodedForm::Whole).await?;
        Ok(rows.map(|rows| rows.into_iter().map(|rows| rows.into_iter().next().unwrap_or_default()).collect()))
    }

    /// The rows of texts in the form that is wanted, and the vectors of images.
    pub(crate) async fn encode_items(
        &self,
        items: Vec<EncodeItem>,
        form: EncodedForm,
    ) -> Result<Result<Vec<EncodedRows>, EncodeError>, ApiError> {
        let EngineInbox::Texts(facts, jobs) = &self.inbox else { return self.encoder().map(|_| Ok(Vec::new())) };
        if !facts.forms.contains(&form) {
            let message = match form {
                EncodedForm::EachToken => "this model gives no vectors of tokens",
                _ => "this model gives vectors of length 1 only",
            };
            return Err(ApiError::new(ErrorCode::UnsupportedByModel, message));
        }
        let (reply, answer) = oneshot::channel();
        let job =
            EncodeJob { items: items.into(), form, priority: asked_priority(), meter: WorkMeter::current(), reply };
        if jobs.send(job).await.is_err() {
            return Err(engine_gone().await);
        }
        match answer.await {
            Ok(rows) => Ok(rows),
            Err(_) => Err(engine_gone().await),
        }
    }

    /// The facts of a model that turns sound into text.
    pub(crate) fn hearing(&self) -> Result<&SpeechInfo, ApiError> {
        match &self.inbox {
            EngineInbox::Sounds(info, _) => Ok(info),
            EngineInbox::Sequences(_) | EngineInbox::Texts(..) => {
                Err(ApiError::new(ErrorCode::UnsupportedByModel, "this model hears nothing"))
            }
        }
    }

    /// Hands the sound of a request to the engine. Waits while its inbox is full.
    pub(crate) async fn hear(&self, job: HearJob) -> Result<(), ApiError> {
        let EngineInbox::Sounds(_, jobs) = &self.inbox else { return self.hearing().map(drop) };
        match jobs.send(job).await {
            Ok(()) => Ok(()),
            Err(_) => Err(engine_gone().await),
        }
    }

    /// Submits a sequence to the engine. Waits while the engine is busy and its inbox full.
    pub(crate) async fn submit(&self, work: Work, reply: Box<dyn Reply>) -> Result<(), ApiError> {
        let id = SequenceId(self.next_sequence.fetch_add(1, Ordering::Relaxed));
        let EngineInbox::Sequences(commands) = &self.inbox else {
            return Err(ApiError::new(ErrorCode::UnsupportedByModel, "this model writes no text"));
        };
        let Work::Generate(work) = work;
        let work = Work::Generate(Generate { priority: asked_priority(), ..work });
        self.order(commands, EngineCommand::Submit(Box::new(Submit { id, work, reply }))).await
    }

    async fn order(&self, commands: &mpsc::Sender<EngineCommand>, command: EngineCommand) -> Result<(), ApiError> {
        match commands.send(command).await {
            Ok(()) => Ok(()),
            Err(_) => Err(engine_gone().await),
        }
    }

    /// The key of prefixes that this worker gives out and takes.
    pub(crate) fn parked_key(&self) -> Result<&str, ApiError> {
        let none = || ApiError::new(ErrorCode::UnsupportedByModel, "this worker parks no prefixes");
        self.parking.as_deref().ok_or_else(none)
    }

    /// Has the engine give prefixes out.
    pub(crate) async fn park(&self, order: ParkOrder) -> Result<(), ApiError> {
        let EngineInbox::Sequences(commands) = &self.inbox else { return self.parked_key().map(drop) };
        self.order(commands, EngineCommand::Park(order)).await
    }

    /// Has the engine take prefixes of an earlier process.
    pub(crate) async fn restore(&self, order: RestoreOrder) -> Result<(), ApiError> {
        let EngineInbox::Sequences(commands) = &self.inbox else { return self.parked_key().map(drop) };
        self.order(commands, EngineCommand::Restore(order)).await
    }
}
