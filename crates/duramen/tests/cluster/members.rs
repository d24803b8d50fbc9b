//! Data directories that have no place in their cluster: an empty one, one of another process, one that was removed.

use duramen_protocol::messages::UnregisterBrokerRequest;

use super::*;

const NO_MEMBER: &str = "this node is not a member of its cluster, and waits";

/// A mount that is missing looks like a disk that was lost.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_directory_takes_a_place_only_if_that_is_asked_for() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    client.create_topic(&topic("t"), false).await.unwrap();
    let mut writer = Writer::new(&client, "t").await;
    writer.append(20).await;
    cluster.stop(2);
    let away = cluster.root.path().join("away");
    std::fs::rename(cluster.dir(2), &away).unwrap();
    let http = free_port();
    cluster.more = ["--http".to_owned(), format!("127.0.0.1:{http}")].into();
    cluster.spawn(2);
    cluster.wait_for_log_with(2, NO_MEMBER, "start this node with --replace");
    let is_told = |health: &str| health.starts_with("HTTP/1.1 503") && health.contains("--replace");
    wait_for_health(http, is_told).await;
    // Three seconds were enough once.
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        writer.append(1).await;
        let health = http_get(http, "/healthz");
        assert!(is_told(&health), "{health}");
    }
    cluster.wait_for_log_with(2, "not serving yet", "start this node with --replace");
    assert!(!cluster.nodes[&2].seen.iter().any(|line| line.contains("\"serving\"")));
    cluster.kill(2);
    std::fs::remove_dir_all(cluster.dir(2)).unwrap();
    std::fs::rename(&away, cluster.dir(2)).unwrap();
    cluster.spawn(2);
    cluster.wait_for_log(2, "serving");
    cluster.wait_for_same_segments("t-0");
    wait_for_health(http, |health| health.starts_with("HTTP/1.1 200")).await;

    cluster.kill(2);
    std::fs::remove_dir_all(cluster.dir(2)).unwrap();
    cluster.spawn_replacing(2);
    cluster.wait_for_log(2, "serving");
    cluster.wait_for_same_segments("t-0");
    writer.check(&client, "t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_of_one_id_is_refused_and_both_are_told() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    client.create_topic(&topic("t"), false).await.unwrap();
    let mut writer = Writer::new(&client, "t").await;
    writer.append(10).await;
    let listens = format!("127.0.0.1:{}", cluster.node_ports[3]);
    let mut second = cluster.command(4);
    second.args(["--set", "node.id=2", "--node-listen", listens.as_str()]);
    cluster.run(4, second);
    cluster.wait_for_log_with(4, NO_MEMBER, "two processes have node.id 2");
    let told = "another process has this node's node.id (2) and another data directory: the cluster refuses that process \
                unless it starts with --replace. Stop that process, or give it an id of its own";
    cluster.wait_for_log_with(2, told, "127.0.0.1:");
    cluster.kill(1);
    writer.append(10).await;
    writer.check(&client, "t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_removed_says_so_while_it_runs_and_when_it_is_started_again() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    let http = free_port();
    let listens = format!("127.0.0.1:{}", cluster.node_ports[3]);
    let start = |cluster: &mut Cluster| {
        let mut command = cluster.command(4);
        command.args(["--node-listen", listens.as_str(), "--http", &format!("127.0.0.1:{http}")]);
        cluster.run(4, command);
    };
    start(&mut cluster);
    cluster.wait_for_log(4, "serving");
    wait_for_health(http, |health| health.starts_with("HTTP/1.1 200")).await;
    let request = UnregisterBrokerRequest { broker_id: 4 };
    let until = Instant::now() + PATIENCE;
    loop {
        let node = client.node(i32::try_from(controller(&client).await).unwrap()).await.unwrap();
        let answer = node.call(&request).await.unwrap();
        let gone = [0, ErrorCode::BrokerIdNotRegistered.code()];
        if gone.contains(&answer.error_code) {
            break;
        }
        assert!(Instant::now() < until, "{answer:?}");
        tokio::time::sleep(POLL).await;
    }
    let removed = "the cluster has removed the data directory of node 4";
    for _ in 0..2 {
        cluster.wait_for_log_with(4, NO_MEMBER, removed);
        let is_told = |health: &str| health.starts_with("HTTP/1.1 503") && health.contains(removed);
        wait_for_health(http, is_told).await;
        assert!(!cluster.nodes[&4].seen.iter().any(|line| line.contains("\"serving\"")));
        cluster.kill(4);
        start(&mut cluster);
    }
}

/// Asks until the answer of `/healthz` is as wanted: the node says about once a second how it stands.
async fn wait_for_health(http: u16, is_wanted: impl Fn(&str) -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        let health = http_get(http, "/healthz");
        if is_wanted(&health) {
            return;
        }
        assert!(Instant::now() < until, "{health}");
        tokio::time::sleep(POLL).await;
    }
}
