//! Reading ahead while a model is loaded. A thread requests the next bytes from the system, so that the disk is busy
//! while weights are rearranged. Its requests are larger than those of touching page after page.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use model_boss_weights::ASKED_AT_ONCE;
use model_boss_weights::store::Extent;

/// The most bytes that are read ahead: they have to stay in the page cache until they are used.
const WINDOW: u64 = 256 << 20;

/// Pieces in the order of their use, and the progress of the use.
pub(crate) struct ReadAhead {
    pieces: Vec<Extent>,
    /// Bytes of all pieces.
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

    /// Calls `ask` for every piece, as far ahead as [`WINDOW`] allows. Returns after the last piece, or at
    /// [`Self::end`].
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

    /// Reports that this share of all bytes was used, from 0 to 1.
    pub(crate) fn used(&self, share: f32) {
        self.state().used = (self.whole as f64 * f64::from(share)) as u64;
        self.changed.notify_one();
    }

    /// Ends the reading ahead: no further data will be used.
    pub(crate) fn end(&self) {
        self.state().ended = true;
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, AheadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A guard that ends the reading ahead when it is dropped, on every path.
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
                // The reading thread waits only at the end of its window, so it is notified only in that case.
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
