//! `duramen group list`.

use clap::Args;
use serde::Serialize;

use crate::cli::bootstrap::Cluster;
use crate::cli::screen::{Table, or_dash};
use crate::cli::usage::word;

/// The states of a group as Kafka writes them.
const STATES: [&str; 7] = [
    "Empty",
    "Stable",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Dead",
];
/// The types as Kafka writes them.
const TYPES: [&str; 4] = ["classic", "consumer", "share", "streams"];

#[derive(Debug, Args)]
#[command(
    after_help = "States: empty (no members), stable, preparing-rebalance, completing-rebalance, assigning,
reconciling, dead. Types: classic, consumer (the newer protocol), share, streams.

Examples:
  duramen group list
  duramen group list --state empty,dead
  duramen group list --output json | jq -r '.[] | select(.state == \"Empty\") | .group'"
)]
pub(super) struct List {
    /// Only groups in these states
    #[arg(long, short, value_name = "STATE,...", value_delimiter = ',', value_parser = state)]
    state: Vec<&'static str>,
    /// Only groups of these types
    #[arg(long, short, value_name = "TYPE,...", value_delimiter = ',', value_parser = kind)]
    r#type: Vec<&'static str>,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Listed {
    group: String,
    /// Absent for a broker that is too old to return it.
    state: Option<String>,
    r#type: Option<String>,
    /// Protocol type of the members, such as `consumer`; absent before a member has joined.
    protocol: Option<String>,
    coordinator: i32,
}

fn state(text: &str) -> Result<&'static str, String> {
    word(text, &STATES, "state")
}

fn kind(text: &str) -> Result<&'static str, String> {
    word(text, &TYPES, "type")
}

impl List {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect().await?;
        let found = client.list_groups(&self.state, &self.r#type).await?;
        let said = |text: String| (!text.is_empty()).then_some(text);
        // A broker that does not know a filter returns every group.
        let passes = |filter: &[&str], said: &Option<String>| {
            let is = |said: &str| filter.iter().any(|word| word.eq_ignore_ascii_case(said));
            filter.is_empty() || said.as_deref().is_some_and(is)
        };
        let mut listed: Vec<Listed> = found
            .into_iter()
            .map(|(coordinator, group)| Listed {
                group: group.group_id,
                state: said(group.group_state),
                r#type: said(group.group_type),
                protocol: said(group.protocol_type),
                coordinator,
            })
            .filter(|group| {
                passes(&self.state, &group.state) && passes(&self.r#type, &group.r#type)
            })
            .collect();
        listed.sort_by(|a, b| a.group.cmp(&b.group));
        let empty = if self.state.is_empty() && self.r#type.is_empty() {
            "no groups; read as one with `duramen consume TOPIC --group GROUP`"
        } else {
            "no such groups; `duramen group list` shows all"
        };
        self.cluster.output.print_list(&listed, empty, |listed| {
            let mut table = Table::new(&["GROUP", "STATE", "TYPE", "PROTOCOL", "COORDINATOR"]);
            for it in listed {
                let kind = or_dash(it.r#type.as_ref()).to_lowercase();
                let (state, protocol) = (or_dash(it.state.as_ref()), or_dash(it.protocol.as_ref()));
                table.row(&[&it.group, &state, &kind, &protocol, &it.coordinator]);
            }
            table
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_types_are_read_however_they_are_written() {
        for text in ["preparing-rebalance", "PreparingRebalance", "preparing_rebalance"] {
            assert_eq!(state(text), Ok("PreparingRebalance"));
        }
        assert_eq!(kind("Classic"), Ok("classic"));
        let error = "there is no type modern; there are classic, consumer, share, streams";
        assert_eq!(kind("modern"), Err(error.into()));
    }
}
