//! Programs that speak. A confined worker starts no process, so a *host* that was started before does it: for each
//! request a *keeper*, which confines itself, starts the program, passes text and sound on, and ends with all that the
//! program started when its worker says so or is gone.

mod host;
mod keeper;
mod order;
mod run;
mod streamed_sound;

pub(crate) use host::{COMMAND as HOST_COMMAND, run as run_host};
pub(crate) use keeper::{COMMAND as KEEPER_COMMAND, run as run_keeper};
pub(crate) use run::{StartProgram, find_program, start_host};
