//! `AlterUserScramCredentials`: makes users and gives them other passwords, or takes credentials away. A user without
//! one is gone.
//!
//! Of each user the request changes all or nothing. Kafka changes the rest beside a mistake.

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::alter_user_scram_credentials::{
    AlterUserScramCredentialsResult, ScramCredentialDeletion, ScramCredentialUpsertion,
};
use duramen_protocol::messages::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse,
};
use duramen_protocol::sasl::scram::{Credential, Hash, ITERATIONS_MAX, ITERATIONS_MIN};

use super::decisions::{answer_after_commit, why_undecided};
use crate::access::{Operation, Resource};
use crate::controller::{DECISION_MS, Error};
use crate::event::RequestKey;
use crate::limits::USER_NAME_BYTES_MAX;
use crate::metadata_records::{MetadataRecord, RemoveScramCredential, USERS_KIND};
use crate::node::Node;
use crate::session::RequestContext;
use crate::users::{Users, record_of};

/// Longest salt that is kept, in bytes.
const SALT_BYTES_MAX: usize = 1024;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &AlterUserScramCredentialsRequest,
) {
    let admitted = node.core.access.admit(context, Operation::Alter, Resource::Cluster);
    let admitted = admitted.map_err(|code| Error::new(code, "not allowed to change users"));
    let admitted = admitted.and_then(|()| match node.core.which_lacks(USERS_KIND) {
        None => Ok(()),
        Some(node) => Err(Error::new(
            ErrorCode::UnsupportedVersion,
            format!("node {node} runs an earlier release, which knows no users: upgrade it first"),
        )),
    });
    let users = &node.core.controller.image.users;
    let mut altered: BTreeMap<&str, Result<Vec<MetadataRecord>, Error>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let deleted =
        request.deletions.iter().map(|it| (it.name.as_str(), it.mechanism, deletion(users, it)));
    let set = request.upsertions.iter().map(|it| (it.name.as_str(), it.mechanism, upsertion(it)));
    for (user, mechanism, record) in deleted.chain(set) {
        let is_first = seen.insert((user, mechanism));
        let record = admitted.clone().and(record).and_then(|record| {
            let text = "a credential cannot be altered twice in one request";
            if is_first { Ok(record) } else { Err(Error::new(ErrorCode::DuplicateResource, text)) }
        });
        let records = altered.entry(user).or_insert_with(|| Ok(Vec::new()));
        match (records.as_mut(), record) {
            (Ok(records), Ok(record)) => records.push(record),
            (Ok(_), Err(error)) => *records = Err(error),
            (Err(_), _) => {}
        }
    }
    let result = |(user, altered): (&&str, &Result<_, Error>)| AlterUserScramCredentialsResult {
        user: (*user).to_owned(),
        error_code: altered.as_ref().err().map_or(0, |error| error.code.code()),
        error_message: altered.as_ref().err().map(|error| error.message.clone()),
    };
    let results = altered.iter().map(result).collect();
    let response = AlterUserScramCredentialsResponse { throttle_time_ms: 0, results };
    let mut records: Vec<_> = altered.into_values().flatten().flatten().collect();
    if !records.is_empty() {
        records.extend(users.first_secret(&node.core.options.secret));
    }
    answer_after_commit(node, (key, context), &records, response.into(), DECISION_MS);
}

fn mechanism(name: &str, code: i8) -> Result<Hash, Error> {
    if name.is_empty() {
        return Err(Error::new(
            ErrorCode::UnacceptableCredential,
            "the name of a user is not empty",
        ));
    }
    Hash::from_code(code).ok_or_else(|| {
        Error::new(ErrorCode::UnsupportedSaslMechanism, format!("there is no mechanism {code}"))
    })
}

fn deletion(users: &Users, it: &ScramCredentialDeletion) -> Result<MetadataRecord, Error> {
    let hash = mechanism(&it.name, it.mechanism)?;
    if !users.has(&it.name, hash) {
        let text = "the user has no credential of this mechanism";
        return Err(Error::new(ErrorCode::ResourceNotFound, text));
    }
    let (user, mechanism) = (it.name.clone(), it.mechanism);
    Ok(MetadataRecord::RemoveScramCredential(RemoveScramCredential { user, mechanism }))
}

fn upsertion(it: &ScramCredentialUpsertion) -> Result<MetadataRecord, Error> {
    let hash = mechanism(&it.name, it.mechanism)?;
    let unacceptable = |text: String| Err(Error::new(ErrorCode::UnacceptableCredential, text));
    if it.name.len() > USER_NAME_BYTES_MAX {
        return unacceptable(format!("the name of a user has at most {USER_NAME_BYTES_MAX} bytes"));
    }
    let iterations = u32::try_from(it.iterations).unwrap_or(0);
    if !(ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations) {
        return unacceptable(format!("iterations are {ITERATIONS_MIN} to {ITERATIONS_MAX}"));
    }
    if it.salt.is_empty() || it.salt.len() > SALT_BYTES_MAX {
        return unacceptable(format!("a salt has 1 to {SALT_BYTES_MAX} bytes"));
    }
    if it.salted_password.0.len() != hash.key_bytes() {
        let bytes = hash.key_bytes();
        return unacceptable(format!("a salted password of {} has {bytes} bytes", hash.name()));
    }
    let salt = it.salt.clone();
    let credential = Credential::of_salted(hash, &it.salted_password.0, salt, iterations);
    Ok(record_of(it.name.clone(), &credential))
}

/// Answers a request that the controller did not decide.
pub(crate) fn undecided(
    request: &AlterUserScramCredentialsRequest,
    code: ErrorCode,
) -> AlterUserScramCredentialsResponse {
    let deleted = request.deletions.iter().map(|it| it.name.as_str());
    let named: BTreeSet<&str> =
        deleted.chain(request.upsertions.iter().map(|it| it.name.as_str())).collect();
    let result = |user: &str| AlterUserScramCredentialsResult {
        user: user.to_owned(),
        error_code: code.code(),
        error_message: Some(why_undecided(code).to_owned()),
    };
    let results = named.into_iter().map(result).collect();
    AlterUserScramCredentialsResponse { throttle_time_ms: 0, results }
}
