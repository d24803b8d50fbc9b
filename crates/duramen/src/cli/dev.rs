//! The `dev` command: starts a durable node, or several that form one cluster.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::Args;
use duramen_broker::ClientListener;

use super::tls::ThrowAway;
use super::usage::demand;
use crate::config::{Config, HostPort, ServerArgs, environment};
use crate::server::settings::ServerSettings;
use crate::server::{self, Server};
use crate::telemetry;

mod nodes;

/// Distance of the native API's port from the listener's.
const PORTS_BELOW: u16 = 12;

/// Arguments of `duramen dev`.
#[derive(Debug, Args)]
#[command(after_help = "Like `serve`, `dev` syncs every record before it acknowledges it.")]
pub struct Dev {
    /// Number of nodes to start. Several nodes form one cluster, and each is a process that ends with this one. Their
    /// directories are node-1, node-2, … under the data directory. Clients connect to ports counted up from that of
    /// --listen, and nodes connect to each other 10,000 ports above. Data of an earlier `dev` with one node belongs to
    /// the first node, and the others join it.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(nodes::NODES_MAX)))]
    pub nodes: u16,
    /// Speak TLS, with certificates of a throw-away authority that are made beside the data directory: to clients, and
    /// between nodes
    #[arg(long)]
    pub tls: bool,
    /// Flags that `dev` shares with `serve`.
    #[command(flatten)]
    pub server: ServerArgs,
}

impl Dev {
    /// Runs the command until it is stopped.
    pub fn run(self) -> anyhow::Result<()> {
        let mut config = Config::load(None, &self.server, environment())?;
        let tls = self.tls.then(|| seal(&mut config, self.nodes)).transpose()?;
        let ca = tls.as_ref().map(|tls| tls.ca.as_path());
        if config.native.is_none() {
            let (settings, _) = ServerSettings::split(&config)?;
            config.native = Some(native_below(&settings.listeners[0].address));
        }
        if self.nodes != 1 {
            return nodes::run(self.nodes, &config, ca);
        }
        telemetry::start(&config.log)?;
        let server = server::start(&config)?;
        // The server runs on if nobody reads the text.
        let _ = std::io::stdout().write_all(welcome(&config, &server, ca).as_bytes());
        server.run(None)
    }
}

/// Returns the address of the native API beside a listener's: on this machine only, 12 ports below, such as 9080 beside
/// 9092.
fn native_below(listen: &HostPort) -> HostPort {
    HostPort { host: "127.0.0.1".to_owned(), port: listen.port.saturating_sub(PORTS_BELOW) }
}

/// Makes certificates, and has listeners and nodes use them.
fn seal(config: &mut Config, count: u16) -> anyhow::Result<ThrowAway> {
    for name in ["listeners", "ssl.keystore.location", "node.security"] {
        let text = format!("--tls sets {name}; leave one of the two out");
        demand(!config.settings.contains_key(name), &text)?;
    }
    let listen = nodes::listen(config);
    let host = if listen.is_unspecified() { "localhost" } else { listen.host.as_str() };
    let mut out = config.data_dir.as_os_str().to_owned();
    out.push("-tls");
    let made = ThrowAway::make(std::path::absolute(out)?, host)?;
    let path = |path: &Path| {
        path.to_str().map(str::to_owned).context("the data directory's name is no text")
    };
    let (ca, node) = (path(&made.ca)?, path(&made.node)?);
    let mut set = |name: &str, value: String| config.settings.insert(name.to_owned(), value);
    set("ssl.keystore.location", node);
    if count == 1 {
        set("listeners", format!("SSL://{listen}"));
        config.listen = None;
    } else {
        set("listener.name.nodes.ssl.truststore.location", ca);
        set("node.security", "tls".to_owned());
    }
    Ok(made)
}

/// Returns the flags that commands and kcat need to connect.
fn flags(ca: Option<&Path>) -> (String, String) {
    let Some(ca) = ca else { return Default::default() };
    let ca = ca.display();
    (format!(" --tls-ca {ca}"), format!(" -X security.protocol=ssl -X ssl.ca.location={ca}"))
}

/// Writes the next commands to type, with the real addresses.
fn welcome(config: &Config, server: &Server, ca: Option<&Path>) -> String {
    let Server { advertised, formatted, http, native, .. } = server;
    let ClientListener { host, port, .. } = &advertised[0];
    let at = HostPort { host: host.clone(), port: *port };
    let data = config.data_dir.display();
    let state = if *formatted { "new" } else { "kept from before" };
    let metrics = match http {
        Some(http) => format!("http://{http}/metrics, /readyz and /healthz"),
        None => "off; turn them on with --http 127.0.0.1:9644".to_owned(),
    };
    let native = native.map(|at| format!("http://{at}/v1/topics")).unwrap_or_default();
    let program = std::env::args().next().unwrap_or_else(|| "duramen".to_owned());
    let (tls, kcat_tls) = flags(ca);
    format!(
        "Duramen is ready.\n\n  \
         clients connect to  {at}\n  \
         native API          {native}\n  \
         data                {data} ({state})\n  \
         metrics             {metrics}\n\n\
         Type next, in another terminal:\n\n  \
         echo 'hello, log' | {program} produce greetings --bootstrap {at}{tls}\n  \
         {program} consume greetings --bootstrap {at}{tls}\n\n\
         or with any Kafka client:\n\n  \
         echo 'hello, log' | kcat -b {at}{kcat_tls} -P -t greetings\n  \
         kcat -b {at}{kcat_tls} -C -t greetings -e\n\n\
         Ctrl-C stops it; what was acknowledged stays.\n"
    )
}
