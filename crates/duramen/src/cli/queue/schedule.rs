//! The times and the rank of messages for workers: flags of `duramen queue enqueue`.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use super::workers::in_ms;
use crate::cli::usage::time;
use crate::proto::Schedule;
use crate::proto::schedule::{End, Start};

/// Flags of all messages of the command.
#[derive(Debug, Args)]
pub(super) struct Scheduled {
    /// Time for which no worker gets the messages, such as 10s or 2h
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "deliver_at", allow_hyphen_values = true, help_heading = "Workers")]
    delay: Option<Duration>,
    /// Moment before which no worker gets them: such as 2026-12-01T08:00:00Z, or milliseconds since 1970
    #[arg(long, value_name = "MOMENT", value_parser = moment, allow_hyphen_values = true, help_heading = "Workers")]
    deliver_at: Option<i64>,
    /// Time after which the messages are of no use, and nobody gets them, such as 1h
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true, help_heading = "Workers")]
    ttl: Option<Duration>,
    /// Rank from 0 to 9: workers get messages of a higher one first; 4 if absent
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=9), help_heading = "Workers")]
    priority: Option<u32>,
}

/// Reads a moment, in milliseconds since 1970.
fn moment(text: &str) -> Result<i64, String> {
    let ms = text.strip_prefix('@').unwrap_or(text).parse::<i64>().ok();
    let ms = ms.or_else(|| text.parse::<Timestamp>().ok().map(Timestamp::as_millisecond));
    ms.filter(|ms| *ms > 0).ok_or_else(|| {
        "give a date and time such as 2026-12-01T08:00:00Z, or milliseconds since 1970".to_owned()
    })
}

impl Scheduled {
    /// Returns what the messages have to have; `None` without a flag.
    pub(super) fn message(&self) -> Option<Schedule> {
        let delay = self.delay.map(|it| Start::DelayMs(in_ms(it)));
        let start = self.deliver_at.map(Start::DeliverAtMs).or(delay);
        let end = self.ttl.map(|it| End::TtlMs(in_ms(it)));
        let is_any = start.is_some() || end.is_some() || self.priority.is_some();
        is_any.then_some(Schedule { start, end, priority: self.priority })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates_or_milliseconds() {
        for text in ["1700000000000", "@1700000000000", "2023-11-14T22:13:20Z"] {
            assert_eq!(moment(text), Ok(1_700_000_000_000), "{text}");
        }
        for text in ["", "10s", "-1", "0", "tomorrow", "2023-11-14"] {
            assert!(moment(text).is_err(), "{text}");
        }
    }
}
