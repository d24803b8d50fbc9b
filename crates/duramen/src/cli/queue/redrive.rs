//! `duramen queue redrive`.

use std::fmt::Write as _;

use clap::Args;
use serde::Serialize;

use super::workers::connect;
use crate::cli::native::{Node, failure};
use crate::cli::screen;
use crate::cli::usage::topic_name;
use crate::proto::{RedriveRequest, RedriveResponse};

/// Most dead letters of one request.
const REDRIVE_MAX: i64 = 10_000;

#[derive(Debug, Args)]
#[command(
    after_help = "A group may have a dead-letter topic (errors.deadletterqueue.topic.name): messages go there that
its workers reject, and those that reach its limit of deliveries. Once the cause is gone, this
command puts them back: each to its queue, behind what is there, or to the partition that it comes
from. Its delay and its time to live do not come back with it. Every group that works the topic off
gets the message, not only the one that gave it up.

A dead letter stays where it is if the topic it comes from is gone, if it is of another group, or if
it is no dead letter. One that is put back while a node fails may be there twice.

The node leases the dead letters under the group duramen-redrive. `duramen share redrive` does
the same through Kafka's protocol, and can show first what it would do.

Set up a dead-letter topic, which is not one of queues:
  duramen topic create dead-mail --config errors.deadletterqueue.group.enable=true
  kafka-configs.sh --alter --entity-type groups --entity-name senders \\
      --add-config errors.deadletterqueue.topic.name=dead-mail

Examples:
  duramen queue redrive dead-mail
  duramen queue redrive dead-mail --group senders --limit 10
  duramen queue redrive dead-mail --to mail-again --output json"
)]
pub(super) struct Redrive {
    /// Dead-letter topic
    #[arg(value_parser = topic_name, value_name = "DEAD-LETTER-TOPIC")]
    topic: String,
    /// Put back only dead letters of this group
    #[arg(long, short, value_name = "GROUP")]
    group: Option<String>,
    /// Most dead letters to put back
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=REDRIVE_MAX))]
    limit: u32,
    /// Put them into this topic instead of the one that each comes from
    #[arg(long, value_name = "TOPIC", value_parser = topic_name)]
    to: Option<String>,
    #[command(flatten)]
    node: Node,
}

#[derive(Debug, Serialize)]
struct Redriven {
    moved: u32,
    left: u32,
    more: bool,
}

impl Redrive {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let (topic, limit) = (self.topic, self.limit);
        let (group, to) = (self.group.unwrap_or_default(), self.to.unwrap_or_default());
        let request = RedriveRequest { topic, group, limit, to };
        let mut client = connect(&self.node).await?;
        let answer = client.redrive(request).await.map_err(failure)?.into_inner();
        let RedriveResponse { moved, left, more } = answer;
        let redriven = Redriven { moved, left, more };
        self.node.output.print(&redriven, || redriven.text())
    }
}

impl Redriven {
    fn text(&self) -> String {
        let mut text = format!("put back {}", screen::count(self.moved, "dead letter"));
        if self.left > 0 {
            write!(text, "; {} left where they are", self.left).expect("a string takes all");
        }
        if self.more {
            text.push_str("\nthere may be more: run the command again");
        }
        text
    }
}
