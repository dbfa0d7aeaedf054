//! From the text of a grammar to one that answers can follow, over one vocabulary.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::api::{GrammarInit, ParserLimits};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, TokenParser, panic_utils};
use serde_json::{Map, Value};

use super::error::{GrammarError, first_words};
use super::grammar::Grammar;
use super::limits::{MOST_LEXER_COST, MOST_LEXER_STATES};
use super::masks::{MaskLimits, Masks};
use super::numbers::with_bounded_numbers;
use super::rehearsal::{ByteTokens, Rehearsal, RehearsalLimits};
use super::threads::MaskThreads;
use super::unmet::unmet_keywords;
use crate::text::Vocabulary;

/// Longer tokens are not used in answers that a grammar binds: the tree of tokens is no deeper.
const LONGEST_TOKEN: usize = 1_000;

/// Compiled grammars that are kept for the next request with the same one.
const MOST_KEPT: usize = 32;

/// Most bytes of grammars that are kept, as texts. The tools of one agent may need a tenth of it.
const MOST_KEPT_BYTES: usize = 1 << 20;

/// Compiles grammars over one vocabulary.
pub struct GrammarCompiler {
    factory: ParserFactory,
    masks: Masks,
    threads: Arc<MaskThreads>,
    byte_tokens: ByteTokens,
    /// `None`: masks are computed only when answers need them.
    rehearsal: Option<RehearsalLimits>,
    kept: Mutex<VecDeque<(Grammar, CompiledGrammar)>>,
}

/// A grammar that answers can follow. Clones share it.
#[derive(Clone)]
pub struct CompiledGrammar {
    fresh: Arc<Mutex<Matcher>>,
    threads: Arc<MaskThreads>,
}

/// Says whether grammars can be used over a vocabulary. Knows its single bytes and special tokens only, so it is made
/// at once and small.
pub struct GrammarChecker {
    factory: ParserFactory,
}

impl GrammarChecker {
    /// A checker for a vocabulary.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self, GrammarError> {
        let is_kept = |word: &Vec<u8>| word.len() == 1 || word.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER);
        let words = words(vocabulary).map(|word| if is_kept(&word) { word } else { Vec::new() });
        Ok(Self { factory: factory(vocabulary, &words.collect::<Vec<_>>())? })
    }

    /// Compiles a grammar, as [`GrammarCompiler::compile`] would.
    pub fn check(&self, grammar: &Grammar) -> Result<(), GrammarError> {
        matcher(parser(&self.factory, grammar)?).map(drop)
    }
}

impl GrammarCompiler {
    /// A compiler for a vocabulary. Takes some hundred milliseconds for a large one.
    pub fn new(vocabulary: &Vocabulary, threads: Arc<MaskThreads>) -> Result<Self, GrammarError> {
        let rehearsal = Some(RehearsalLimits::default());
        Ok(Self { rehearsal, ..Self::with_limits(vocabulary, threads, MaskLimits::default())? })
    }

    pub(super) fn with_limits(
        vocabulary: &Vocabulary,
        threads: Arc<MaskThreads>,
        limits: MaskLimits,
    ) -> Result<Self, GrammarError> {
        let words: Vec<_> = words(vocabulary).collect();
        let factory = factory(vocabulary, &words)?;
        let byte_tokens = ByteTokens::new(&words);
        Ok(Self {
            factory,
            masks: Masks::new(&words, limits),
            threads,
            byte_tokens,
            rehearsal: None,
            kept: Mutex::default(),
        })
    }

    #[cfg(test)]
    pub(super) fn rehearsed(self, limits: RehearsalLimits) -> Self {
        Self { rehearsal: Some(limits), ..self }
    }

    /// The same compiler, with masks computed only when answers need them.
    #[must_use]
    pub fn unrehearsed(self) -> Self {
        Self { rehearsal: None, ..self }
    }

    /// A grammar that was compiled before and is kept.
    pub fn kept(&self, grammar: &Grammar) -> Option<CompiledGrammar> {
        let mut kept = lock(&self.kept);
        let at = kept.iter().position(|(known, _)| known == grammar)?;
        let found = kept.remove(at)?;
        let compiled = found.1.clone();
        kept.push_back(found);
        Some(compiled)
    }

    /// Compiles a grammar. Time and memory are bounded by limits on its size, but a stranger's grammar may come near
    /// them: not for the thread of an engine.
    pub fn compile(&self, grammar: &Grammar) -> Result<CompiledGrammar, GrammarError> {
        if let Some(compiled) = self.kept(grammar) {
            return Ok(compiled);
        }
        let mut parser = parser(&self.factory, grammar)?;
        parser.bias_computer = self.masks.of_grammar(self.factory.slicer());
        if parser.is_fresh() {
            parser.start_without_prompt();
        }
        let rehearsed = self.rehearsal.map(|limits| Rehearsal::new(parser.clone(), self.byte_tokens.clone(), limits));
        let matcher = matcher(parser)?;
        // Free text has the largest masks. The first one is made here, and not while an answer waits for it.
        let _ = matcher.clone().compute_mask();
        if let Some(mut rehearsal) = rehearsed {
            self.threads.spawn_spare(move || rehearsal.go_on());
        }
        let compiled = CompiledGrammar { fresh: Arc::new(Mutex::new(matcher)), threads: Arc::clone(&self.threads) };
        self.keep(grammar, &compiled);
        Ok(compiled)
    }

    fn keep(&self, grammar: &Grammar, compiled: &CompiledGrammar) {
        let mut kept = lock(&self.kept);
        kept.push_back((grammar.clone(), compiled.clone()));
        let bytes = |kept: &VecDeque<(Grammar, _)>| kept.iter().map(|(grammar, _)| grammar.size()).sum::<usize>();
        while kept.len() > MOST_KEPT || bytes(&kept) > MOST_KEPT_BYTES {
            kept.pop_front();
        }
    }

    /// A matcher that computes masks as the library does.
    #[cfg(test)]
    pub(super) fn plain(&self, grammar: &Grammar) -> Result<Matcher, GrammarError> {
        matcher(parser(&self.factory, grammar)?)
    }

    #[cfg(test)]
    pub(super) fn masks(&self) -> &Masks {
        &self.masks
    }

    /// The threads on which masks of these grammars are computed.
    pub fn threads(&self) -> &Arc<MaskThreads> {
        &self.threads
    }
}

impl CompiledGrammar {
    /// A matcher at the beginning of an answer.
    pub(super) fn matcher(&self) -> Matcher {
        lock(&self.fresh).clone()
    }

    /// The grammar of the rest of an answer that begins with this text. `None`: no answer does.
    pub fn behind(&self, begun: &str) -> Option<Self> {
        let mut matcher = self.matcher();
        let tokens = matcher.tok_env().ok()?.tok_trie().greedy_tokenize(begun.as_bytes());
        matcher.consume_tokens(&tokens).ok()?;
        Some(Self { fresh: Arc::new(Mutex::new(matcher)), threads: Arc::clone(&self.threads) })
    }

    /// The threads on which its masks are computed.
    pub fn threads(&self) -> &Arc<MaskThreads> {
        &self.threads
    }
}

impl std::fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompiledGrammar").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for GrammarChecker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarChecker").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

fn factory(vocabulary: &Vocabulary, words: &[Vec<u8>]) -> Result<ParserFactory, GrammarError> {
    let failed = |why: String| GrammarError::Vocabulary(why);
    let size = u32::try_from(words.len()).map_err(|error| failed(error.to_string()))?;
    let ends: Vec<u32> = vocabulary.special().end.iter().copied().filter(|id| *id < size).collect();
    // The library refuses some tables by a panic.
    let made = catch_unwind(AssertUnwindSafe(|| {
        let info = TokRxInfo::new(size, ends.first().copied().unwrap_or(u32::MAX));
        let tree = TokTrie::from(&info, words);
        let tree = if ends.is_empty() { tree } else { tree.with_eos_tokens(&ends) };
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(tree));
        // Masks of our own are faster than those by the library's slices.
        ParserFactory::new(&env, InferenceCapabilities::default(), &[])
    }));
    let mut factory = match made {
        Ok(Ok(factory)) => factory,
        Ok(Err(error)) => return Err(failed(format!("{error:#}"))),
        Err(_) => return Err(failed("its tokens do not form a tree".to_owned())),
    };
    factory.quiet();
    *factory.limits_mut() = ParserLimits {
        max_lexer_states: MOST_LEXER_STATES,
        step_lexer_fuel: MOST_LEXER_COST as u64,
        verbose_errors: false,
        ..ParserLimits::default()
    };
    Ok(factory)
}

fn parser(factory: &ParserFactory, grammar: &Grammar) -> Result<TokenParser, GrammarError> {
    let source = grammar.source()?;
    let init = if grammar.has_bounded_numbers() {
        with_bounded_numbers(source, factory.tok_env(), factory.limits())
    } else {
        Ok(GrammarInit::Serialized(source))
    };
    let made =
        init.and_then(|init| factory.create_parser_from_init_default(init).map_err(|error| format!("{error:#}")));
    made.map_err(|words| {
        let words = first_words(&words);
        // The library does not name the keyword.
        let is_pattern = grammar.is_schema() && words.starts_with("regex parse error");
        GrammarError::Unusable(match grammar.schema().filter(|_| is_unmet(&words)) {
            Some(schema) => format!("{}: {words}", unmet_keywords(&schema, |part| is_unmet_schema(factory, part))),
            None if is_pattern => format!("a 'pattern' cannot be read: {words}"),
            None => words,
        })
    })
}

/// Whether the library says of a schema that no value meets it.
fn is_unmet(words: &str) -> bool {
    words.starts_with("Unsatisfiable schema")
}

fn is_unmet_schema(factory: &ParserFactory, schema: &Map<String, Value>) -> bool {
    let Ok(source) = Grammar::JsonSchema(Value::Object(schema.clone()).to_string()).source() else { return false };
    let init = GrammarInit::Serialized(source);
    let (env, limits) = (factory.tok_env().clone(), factory.limits().clone());
    let made = panic_utils::catch_unwind(AssertUnwindSafe(|| init.to_internal(Some(env), limits)));
    made.is_err_and(|error| is_unmet(&format!("{error:#}")))
}

/// A matcher at the beginning of an answer.
fn matcher(parser: TokenParser) -> Result<Matcher, GrammarError> {
    let mut matcher = Matcher::new(Ok(parser));
    // A grammar without any answer is found here and not in the middle of one.
    if matcher.is_accepting().unwrap_or(false) || matcher.compute_mask().is_ok() {
        return Ok(matcher);
    }
    let why = matcher.get_error().unwrap_or_else(|| "it allows no answer at all".to_owned());
    Err(unusable(&why))
}

fn words(vocabulary: &Vocabulary) -> impl Iterator<Item = Vec<u8>> + '_ {
    (0..vocabulary.len()).map(|id| u32::try_from(id).map_or_else(|_| Vec::new(), |id| word(vocabulary, id)))
}

/// A token as the library knows it: special tokens behind a marker, so that no text of a grammar can spell them.
fn word(vocabulary: &Vocabulary, id: u32) -> Vec<u8> {
    let bytes = vocabulary.bytes(id);
    if bytes.len() > LONGEST_TOKEN || bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
        Vec::new()
    } else if vocabulary.is_special(id) {
        [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
    } else {
        bytes.to_vec()
    }
}

fn unusable(words: &str) -> GrammarError {
    GrammarError::Unusable(first_words(words))
}

/// A panic of the library is caught inside of it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
