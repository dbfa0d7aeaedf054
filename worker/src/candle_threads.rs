//! candle divides large operations on elements among threads of its own, which it pins to cores and lets spin between
//! two operations. They take cores from the engine's threads and know nothing of this process's share of them or of its
//! priority. How many there are is read once from the environment, and a running program cannot change its own
//! environment safely: it is started anew.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// The variable that candle reads.
const COUNT: &str = "CANDLE_NUM_THREADS";

/// Commands that compute. The others, such as the processes that read texts, do without.
const COMPUTING: [&str; 2] = ["serve", "bench"];

/// Starts a program that computes anew, as the same process, without threads of candle's. An operator who set a number
/// keeps it.
pub(crate) fn leave_out() {
    let mut words = std::env::args_os();
    let (name, command) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if std::env::var_os(COUNT).is_some() || !COMPUTING.iter().any(|computing| command == *computing) {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut again = Command::new(program);
    again.arg0(name).arg(command).args(words).env(COUNT, "1");
    // It returns only if it fails. Then candle's threads are there, which costs time and nothing else.
    drop(again.exec());
}
