//! Counters of a benchmark and their report.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::Value;

use crate::cli::screen;

/// Latencies in microseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Latency {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Latency {
    /// Makes latencies of a histogram of nanoseconds.
    pub(super) fn of(nanoseconds: &Histogram<u64>) -> Self {
        let micros = |ns: u64| round(ns as f64 / 1e3);
        let at = |quantile: f64| micros(nanoseconds.value_at_quantile(quantile));
        Self {
            mean: round(nanoseconds.mean() / 1e3),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: micros(nanoseconds.max()),
        }
    }

    /// Writes the latencies as a line for people.
    pub(super) fn line(&self) -> String {
        let Self { mean, p50, p99, p999, max, .. } = self;
        format!("latency µs: mean {mean}  p50 {p50}  p99 {p99}  p99.9 {p999}  max {max}")
    }
}

/// Rounds to one decimal, which is enough for every figure here.
pub(super) fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Rounds seconds to milliseconds.
pub(super) fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

/// Counts things that were done after a time, in the number of its second.
pub(super) fn count_in(per_second: &mut Vec<u64>, after: Duration, count: u64) {
    let second = usize::try_from(after.as_secs()).unwrap_or(usize::MAX);
    if per_second.len() <= second {
        per_second.resize(second + 1, 0);
    }
    per_second[second] += count;
}

/// Makes a histogram of nanoseconds up to two minutes, to three digits.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 120_000_000_000, 3).expect("constant bounds that are in range")
}

/// Counts within the measured time, which begins when the warm-up is over.
#[derive(Debug)]
pub(super) struct Meter {
    warm_up: Duration,
    begin: Instant,
    end: Option<Instant>,
    cpu_at_begin: Option<Duration>,
    last: Option<Instant>,
    /// Number of things done in each second.
    per_second: Vec<u64>,
    total: u64,
    refused: u64,
    /// Reason of the first refusal.
    refusal: Option<String>,
    latencies: Histogram<u64>,
}

impl Meter {
    /// Measures from `warm_up` after now, for `time` if given.
    pub(super) fn new(warm_up: Duration, time: Option<Duration>) -> Self {
        let begin = Instant::now() + warm_up;
        Self {
            warm_up,
            begin,
            end: time.map(|time| begin + time),
            cpu_at_begin: None,
            last: None,
            per_second: Vec::new(),
            total: 0,
            refused: 0,
            refusal: None,
            latencies: histogram(),
        }
    }

    /// Begins the warm-up again, after what had to be made ready.
    pub(super) fn starts_now(&mut self) {
        let warm_up = self.warm_up;
        *self = Self::new(warm_up, self.end.map(|end| end - self.begin));
    }

    /// Ends the measured time with the last thing that was done, if it was the last of all `wanted`.
    pub(super) fn ends_after(&mut self, wanted: Option<u64>) {
        if wanted.is_some_and(|wanted| self.total + self.refused >= wanted) {
            self.end = self.end.min(self.last);
        }
    }

    /// True once the measured time is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| now >= end)
    }

    /// Counts `count` things that ended together and began at their own times.
    pub(super) fn done(
        &mut self,
        now: Instant,
        count: u64,
        begun: impl IntoIterator<Item = Instant>,
    ) {
        if now < self.begin || self.is_over(now) {
            return;
        }
        if self.cpu_at_begin.is_none() {
            self.cpu_at_begin = Some(cpu_time());
        }
        self.last = Some(now);
        self.total += count;
        count_in(&mut self.per_second, now - self.begin, count);
        for begun in begun {
            let nanoseconds = u64::try_from((now - begun).as_nanos()).unwrap_or(u64::MAX);
            self.latencies.saturating_record(nanoseconds);
        }
    }

    /// Counts `count` things that the broker refused together, also in the warm-up. Their time counts, too: otherwise
    /// the appends before a full disk would look like a rate.
    pub(super) fn refused(&mut self, now: Instant, count: u64, why: String) {
        self.last = self.last.max(Some(now));
        self.refused += count;
        self.refusal.get_or_insert(why);
    }

    /// Things done so far.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Computes the figures.
    pub(super) fn finish(self) -> anyhow::Result<Measured> {
        let last = self.last.context("nothing was acknowledged in the measured time")?;
        let end = self.end.unwrap_or(last);
        let seconds = end.saturating_duration_since(self.begin).as_secs_f64().max(1e-9);
        let cpu = cpu_time().saturating_sub(self.cpu_at_begin.unwrap_or_default());
        Ok(Measured {
            seconds: milliseconds(seconds),
            total: self.total,
            refused: self.refused,
            refusal: self.refusal,
            per_second: self.per_second,
            client_cpu_seconds: milliseconds(cpu.as_secs_f64()),
            latency_us: Latency::of(&self.latencies),
        })
    }
}

/// Figures of a [`Meter`].
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Measured {
    /// Measured time.
    pub(super) seconds: f64,
    /// Things done in that time.
    pub(super) total: u64,
    /// Things that the broker refused; the benchmark does not retry.
    pub(super) refused: u64,
    /// Reason of the first refusal.
    pub(super) refusal: Option<String>,
    /// Number of things done in each second, which shows stalls.
    pub(super) per_second: Vec<u64>,
    /// CPU time of this process.
    pub(super) client_cpu_seconds: f64,
    /// Latency from the begin to the acknowledgement, in microseconds.
    pub(super) latency_us: Latency,
}

impl Measured {
    /// Number of things done in a second.
    pub(super) fn rate(&self) -> f64 {
        self.total as f64 / self.seconds
    }

    /// Fails if the broker refused anything, because such a run tells nothing about speed.
    pub(super) fn check(&self, thing: &str) -> anyhow::Result<()> {
        let Some(why) = &self.refusal else { return Ok(()) };
        let things = screen::count(self.refused, thing);
        bail!("the broker refused {things}, which no figure above counts; the first for {why}")
    }

    /// Makes the fields with null values, for programs, where nothing was measured.
    pub(super) fn of_nothing() -> serde_json::Result<Value> {
        let mut fields = serde_json::to_value(Self::default())?;
        fields.as_object_mut().into_iter().flatten().for_each(|(_, field)| *field = Value::Null);
        Ok(fields)
    }
}

/// CPU time of this process.
pub(super) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Writes bytes a second for people.
pub(super) fn bandwidth(bytes: f64, seconds: f64) -> String {
    format!("{}/s", screen::bytes(bytes / seconds.max(1e-9)))
}

/// Prints lines to stdout, or the value as JSON.
pub(super) fn print(json: bool, value: &impl Serialize, lines: &[String]) -> anyhow::Result<()> {
    if json { screen::print_json(value) } else { Ok(screen::print_line(&lines.join("\n"))?) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_in_no_rate_and_its_time_is() {
        let mut meter = Meter::new(Duration::ZERO, None);
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        meter.done(at(1), 800, [begun]);
        meter.refused(at(4), 50, "partition 0: NO".into());
        meter.refused(at(8), 50, "partition 0: STILL NO".into());
        let measured = meter.finish().expect("figures");
        assert_eq!((measured.total, measured.refused), (800, 100));
        assert!((99.0..101.0).contains(&measured.rate()), "{}", measured.rate());
        let complaint = measured.check("record").expect_err("refused").to_string();
        assert!(complaint.contains("refused 100 records") && complaint.ends_with(": NO"));
        let one = Measured { refused: 1, ..measured.clone() };
        let complaint = one.check("record").expect_err("refused").to_string();
        assert!(complaint.contains("refused 1 record, "), "{complaint}");
        let names =
            |it: &Value| it.as_object().expect("fields").keys().cloned().collect::<Vec<_>>();
        let nothing = Measured::of_nothing().expect("fields");
        assert_eq!(names(&nothing), names(&serde_json::to_value(&measured).expect("fields")));
        assert!(nothing["latency_us"].is_null(), "{nothing}");
    }
}
