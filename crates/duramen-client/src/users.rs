//! Users and their passwords, for an administrator.

use std::num::NonZeroU32;

use bytes::Bytes;
use duramen_protocol::messages::alter_user_scram_credentials::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use duramen_protocol::messages::{
    AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest,
};
use duramen_protocol::sasl::scram::{Hash, ITERATIONS, SALT_BYTES};
use duramen_protocol::wire::Secret;
use ring::rand::{SecureRandom, SystemRandom};

use crate::client::Client;
use crate::error::Error;

/// A user, with its credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// Each mechanism that the user has a credential of, with the iterations of the password's hash.
    pub credentials: Vec<(Hash, i32)>,
}

impl Client {
    /// Returns all users, in order of their names.
    pub async fn users(&self) -> Result<Vec<User>, Error> {
        let request = DescribeUserScramCredentialsRequest { users: None };
        let response = self.retry(async || self.any().await?.call(&request).await).await?;
        let message = response.error_message.as_deref();
        Error::check(|| "users".to_owned(), response.error_code, message)?;
        let users = response.results.into_iter().map(|row| {
            let infos = row.credential_infos.iter();
            let known =
                infos.filter_map(|it| Some((Hash::from_code(it.mechanism)?, it.iterations)));
            User { credentials: known.collect(), name: row.user }
        });
        Ok(users.collect())
    }

    /// Gives a user a password, and makes the user if there is none. The password itself does not leave this process.
    pub async fn set_password(
        &self,
        user: &str,
        mechanisms: &[Hash],
        password: &[u8],
    ) -> Result<(), Error> {
        let mut upsertions = Vec::new();
        for &hash in mechanisms {
            let mut salt = [0; SALT_BYTES];
            SystemRandom::new().fill(&mut salt).map_err(|_| Error::NoRandom)?;
            upsertions.push(upsertion(user, hash, password, &salt, ITERATIONS));
        }
        let request = AlterUserScramCredentialsRequest { deletions: Vec::new(), upsertions };
        self.alter_users(user, &request).await
    }

    /// Takes these credentials away from a user. A user without any is gone.
    pub async fn remove_credentials(&self, user: &str, mechanisms: &[Hash]) -> Result<(), Error> {
        let deletion =
            |hash: &Hash| ScramCredentialDeletion { name: user.to_owned(), mechanism: hash.code() };
        let deletions = mechanisms.iter().map(deletion).collect();
        let request = AlterUserScramCredentialsRequest { deletions, upsertions: Vec::new() };
        self.alter_users(user, &request).await
    }

    async fn alter_users(
        &self,
        user: &str,
        request: &AlterUserScramCredentialsRequest,
    ) -> Result<(), Error> {
        self.retry(async || {
            let response = self.controller().await?.call(request).await?;
            let what = || format!("user {user}");
            let result = Error::first(response.results, what)?;
            Error::check(what, result.error_code, result.error_message.as_deref())
        })
        .await
    }
}

fn upsertion(
    user: &str,
    hash: Hash,
    password: &[u8],
    salt: &[u8],
    iterations: NonZeroU32,
) -> ScramCredentialUpsertion {
    ScramCredentialUpsertion {
        name: user.to_owned(),
        mechanism: hash.code(),
        iterations: iterations.get().cast_signed(),
        salt: Bytes::copy_from_slice(salt),
        salted_password: Secret(hash.salted_password(password, salt, iterations).into()),
    }
}
