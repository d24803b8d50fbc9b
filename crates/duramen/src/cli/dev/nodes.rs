//! `dev --nodes N`: starts a cluster on this machine. Each node is a process of its own that ends with this one.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use duramen_client::{Client, Options, Tls};
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use super::flags;
use crate::cli::usage::demand;
use crate::config::{Config, HostPort, LISTEN_DEFAULT};
use crate::server;
use crate::telemetry::Format;

/// Most nodes of one `dev`.
pub(super) const NODES_MAX: u16 = 9;
/// Distance of a node's port for other nodes from its port for clients.
const NODE_PORTS_AWAY: u16 = 10_000;
/// Longest time that nodes get to stop, before this process kills them.
const STOP_GRACE: Duration = Duration::from_secs(15);
/// Time between two checks that all nodes answer.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Arguments and addresses of one node.
struct Plan {
    id: u16,
    address: HostPort,
    arguments: Vec<String>,
}

/// A running node. The node ends when the pipe to its stdin closes, however this process ends.
struct Running {
    pid: u32,
    _lifeline: ChildStdin,
}

/// Starts the nodes, prints the commands to use them, and waits for a signal.
pub(super) fn run(count: u16, config: &Config, ca: Option<&Path>) -> anyhow::Result<()> {
    let plans = plan(count, config, ca.is_some())?;
    let tls = ca.map(|ca| Tls::trusting(ca, None)).transpose()?;
    let (sender, ends) = unbounded_channel();
    let mut running = BTreeMap::new();
    for plan in &plans {
        running.insert(plan.id, start(plan, &sender)?);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(watch((&plans, ca, tls), running, ends))
}

fn plan(count: u16, config: &Config, is_sealed: bool) -> anyhow::Result<Vec<Plan>> {
    check(config)?;
    let listen = listen(config);
    let first = listen.port;
    let port_of = |base: u16, id: u16| base.checked_add(id - 1);
    let node_port = |id| {
        let above = first.checked_add(NODE_PORTS_AWAY + NODES_MAX).map(|_| first + NODE_PORTS_AWAY);
        port_of(above.unwrap_or(first.saturating_sub(NODE_PORTS_AWAY)), id)
    };
    let listed: Option<Vec<String>> =
        (1..=count).map(|id| Some(format!("{id}@127.0.0.1:{}", node_port(id)?))).collect();
    let listed = listed.context("the ports are too high")?.join(",");
    let mut settings = config.settings.clone();
    settings.entry("default.replication.factor".to_owned()).or_insert(count.min(3).to_string());
    settings.insert("controller.quorum.voters".to_owned(), listed);
    let plan = |id| {
        let address = |base: &HostPort| {
            // Port 0 takes any free one, for each node.
            let port = if base.port == 0 { Some(0) } else { port_of(base.port, id) };
            let port = port.context("the ports are too high")?;
            Ok::<_, anyhow::Error>(HostPort { host: base.host.clone(), port })
        };
        let data_dir = data_dir(config, id);
        let data_dir =
            data_dir.to_str().context("the data directory's name is no text")?.to_owned();
        let clients = address(&listen)?;
        let mut arguments = ["serve", "--data-dir", &data_dir].map(str::to_owned).to_vec();
        arguments.extend(if is_sealed {
            ["--set".to_owned(), format!("listeners=SSL://{clients}")]
        } else {
            ["--listen".to_owned(), clients.to_string()]
        });
        if let Some(native) = &config.native {
            arguments.extend(["--native".to_owned(), address(native)?.to_string()]);
        }
        if let Some(http) = &config.http {
            arguments.extend(["--http".to_owned(), address(http)?.to_string()]);
        }
        if config.open {
            arguments.push("--open".to_owned());
        }
        if let Some(filter) = &config.log.filter {
            arguments.extend(["--log".to_owned(), filter.clone()]);
        }
        if config.log.format == Some(Format::Json) {
            arguments.extend(["--log-format", "json"].map(str::to_owned));
        }
        let own = [("node.id".to_owned(), id.to_string())];
        for (name, value) in settings.iter().map(|(n, v)| (n.clone(), v.clone())).chain(own) {
            arguments.extend(["--set".to_owned(), format!("{name}={value}")]);
        }
        let host = if clients.is_unspecified() { "127.0.0.1".to_owned() } else { clients.host };
        Ok(Plan { id, address: HostPort { host, port: clients.port }, arguments })
    };
    (1..=count).map(plan).collect()
}

/// Returns the address of the first node's listener.
pub(super) fn listen(config: &Config) -> HostPort {
    let default = || HostPort::parse(LISTEN_DEFAULT).expect("it is an address");
    config.listen.clone().unwrap_or_else(default)
}

/// Refuses flags and settings that fit only one node.
fn check(config: &Config) -> anyhow::Result<()> {
    demand(
        listen(config).port != 0,
        "several nodes need fixed ports; give --listen a port other than 0",
    )?;
    demand(
        config.advertise.is_none(),
        "--advertise is for one node; leave it out, and each node advertises its own address",
    )?;
    demand(
        config.node_listen.is_none(),
        "--node-listen is for one node; leave it out, and each node listens on a port of its own",
    )?;
    for name in
        ["node.id", "broker.id", "controller.quorum.voters", "listeners", "advertised.listeners"]
    {
        let text = format!("--nodes sets {name} for each node; leave one of the two out");
        demand(!config.settings.contains_key(name), &text)?;
    }
    Ok(())
}

/// Chooses the data directory of a node. The directory of an earlier `dev` with one node belongs to the first node.
fn data_dir(config: &Config, id: u16) -> PathBuf {
    let name = format!("node-{id}");
    if !config.data_dir.join(duramen_storage::MANIFEST).exists() {
        return config.data_dir.join(name);
    }
    // In a node's own directory, a folder called name-number is a partition's.
    if id == 1 { config.data_dir.clone() } else { config.data_dir.join("nodes").join(name) }
}

type End = (u16, ExitStatus);

fn start(plan: &Plan, ends: &UnboundedSender<End>) -> anyhow::Result<Running> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(&plan.arguments).arg("--until-stdin-ends");
    // The flags are complete. These variables would give every node the same values on top.
    for variable in [
        "DURAMEN_CONFIG",
        "DURAMEN_ADVERTISE",
        "DURAMEN_NATIVE",
        "DURAMEN_NODE_LISTEN",
        "DURAMEN_HTTP",
    ] {
        command.env_remove(variable);
    }
    // Only this process gets Ctrl-C, and then lets the nodes stop in good order.
    command.process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start a node")?;
    let lifeline = child.stdin.take().expect("it is piped");
    let stderr = child.stderr.take().expect("it is piped");
    let (id, pid, ends) = (plan.id, child.id(), ends.clone());
    std::thread::spawn(move || forward(id, stderr));
    std::thread::spawn(move || {
        if let Ok(status) = child.wait() {
            let _ = ends.send((id, status));
        }
    });
    Ok(Running { pid, _lifeline: lifeline })
}

/// Prints a node's log lines with its name.
fn forward(id: u16, log: ChildStderr) {
    for line in BufReader::new(log).lines().map_while(Result::ok) {
        let _ = writeln!(std::io::stderr().lock(), "node-{id} | {line}");
    }
}

async fn watch(
    (plans, ca, tls): (&[Plan], Option<&Path>, Option<Tls>),
    mut running: BTreeMap<u16, Running>,
    mut ends: UnboundedReceiver<End>,
) -> anyhow::Result<()> {
    let mut hangups = signal(SignalKind::hangup())?;
    let mut stops = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?];
    let mut stop = std::pin::pin!(server::stopped_by((&mut hangups, &mut stops), || ()));
    let mut ready = std::pin::pin!(all_are_there(plans, tls));
    let mut is_ready = false;
    loop {
        tokio::select! {
            _ = &mut stop => break,
            () = &mut ready, if !is_ready => {
                is_ready = true;
                say(&welcome(plans, &running, ca));
            }
            Some((id, status)) = ends.recv() => {
                let Some(Running { pid, .. }) = running.remove(&id) else { continue };
                if running.is_empty() {
                    bail!("node {id} ended ({status}), and it was the last one");
                }
                say(&ended(plans, id, pid, status));
            }
        }
    }
    // Dropping the pipes tells the nodes to stop.
    let pids: BTreeMap<u16, u32> = running.iter().map(|(id, node)| (*id, node.pid)).collect();
    drop(running);
    let mut left = pids.clone();
    let stopped = async {
        while !left.is_empty() {
            let Some((id, _)) = ends.recv().await else { break };
            left.remove(&id);
        }
    };
    if timeout(STOP_GRACE, stopped).await.is_err() {
        for pid in left.values() {
            let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
            pid.map(|pid| kill_process(pid, Signal::KILL));
        }
    }
    Ok(())
}

async fn all_are_there(plans: &[Plan], tls: Option<Tls>) {
    loop {
        let addresses = plans.iter().map(|plan| plan.address.to_string());
        let options = Options { tls: tls.clone(), ..Options::new(addresses) };
        if let Ok(client) = Client::connect(options).await
            && let Ok(known) = client.metadata(Some(&[]), false).await
            && known.brokers.len() == plans.len()
        {
            return;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Prints a text. The nodes run on if nobody reads it.
fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "duramen".to_owned())
}

fn ended(plans: &[Plan], id: u16, pid: u32, status: ExitStatus) -> String {
    let plan = plans.iter().find(|plan| plan.id == id).expect("it was started by its plan");
    let arguments = plan.arguments.join(" ");
    format!(
        "node {id} (process {pid}) ended: {status}. To start it again, type in another terminal:\n\n  \
         {} {arguments}\n\n",
        program()
    )
}

/// Writes the next commands to type, with the real addresses.
fn welcome(plans: &[Plan], running: &BTreeMap<u16, Running>, ca: Option<&Path>) -> String {
    use std::fmt::Write as _;
    let mut nodes = String::new();
    for plan in plans {
        let pid = running.get(&plan.id).map_or_else(|| "ended".to_owned(), |it| it.pid.to_string());
        let (id, address, data) = (plan.id, &plan.address, &plan.arguments[2]);
        writeln!(nodes, "  node {id}  process {pid:<8} clients {address}  data {data}")
            .expect("a string takes all");
    }
    let at: Vec<String> = plans.iter().map(|plan| plan.address.to_string()).collect();
    let (tls, _) = flags(ca);
    let (program, at, copies) = (program(), at.join(","), plans.len().min(3));
    format!(
        "Duramen is ready: {} nodes are one cluster.\n\n{nodes}\n\
         Type next, in another terminal:\n\n  \
         {program} topic create orders --replication-factor {copies} --bootstrap {at}{tls}\n  \
         echo 'hello, log' | {program} produce orders --bootstrap {at}{tls}\n  \
         {program} consume orders --bootstrap {at}{tls}\n\n\
         Kill one (kill -9 with its process id): the others go on. Ctrl-C stops all; what was acknowledged stays.\n",
        plans.len()
    )
}
