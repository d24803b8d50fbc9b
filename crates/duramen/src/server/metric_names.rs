//! Makes metrics, and registers each under the name that operators see.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_05, 2.0, 18))
}

/// See above.
pub(crate) struct Names(Registry);

impl Default for Names {
    fn default() -> Self {
        Self(Registry::with_prefix("duramen"))
    }
}

impl Names {
    /// Makes a metric that operators see under this name, without the prefix.
    pub(crate) fn make<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.add(name, help, M::default())
    }

    fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    pub(crate) fn counts(&mut self, name: &str, help: &str) -> Histogram {
        self.add(name, help, Histogram::new(exponential_buckets(1.0, 2.0, 14)))
    }

    pub(crate) fn seconds(&mut self, name: &str, help: &str) -> Histogram {
        self.add(name, help, seconds())
    }

    /// Makes a histogram of seconds for each set of labels.
    pub(crate) fn seconds_by(
        &mut self,
        name: &str,
        help: &str,
    ) -> Family<Vec<(&'static str, String)>, Histogram> {
        self.add(name, help, Family::new_with_constructor(seconds as fn() -> Histogram))
    }

    /// Returns all that was made.
    pub(crate) fn into_registry(self) -> Registry {
        self.0
    }
}
