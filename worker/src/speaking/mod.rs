//! Speech: the engine's thread with a model that speaks, and programs that speak, one for each request. Both give
//! samples piece by piece.

mod job;
mod pieces;
mod program;
mod queue;
mod sentences;
mod speaking_engine;
mod speaking_side;

pub(crate) use job::SpeechOrder;
pub(crate) use pieces::{PieceReader, SpeechPiece, SpokenUsage};
pub(crate) use program::{HOST_COMMAND, KEEPER_COMMAND, StartProgram, find_program, run_host, run_keeper, start_host};
pub(crate) use speaking_engine::serve;
pub(crate) use speaking_side::{Speaking, Speech, SpeechWish};
