//! `duramen group describe`.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use anyhow::ensure;
use clap::{ArgGroup, Args};
use duramen_client::{ByPartition, Client, Committed, Group, NodeId, Partitions, ShareStart};
use duramen_protocol::messages::consumer_protocol::{ConsumerProtocolAssignment, decode};
use duramen_protocol::messages::describe_groups::{DescribedGroup, DescribedGroupMember};
use duramen_protocol::messages::list_groups::ListedGroup;
use serde::Serialize;

use super::scope::partitions_there;
use crate::cli::bootstrap::Cluster;
use crate::cli::missing::no_such_group;
use crate::cli::place::Bounds;
use crate::cli::screen::{self, Table, or_dash};
use crate::cli::usage::once;

/// Type of the groups whose members `DescribeGroups` returns.
const CLASSIC: &str = "classic";

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("which").required(true),
    override_usage = "duramen group describe [OPTIONS] <GROUP>...
       duramen group describe [OPTIONS] --all",
    after_help = "LAG is the number of offsets between the group's committed offset and the end of the partition. A
group without a committed offset in a partition has no lag there. For a share group, COMMITTED is
the first offset that it is not done with, and LAG is the number of such offsets.

Examples:
  duramen group describe billing
  duramen group describe billing --behind
  duramen group describe --all --summary
  duramen group describe billing --output json | jq '.[0].lag'"
)]
pub(super) struct Describe {
    /// The groups' names
    #[arg(value_name = "GROUP", group = "which")]
    groups: Vec<String>,
    /// Describe all groups of consumers
    #[arg(long, group = "which")]
    all: bool,
    /// Print one line for each group; JSON has all details nevertheless
    #[arg(long, short)]
    summary: bool,
    /// Only partitions in which the group has a lag
    #[arg(long)]
    behind: bool,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Described {
    group: String,
    state: String,
    r#type: String,
    /// Assignment strategy that the members agreed on.
    protocol: Option<String>,
    /// Group epoch of a group of the consumer protocol or of a share group.
    epoch: Option<i32>,
    /// Group epoch for which the coordinator computed the target assignment.
    assignment_epoch: Option<i32>,
    coordinator: NodeId,
    coordinator_address: String,
    /// Absent for types of groups whose members no request returns.
    members: Option<Vec<Member>>,
    partitions: Vec<Progress>,
    /// Sum over all partitions with a committed offset.
    lag: i64,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Member {
    id: String,
    instance: Option<String>,
    client: String,
    host: String,
    /// Member epoch, in groups that have one.
    epoch: Option<i32>,
    assigned: Partitions,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Progress {
    topic: String,
    partition: i32,
    committed: Option<i64>,
    metadata: String,
    start: Option<i64>,
    end: Option<i64>,
    lag: Option<i64>,
    /// Member that reads the partition now; several members of a share group, with spaces between.
    member: Option<String>,
}

impl Describe {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect().await?;
        let listed = client.list_groups(&[], &[]).await?;
        let listed: BTreeMap<String, ListedGroup> =
            listed.into_iter().map(|(_, group)| (group.group_id.clone(), group)).collect();
        let names: Vec<&String> = if self.all {
            let consumers = listed.values().filter(|group| {
                // A group that only committed offsets has no protocol type.
                ["consumer", "share", ""].contains(&group.protocol_type.as_str())
            });
            consumers.map(|group| &group.group_id).collect()
        } else {
            once(&self.groups)
        };
        let mut described = Vec::new();
        for name in names {
            let mut group = describe(&client, name, listed.get(name)).await?;
            if self.behind {
                group.partitions.retain(|part| part.lag.is_some_and(|lag| lag > 0));
            }
            described.push(group);
        }
        self.cluster.output.print(&described, || {
            if self.summary || described.is_empty() {
                return summary(&described).render();
            }
            described.iter().map(Described::text).collect::<Vec<_>>().join("\n")
        })
    }
}

async fn describe(
    client: &Client,
    name: &str,
    listed: Option<&ListedGroup>,
) -> anyhow::Result<Described> {
    let (coordinator, found) = client.describe_group(name).await?;
    ensure!(found.is_some() || listed.is_some(), no_such_group(name));
    let is_share = found.as_ref().is_some_and(Group::is_share);
    let starts = if is_share { client.share_starts(name).await? } else { ByPartition::new() };
    let committed = if is_share { starts_of(&starts) } else { client.committed(name).await? };
    let said = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let epochs = found.as_ref().and_then(|group| group.epochs.clone());
    let found = found.map(|group| group.described);
    let mut members = found.as_ref().map(members);
    for member in members.iter_mut().flatten() {
        member.epoch = epochs.as_ref().and_then(|it| it.members.get(&member.id).copied());
    }
    let state = found.as_ref().map(|group| group.group_state.as_str());
    let state = state.or(listed.map(|group| group.group_state.as_str())).unwrap_or_default();
    let kind = listed.and_then(|group| said(&group.group_type.to_lowercase()));
    let mut partitions =
        progress(client, &committed, members.as_deref().unwrap_or_default()).await?;
    for part in partitions.iter_mut().filter(|_| is_share) {
        let start = starts.get(&part.topic).and_then(|it| it.get(&part.partition));
        part.lag = start.and_then(|start| start.lag);
    }
    Ok(Described {
        group: name.into(),
        state: state.into(),
        r#type: kind.unwrap_or_else(|| CLASSIC.into()),
        protocol: found.as_ref().and_then(|group| said(&group.protocol_data)),
        epoch: epochs.as_ref().map(|epochs| epochs.group),
        assignment_epoch: epochs.as_ref().map(|epochs| epochs.assignment),
        coordinator,
        coordinator_address: client.address(coordinator).await?,
        members,
        lag: partitions.iter().filter_map(|part| part.lag).sum(),
        partitions,
    })
}

/// Returns the start offsets of a share group in the form of committed offsets.
pub(super) fn starts_of(starts: &ByPartition<ShareStart>) -> ByPartition<Committed> {
    mapped(starts, |start| Committed { offset: start.offset, metadata: String::new() })
}

/// Makes another value of the value of each partition.
pub(super) fn mapped<A, B>(values: &ByPartition<A>, of: impl Fn(&A) -> B) -> ByPartition<B> {
    let topic = |(topic, values): (&String, &BTreeMap<i32, A>)| {
        (topic.clone(), values.iter().map(|(partition, it)| (*partition, of(it))).collect())
    };
    values.iter().map(topic).collect()
}

fn members(group: &DescribedGroup) -> Vec<Member> {
    let consumers = ["consumer", "share"].contains(&group.protocol_type.as_str());
    let mut members: Vec<Member> =
        group.members.iter().map(|member| Member::of(member, consumers)).collect();
    members.sort_by(|a, b| (&a.client, &a.id).cmp(&(&b.client, &b.id)));
    members
}

impl Member {
    /// Makes a row of a member. With `consumer`, the assignment has partitions; other kinds of groups have their own
    /// form.
    fn of(member: &DescribedGroupMember, consumer: bool) -> Self {
        let bytes = member.member_assignment.clone();
        let assignment = consumer.then(|| decode::<ConsumerProtocolAssignment>(bytes));
        let mut assigned = Partitions::new();
        // The assignment is empty during a rebalance, and unreadable in a form that only the members know.
        for part in assignment.and_then(Result::ok).unwrap_or_default().assigned_partitions {
            assigned.entry(part.topic).or_default().extend(part.partitions);
        }
        assigned.retain(|_, partitions| !partitions.is_empty());
        for partitions in assigned.values_mut() {
            partitions.sort_unstable();
        }
        Self {
            id: member.member_id.clone(),
            instance: member.group_instance_id.clone(),
            client: member.client_id.clone(),
            host: member.client_host.trim_start_matches('/').into(),
            epoch: None,
            assigned,
        }
    }
}

/// Lists every partition with a committed offset or a reader.
async fn progress(
    client: &Client,
    committed: &ByPartition<Committed>,
    members: &[Member],
) -> anyhow::Result<Vec<Progress>> {
    // Several members of a share group may read one partition.
    let mut readers = ByPartition::<Vec<&str>>::new();
    for member in members {
        for (topic, partitions) in &member.assigned {
            let readers = readers.entry(topic.clone()).or_default();
            for partition in partitions {
                readers.entry(*partition).or_default().push(member.id.as_str());
            }
        }
    }
    let mut topics: Vec<&String> = committed.keys().chain(readers.keys()).collect();
    topics.sort_unstable();
    topics.dedup();
    let mut rows = Vec::new();
    for topic in topics {
        let (committed, readers) = (committed.get(topic), readers.get(topic));
        let of_committed = committed.into_iter().flat_map(BTreeMap::keys);
        let of_readers = readers.into_iter().flat_map(BTreeMap::keys);
        let mut partitions: Vec<i32> = of_committed.chain(of_readers).copied().collect();
        partitions.sort_unstable();
        partitions.dedup();
        let there = partitions_there(client, topic).await?.unwrap_or_default();
        let known: Vec<i32> =
            partitions.iter().filter(|partition| there.contains(partition)).copied().collect();
        let bounds = Bounds::find(client, topic, &known).await?;
        rows.extend(partitions.into_iter().map(|partition| {
            let found = committed.and_then(|committed| committed.get(&partition));
            let reader = readers.and_then(|readers| readers.get(&partition));
            let reader = reader.map(|ids| ids.join(" "));
            Progress::new(topic, partition, found, bounds.get(&partition), reader.as_deref())
        }));
    }
    Ok(rows)
}

impl Progress {
    fn new(
        topic: &str,
        partition: i32,
        committed: Option<&Committed>,
        bounds: Option<&Bounds>,
        member: Option<&str>,
    ) -> Self {
        let offset = committed.map(|committed| committed.offset);
        let end = bounds.map(|bounds| bounds.end);
        Self {
            topic: topic.into(),
            partition,
            committed: offset,
            metadata: committed.map(|it| it.metadata.clone()).unwrap_or_default(),
            start: bounds.map(|bounds| bounds.start),
            end,
            lag: offset.zip(end).map(|(offset, end)| (end - offset).max(0)),
            member: member.map(Into::into),
        }
    }
}

fn summary(groups: &[Described]) -> Table {
    let headings =
        ["GROUP", "STATE", "TYPE", "PROTOCOL", "COORDINATOR", "MEMBERS", "PARTITIONS", "LAG"];
    let mut table = Table::new(&headings);
    for group in groups {
        table.row(&[
            &group.group,
            &group.state,
            &group.r#type,
            &group.protocol.as_deref().unwrap_or("-"),
            &group.coordinator,
            &or_dash(group.members.as_ref().map(Vec::len)),
            &group.partitions.len(),
            &group.lag,
        ]);
    }
    table
}

impl Described {
    fn text(&self) -> String {
        let protocol = self.protocol.as_deref().map(|name| format!(", shared by {name}"));
        let epochs = self.epoch.zip(self.assignment_epoch).map(|(epoch, assignment)| {
            let shares = if epoch == assignment {
                String::new()
            } else {
                format!(", shares of {assignment}")
            };
            format!(", epoch {epoch}{shares}")
        });
        let mut text = format!(
            "group {}: {}, {}{}{}, coordinator {} ({}), lag {}\n",
            self.group,
            self.state,
            self.r#type,
            protocol.unwrap_or_default(),
            epochs.unwrap_or_default(),
            self.coordinator,
            self.coordinator_address,
            self.lag
        );
        match &self.members {
            None => writeln!(text, "(members of groups of type {} are not shown)", self.r#type)
                .expect("a string takes all"),
            Some(members) if members.is_empty() => text.push_str("no members\n"),
            Some(members) => text.push_str(&member_table(members).render()),
        }
        if self.partitions.is_empty() {
            return text;
        }
        let mut table = Table::new(&["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"]);
        for part in &self.partitions {
            let member = part.member.as_deref().unwrap_or("-");
            let (committed, end) = (or_dash(part.committed), or_dash(part.end));
            let lag = or_dash(part.lag);
            table.row(&[&part.topic, &part.partition, &committed, &end, &lag, &member]);
        }
        text + "\n" + &table.render()
    }
}

fn member_table(members: &[Member]) -> Table {
    // Most groups have no static members, and their table has one column less.
    let statics = members.iter().any(|member| member.instance.is_some());
    let headings = ["CLIENT", "HOST", "READS", "MEMBER"];
    // Only groups of the consumer protocol have member epochs.
    let epochs = members.iter().any(|member| member.epoch.is_some());
    let headings: Vec<&str> = headings
        .into_iter()
        .chain(epochs.then_some("EPOCH"))
        .chain(statics.then_some("INSTANCE"))
        .collect();
    let mut table = Table::new(&headings);
    for member in members {
        let reads =
            member.assigned.iter().map(|(topic, it)| format!("{topic}:{}", screen::runs(it)));
        let reads = reads.collect::<Vec<_>>().join(" ");
        let reads = if reads.is_empty() { "-" } else { &reads };
        let (epoch, instance) = (or_dash(member.epoch), or_dash(member.instance.as_ref()));
        let mut cells: Vec<&dyn Display> = vec![&member.client, &member.host, &reads, &member.id];
        if epochs {
            cells.push(&epoch);
        }
        if statics {
            cells.push(&instance);
        }
        table.row(&cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use duramen_protocol::messages::consumer_protocol::{TopicPartition, encode};

    use super::*;

    fn member(client: &str, partitions: &[i32], instance: Option<&str>) -> DescribedGroupMember {
        let part = TopicPartition { topic: "orders".into(), partitions: partitions.into() };
        let assignment =
            ConsumerProtocolAssignment { assigned_partitions: vec![part], user_data: None };
        DescribedGroupMember {
            member_id: format!("{client}-4711"),
            group_instance_id: instance.map(Into::into),
            client_id: client.into(),
            client_host: "/10.0.0.7".into(),
            member_assignment: encode(&assignment, 1).unwrap(),
            ..DescribedGroupMember::default()
        }
    }

    fn described(members: &[DescribedGroupMember]) -> Described {
        let group = DescribedGroup {
            protocol_type: "consumer".into(),
            members: members.to_vec(),
            ..DescribedGroup::default()
        };
        let members = super::members(&group);
        let committed = Committed { offset: 90, metadata: String::new() };
        let bounds = Bounds { start: 0, end: 97 };
        let partitions = vec![
            Progress::new("orders", 0, Some(&committed), Some(&bounds), Some("app-4711")),
            Progress::new("orders", 1, None, Some(&bounds), Some("app-4711")),
            Progress::new("gone", 0, Some(&committed), None, None),
        ];
        Described {
            group: "billing".into(),
            state: "Stable".into(),
            r#type: CLASSIC.into(),
            protocol: Some("range".into()),
            epoch: None,
            assignment_epoch: None,
            coordinator: 1,
            coordinator_address: "h:9092".into(),
            members: Some(members),
            partitions,
            lag: 7,
        }
    }

    #[test]
    fn a_description_shows_who_reads_what_and_how_far_behind() {
        let group = described(&[member("worker", &[], None), member("app", &[1, 0], None)]);
        let expected = "group billing: Stable, classic, shared by range, coordinator 1 (h:9092), lag 7\n\
             CLIENT      HOST  READS       MEMBER\n\
             app     10.0.0.7  orders:0,1  app-4711\n\
             worker  10.0.0.7  -           worker-4711\n\n\
             TOPIC   PARTITION  COMMITTED  END  LAG  MEMBER\n\
             orders          0         90   97    7  app-4711\n\
             orders          1          -   97    -  app-4711\n\
             gone            0         90    -    -  -\n";
        assert_eq!(group.text(), expected);
    }

    #[test]
    fn a_group_of_the_consumer_protocol_shows_its_epochs() {
        let mut group = described(&[member("app", &[0], None)]);
        (group.epoch, group.assignment_epoch) = (Some(7), Some(6));
        group.members.as_mut().unwrap()[0].epoch = Some(5);
        let text = group.text();
        assert!(text.contains("shared by range, epoch 7, shares of 6, coordinator"), "{text}");
        assert!(text.contains("MEMBER    EPOCH\n"), "{text}");
        group.assignment_epoch = Some(7);
        assert!(group.text().contains("epoch 7, coordinator"), "{}", group.text());
    }

    #[test]
    fn static_members_have_a_column_of_their_own() {
        let group = described(&[member("app", &[0], Some("left")), member("b", &[1], None)]);
        assert!(group.text().contains("READS     MEMBER    INSTANCE\n"), "{}", group.text());
        assert!(group.text().contains("app-4711  left\n"), "{}", group.text());
    }

    #[test]
    fn groups_that_are_not_of_consumers_show_no_partitions() {
        let assigned = Member::of(&member("connect", &[0], None), false).assigned;
        assert_eq!(assigned, Partitions::new());
    }
}
