//! Reasons why a provider gives no answer.

use std::path::PathBuf;
use std::time::Duration;

use model_boss_config::KeyMissing;
use model_boss_dialects::DialectError;
use model_boss_http::json::JsonError;
use model_boss_http::offload::WorkPanicked;
use model_boss_protocol::ClientId;

use crate::transport::TransportError;

/// Why a request to a provider has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CloudError {
    /// The request cannot be translated, or the provider answered with an error.
    #[error(transparent)]
    Dialect(#[from] DialectError),
    /// The provider answered with an error, to a client that speaks its API.
    #[error("{}", .0.error)]
    Said(Box<SaidByProvider>),
    /// The body cannot be parsed.
    #[error(transparent)]
    Body(#[from] JsonError),
    /// The translation panicked.
    #[error(transparent)]
    Panicked(#[from] WorkPanicked),
    /// The configured key cannot be read.
    #[error(transparent)]
    Key(#[from] KeyMissing),
    /// The request cannot be made of this provider.
    #[error(transparent)]
    Unsupported(#[from] CloudUnsupported),
    /// The client may not spend this.
    #[error(transparent)]
    Spending(#[from] SpendingRefusal),
    /// No provider has this name.
    #[error("there is no provider '{0}'; [providers.NAME] adds one")]
    UnknownProvider(String),
    /// The text is no name of a model that a command line could be given.
    #[error("'{}' is no name of a model", .0.escape_debug())]
    ModelName(String),
    /// The connection to the provider failed.
    #[error("provider '{provider}' cannot be reached: {source}")]
    Unreachable {
        /// The provider.
        provider: String,
        /// The cause.
        #[source]
        source: TransportError,
    },
    /// The command of the provider failed.
    #[error("provider '{provider}': {fault}")]
    Command {
        /// The provider.
        provider: String,
        /// The fault.
        fault: CommandFault,
    },
    /// The provider's answer to a count has no number.
    #[error("provider '{0}' did not say how many tokens there are")]
    NoCount(String),
}

/// An error as the provider wrote it.
#[derive(Debug)]
pub struct SaidByProvider {
    /// Its meaning here.
    pub error: DialectError,
    /// The status of the provider's answer.
    pub status: u16,
    /// The provider's own text, without its key.
    pub text: String,
}

/// Requests that a provider cannot serve, whatever they contain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloudUnsupported {
    /// Claude models answer chats only.
    #[error("Claude models answer chats, not {0}")]
    OnlyChats(&'static str),
    /// The provider's API has no way to count tokens.
    #[error("provider '{0}' has no way to count tokens without an answer")]
    NoCounting(String),
    /// A command line does not count tokens.
    #[error("provider '{0}' is a command line, which counts no tokens")]
    CommandCounts(String),
}

/// Why a client with a limit in dollars may not send a request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpendingRefusal {
    /// The price is not known, so the limit could not be kept.
    #[error(
        "client '{client}' may spend ${limit} a day, and no price of '{provider}:{model}' is known: set \
         [providers.{provider}.prices]"
    )]
    NoPrice {
        /// The client.
        client: ClientId,
        /// Its limit in dollars a day.
        limit: f64,
        /// The provider.
        provider: String,
        /// The provider's name of the model.
        model: String,
    },
    /// The limit is reached.
    #[error("{who} spent ${spent:.2} of ${limit} today (UTC)")]
    Spent {
        /// The client or clients, with the verb.
        who: String,
        /// The dollars of today.
        spent: f64,
        /// The limit in dollars a day.
        limit: f64,
    },
    /// The file with the spending cannot be read.
    #[error(
        "what client '{client}' has spent of ${limit} today (UTC) is not known, because spend.json cannot be read or was \
         damaged: stop the coordinator and remove it, or wait until tomorrow"
    )]
    NotKnown {
        /// The client.
        client: ClientId,
        /// Its limit in dollars a day.
        limit: f64,
    },
    /// Requests under way reserve the rest of the limit.
    #[error(
        "{who} spent ${spent:.2} of ${limit} today (UTC), and requests under way may use the rest; ask again when they \
         have ended"
    )]
    Reserved {
        /// The client or clients, with the verb.
        who: String,
        /// The dollars of today.
        spent: f64,
        /// The limit in dollars a day.
        limit: f64,
    },
}

/// Faults of a provider's command.
#[derive(Debug, thiserror::Error)]
pub enum CommandFault {
    /// The command was not started.
    #[error("the command '{}' cannot be started: {error}", program.display())]
    NotStarted {
        /// The program.
        program: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The command wrote nothing for a long time.
    #[error("the command said nothing for {0:?}")]
    Silent(Duration),
    /// The command ended before its answer did.
    #[error("the command ended without an answer ({how}): {words}")]
    NoAnswer {
        /// The exit status.
        how: String,
        /// The end of its standard error.
        words: String,
    },
}
