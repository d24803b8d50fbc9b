//! # Room card: cores
//!
//! Purpose:    run seeds on all cores: a run is one thread's, and shares nothing with others.
//! Owns:       nothing.
//! Interface:  [`on_all`].
//! Invariants: results are in the order of the items, however many cores there are.
//! Never:      chance; what a run does.
//! Tests:      every test that runs seeds.
//! Start at:   [`on_all`].

use std::sync::Mutex;
use std::thread;

/// Works on each item, on as many threads as there are cores, and returns the results in the order of the items.
pub fn on_all<T: Send, R: Send>(
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let items: Vec<T> = items.into_iter().collect();
    let waiting = Mutex::new(items.into_iter().enumerate());
    let done = Mutex::new(Vec::new());
    let next = || waiting.lock().expect("taking one does not panic").next();
    let go_on = || {
        while let Some((at, item)) = next() {
            let result = work(item);
            done.lock().expect("adding one does not panic").push((at, result));
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(go_on))));
    let mut done = done.into_inner().expect("no thread is left");
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
