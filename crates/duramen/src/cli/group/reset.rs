//! `duramen group reset`: sets the offsets of a group. The command shows a plan, and executes it only with --execute.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{ArgGroup, Args};
use duramen_client::{ByPartition, Client, Committed, Group, Partitions};
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_groups::DescribedGroup;
use serde::{Deserialize, Serialize};

use super::describe::{mapped, starts_of};
use super::refusal::{has_members, refusal};
use super::scope::{Scope, partitions_of, partitions_there, scope};
use crate::cli::bootstrap::Cluster;
use crate::cli::failure::explained;
use crate::cli::missing::no_such_group;
use crate::cli::place::{Bounds, Place};
use crate::cli::screen::{self, Table, or_dash};

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("target").required(true),
    override_usage = "duramen group reset [OPTIONS] <GROUP> --to <PLACE>
       duramen group reset [OPTIONS] <GROUP> --shift <N>
       duramen group reset [OPTIONS] <GROUP> --to-group <GROUP>
       duramen group reset [OPTIONS] <GROUP> --to-file <FILE>",
    after_help = "Without --execute the command only shows the changes: overwritten offsets are lost, and a group that
starts at the wrong place reads too much or misses records.

Places (--to):
  beginning, end            all records again; only records from now on
  4711                      this offset
  -10                       ten records before the end, in each partition
  @1700000000000            the first record that is not older, in milliseconds since 1970
  2024-05-01T12:00:00Z      the same, as a date and time (RFC 3339)
  '2h ago', '3 days ago'    the same, counted from now

Stop the members of a group before you reset it. A missing group is created if --topic names its
topics; with --share it becomes a share group. For a share group, the command sets the start
offsets: the group delivers the records after them again.

A file (--to-file) holds the JSON of `group describe` or `group reset`, or one group of it, as in
  {\"group\": \"billing\", \"partitions\": [{\"topic\": \"orders\", \"partition\": 0, \"committed\": 4711}]}

Examples:
  duramen group reset billing --to beginning
  duramen group reset billing --to '2h ago' --execute
  duramen group reset billing --topic orders:0,3 --to 4711 --execute
  duramen group reset billing --shift -100 --execute
  duramen group reset billing-2 --to-group billing --execute
  duramen group reset workers --share --topic orders --to beginning --execute
  duramen group describe billing --output json > offsets.json
  duramen group reset billing --to-file offsets.json --execute"
)]
pub(super) struct Reset {
    /// The group's name
    group: String,
    /// Set to this place in each partition
    #[arg(long, group = "target", value_name = "PLACE", allow_hyphen_values = true)]
    to: Option<Place>,
    /// Move forward by this number of offsets, or back if negative, within the records that exist
    #[arg(long, group = "target", value_name = "N", allow_hyphen_values = true)]
    shift: Option<i64>,
    /// Set to the offsets of this other group
    #[arg(long, group = "target", value_name = "GROUP")]
    to_group: Option<String>,
    /// Set to the offsets in this file, as `group describe` and `group reset` print them with --output json
    #[arg(long, group = "target", value_name = "FILE")]
    to_file: Option<PathBuf>,
    /// Only this topic, or these partitions of it; may be repeated. The default is every partition with an
    /// offset of the group
    #[arg(long = "topic", short, value_name = "TOPIC[:P,...]", value_parser = scope)]
    topics: Vec<Scope>,
    /// Create a missing group as a share group
    #[arg(long)]
    share: bool,
    /// Execute the plan
    #[arg(long)]
    execute: bool,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Plan {
    group: String,
    executed: bool,
    partitions: Vec<Change>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Change {
    topic: String,
    partition: i32,
    before: Option<i64>,
    /// New offset. The field has the name that `group describe` uses, so that `--to-file` reads both.
    committed: i64,
    start: i64,
    end: i64,
}

/// Description or plan as [`Reset::to_file`] reads it, without the other fields.
#[derive(Debug, Deserialize)]
#[serde(expecting = "a group with its partitions")]
struct Kept {
    group: String,
    partitions: Vec<KeptOffset>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "a partition with its topic")]
struct KeptOffset {
    topic: String,
    partition: i32,
    committed: Option<i64>,
}

impl Reset {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect().await?;
        let (_, found) = client.describe_group(&self.group).await?;
        let is_share = found.as_ref().map_or(self.share, Group::is_share);
        let found = found.map(|found| found.described);
        let committed = committed(&client, &self.group, found.is_some() && is_share).await?;
        if found.is_none()
            && committed.is_empty()
            && self.topics.is_empty()
            && !self.brings_topics()
        {
            let group = &self.group;
            let text = format!(
                "there is no group {group}; see which there are with `duramen group list`, or name topics with \
                 --topic to give a new group its first offsets"
            );
            return Err(explained(ErrorCode::GroupIdNotFound, text));
        }
        let mut plan = self.plan(&client, &committed).await?;
        let readers = found.filter(|group| !group.members.is_empty());
        if self.execute {
            if let Some(readers) = readers {
                bail!("{}; stop them, then try again", has_members(&readers));
            }
            let changes = plan.offsets();
            let outcome = if is_share {
                client.set_share_starts(&self.group, &changes).await
            } else {
                client.commit(&self.group, &changes).await
            };
            outcome.map_err(|error| refusal(&self.group, error))?;
            plan.executed = true;
            return self.print(&plan, None);
        }
        self.print(&plan, readers.as_ref())
    }

    /// Tells whether the target itself names the partitions.
    fn brings_topics(&self) -> bool {
        self.to_group.is_some() || self.to_file.is_some()
    }

    fn print(&self, plan: &Plan, readers: Option<&DescribedGroup>) -> anyhow::Result<()> {
        self.cluster.output.print(plan, || plan.table().render())?;
        let Some(advice) = plan.advice(readers) else { return Ok(()) };
        // The plan is the result and goes to stdout; the advice is not.
        eprintln!("{advice}");
        Ok(())
    }

    async fn plan(
        &self,
        client: &Client,
        present: &ByPartition<Committed>,
    ) -> anyhow::Result<Plan> {
        let present = offsets(present);
        let source = match (&self.to_group, &self.to_file) {
            (Some(group), _) => Some(of_other(client, group).await?),
            (_, Some(path)) => Some(self.kept(path)?),
            _ => None,
        };
        let of_group = source.as_ref().unwrap_or(&present);
        let mut partitions = Vec::new();
        for (topic, listed) in self.partitions(client, of_group).await? {
            let bounds = Bounds::find(client, &topic, &listed).await?;
            let here = present.get(&topic).cloned().unwrap_or_default();
            let offsets = match (self.to, self.shift, &source) {
                (Some(place), ..) => place.find(client, &topic, &bounds).await?,
                (_, Some(shift), _) => self.shifted(&topic, shift, &bounds, &here)?,
                (.., source) => source
                    .iter()
                    .filter_map(|source| source.get(&topic))
                    .flatten()
                    .filter_map(|(partition, offset)| {
                        bounds.get(partition).map(|held| (*partition, held.clamp(*offset)))
                    })
                    .collect(),
            };
            partitions.extend(offsets.into_iter().map(|(partition, offset)| Change {
                topic: topic.clone(),
                partition,
                before: here.get(&partition).copied(),
                committed: offset,
                start: bounds[&partition].start,
                end: bounds[&partition].end,
            }));
        }
        ensure!(!partitions.is_empty(), self.nothing(source.is_some()));
        Ok(Plan { group: self.group.clone(), executed: false, partitions })
    }

    /// Explains why no partition is left to set.
    fn nothing(&self, has_source: bool) -> String {
        let group = &self.group;
        if !has_source {
            return format!("group {group} has no offsets yet; name topics with --topic");
        }
        let file = self.to_file.as_ref().map(|path| path.display().to_string());
        let source = file.or_else(|| Some(format!("group {}", self.to_group.as_ref()?)));
        let source = source.unwrap_or_default();
        if self.topics.is_empty() {
            format!("{source} has offsets only in partitions that no longer exist")
        } else {
            format!("{source} has no offset in what --topic names; name others, or leave it out")
        }
    }

    /// Finds the named partitions, or else those that have offsets and still exist.
    async fn partitions(
        &self,
        client: &Client,
        of_group: &ByPartition<i64>,
    ) -> anyhow::Result<Partitions> {
        if !self.topics.is_empty() {
            return partitions_of(client, &self.topics).await;
        }
        let mut found = Partitions::new();
        for (topic, offsets) in of_group {
            let there = partitions_there(client, topic).await?.unwrap_or_default();
            let (kept, gone): (Vec<_>, Vec<_>) =
                offsets.keys().copied().partition(|partition| there.contains(partition));
            if !gone.is_empty() {
                eprintln!("left out: {topic}:{}, which no longer exists", screen::runs(&gone));
            }
            if !kept.is_empty() {
                found.insert(topic.clone(), kept);
            }
        }
        Ok(found)
    }

    fn shifted(
        &self,
        topic: &str,
        shift: i64,
        bounds: &BTreeMap<i32, Bounds>,
        here: &BTreeMap<i32, i64>,
    ) -> anyhow::Result<BTreeMap<i32, i64>> {
        let shifted = bounds.iter().map(|(partition, held)| {
            let offset = here.get(partition).with_context(|| {
                let group = &self.group;
                format!("group {group} has no offset in partition {partition} of {topic} to shift; use --to")
            })?;
            Ok((*partition, held.clamp(offset.saturating_add(shift))))
        });
        shifted.collect()
    }

    /// Reads the offsets of this group from a file, or those of the only group in it.
    fn kept(&self, path: &Path) -> anyhow::Result<ByPartition<i64>> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let unfit = || format!("cannot use {}", path.display());
        let offsets = choose(&self.group, &text).with_context(unfit)?;
        ensure!(
            !offsets.is_empty(),
            "{} names no partition with an offset; write one with `duramen group describe GROUP --output json`",
            path.display()
        );
        Ok(offsets)
    }
}

/// Reads the offsets of another group, which must have some.
async fn of_other(client: &Client, group: &str) -> anyhow::Result<ByPartition<i64>> {
    let (_, found) = client.describe_group(group).await?;
    let is_share = found.as_ref().is_some_and(Group::is_share);
    let committed = offsets(&committed(client, group, is_share).await?);
    ensure!(found.is_some() || !committed.is_empty(), no_such_group(group));
    ensure!(
        !committed.is_empty(),
        "group {group} has no offsets to go by; name a place with --to instead of --to-group"
    );
    Ok(committed)
}

/// Reads the committed offsets of a group, or the start offsets of a share group.
async fn committed(
    client: &Client,
    group: &str,
    is_share: bool,
) -> anyhow::Result<ByPartition<Committed>> {
    if is_share {
        return Ok(starts_of(&client.share_starts(group).await?));
    }
    Ok(client.committed(group).await?)
}

fn offsets(committed: &ByPartition<Committed>) -> ByPartition<i64> {
    mapped(committed, |it| it.offset)
}

fn choose(group: &str, text: &str) -> anyhow::Result<ByPartition<i64>> {
    let mut kept = read(text).context(
        "it is neither a JSON object with `group` and `partitions` nor a list of such objects, as \
         `duramen group describe GROUP --output json` prints it",
    )?;
    if kept.len() > 1 {
        let groups: Vec<_> = kept.iter().map(|kept| kept.group.clone()).collect();
        kept.retain(|kept| kept.group == group);
        ensure!(!kept.is_empty(), "it holds groups {}, and not {group}", groups.join(", "));
    }
    let mut offsets = ByPartition::new();
    for part in kept.into_iter().flat_map(|kept| kept.partitions) {
        if let Some(offset) = part.committed {
            offsets.entry(part.topic).or_insert_with(BTreeMap::new).insert(part.partition, offset);
        }
    }
    Ok(offsets)
}

/// Reads one group, or a list of them.
fn read(text: &str) -> serde_json::Result<Vec<Kept>> {
    match serde_json::from_str(text)? {
        list @ serde_json::Value::Array(_) => serde_json::from_value(list),
        one => Ok(vec![serde_json::from_value(one)?]),
    }
}

impl Plan {
    fn offsets(&self) -> ByPartition<i64> {
        let mut offsets = ByPartition::new();
        for change in &self.partitions {
            let of_topic = offsets.entry(change.topic.clone()).or_insert_with(BTreeMap::new);
            of_topic.insert(change.partition, change.committed);
        }
        offsets
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&["TOPIC", "PARTITION", "BEFORE", "AFTER", "CHANGE", "LAG"]);
        for change in &self.partitions {
            let moved = change.before.map(|before| change.committed - before);
            table.row(&[
                &change.topic,
                &change.partition,
                &or_dash(change.before),
                &change.committed,
                &or_dash(moved.map(|moved| format!("{moved:+}"))),
                &(change.end - change.committed),
            ]);
        }
        table
    }

    fn advice(&self, readers: Option<&DescribedGroup>) -> Option<String> {
        if self.executed {
            return None;
        }
        Some(match readers {
            Some(readers) => {
                format!(
                    "nothing was changed: {}; stop them, then add --execute",
                    has_members(readers)
                )
            }
            None => "nothing was changed; do it with --execute".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(partition: i32, before: Option<i64>, committed: i64) -> Change {
        Change { topic: "orders".into(), partition, before, committed, start: 0, end: 100 }
    }

    fn plan() -> Plan {
        let partitions = vec![change(0, Some(90), 0), change(1, None, 100), change(2, Some(7), 17)];
        Plan { group: "billing".into(), executed: false, partitions }
    }

    #[test]
    fn a_plan_shows_every_partition_before_and_after() {
        let expected = "TOPIC   PARTITION  BEFORE  AFTER  CHANGE  LAG\n\
             orders          0      90      0     -90  100\n\
             orders          1       -    100       -    0\n\
             orders          2       7     17     +10   83\n";
        assert_eq!(plan().table().render(), expected);
        assert_eq!(plan().advice(None).unwrap(), "nothing was changed; do it with --execute");
        assert_eq!(Plan { executed: true, ..plan() }.advice(None), None);
    }

    #[test]
    fn a_plan_that_was_printed_can_be_read_back() {
        let text = serde_json::to_string(&plan()).unwrap();
        assert_eq!(choose("another", &text).unwrap(), plan().offsets());
        let two = format!("[{text}, {}]", text.replace("billing", "other").replace("17", "18"));
        assert_eq!(choose("billing", &two).unwrap(), plan().offsets());
        assert_eq!(choose("other", &two).unwrap()["orders"][&2], 18);
        let error = choose("third", &two).unwrap_err().to_string();
        assert_eq!(error, "it holds groups billing, other, and not third");
        for text in ["TOPIC,0,1", "7", "{}", "[7]", "[{\"group\": \"g\"}]"] {
            let error = format!("{:#}", choose("billing", text).unwrap_err());
            assert!(
                error.contains("`group` and `partitions` nor a list of such objects"),
                "{error}"
            );
            assert!(!error.contains("Kept") && !error.contains("OneOrMany"), "{error}");
        }
    }
}
