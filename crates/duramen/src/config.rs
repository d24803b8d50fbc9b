//! # Room card: config
//!
//! Purpose:    from file, environment and flags to one checked [`Config`].
//! Owns:       the names of what can be configured, and what a mistake in one reads like.
//! Interface:  [`ServerArgs`], [`Config::load`], [`example`].
//! Invariants: a flag beats the environment, which beats the file; an unknown key is refused with
//!             the nearest name; all mistakes are reported at once; [`example`] parses.
//! Never:      the meaning of Kafka's settings: their table is the broker's.
//! Tests:      `config/tests.rs`; `DURAMEN_WRITE_DOCS=1 cargo test -p duramen config` rewrites the document.
//! Start at:   [`Config::load`].

mod example;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::FalseyValueParser;
use duramen_broker::configs::nearest;

use crate::telemetry;

/// Default of --listen: this machine only.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:9092";

/// Settings of the process that it reads again on SIGHUP, beside the node's live settings.
pub const ON_SIGHUP: [&str; 6] = [
    "connections.max.idle.ms",
    "max.connection.creation.rate",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "socket.request.max.bytes",
];

/// Default of --data-dir.
pub const DATA_DIR_DEFAULT: &str = "./duramen-data";

/// The environment's names of settings: `DURAMEN_SET_NUM_PARTITIONS` is `num.partitions`.
const ENV_SET: &str = "DURAMEN_SET_";

/// Keys of the file's top level.
const FILE_KEYS: [&str; 10] = [
    "data-dir",
    "listen",
    "advertise",
    "native",
    "node-listen",
    "http",
    "open",
    "log",
    "log-format",
    "settings",
];

/// Variables that client commands read. A shell that sets them may start a broker, too.
const CLIENT_ENV_KEYS: [&str; 7] = [
    "DURAMEN_BOOTSTRAP",
    "DURAMEN_TLS_CA",
    "DURAMEN_TLS_CERT",
    "DURAMEN_TLS_KEY",
    "DURAMEN_USER",
    "DURAMEN_PASSWORD_FILE",
    "DURAMEN_MECHANISM",
];

/// Variables that flags read, for the nearest name of a misspelt one.
const ENV_KEYS: [&str; 10] = [
    "DURAMEN_CONFIG",
    "DURAMEN_DATA_DIR",
    "DURAMEN_LISTEN",
    "DURAMEN_ADVERTISE",
    "DURAMEN_NATIVE",
    "DURAMEN_NODE_LISTEN",
    "DURAMEN_HTTP",
    "DURAMEN_OPEN",
    "DURAMEN_LOG",
    "DURAMEN_LOG_FORMAT",
];

/// Flags of both `dev` and `serve`.
#[derive(Clone, Debug, Default, Args)]
pub struct ServerArgs {
    /// Data directory, created if missing [default: ./duramen-data].
    #[arg(long, value_name = "DIR", env = "DURAMEN_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Address at which clients connect [default: 127.0.0.1:9092]. Port 0 takes any free one. The setting `listeners`
    /// gives several, each with a name.
    #[arg(long, value_name = "HOST:PORT", env = "DURAMEN_LISTEN")]
    pub listen: Option<String>,
    /// Address that the node advertises to clients, if it differs from --listen (behind NAT, in a container). The same
    /// as the setting `advertised.listeners`.
    #[arg(long, value_name = "HOST:PORT", env = "DURAMEN_ADVERTISE")]
    pub advertise: Option<String>,
    /// Address of the native API: gRPC, and HTTP with JSON, on one port [default: not served; `dev` serves it 12 ports
    /// below --listen, on this machine only]. It asks clients who they are as the first listener does.
    #[arg(long, value_name = "HOST:PORT", env = "DURAMEN_NATIVE")]
    pub native: Option<String>,
    /// Address at which other nodes of the cluster connect, if it differs from this node's address in the setting
    /// `controller.quorum.voters`. A single node needs it before others can join. The setting
    /// `node.security` gives these connections TLS.
    #[arg(long, value_name = "HOST:PORT", env = "DURAMEN_NODE_LISTEN")]
    pub node_listen: Option<String>,
    /// Address that serves /metrics, /livez, /readyz and /healthz [default: not served].
    #[arg(long, value_name = "HOST:PORT", env = "DURAMEN_HTTP")]
    pub http: Option<String>,
    /// Lets other machines connect without being asked who they are. Without it only a listener that asks clients for
    /// certificates or passwords has addresses that others reach; clients, calls of the native API and other nodes come
    /// by addresses of this machine alone, such as 127.0.0.1.
    #[arg(long, env = "DURAMEN_OPEN", value_parser = FalseyValueParser::new())]
    pub open: bool,
    /// Setting with Kafka's name, such as num.partitions=3. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Flags of logging.
    #[command(flatten)]
    pub log: telemetry::Flags,
}

/// Complete configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Data directory.
    pub data_dir: PathBuf,
    /// Address at which clients connect, if it was given.
    pub listen: Option<HostPort>,
    /// Address that the node advertises to clients, if it is not `listen`.
    pub advertise: Option<HostPort>,
    /// Address of the native API, if it is served.
    pub native: Option<HostPort>,
    /// Address at which other nodes connect, if it is not this node's in `controller.quorum.voters`.
    pub node_listen: Option<HostPort>,
    /// Address that serves metrics and health, if any.
    pub http: Option<HostPort>,
    /// True if other machines may connect without being asked who they are.
    pub open: bool,
    /// Given settings with Kafka's names.
    pub settings: BTreeMap<String, String>,
    /// True if this data directory asks for the place of the one that is registered under this node's id.
    pub replaces: bool,
    /// Flags of logging.
    pub log: telemetry::Flags,
}

/// Host and port, as users write them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port; 0 takes any free one where that makes sense.
    pub port: u16,
}

/// All mistakes of a configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<String>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => f.write_str(one),
            many => {
                write!(f, "{} mistakes in the configuration", many.len())?;
                many.iter().try_for_each(|mistake| write!(f, "\n  {mistake}"))
            }
        }
    }
}

impl std::error::Error for Mistakes {}

/// Writes a commented configuration file: every key, and every setting that has an effect, at its default.
pub fn example() -> String {
    example::render()
}

impl Config {
    /// Joins the file, if any, with the environment and the flags. `server::settings` later checks the settings against
    /// the broker's table.
    pub fn load(
        file: Option<&Path>,
        args: &ServerArgs,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Mistakes> {
        let mut mistakes = Vec::new();
        let mut merged = match file {
            Some(path) => match std::fs::read_to_string(path) {
                Ok(text) => FileKeys::parse(&text, &path.display().to_string(), &mut mistakes),
                Err(error) => {
                    mistakes.push(format!("cannot read {}: {error}", path.display()));
                    FileKeys::default()
                }
            },
            None => FileKeys::default(),
        };
        merged.overlay_environment(environment, &mut mistakes);
        merged.overlay_flags(args, &mut mistakes);
        let mut config = merged.finish(&mut mistakes);
        // A path need not be text, so this one does not pass through the strings.
        if let Some(path) = &args.data_dir {
            config.data_dir.clone_from(path);
        }
        if mistakes.is_empty() { Ok(config) } else { Err(Mistakes(mistakes)) }
    }
}

impl Config {
    /// Lists the keys of a file, without its settings, with their values.
    pub fn keys(&self) -> [(&'static str, String); 9] {
        let text =
            |address: Option<&HostPort>| address.map(ToString::to_string).unwrap_or_default();
        let format = self.log.format.unwrap_or(telemetry::Format::Human);
        [
            ("data-dir", self.data_dir.display().to_string()),
            ("listen", text(self.listen.as_ref())),
            ("advertise", text(self.advertise.as_ref())),
            ("native", text(self.native.as_ref())),
            ("node-listen", text(self.node_listen.as_ref())),
            ("http", text(self.http.as_ref())),
            ("open", self.open.to_string()),
            ("log", self.log.filter.clone().unwrap_or_default()),
            ("log-format", format.to_string()),
        ]
    }
}

/// Reads the process's environment, without variables that are not text and therefore not ours.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Keys of a file, each present if it was given.
#[derive(Debug, Default)]
struct FileKeys {
    plain: BTreeMap<&'static str, String>,
    settings: BTreeMap<String, String>,
}

impl FileKeys {
    fn parse(text: &str, name: &str, mistakes: &mut Vec<String>) -> Self {
        let mut keys = Self::default();
        let table = match text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(error) => {
                mistakes.push(format!("{name}: {}", error.to_string().trim_end()));
                return keys;
            }
        };
        for (key, value) in table {
            match (key.as_str(), value) {
                ("settings", toml::Value::Table(settings)) => {
                    keys.flatten("", settings, name, mistakes);
                }
                ("settings", _) => mistakes.push(format!("{name}: `settings` is not a table")),
                ("open", toml::Value::Boolean(truth)) => {
                    keys.plain.insert("open", truth.to_string());
                }
                ("open", _) => mistakes.push(format!("{name}: `open` is true or false")),
                (_, toml::Value::String(text)) if FILE_KEYS.contains(&key.as_str()) => {
                    let known = FILE_KEYS.iter().find(|known| **known == key);
                    keys.plain.insert(known.expect("it is contained"), text);
                }
                (_, _) if FILE_KEYS.contains(&key.as_str()) => {
                    mistakes.push(format!("{name}: `{key}` wants a string"));
                }
                _ if key.contains('.') => mistakes.push(format!(
                    "{name}: unknown key `{key}`; Kafka's settings go under [settings]"
                )),
                _ => mistakes.push(unknown(name, "key", &key, FILE_KEYS)),
            }
        }
        keys
    }

    /// Flattens tables to settings. TOML reads `num.partitions = 3` as a table in a table, and `"num.partitions" = 3`
    /// as one key; users write both.
    fn flatten(
        &mut self,
        prefix: &str,
        table: toml::Table,
        name: &str,
        mistakes: &mut Vec<String>,
    ) {
        for (key, value) in table {
            let key = format!("{prefix}{key}");
            match value {
                toml::Value::Table(table) => {
                    self.flatten(&format!("{key}."), table, name, mistakes);
                }
                value => match scalar(&value) {
                    Some(text) => {
                        self.settings.insert(key, text);
                    }
                    None => mistakes.push(format!(
                        "{name}: `{key}` wants a string, a number, a boolean, or a list of them"
                    )),
                },
            }
        }
    }

    fn overlay_environment(
        &mut self,
        environment: impl IntoIterator<Item = (String, String)>,
        mistakes: &mut Vec<String>,
    ) {
        for (name, value) in environment {
            if let Some(key) = name.strip_prefix(ENV_SET) {
                self.settings.insert(key.to_ascii_lowercase().replace('_', "."), value);
            } else if name.starts_with("DURAMEN_")
                && !ENV_KEYS.contains(&name.as_str())
                && !CLIENT_ENV_KEYS.contains(&name.as_str())
            {
                // Only a variable that looks like a misspelt name is a mistake. An orchestrator sets its own
                // variables for a service called duramen, and so may a wrapper script.
                if let Some(near) = nearest(&name, ENV_KEYS) {
                    mistakes.push(format!(
                        "environment: unknown variable {name}; did you mean {near}?"
                    ));
                }
            }
        }
    }

    /// Overlays the flags, which clap has already joined with their environment variables.
    fn overlay_flags(&mut self, args: &ServerArgs, mistakes: &mut Vec<String>) {
        let plain = [
            ("listen", &args.listen),
            ("advertise", &args.advertise),
            ("native", &args.native),
            ("node-listen", &args.node_listen),
            ("http", &args.http),
            ("log", &args.log.filter),
        ];
        for (key, value) in plain {
            if let Some(value) = value {
                self.plain.insert(key, value.clone());
            }
        }
        if args.open {
            self.plain.insert("open", true.to_string());
        }
        for setting in &args.settings {
            match setting.split_once('=') {
                Some((key, value)) if !key.trim().is_empty() => {
                    self.settings.insert(key.trim().to_owned(), value.trim().to_owned());
                }
                _ => mistakes.push(format!("--set {setting}: write it as KEY=VALUE")),
            }
        }
        if let Some(format) = args.log.format {
            self.plain.insert("log-format", format.to_string());
        }
    }

    fn finish(mut self, mistakes: &mut Vec<String>) -> Config {
        let address = |key: &str, port_may_be_zero: bool, mistakes: &mut Vec<String>| {
            let text = self.plain.get(key)?;
            match HostPort::parse(text) {
                Ok(HostPort { port: 0, .. }) if !port_may_be_zero => {
                    mistakes.push(format!("`{key}`: {text} has no port to connect to"));
                    None
                }
                Ok(address) => Some(address),
                Err(what) => {
                    mistakes.push(format!("`{key}`: {what}"));
                    None
                }
            }
        };
        let listen = address("listen", true, mistakes);
        let advertise = address("advertise", false, mistakes);
        let native = address("native", true, mistakes);
        let node_listen = address("node-listen", false, mistakes);
        let http = address("http", true, mistakes);
        let format = match self.plain.get("log-format").map(String::as_str) {
            None | Some("human") => telemetry::Format::Human,
            Some("json") => telemetry::Format::Json,
            Some(other) => {
                mistakes.push(format!("`log-format`: {other} is neither human nor json"));
                telemetry::Format::Human
            }
        };
        let data_dir = self.plain.remove("data-dir");
        Config {
            data_dir: data_dir.map_or_else(|| DATA_DIR_DEFAULT.into(), PathBuf::from),
            listen,
            advertise,
            native,
            node_listen,
            http,
            open: self.plain.get("open").is_some_and(|it| it == "true"),
            settings: self.settings,
            // Only ever asked for on the command line: it is for one start.
            replaces: false,
            log: telemetry::Flags { filter: self.plain.remove("log"), format: Some(format) },
        }
    }
}

impl HostPort {
    /// Reads `host:port`, `1.2.3.4:port` or `[v6]:port`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let malformed = || format!("{text} is not HOST:PORT");
        let (host, port) = text.rsplit_once(':').ok_or_else(malformed)?;
        let port = port.parse().map_err(|_| malformed())?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or_else(malformed)?,
            None if host.contains(':') => {
                return Err(format!("{text}: write an IPv6 address as [ADDRESS]:PORT"));
            }
            None => host,
        };
        if host.is_empty() {
            return Err(format!("{text} has no host; for all addresses write 0.0.0.0:{port}"));
        }
        Ok(Self { host: host.to_owned(), port })
    }

    /// Tells whether the host means all addresses of the machine, to which no other machine can connect.
    pub fn is_unspecified(&self) -> bool {
        self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified())
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(truth) => Some(truth.to_string()),
        toml::Value::Array(items) => {
            let items: Option<Vec<String>> = items.iter().map(scalar).collect();
            items.map(|items| items.join(","))
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

/// Writes the sentence for a name that is not in the list.
fn unknown<'a>(
    origin: &str,
    what: &str,
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> String {
    match nearest(name, known) {
        Some(near) => format!("{origin}: unknown {what} `{name}`; did you mean `{near}`?"),
        None => format!("{origin}: unknown {what} `{name}`"),
    }
}

#[cfg(test)]
mod document;
#[cfg(test)]
mod tests;
