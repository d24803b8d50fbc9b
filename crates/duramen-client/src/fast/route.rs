//! # Room card: route
//!
//! Purpose:    find the stretch that is open in a partition, and a connection to each of its members.
//! Owns:       the connection by which a stretch is asked for, so that a slow opening holds up no other answer.
//! Interface:  [`ask`], [`connect`], [`Route`].
//! Invariants: a route has an open connection to every member at the moment it is made.
//! Never:      batches.
//! Tests:      `tests/fast.rs` of the crate.
//! Start at:   [`ask`].

use std::sync::Arc;
use std::time::Duration;

use duramen_protocol::messages::DescribeFastRequest;
use duramen_protocol::messages::describe_fast::DescribeFastTopic;
use duramen_protocol::wire::Uuid;
use tokio::time::timeout;

use super::tally::Named;
use crate::client::Client;
use crate::connection::Connection;
use crate::error::Error;
use crate::node_id::NodeId;

/// Longest time until a stretch is found and its members are connected. A leader opens one within five seconds, or
/// never.
const SEEK_FOR: Duration = Duration::from_secs(6);

/// A stretch, and the connections to its members in their order.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) named: Named,
    pub(super) connections: Vec<(NodeId, Arc<Connection>)>,
}

impl Route {
    /// Tells whether every connection is open.
    pub(super) fn is_open(&self) -> bool {
        self.connections.iter().all(|(_, connection)| connection.is_open())
    }
}

/// Place of a partition: its leader's address, the topic's id, and its number.
pub(super) type Place = (String, Uuid, i32);

/// Asks the leader for the stretch of a partition, to be opened if none is open, and connects to its members. Returns
/// `None` if there is none now.
pub(super) async fn ask(client: Client, place: Place) -> Result<Option<Route>, Error> {
    let found = async {
        match describe(&client, place).await? {
            Some(named) => connect_all(&client, named).await.map(Some),
            None => Ok(None),
        }
    };
    timeout(SEEK_FOR, found).await.unwrap_or(Ok(None))
}

/// Connects to the members of a stretch that an answer has named.
pub(super) async fn connect(client: Client, named: Named) -> Result<Option<Route>, Error> {
    let connected = timeout(SEEK_FOR, connect_all(&client, named)).await;
    connected.map_or(Ok(None), |it| it.map(Some))
}

async fn connect_all(client: &Client, named: Named) -> Result<Route, Error> {
    let mut connections = Vec::new();
    for node in &named.members {
        connections.push((*node, client.express(*node).await?));
    }
    Ok(Route { named, connections })
}

async fn describe(
    client: &Client,
    (leader, topic_id, partition): Place,
) -> Result<Option<Named>, Error> {
    // The answer waits until the stretch is open, and others behind it would wait too.
    let connection = Connection::open(&leader, client.options()).await?;
    let topics = vec![DescribeFastTopic { topic_id, partitions: vec![partition] }];
    let response = connection.call(&DescribeFastRequest { open: true, topics }).await?;
    client.keep_express(Arc::new(connection)).await;
    let what = || format!("stretch of partition {partition}");
    let rows = response.topics.into_iter().flat_map(|topic| topic.partitions);
    let found = Error::first(rows, what)?;
    Error::check(what, found.error_code, found.error_message.as_deref())?;
    Ok(Named::of((found.stretch_term, found.stretch_index), found.members))
}
