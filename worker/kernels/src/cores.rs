//! How many cores an operation is divided among.

use std::cell::Cell;

/// The least number of multiplications (or moves) for which other threads are used: some 20 µs of one core. Waking
/// threads costs more than computing fewer.
pub const WORTH_SHARING: usize = 1 << 19;

thread_local! {
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs work whose operations stay on this thread: other cores do the same with other rows meanwhile.
pub fn alone<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            ALONE.set(self.0);
        }
    }
    let _before = Before(ALONE.replace(true));
    work()
}

/// The cores that an operation may use.
pub fn cores() -> usize {
    if ALONE.get() { 1 } else { rayon::current_num_threads() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_alone_to_its_end_even_if_that_is_a_panic() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        pool.install(|| {
            let seen = alone(|| [alone(cores), cores()]);
            assert_eq!((seen, cores()), ([1, 1], 3));
            let ended = std::panic::catch_unwind(|| alone(|| panic!("as a test")));
            assert!(ended.is_err());
            assert_eq!(cores(), 3);
        });
    }
}
