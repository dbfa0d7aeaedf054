//! Grammars of answers, compiled beside the engine. Each is checked in a process with limits before this process
//! compiles it.

use std::sync::{Arc, OnceLock};
use std::{io, thread};

use model_boss_engine::constraint::{CompiledGrammar, Grammar, GrammarCompiler, GrammarError, MaskThreads};
use model_boss_engine::text::Vocabulary;
use model_boss_engine::tools::ToolMarkers;
use tokio::sync::{Semaphore, oneshot};

use crate::text::{GrammarQuestion, TextFailure, TextSide};

/// Grammars compiled at the same time.
const MOST_AT_ONCE: usize = 2;

/// Stack of a thread that compiles, beyond the one that a check was allowed.
const MORE_STACK: u64 = 8 << 20;

/// The compiler of a loaded model. Made when the first request needs it.
#[derive(Debug)]
pub(crate) struct Forms {
    compiler: Arc<OnceLock<Result<GrammarCompiler, GrammarError>>>,
    places: Semaphore,
    markers: OnceLock<ToolMarkers>,
}

impl Forms {
    pub(crate) fn new() -> Self {
        Self { compiler: Arc::default(), places: Semaphore::new(MOST_AT_ONCE), markers: OnceLock::new() }
    }

    /// Compiles a grammar for the answers of a model.
    pub(crate) async fn compile(&self, text: &TextSide, grammar: Grammar) -> Result<CompiledGrammar, TextFailure> {
        if let Some(Ok(compiler)) = self.compiler.get()
            && let Some(compiled) = compiler.kept(&grammar)
        {
            return Ok(compiled);
        }
        text.check(GrammarQuestion::new(grammar.clone())?).await?;
        // The semaphore is never closed.
        let Ok(_place) = self.places.acquire().await else { return Err(TextFailure::Ended) };
        let (sender, compiled) = oneshot::channel();
        let (compiler, vocabulary) = (Arc::clone(&self.compiler), Arc::clone(&text.vocabulary));
        let work = move || {
            let compiler = compiler.get_or_init(|| start(&vocabulary));
            let compiled = compiler.as_ref().map_err(Clone::clone).and_then(|compiler| compiler.compile(&grammar));
            // The request may have been cancelled.
            let _ = sender.send(compiled);
        };
        let stack = usize::try_from(text.limits().stack.0.saturating_add(MORE_STACK)).unwrap_or(usize::MAX);
        let spawned = thread::Builder::new().name("grammar".to_owned()).stack_size(stack).spawn(work);
        spawned.map_err(|error: io::Error| TextFailure::NoRoom(error.to_string()))?;
        match compiled.await {
            Ok(Ok(compiled)) => Ok(compiled),
            Ok(Err(error)) => Err(TextFailure::Refused(error.to_string())),
            Err(_) => Err(TextFailure::Refused("the grammar failed in a way that was not foreseen".to_owned())),
        }
    }

    /// The special tokens around calls of tools.
    pub(crate) fn markers(&self, text: &TextSide) -> &ToolMarkers {
        self.markers.get_or_init(|| ToolMarkers::of(text.facts.tools.format, &text.vocabulary))
    }
}

fn start(vocabulary: &Vocabulary) -> Result<GrammarCompiler, GrammarError> {
    let threads = MaskThreads::start().map_err(|error| GrammarError::Vocabulary(error.to_string()))?;
    GrammarCompiler::new(vocabulary, Arc::new(threads))
}
