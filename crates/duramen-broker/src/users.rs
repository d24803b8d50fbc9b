//! # Room card: users
//!
//! Purpose:    the users of the cluster, and the keys by which their passwords are checked.
//! Owns:       credentials by user and mechanism; the secret from which credentials of nobody are made.
//! Interface:  [`Users::apply`], [`Users::credential`].
//! Invariants: a user exists as long as it has a credential; a question about a user has an answer of the same form,
//!             whether there is such a user or not.
//! Never:      passwords; the exchange with a client (`login`); who is connected (`node/logins.rs`).
//! Tests:      below; `node/tests/users.rs`.
//! Start at:   [`Users::credential`].

use std::collections::BTreeMap;
use std::sync::Arc;

use duramen_protocol::sasl::scram::{Credential, Hash};
use duramen_protocol::wire::Secret;

use crate::metadata_records::{
    MetadataRecord, RemoveScramCredential, SetScramCredential, SetSecret,
};

/// See the room card.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Users {
    by_name: BTreeMap<String, BTreeMap<Hash, Arc<Credential>>>,
    secret: Option<Secret>,
}

impl Users {
    /// Tells whether there is no user.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns the credentials of a user.
    pub(crate) fn of(&self, user: &str) -> impl Iterator<Item = &Credential> {
        self.by_name.get(user).into_iter().flat_map(BTreeMap::values).map(Arc::as_ref)
    }

    /// Tells whether a user has a credential of this mechanism.
    pub(crate) fn has(&self, user: &str, hash: Hash) -> bool {
        self.by_name.get(user).is_some_and(|own| own.contains_key(&hash))
    }

    /// Returns the names of all users, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Returns the credential by which a client is to show that it is this user: the first that there is, of the
    /// mechanisms in `wanted`. A user without one gets that of nobody, which no password fits. `secret` is for a
    /// cluster that has none yet.
    pub(crate) fn credential(&self, user: &str, wanted: &[Hash], secret: &[u8]) -> Arc<Credential> {
        let own = self.by_name.get(user);
        let known = wanted.iter().find_map(|hash| own?.get(hash));
        let secret = self.secret.as_ref().map_or(secret, |secret| &secret.0);
        let nobody = || {
            let hash = wanted.first().copied().unwrap_or(Hash::Sha512);
            Arc::new(Credential::of_nobody(hash, secret, user))
        };
        known.cloned().unwrap_or_else(nobody)
    }

    /// Tells whether a user still has the credential by which a client showed that it is this user.
    pub(crate) fn still_has(&self, user: &str, credential: &Credential) -> bool {
        let own = self.by_name.get(user).and_then(|own| own.get(&credential.hash));
        own.is_some_and(|own| **own == *credential)
    }

    /// Takes a record about users in. True if a credential is another one, or gone.
    pub(crate) fn apply(&mut self, record: MetadataRecord) -> bool {
        match record {
            MetadataRecord::SetScramCredential(set) => self.set(set),
            MetadataRecord::RemoveScramCredential(gone) => self.remove(&gone),
            MetadataRecord::SetSecret(SetSecret { secret }) => {
                self.secret.get_or_insert(secret);
                false
            }
            other => unreachable!("{other:?} is about no user"),
        }
    }

    /// A mechanism that this build does not know cannot be in its log: the leader refuses it.
    fn set(&mut self, record: SetScramCredential) -> bool {
        let SetScramCredential { user, mechanism, iterations, salt, stored_key, server_key } =
            record;
        let Some(hash) = Hash::from_code(mechanism) else { return false };
        let (salt, stored_key, server_key) = (salt.0, stored_key.0, server_key.0);
        let credential = Credential { hash, iterations, salt, stored_key, server_key };
        self.by_name.entry(user).or_default().insert(hash, Arc::new(credential));
        true
    }

    fn remove(&mut self, record: &RemoveScramCredential) -> bool {
        let Some(own) = self.by_name.get_mut(&record.user) else { return false };
        let hash = Hash::from_code(record.mechanism);
        let gone = hash.and_then(|hash| own.remove(&hash));
        if own.is_empty() {
            self.by_name.remove(&record.user);
        }
        gone.is_some()
    }

    /// Returns the record that gives the cluster its secret, if it has none.
    pub(crate) fn first_secret(&self, secret: &[u8]) -> Option<MetadataRecord> {
        let secret = Secret(bytes::Bytes::copy_from_slice(secret));
        self.secret.is_none().then_some(MetadataRecord::SetSecret(SetSecret { secret }))
    }

    /// Returns the records that make these users.
    pub(crate) fn records(&self) -> Vec<MetadataRecord> {
        let secret = self.secret.iter().cloned();
        let secret = secret.map(|secret| MetadataRecord::SetSecret(SetSecret { secret }));
        let all = self.by_name.iter().flat_map(|(user, own)| {
            own.values().map(|credential| record_of(user.clone(), credential))
        });
        secret.chain(all).collect()
    }
}

/// Returns the record of a credential.
pub(crate) fn record_of(user: String, credential: &Credential) -> MetadataRecord {
    let Credential { hash, iterations, salt, stored_key, server_key } = credential.clone();
    let (salt, stored_key, server_key) = (Secret(salt), Secret(stored_key), Secret(server_key));
    let mechanism = hash.code();
    MetadataRecord::SetScramCredential(SetScramCredential {
        user,
        mechanism,
        iterations,
        salt,
        stored_key,
        server_key,
    })
}
