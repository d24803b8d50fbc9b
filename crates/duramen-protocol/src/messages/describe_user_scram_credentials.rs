//! `DescribeUserScramCredentials` (key 50): which users have SCRAM credentials.

use crate::messages::declare::declare;

declare! {
    /// Request of `DescribeUserScramCredentials`.
    pub struct DescribeUserScramCredentialsRequest: versions 0..=0, flexible 0.. {
        users: Option<Vec<UserName>> [0.., nullable 0..],
    }

    /// Stands in [`DescribeUserScramCredentialsRequest::users`].
    pub struct UserName {
        name: String [0..],
    }

    /// Response of `DescribeUserScramCredentials`.
    pub struct DescribeUserScramCredentialsResponse: versions 0..=0, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        results: Vec<DescribeUserScramCredentialsResult> [0..],
    }

    /// Stands in [`DescribeUserScramCredentialsResponse::results`].
    pub struct DescribeUserScramCredentialsResult {
        user: String [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        credential_infos: Vec<CredentialInfo> [0..],
    }

    /// Stands in [`DescribeUserScramCredentialsResult::credential_infos`].
    pub struct CredentialInfo {
        mechanism: i8 [0..],
        iterations: i32 [0..],
    }
}
