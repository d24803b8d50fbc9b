//! # Room card: inbox
//!
//! Purpose:    queue the input of one thread that waits for nothing else: the storage's, a sync thread.
//! Owns:       [`Inbox`].
//! Interface:  [`Inbox::push`], [`Inbox::push_all`], [`Inbox::take_all`], [`Inbox::take_one`].
//! Invariants: a taker gets all that waits by one lock and one swap; a push wakes it only when it
//!             sleeps and nobody else has woken it. So a burst of events costs one wake-up, and is
//!             one turn.
//! Never:      a bound of its own. The bytes in flight of each connection and of the node bound the
//!             items where they enter the process (see `server::budget`).
//! Tests:      below.
//! Start at:   [`Inbox::take_all`].

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Many push, one thread (or a few that do the same) takes.
#[derive(Debug)]
pub struct Inbox<T> {
    queue: Mutex<Queue<T>>,
    filled: Condvar,
}

#[derive(Debug)]
struct Queue<T> {
    items: VecDeque<T>,
    sleepers: usize,
    /// Sleepers that were woken and did not get to run yet; a busy machine lets them wait for long.
    woken: usize,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        let queue = Queue { items: VecDeque::new(), sleepers: 0, woken: 0 };
        Self { queue: Mutex::new(queue), filled: Condvar::new() }
    }
}

impl<T> Inbox<T> {
    /// Adds one item.
    pub fn push(&self, item: T) {
        let mut queue = self.lock();
        queue.items.push_back(item);
        self.release(queue);
    }

    /// Adds several, in order, with one wake-up.
    pub fn push_all(&self, items: impl IntoIterator<Item = T>) {
        let mut queue = self.lock();
        queue.items.extend(items);
        if !queue.items.is_empty() {
            self.release(queue);
        }
    }

    /// Moves all that waits into `into`, which must be empty, after waiting for something or for
    /// `until` (no limit if `None`).
    pub fn take_all(&self, into: &mut VecDeque<T>, until: Option<Instant>) {
        assert!(into.is_empty(), "items of the last turn would be overtaken");
        let mut queue = self.wait(until);
        std::mem::swap(&mut queue.items, into);
    }

    /// Takes the first item, after waiting for it.
    pub fn take_one(&self) -> T {
        loop {
            let mut queue = self.wait(None);
            if let Some(item) = queue.items.pop_front() {
                return item;
            }
        }
    }

    /// Returns the number of items that wait.
    pub fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Tells whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn wait(&self, until: Option<Instant>) -> MutexGuard<'_, Queue<T>> {
        let mut queue = self.lock();
        while queue.items.is_empty() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            queue.sleepers += 1;
            queue = match left {
                None => self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = self.filled.wait_timeout(queue, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            queue.sleepers -= 1;
            // One that woke by itself may stand in for one that was woken: then somebody is woken twice.
            queue.woken = queue.woken.saturating_sub(1);
        }
        queue
    }

    fn release(&self, mut queue: MutexGuard<'_, Queue<T>>) {
        let (wake, several) = (queue.sleepers > queue.woken, queue.items.len() > 1);
        if wake {
            queue.woken = if several { queue.sleepers } else { queue.woken + 1 };
        }
        drop(queue);
        if wake && several {
            self.filled.notify_all(); // one for each: several threads may take from one inbox
        } else if wake {
            self.filled.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        // Nothing runs under the lock that could leave the queue half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn items_arrive_in_order_and_all_at_once() {
        let inbox = Inbox::default();
        inbox.push(1);
        inbox.push_all([2, 3]);
        let mut taken = VecDeque::new();
        inbox.take_all(&mut taken, None);
        assert_eq!(taken, [1, 2, 3]);
        assert!(inbox.is_empty());
    }

    #[test]
    fn a_deadline_ends_the_wait_with_nothing() {
        let inbox = Inbox::<u8>::default();
        let mut taken = VecDeque::new();
        inbox.take_all(&mut taken, Some(Instant::now() + Duration::from_millis(5)));
        assert!(taken.is_empty());
    }

    #[test]
    fn who_was_woken_is_not_woken_again_before_it_runs() {
        let inbox = Inbox::default();
        inbox.lock().sleepers = 1;
        inbox.push(1);
        assert_eq!(inbox.lock().woken, 1);
        inbox.push(2);
        assert_eq!(inbox.lock().woken, 1, "it takes both");
        inbox.lock().sleepers = 3;
        inbox.push(3);
        assert_eq!(inbox.lock().woken, 3, "others sleep, and several wait");
    }

    #[test]
    fn every_item_wakes_a_sleeper() {
        let inbox = Arc::new(Inbox::default());
        let takers: Vec<_> = (0..3)
            .map(|_| {
                let inbox = Arc::clone(&inbox);
                std::thread::spawn(move || std::iter::from_fn(|| inbox.take_one()).sum::<u64>())
            })
            .collect();
        for item in 1..=10_000_u64 {
            inbox.push(Some(item));
        }
        inbox.push_all([None, None, None]);
        let sum: u64 = takers.into_iter().map(|taker| taker.join().unwrap()).sum();
        assert_eq!(sum, 10_000 * 10_001 / 2);
    }
}
