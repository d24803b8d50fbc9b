//! Groups as an administrator sees them, consumer groups and share groups: which there are, and who is in them.

use std::collections::BTreeMap;

use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::consumer_group_describe::{self, Assignment};
use duramen_protocol::messages::consumer_protocol::{
    self, ConsumerProtocolAssignment, TopicPartition,
};
use duramen_protocol::messages::describe_groups::{DescribedGroup, DescribedGroupMember};
use duramen_protocol::messages::list_groups::ListedGroup;
use duramen_protocol::messages::share_group_describe;
use duramen_protocol::messages::{
    ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest,
    ShareGroupDescribeRequest,
};

use crate::client::{Client, KeyType};
use crate::connection::Connection;
use crate::error::Error;
use crate::node_id::NodeId;

/// A group, as it is described whatever protocol its members speak.
#[derive(Debug, Clone)]
pub struct Group {
    /// Its state and members, with their partitions as assignments of the classic protocol.
    pub described: DescribedGroup,
    /// Epochs of a group of the consumer protocol, or of a share group.
    pub epochs: Option<Epochs>,
}

/// Epochs of a group of the consumer protocol, or of a share group, and of its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epochs {
    /// Group epoch: the number of changes of its members or topics.
    pub group: i32,
    /// Assignment epoch: the group epoch for which the target assignment was decided.
    pub assignment: i32,
    /// Epochs of the members, by their ids.
    pub members: BTreeMap<String, i32>,
}

/// Tells whether there is the group that a broker answers about. Fails for every other error.
fn exists(group: &str, code: i16, message: Option<&str>) -> Result<bool, Error> {
    if code == ErrorCode::GroupIdNotFound.code() {
        return Ok(false);
    }
    Error::check(|| format!("group {group}"), code, message).map(|()| true)
}

/// Returns a group of the consumer protocol; `None` if there is none, or the broker does not know that protocol.
async fn describe_consumers(connection: &Connection, group: &str) -> Result<Option<Group>, Error> {
    if connection.version::<ConsumerGroupDescribeRequest>(i16::MAX).is_err() {
        return Ok(None);
    }
    let request =
        ConsumerGroupDescribeRequest { group_ids: vec![group.into()], ..Default::default() };
    let response = connection.call(&request).await?;
    let found = Error::first(response.groups, || format!("group {group}"))?;
    if !exists(group, found.error_code, found.error_message.as_deref())? {
        return Ok(None);
    }
    let member = |it: consumer_group_describe::Member| Member {
        described: DescribedGroupMember {
            member_id: it.member_id,
            group_instance_id: it.instance_id,
            client_id: it.client_id,
            client_host: it.client_host,
            ..DescribedGroupMember::default()
        },
        epoch: it.member_epoch,
        assignment: it.assignment,
    };
    let described = DescribedGroup {
        group_id: found.group_id,
        group_state: found.group_state,
        protocol_type: "consumer".into(),
        protocol_data: found.assignor_name,
        ..DescribedGroup::default()
    };
    let epochs = (found.group_epoch, found.assignment_epoch);
    Ok(Some(Group::of(described, epochs, found.members.into_iter().map(member))))
}

/// Returns a share group; `None` if there is none, or the broker does not know them.
async fn describe_shares(connection: &Connection, group: &str) -> Result<Option<Group>, Error> {
    if connection.version::<ShareGroupDescribeRequest>(i16::MAX).is_err() {
        return Ok(None);
    }
    let request = ShareGroupDescribeRequest { group_ids: vec![group.into()], ..Default::default() };
    let response = connection.call(&request).await?;
    let found = Error::first(response.groups, || format!("group {group}"))?;
    if !exists(group, found.error_code, found.error_message.as_deref())? {
        return Ok(None);
    }
    let member = |it: share_group_describe::Member| Member {
        described: DescribedGroupMember {
            member_id: it.member_id,
            client_id: it.client_id,
            client_host: it.client_host,
            ..DescribedGroupMember::default()
        },
        epoch: it.member_epoch,
        assignment: it.assignment,
    };
    let described = DescribedGroup {
        group_id: found.group_id,
        group_state: found.group_state,
        protocol_type: "share".into(),
        protocol_data: found.assignor_name,
        ..DescribedGroup::default()
    };
    let epochs = (found.group_epoch, found.assignment_epoch);
    Ok(Some(Group::of(described, epochs, found.members.into_iter().map(member))))
}

/// A member of a group that has epochs, whose assignment has not yet the form of the classic protocol.
struct Member {
    described: DescribedGroupMember,
    epoch: i32,
    assignment: Assignment,
}

impl Group {
    /// Tells whether the group is a share group.
    pub fn is_share(&self) -> bool {
        self.described.protocol_type == "share"
    }

    fn of(
        mut described: DescribedGroup,
        (group, assignment): (i32, i32),
        members: impl Iterator<Item = Member>,
    ) -> Self {
        let mut epochs = Epochs { group, assignment, members: BTreeMap::new() };
        for mut member in members {
            let parts = member.assignment.topic_partitions.into_iter();
            let assigned_partitions = parts
                .map(|it| TopicPartition { topic: it.topic_name, partitions: it.partitions })
                .collect();
            let share = ConsumerProtocolAssignment { assigned_partitions, user_data: None };
            member.described.member_assignment =
                consumer_protocol::encode(&share, 0).unwrap_or_default();
            epochs.members.insert(member.described.member_id.clone(), member.epoch);
            described.members.push(member.described);
        }
        Self { described, epochs: Some(epochs) }
    }
}

impl Client {
    /// Returns the groups of all brokers, each with the broker that coordinates it. Empty filters pass all; brokers
    /// that are too old for a filter ignore it.
    pub async fn list_groups(
        &self,
        states: &[&str],
        types: &[&str],
    ) -> Result<Vec<(NodeId, ListedGroup)>, Error> {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let brokers = self.metadata(Some(&[]), false).await?.brokers;
        let mut listed = Vec::new();
        for node in brokers.into_iter().map(|broker| broker.node_id) {
            let answered = self.retry(async || {
                let connection = self.node(node).await?;
                let version = connection.version::<ListGroupsRequest>(i16::MAX)?;
                let request = ListGroupsRequest {
                    states_filter: if version >= 4 { owned(states) } else { Vec::new() },
                    types_filter: if version >= 5 { owned(types) } else { Vec::new() },
                };
                let response = connection.call(&request).await?;
                Error::check(|| format!("groups of broker {node}"), response.error_code, None)?;
                Ok(response.groups)
            });
            listed.extend(answered.await?.into_iter().map(|group| (node, group)));
        }
        Ok(listed)
    }

    /// Returns the coordinator of a group, and the group with its members. `None` means that there is no such group, or
    /// that this client does not know its protocol.
    pub async fn describe_group(&self, group: &str) -> Result<(NodeId, Option<Group>), Error> {
        self.with_coordinator(KeyType::Group, group, async |node, connection| {
            let request =
                DescribeGroupsRequest { groups: vec![group.into()], ..Default::default() };
            let response = connection.call(&request).await?;
            let what = || format!("group {group}");
            let found = Error::first(response.groups, what)?;
            if found.error_code == ErrorCode::GroupIdNotFound.code() || found.group_state == "Dead"
            {
                let found = describe_consumers(connection, group).await?;
                let found = match found {
                    None => describe_shares(connection, group).await?,
                    found => found,
                };
                return Ok((node, found));
            }
            Error::check(what, found.error_code, found.error_message.as_deref())?;
            Ok((node, Some(Group { described: found, epochs: None })))
        })
        .await
    }

    /// Deletes a group that has no members, with its offsets.
    ///
    /// Fails with `GROUP_ID_NOT_FOUND` for a missing group, and with `NON_EMPTY_GROUP` for one with members.
    pub async fn delete_group(&self, group: &str) -> Result<(), Error> {
        let request = DeleteGroupsRequest { groups_names: vec![group.into()] };
        self.with_coordinator(KeyType::Group, group, async |_, connection| {
            let response = connection.call(&request).await?;
            let what = || format!("group {group}");
            let result = Error::first(response.results, what)?;
            Error::check(what, result.error_code, None)
        })
        .await
    }
}
