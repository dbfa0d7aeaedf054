//! Reading ahead while a model is loaded. A thread asks the system for the next bytes, so that the disk is busy while
//! weights are rearranged. Each request is larger than those that touching page after page would cause. Tensors are
//! not known here.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use model_boss_weights::ASKED_AT_ONCE;
use model_boss_weights::store::Extent;

/// The most bytes that are read ahead: they have to stay in the page cache until they are used.
const WINDOW: u64 = 256 << 20;

/// Pieces in the order in which they will be used, and how far that is.
pub(crate) struct ReadAhead {
    pieces: Vec<Extent>,
    /// Bytes of all of them.
    whole: u64,
    state: Mutex<AheadState>,
    changed: Condvar,
}

#[derive(Default)]
struct AheadState {
    used: u64,
    ended: bool,
}

impl ReadAhead {
    pub(crate) fn new(pieces: Vec<Extent>) -> Self {
        let whole = pieces.iter().map(|piece| piece.len).sum();
        Self { pieces, whole, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Asks for everything, as far ahead as it may be. Returns when all was asked for, or at [`Self::end`].
    pub(crate) fn run(&self, ask: impl Fn(Extent)) {
        let mut asked = 0;
        for piece in &self.pieces {
            let mut at = piece.offset;
            while at < piece.end() {
                let len = ASKED_AT_ONCE.min(piece.end() - at);
                let state = self
                    .changed
                    .wait_while(self.state(), |state| !state.ended && asked + len > state.used.saturating_add(WINDOW));
                if state.unwrap_or_else(PoisonError::into_inner).ended {
                    return;
                }
                ask(Extent { offset: at, len, ..*piece });
                (at, asked) = (at + len, asked + len);
            }
        }
    }

    /// Such a share of everything, from 0 to 1, was used.
    pub(crate) fn used(&self, share: f32) {
        self.state().used = (self.whole as f64 * f64::from(share)) as u64;
        self.changed.notify_one();
    }

    /// Ends the reading: no further data will be used.
    pub(crate) fn end(&self) {
        self.state().ended = true;
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, AheadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the reading ahead when it is dropped, on every path.
pub(crate) struct EndsWith<'a>(pub(crate) &'a ReadAhead);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn piece(offset: u64, len: u64) -> Extent {
        Extent { file: 0, offset, len }
    }

    #[test]
    fn all_is_asked_for_in_order_and_no_further_ahead_than_the_window() {
        let pieces = vec![piece(7, ASKED_AT_ONCE + 1), piece(3 << 30, 4 * WINDOW - ASKED_AT_ONCE - 8), piece(0, 7)];
        let ahead = ReadAhead::new(pieces.clone());
        assert_eq!(ahead.whole, 4 * WINDOW);
        let (asked, heard) = mpsc::channel();
        std::thread::scope(|scope| {
            let ahead = &ahead;
            scope.spawn(move || ahead.run(|piece| asked.send(piece).unwrap()));
            let (mut total, mut eighths) = (0, 0_u8);
            let mut joined: Vec<Extent> = Vec::new();
            while let Ok(part) = heard.recv() {
                assert!(part.len <= ASKED_AT_ONCE);
                total += part.len;
                let most = u64::from(eighths) * (WINDOW / 2) + WINDOW;
                assert!(total <= most, "{total} asked for where {most} may be");
                match joined.last_mut() {
                    Some(last) if last.end() == part.offset => last.len += part.len,
                    _ => joined.push(part),
                }
                // The reader waits only when it may read no further; only then it has to be notified.
                if total + ASKED_AT_ONCE > most {
                    eighths += 1;
                    ahead.used(f32::from(eighths) / 8.0);
                }
            }
            assert_eq!(joined, pieces);
        });
    }

    #[test]
    fn its_end_is_heard_while_it_waits() {
        let ahead = ReadAhead::new(vec![piece(0, 9 * WINDOW)]);
        let (asked, heard) = mpsc::channel();
        std::thread::scope(|scope| {
            let end = EndsWith(&ahead);
            scope.spawn(|| ahead.run(|piece| asked.send(piece).unwrap()));
            let mut total = 0;
            while total < WINDOW {
                total += heard.recv().unwrap().len;
            }
            drop(end);
        });
        assert!(heard.try_recv().is_err(), "nothing more was asked for");
    }
}
