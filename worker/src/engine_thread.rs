//! The one OS thread that owns the engine: loads the model, then steps whenever there is something to do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use model_boss_engine::speech::SpeechModel;
use model_boss_engine::text::Vocabulary;
use model_boss_engine::{
    DecoderJudge, DecoderScorer, DraftUse, EncodedForm, Engine, EngineError, EngineInfo, Painter, Progress, Speaker,
    TextEncoder, TextEngine, TextEngineSettings,
};
use model_boss_protocol::{ByteCount, Category, Speculation, WorkerExit};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::backend::{
    LoadDecoder, LoadEncoder, LoadPainter, LoadReranker, LoadSpeaker, LoadSpeech, ModelLoaders, Reranker,
};
use crate::cpu_share::StepThreads;
use crate::draft::{load_draft, with_draft, without_draft};
use crate::encoding::{self, EncodeJob};
use crate::failure::LoadFailure;
use crate::hearing::{self, HearJob};
use crate::painting::{self, PaintJob, PaintingSide};
use crate::parking;
use crate::speaking::{self, Speaking, SpeechOrder, StartProgram};
use crate::state::{EncoderFacts, EngineCommand, EngineInbox, Serving, Submit, WorkerState};
use crate::text::{self, StartHost, TextLoad, TextSide};

/// Sequences on their way to the engine; beyond them HTTP tasks wait.
const INBOX: usize = 64;

/// The processes that were started before the worker confined itself.
pub(crate) enum WorkerHelpers {
    /// Those that read texts.
    Texts(StartHost),
    /// The host of a program that speaks.
    Program(Box<StartProgram>),
    /// None: the model reads its texts by itself.
    None,
}

/// Starts the thread. The receiver is notified of its end, which is always a failure: the engine has no reason to
/// stop.
pub(crate) fn start(
    worker: Arc<WorkerState>,
    load: ModelLoaders,
    helpers: WorkerHelpers,
) -> std::io::Result<oneshot::Receiver<LoadFailure>> {
    let (sender, end) = oneshot::channel();
    let ended = Arc::new(EngineEnd(Mutex::new(Some(sender))));
    let text = match helpers {
        WorkerHelpers::Texts(host) => load_text(&worker, host, Arc::clone(&ended))?,
        WorkerHelpers::None => std::sync::mpsc::channel().1,
        WorkerHelpers::Program(program) => {
            // A program is started for each request: there is nothing to load, and no engine.
            info!(model = %worker.spec.model, "ready");
            let gone = program.gone();
            worker.speak(Speaking::program(*program));
            tokio::spawn(async move {
                gone.await;
                let message = "the process that starts programs is gone";
                ended.tell(LoadFailure::message(WorkerExit::DeviceLost, message));
            });
            return Ok(end);
        }
    };
    let body = move || {
        let failure = catch_unwind(AssertUnwindSafe(|| run(&worker, load, &text))).unwrap_or_else(|_| {
            // The panic's own message is above on stderr.
            LoadFailure::message(WorkerExit::DeviceLost, "the engine failed in a way that was not foreseen")
        });
        ended.tell(failure);
    };
    thread::Builder::new().name("engine".to_owned()).spawn(body)?;
    Ok(end)
}

/// Reports the reason why the process has to end; the first one counts.
struct EngineEnd(Mutex<Option<oneshot::Sender<LoadFailure>>>);

impl EngineEnd {
    fn tell(&self, failure: LoadFailure) {
        if let Some(sender) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Without a receiver the process is ending anyway.
            let _ = sender.send(failure);
        }
    }
}

fn run(worker: &WorkerState, load: ModelLoaders, text: &TextLoading) -> LoadFailure {
    let threads = StepThreads::new(worker.threads.clone(), worker.shares.clone());
    let served = match worker.spec.category {
        Category::Llm => {
            let (commands, inbox) = mpsc::channel(INBOX);
            load_engine(worker, (load.decoder, load.draft), text, commands).map(|engine| serve(engine, threads, inbox))
        }
        Category::Embedding => {
            let (jobs, inbox) = mpsc::channel(INBOX);
            load_encoder(worker, load.encoder, text, jobs)
                .map(|encoder| encoding::serve(encoder, threads, inbox, &worker.activity))
        }
        Category::Reranking => {
            let (jobs, inbox) = mpsc::channel(INBOX);
            load_reranker(worker, load.reranker, text, jobs)
                .map(|judge| encoding::serve(judge, threads, inbox, &worker.activity))
        }
        Category::Vision => {
            let (jobs, inbox) = mpsc::channel(INBOX);
            load_encoder(worker, load.towers, text, jobs)
                .map(|towers| encoding::serve(towers, threads, inbox, &worker.activity))
        }
        Category::Tts => {
            let (orders, inbox) = mpsc::channel(INBOX);
            load_speaker(worker, load.speaker, orders)
                .map(|speaker| speaking::serve(speaker.as_ref(), threads, inbox, &worker.activity))
        }
        Category::Transcription => {
            let (jobs, inbox) = mpsc::channel(INBOX);
            load_speech(worker, load.speech, text, jobs)
                .map(|(model, vocabulary)| hearing::serve(model.as_ref(), vocabulary, threads, inbox, &worker.activity))
        }
        Category::Diffusion => {
            let (jobs, inbox) = mpsc::channel(INBOX);
            load_painter(worker, load.painter, jobs)
                .map(|painter| painting::serve(painter.as_ref(), threads, inbox, &worker.activity))
        }
    };
    match served {
        Ok(Ok(())) => LoadFailure::message(WorkerExit::Clean, "nothing can be asked of the engine any more"),
        Ok(Err(error @ EngineError::DeviceLost(_))) => LoadFailure::new(WorkerExit::DeviceLost, &error),
        Err(failure) => failure,
    }
}

/// Reads the weights of a model that speaks. From then on it answers.
fn load_speaker(
    worker: &WorkerState,
    load: LoadSpeaker,
    orders: mpsc::Sender<SpeechOrder>,
) -> Result<Arc<dyn Speaker>, LoadFailure> {
    let speaker: Arc<dyn Speaker> = load(&worker.spec, &mut |share| worker.progressed(share))?.into();
    info!(model = %worker.spec.model, rate = speaker.info().rate, "ready");
    worker.speak(Speaking::model(Arc::clone(&speaker), orders));
    Ok(speaker)
}

/// Reads the weights of a model that paints. From then on it answers.
fn load_painter(
    worker: &WorkerState,
    load: LoadPainter,
    jobs: mpsc::Sender<PaintJob>,
) -> Result<Box<dyn Painter>, LoadFailure> {
    let painter = load(&worker.spec, &mut |share| worker.progressed(share))?;
    let [width, height] = painter.info().usual_size;
    info!(model = %worker.spec.model, pipeline = ?painter.info().pipeline, width, height, "ready");
    let leased: ByteCount = worker.spec.parts.iter().map(|(_, bytes)| *bytes).sum();
    let leased = Some(leased).filter(|leased| *leased > ByteCount::ZERO);
    worker.paint(PaintingSide::new(painter.as_ref(), leased, jobs));
    Ok(painter)
}

/// Reads the weights of an encoder, and beside them its tokenizer.
fn load_encoder(
    worker: &WorkerState,
    load: LoadEncoder,
    text: &TextLoading,
    jobs: mpsc::Sender<EncodeJob>,
) -> Result<Box<dyn TextEncoder>, LoadFailure> {
    let encoder = load(&worker.spec, &mut |share| worker.progressed(share))?;
    Ok(serve_encoder(worker, encoder, text_side(text)?, jobs))
}

/// The same for a model that judges pairs of texts. One that writes text is asked for the words yes and no.
fn load_reranker(
    worker: &WorkerState,
    load: LoadReranker,
    text: &TextLoading,
    jobs: mpsc::Sender<EncodeJob>,
) -> Result<Box<dyn TextEncoder>, LoadFailure> {
    let spec = &worker.spec;
    let judge = load(spec, &mut |share| worker.progressed(share))?;
    let text = text_side(text)?;
    let judge: Box<dyn TextEncoder> = match judge {
        Reranker::Encoder(encoder) => encoder,
        Reranker::Decoder(decoder, judge) => {
            let word = |word: &str| {
                let ids = 0..u32::try_from(text.vocabulary.len()).unwrap_or(u32::MAX);
                let found = ids.into_iter().find(|id| text.vocabulary.bytes(*id) == word.as_bytes());
                found.ok_or_else(|| {
                    let message = format!("the vocabulary of '{}' has no token '{word}'", spec.model);
                    LoadFailure::message(WorkerExit::BadModel, message)
                })
            };
            let most = spec.context_length.and_then(|tokens| usize::try_from(tokens).ok()).unwrap_or(usize::MAX);
            let judge = match judge {
                Some(judge) => *judge,
                None => DecoderJudge::qwen3([word("yes")?, word("no")?]),
            };
            let scorer = DecoderScorer::new(decoder, most, judge);
            Box::new(scorer.map_err(|error| LoadFailure::message(WorkerExit::BadModel, error.to_string()))?)
        }
    };
    Ok(serve_encoder(worker, judge, text, jobs))
}

/// The same for a model that turns sound into text. From now on it answers.
fn load_speech(
    worker: &WorkerState,
    load: LoadSpeech,
    text: &TextLoading,
    jobs: mpsc::Sender<HearJob>,
) -> Result<(Box<dyn SpeechModel>, Arc<Vocabulary>), LoadFailure> {
    let model = load(&worker.spec, &mut |share| worker.progressed(share))?;
    let text = text_side(text)?;
    let facts = model.info().clone();
    let unit: u64 = model.places().iter().map(|place| place.kv_bytes_per_token() as u64).sum();
    let info = EngineInfo {
        context_length: facts.most_tokens,
        vocab_size: facts.vocab_size,
        weight_bytes: facts.weight_bytes,
        workspace_bytes: facts.workspace_bytes,
        kv_bytes_per_token: usize::try_from(unit).unwrap_or(0),
        kv_tokens: usize::try_from(facts.kv_bytes / unit.max(1)).ok(),
        max_concurrent: worker.spec.max_concurrent as usize,
        sight: None,
    };
    info!(model = %worker.spec.model, languages = facts.languages.len(), "ready");
    let vocabulary = Arc::clone(&text.vocabulary);
    worker.serve(Serving::new(text, info, (None, model.places()), EngineInbox::Sounds(Box::new(facts), jobs)));
    Ok((model, vocabulary))
}

/// From now on the encoder answers.
fn serve_encoder(
    worker: &WorkerState,
    encoder: Box<dyn TextEncoder>,
    text: TextSide,
    jobs: mpsc::Sender<EncodeJob>,
) -> Box<dyn TextEncoder> {
    let facts = encoder.info().clone();
    let info = EngineInfo {
        context_length: facts.max_tokens,
        vocab_size: facts.vocab_size,
        weight_bytes: facts.weight_bytes,
        workspace_bytes: facts.workspace_bytes,
        kv_bytes_per_token: 0,
        kv_tokens: facts.kv_tokens,
        max_concurrent: worker.spec.max_concurrent as usize,
        sight: None,
    };
    info!(model = %worker.spec.model, max_tokens = facts.max_tokens, width = facts.width, "ready");
    let mut forms = vec![EncodedForm::Whole, EncodedForm::AnyLength, EncodedForm::EachToken];
    forms.retain(|form| encoder.has_form(*form));
    let facts = EncoderFacts { info: facts, sight: encoder.sight().cloned(), forms };
    worker.serve(Serving::new(text, info, (None, encoder.places()), EngineInbox::Texts(Box::new(facts), jobs)));
    encoder
}

/// The text side, once it is loaded.
fn text_side(text: &TextLoading) -> Result<TextSide, LoadFailure> {
    text.recv().unwrap_or_else(|_| {
        Err(LoadFailure::message(WorkerExit::DeviceLost, "the chat template and the tokenizer were not loaded"))
    })
}

/// Reads weights, and beside them the text side: a large vocabulary takes as long as a small model's weights.
fn load_engine(
    worker: &WorkerState,
    (load, load_drafts): (LoadDecoder, LoadDecoder),
    text: &TextLoading,
    commands: mpsc::Sender<EngineCommand>,
) -> Result<TextEngine, LoadFailure> {
    let spec = &worker.spec;
    let draft = load_draft(spec, load_drafts)?;
    let decoder = load(&without_draft(spec), &mut |share| worker.progressed(share))?;
    let text = text_side(text)?;
    for warning in text.facts.warnings.iter().chain(&decoder.info().warnings) {
        warn!(model = %spec.model, "{warning}");
    }
    let settings = TextEngineSettings {
        context_length: spec.context_length.and_then(|tokens| usize::try_from(tokens).ok()),
        max_concurrent: spec.max_concurrent as usize,
        drafts: match spec.speculation {
            Speculation::Off => DraftUse::Never,
            Speculation::Lookup => DraftUse::Faster,
        },
        ..TextEngineSettings::default()
    };
    let adapters = decoder.adapter_loader();
    let engine = TextEngine::new(decoder, Arc::clone(&text.vocabulary), settings, Arc::clone(&worker.activity));
    let engine = with_draft(engine, draft)?;
    info!(model = %spec.model, context_length = engine.info().context_length, "ready");
    let places = (engine.monitor(), engine.places());
    let serving = Serving::new(text, engine.info().clone(), places, EngineInbox::Sequences(commands));
    let parking = parking::key(spec, engine.block_layout(), worker.instructions);
    worker.serve(serving.with_adapters(adapters).with_parking(parking));
    Ok(engine)
}

/// The one result of loading the text side.
type TextLoading = std::sync::mpsc::Receiver<Result<TextSide, LoadFailure>>;

/// Begins to load the text side. A broken tokenizer ends the process and does not wait for weights to be loaded.
fn load_text(worker: &WorkerState, host: StartHost, ended: Arc<EngineEnd>) -> std::io::Result<TextLoading> {
    let (sender, loading) = std::sync::mpsc::channel();
    let spec = &worker.spec;
    let gone = Arc::clone(&ended);
    let loaded = move |text: Result<TextSide, LoadFailure>| {
        if let Err(failure) = &text {
            ended.tell(failure.clone());
        }
        // An engine that failed to load needs no words.
        let _ = sender.send(text);
    };
    text::start(host, Handle::current(), TextLoad::of_worker(spec), loaded, move |failure| gone.tell(failure))?;
    Ok(loading)
}

/// Accepts new requests, steps, and sleeps only when there is no work.
fn serve(
    mut engine: TextEngine,
    mut threads: StepThreads,
    mut inbox: mpsc::Receiver<EngineCommand>,
) -> Result<(), EngineError> {
    loop {
        while let Ok(command) = inbox.try_recv() {
            obey(&mut engine, command);
        }
        if threads.run(|| engine.step())? == Progress::Idle {
            match inbox.blocking_recv() {
                Some(command) => obey(&mut engine, command),
                None => return Ok(()),
            }
        }
    }
}

/// Carries a command out, between two steps.
fn obey(engine: &mut TextEngine, command: EngineCommand) {
    match command {
        EngineCommand::Submit(submit) => {
            let Submit { id, work, reply } = *submit;
            engine.submit(id, work, reply);
        }
        EngineCommand::Park(order) => parking::park(engine, order),
        EngineCommand::Restore(order) => parking::restore(engine, order),
    }
}
