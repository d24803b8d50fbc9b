//! # Room card: reloading
//!
//! Purpose:    take changes of the configuration while the process runs, on SIGHUP.
//! Owns:       the settings of the process that may change, and the log line of each that did.
//! Interface:  [`Reloading::reload`], [`Limits`].
//! Invariants: a configuration with a mistake is taken in no part; a setting that needs a restart is named each time,
//!             until it is as before or the process is another.
//! Never:      settings made by clients while the node runs: those hide the settings here.
//! Tests:      `tests/server.rs`.
//! Start at:   [`Reloading::reload`].

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use duramen_broker::Event;
use duramen_broker::configs::{BROKER_CONFIGS, Settings, find, is_secret};
use tokio::sync::watch;

use super::seats::SeatLimits;
use super::settings::ServerSettings;
use super::threads::{Input, ToNode};
use super::tls;
use crate::config::{Config, Mistakes, ON_SIGHUP};
use crate::telemetry;

/// Reads the configuration again, as it was read at the start.
pub type Load = Box<dyn Fn() -> Result<Config, Mistakes> + Send>;

/// Limits of a connection that begins now.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Limits of the number of connections.
    pub seats: SeatLimits,
    /// Largest number of connections accepted in a second.
    pub rate_max: u32,
    /// Longest silence of a connection; `None` for no limit.
    pub idle_max: Option<Duration>,
    /// Largest frame, in bytes.
    pub frame_bytes_max: u32,
}

impl Limits {
    /// Returns the limits of `settings`, with no more connections than there are descriptors for.
    pub fn of(settings: &ServerSettings, connections_max: usize) -> Self {
        let mut seats = settings.seats.clone();
        seats.all = seats.all.min(connections_max);
        Self {
            seats,
            rate_max: settings.connection_rate_max,
            idle_max: settings.idle_max,
            frame_bytes_max: settings.frame_bytes_max,
        }
    }
}

/// See the room card.
pub struct Reloading {
    /// Configuration that the process runs by.
    pub config: Config,
    /// Settings of that configuration, checked.
    pub given: Settings,
    /// Limits for connections that begin.
    pub limits: watch::Sender<Limits>,
    /// Connections that there are descriptors for.
    pub connections_max: usize,
    /// The way into the node's thread.
    pub node: ToNode,
    /// Certificates of listeners, which are read again, too.
    pub certificates: Arc<tls::Keeper>,
}

impl fmt::Debug for Reloading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Reloading {
    /// Takes the changes of settings that may change, and logs them, line by line.
    pub fn reload(&mut self, load: &Load) {
        match Self::checked(load) {
            Ok((config, settings, given)) => self.take(&config, &settings, &given),
            Err(mistakes) => tracing::error!(
                %mistakes,
                "SIGHUP changed nothing: correct the mistakes in the configuration and send it again"
            ),
        }
    }

    fn checked(load: &Load) -> Result<(Config, ServerSettings, Settings), Mistakes> {
        let config = load()?;
        let (settings, broker) = ServerSettings::split(&config)?;
        telemetry::filter(&config.log)
            .map_err(|error| Mistakes(vec![format!("`log`: {error:#}")]))?;
        Ok((config, settings, broker.given().clone()))
    }

    fn take(&mut self, config: &Config, settings: &ServerSettings, given: &Settings) {
        self.certificates.refresh();
        // First, so that a line in the log is true once it is read.
        self.limits.send_replace(Limits::of(settings, self.connections_max));
        let mut is_same = self.take_keys(config);
        let names: BTreeSet<&String> = self.given.keys().chain(given.keys()).collect();
        let mut taken = Vec::new();
        for name in names {
            let (from, to) = (self.given.get(name), given.get(name));
            if from == to {
                continue;
            }
            is_same = false;
            let row = find(BROKER_CONFIGS, name);
            let default = row.map_or("", |row| row.default);
            let told = |value: Option<&String>| match value {
                Some(_) if is_secret(name) => "***".to_owned(),
                value => value.map_or(default, String::as_str).to_owned(),
            };
            let (old, new) = (told(from), told(to));
            let may_change =
                row.is_some_and(|row| row.dynamic) || ON_SIGHUP.contains(&name.as_str());
            if may_change {
                tracing::info!(setting = %name, from = %old, to = %new, "a setting was changed");
                taken.push((name.clone(), to.cloned()));
            } else {
                tracing::warn!(setting = %name, from = %old, to = %new, "a setting needs a restart to change");
            }
        }
        if is_same {
            tracing::info!("the configuration has not changed");
        }
        for (name, value) in taken.clone() {
            match value {
                Some(value) => self.given.insert(name, value),
                None => self.given.remove(&name),
            };
        }
        if !taken.is_empty() {
            self.node.push(Input::Event(Event::Given(taken)));
        }
    }

    /// Takes the keys that the file has beside settings: only those of logging change. Returns true if no key differs.
    fn take_keys(&mut self, config: &Config) -> bool {
        let mut is_same = true;
        let (old, new) = (self.config.keys(), config.keys());
        for ((key, from), (_, to)) in old.into_iter().zip(new).filter(|(old, new)| old != new) {
            is_same = false;
            if key != "log" {
                tracing::warn!(setting = key, %from, %to, "a setting needs a restart to change");
                continue;
            }
            match telemetry::change(&config.log) {
                Ok(()) => {
                    self.config.log.filter.clone_from(&config.log.filter);
                    tracing::info!(setting = key, %from, %to, "a setting was changed");
                }
                Err(error) => {
                    tracing::warn!(setting = key, error = %format!("{error:#}"), "cannot change the log filter");
                }
            }
        }
        is_same
    }
}
