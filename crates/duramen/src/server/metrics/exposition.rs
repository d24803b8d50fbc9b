//! # Room card: exposition
//!
//! Purpose:    metrics with labels that are made for one scrape, and their text.
//! Owns:       [`Def`], the name and meaning of a metric; [`Table`], its rows in one scrape.
//! Interface:  [`Table`], [`label`], [`encode`].
//! Invariants: a row has one value for each label of its metric. A label's value is escaped where it is made.
//! Never:      the numbers themselves; metrics that live longer than a scrape (see `metric_names`).
//! Tests:      below.
//! Start at:   [`Table`].

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabel, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A number that only rises.
    Counter,
    /// Any number.
    Gauge,
    /// Counts of values in buckets.
    Histogram,
}

/// A metric, as it is documented.
#[derive(Debug)]
pub(crate) struct Def {
    /// Its name; that of a counter has no `_total`.
    pub name: &'static str,
    pub kind: Kind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// One sentence, without the full stop.
    pub help: &'static str,
}

/// Values of a row's labels, shared by the metrics that have the same row.
pub(crate) type Labels = Arc<[Arc<str>]>;

/// Counts of values in buckets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spread {
    /// Sum of all values.
    pub sum: f64,
    /// Upper bound of each bucket, and the count of values in it alone.
    pub buckets: Vec<(f64, u64)>,
}

impl Spread {
    /// Returns the counts that have come since an earlier reading of the same buckets.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let since =
            |(now, before): (&(f64, u64), &(f64, u64))| (now.0, now.1.saturating_sub(before.1));
        let buckets = self.buckets.iter().zip(&before.buckets).map(since).collect();
        Self { sum: self.sum - before.sum, buckets }
    }
}

/// Value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Whole(u64),
    Real(f64),
    Spread(Spread),
}

/// The rows of one metric in one scrape.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub name: String,
    pub kind: Kind,
    pub labels: Vec<&'static str>,
    pub help: String,
    pub rows: Vec<(Labels, Value)>,
}

impl Table {
    /// Makes the table of a metric, without rows.
    pub(crate) fn of(def: &'static Def) -> Self {
        let (name, help) = (def.name.to_owned(), def.help.to_owned());
        Self { name, kind: def.kind, labels: def.labels.to_vec(), help, rows: Vec::new() }
    }

    /// Makes the table of a metric without labels.
    pub(crate) fn one(def: &'static Def, value: Value) -> Self {
        let mut table = Self::of(def);
        table.push(&Labels::default(), value);
        table
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, labels: &Labels, value: Value) {
        assert_eq!(labels.len(), self.labels.len(), "{} has a value for each label", self.name);
        self.rows.push((Arc::clone(labels), value));
    }
}

/// Escapes text for the value of a label, as the text format wants it.
pub(crate) fn label(text: &str) -> Arc<str> {
    if !text.contains(['\\', '"', '\n']) {
        return text.into();
    }
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into()
}

/// Writes tables in the text format of `OpenMetrics`.
pub(crate) fn encode(text: &mut String, tables: Vec<Table>) -> fmt::Result {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Tables(tables)));
    encode_registry(text, &registry)
}

/// The tables of one scrape, for the library that writes the format.
#[derive(Debug)]
struct Tables(Vec<Table>);

impl Collector for Tables {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for table in &self.0 {
            let kind = match table.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let help = format!("{}.", table.help);
            let mut metric = encoder.encode_descriptor(&table.name, &help, None, kind)?;
            for (values, value) in &table.rows {
                if values.is_empty() {
                    encode_value(&mut metric, table.kind, value)?;
                    continue;
                }
                let labels = Named { names: &table.labels, values };
                encode_value(&mut metric.encode_family(&labels)?, table.kind, value)?;
            }
        }
        Ok(())
    }
}

fn encode_value(row: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Whole(number)) => {
            row.encode_counter::<NoLabelSet, _, f64>(number, None)
        }
        (Kind::Counter, Value::Real(number)) => {
            row.encode_counter::<NoLabelSet, _, f64>(number, None)
        }
        (_, Value::Whole(number)) => row.encode_gauge(&i64::try_from(*number).unwrap_or(i64::MAX)),
        (_, Value::Real(number)) => row.encode_gauge(number),
        (_, Value::Spread(Spread { sum, buckets })) => {
            let count = buckets.iter().map(|(_, count)| count).sum();
            row.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
    }
}

/// Labels of one row.
#[derive(Debug)]
struct Named<'a> {
    names: &'a [&'static str],
    values: &'a [Arc<str>],
}

impl EncodeLabelSet for Named<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        for (name, value) in self.names.iter().zip(self.values) {
            (*name, &**value).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Def =
        Def { name: "sizes", kind: Kind::Gauge, labels: &["topic", "kind"], help: "Sizes" };
    const TIMES: Def =
        Def { name: "times", kind: Kind::Histogram, labels: &["api"], help: "Times" };

    const COUNT: Def = Def { name: "all", kind: Kind::Counter, labels: &[], help: "All" };

    #[test]
    fn rows_become_lines_and_labels_cannot_break_out_of_them() {
        static ALL: [Def; 3] = [SIZES, TIMES, COUNT];
        let mut sizes = Table::of(&ALL[0]);
        sizes.push(&[label("a\"b\\c\nd"), label("x")].into(), Value::Whole(7));
        let mut times = Table::of(&ALL[1]);
        let buckets = vec![(0.5, 2), (f64::MAX, 1)];
        times.push(&[label("Fetch")].into(), Value::Spread(Spread { sum: 4.5, buckets }));
        let mut text = String::new();
        let count = Table::one(&ALL[2], Value::Whole(3));
        encode(&mut text, vec![sizes, times, count]).unwrap();
        let wanted = "# HELP sizes Sizes.\n# TYPE sizes gauge\n\
                      sizes{topic=\"a\\\"b\\\\c\\nd\",kind=\"x\"} 7\n\
                      # HELP times Times.\n# TYPE times histogram\n\
                      times_sum{api=\"Fetch\"} 4.5\ntimes_count{api=\"Fetch\"} 3\n\
                      times_bucket{le=\"0.5\",api=\"Fetch\"} 2\n\
                      times_bucket{le=\"+Inf\",api=\"Fetch\"} 3\n\
                      # HELP all All.\n# TYPE all counter\nall_total 3\n";
        assert_eq!(text, wanted);
    }
}
