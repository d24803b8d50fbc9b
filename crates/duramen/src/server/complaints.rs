//! # Room card: complaints
//!
//! Purpose:    say why connections were closed or refused, without drowning the log.
//! Owns:       how many such lines there are in a second; the line that counts the others.
//! Interface:  [`Complaints::may_say`].
//! Invariants: at most [`LINES_MAX`] lines in a second, and one that says how many more there would
//!             have been. Metrics count all.
//! Never:      the texts.
//! Tests:      below; `compat/hostile`.
//! Start at:   [`Complaints::may_say`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines in a second.
pub const LINES_MAX: u32 = 20;

const SECOND: Duration = Duration::from_secs(1);

/// Log lines of the current second.
#[derive(Debug, Default)]
pub struct Complaints(Mutex<Second>);

#[derive(Debug, Default)]
struct Second {
    began: Option<Instant>,
    said: u32,
    unsaid: u64,
}

impl Complaints {
    /// Tells whether one more line may be written now. A line that may not is counted, and the count is logged when
    /// the second is over.
    pub fn may_say(self: &Arc<Self>) -> bool {
        let mut second = self.lock();
        let may_say = second.may_say(Instant::now());
        if second.unsaid == 1 {
            let complaints = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(SECOND).await;
                let unsaid = std::mem::take(&mut *complaints.lock()).unsaid;
                tracing::warn!(unsaid, "more connections were closed or refused than are logged");
            });
        }
        may_say
    }

    fn lock(&self) -> MutexGuard<'_, Second> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Second {
    /// Tells whether a line may be written. A second with suppressed lines ends when their count was logged.
    fn may_say(&mut self, now: Instant) -> bool {
        let is_over = self.began.is_none_or(|began| now.duration_since(began) >= SECOND);
        if is_over && self.unsaid == 0 {
            *self = Self { began: Some(now), said: 0, unsaid: 0 };
        }
        let may_say = self.said < LINES_MAX;
        self.said += u32::from(may_say);
        self.unsaid += u64::from(!may_say);
        may_say
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_above_the_limit_are_counted() {
        let now = Instant::now();
        let mut second = Second::default();
        let said = (0..100).filter(|_| second.may_say(now)).count();
        assert_eq!((said, second.unsaid), (LINES_MAX as usize, 80));
        assert!(!second.may_say(now + SECOND), "they are not told of yet");
    }

    #[test]
    fn another_second_has_lines_of_its_own() {
        let now = Instant::now();
        let mut second = Second::default();
        assert_eq!((0..LINES_MAX).filter(|_| second.may_say(now)).count(), LINES_MAX as usize);
        assert!(second.may_say(now + SECOND));
        assert_eq!(second.said, 1);
    }
}
