//! Traffic between nodes with TLS.

use std::process::Command;

use duramen_client::Tls;
use serde_json::Value;
use tempfile::TempDir;

use super::*;

/// Makes an authority and a certificate of its own for each node, and returns what node `id` is started with.
fn files(dir: &Path) -> impl Fn(usize, &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    command.args(["tls", "init", "--out"]).arg(dir);
    for id in 1..=3 {
        command.args(["--node", &format!("node-{id},127.0.0.1")]);
    }
    assert!(command.output().unwrap().status.success());
    let path = |name: &str| dir.join(name).display().to_string();
    let (keystores, truststore) =
        ((1..=3).map(|id| path(&format!("node-{id}.pem"))).collect::<Vec<_>>(), path("ca.pem"));
    move |id, mode| {
        let own = "listener.name.nodes.ssl";
        [
            format!("node.security={mode}"),
            format!("{own}.keystore.location={}", keystores[id - 1]),
            format!("{own}.truststore.location={truststore}"),
            "node.principals=User:CN=node-1;User:CN=node-2;User:CN=node-3".to_owned(),
        ]
        .into_iter()
        .flat_map(|setting| ["--set".to_owned(), setting])
        .collect()
    }
}

/// Asks for each node to which nodes it speaks without TLS.
fn plain(cluster: &Cluster) -> Vec<Vec<i64>> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    let at = cluster.client_ports[..3].iter().map(|port| format!("127.0.0.1:{port}"));
    let at = at.collect::<Vec<_>>().join(",");
    command.args(["cluster", "status", "--output", "json", "--bootstrap", &at]);
    let told: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let nodes = told["nodes"].as_array().unwrap().iter();
    let ids = |it: &Value| serde_json::from_value(it["plain_to"].clone()).unwrap();
    nodes.map(ids).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_cluster_goes_over_to_tls_node_by_node_beside_a_writer() {
    let dir = TempDir::new().unwrap();
    let files = files(dir.path());
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    client.create_topic(&topic("t"), false).await.unwrap();
    let mut writer = Writer::new(&client, "t").await;
    writer.append(10).await;
    wait_until("all speak plain", || plain(&cluster) == [vec![2, 3], vec![1, 3], vec![1, 2]]);
    for mode in ["accept", "tls"] {
        for id in 1..=3 {
            cluster.stop(id);
            cluster.more = files(id, mode);
            cluster.spawn(id);
            cluster.wait_for_log(id, "serving");
            writer.append(10).await;
            cluster.wait_for_same_segments("t-0");
            if (mode, id) == ("accept", 1) {
                wait_until("the first one speaks plain to both", || plain(&cluster)[0] == [2, 3]);
            }
        }
        // In the middle of the second round some speak TLS only, and those that take both do so with them.
        wait_until("all speak TLS", || plain(&cluster) == vec![Vec::<i64>::new(); 3]);
    }
    writer.check(&client, "t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_with_tls_speaks_nothing_else() {
    let root = TempDir::new().unwrap();
    let (first, data_dir) = (dev_port(2), root.path().join("data"));
    let dev = Dev::start(&data_dir, first, 3, &["--tls"]);
    let ca = root.path().join("data-tls/ca.pem");
    let options = || Options::new([format!("127.0.0.1:{first}")]);
    assert!(Client::connect(options()).await.is_err(), "without TLS");
    let tls = Some(Tls::trusting(&ca, None).unwrap());
    let client = Client::connect(Options { tls, ..options() }).await.unwrap();
    client.create_topic(&topic("t"), false).await.unwrap();
    let (_, log) = dev.end("-INT");
    let connected = log.iter().filter(|line| line.contains("connected to another node"));
    let connected = connected.collect::<Vec<_>>();
    assert!(connected.len() >= 6, "{log:#?}");
    assert!(connected.iter().all(|line| line.contains("tls=true")), "{connected:#?}");
}
