//! Refusals of a change to a group, with the fix.

use std::collections::BTreeMap;

use duramen_client::Error;
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::describe_groups::DescribedGroup;

use crate::cli::failure::explained;
use crate::cli::missing::no_such_group;
use crate::cli::screen;

/// Names the members that prevent a change to a group's offsets, and the fix.
pub(super) fn has_members(group: &DescribedGroup) -> String {
    let mut clients = BTreeMap::<String, usize>::new();
    for member in &group.members {
        let host = member.client_host.trim_start_matches('/');
        *clients.entry(format!("{} at {host}", member.client_id)).or_default() += 1;
    }
    let more = |(client, count): (String, usize)| match count {
        1 => client,
        count => format!("{client} ({count} times)"),
    };
    let clients = clients.into_iter().map(more).collect::<Vec<_>>().join(", ");
    let members = screen::count(group.members.len(), "active member");
    format!("group {} has {members}: {clients}", group.group_id)
}

/// Explains the broker's refusal of a change to a group, with the fix.
pub(super) fn refusal(group: &str, error: Error) -> anyhow::Error {
    match error.code() {
        Some(ErrorCode::GroupIdNotFound) => no_such_group(group),
        Some(
            code @ (ErrorCode::NonEmptyGroup
            | ErrorCode::UnknownMemberId
            | ErrorCode::IllegalGeneration
            | ErrorCode::RebalanceInProgress),
        ) => explained(
            code,
            format!(
                "group {group} has active members; stop them (`duramen group describe {group}` shows \
                 who they are), then try again"
            ),
        ),
        Some(ErrorCode::GroupSubscribedToTopic) => anyhow::Error::new(error).context(format!(
            "members of group {group} read this topic; stop them (`duramen group describe {group}` \
             shows who they are), then try again"
        )),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use duramen_protocol::messages::describe_groups::DescribedGroupMember;

    use super::*;

    #[test]
    fn members_in_the_way_are_named() {
        let member = |id: &str| DescribedGroupMember {
            client_id: id.into(),
            client_host: "/10.0.0.7".into(),
            ..DescribedGroupMember::default()
        };
        let group = DescribedGroup {
            group_id: "g".into(),
            members: vec![member("app"), member("other"), member("app")],
            ..DescribedGroup::default()
        };
        let expected = "group g has 3 active members: app at 10.0.0.7 (2 times), other at 10.0.0.7";
        assert_eq!(has_members(&group), expected);
    }
}
