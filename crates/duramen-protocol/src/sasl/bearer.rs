//! Messages of OAUTHBEARER (RFC 7628): a token in the first one, and a problem in the answer.

use bytes::Bytes;

use super::SaslError;

/// Byte between the parts of a message.
const SEPARATOR: u8 = 1;
/// Answer to a token that does not count (RFC 7628, 3.2.2).
pub const INVALID_TOKEN: &[u8] = br#"{"status":"invalid_token"}"#;

/// First message of a client.
#[derive(Clone, PartialEq, Eq)]
pub struct First<'a> {
    /// Name that the client wants to act for, or nothing.
    pub authorization: String,
    /// Token, in the form of RFC 6750.
    pub token: &'a str,
}

/// Writes a client's message with a token.
pub fn message(token: &str) -> Bytes {
    format!("n,,\u{1}auth=Bearer {token}\u{1}\u{1}").into()
}

/// Reads a client's message. Its other parts, extensions of KIP-342, are checked and mean nothing here.
pub fn read(message: &[u8]) -> Result<First<'_>, SaslError> {
    let malformed = |text| Err(SaslError::Malformed(text));
    let Ok(text) = std::str::from_utf8(message) else {
        return malformed("the message of OAUTHBEARER is not UTF-8");
    };
    let separator = char::from(SEPARATOR);
    let Some((header, rest)) = text.split_once(separator) else {
        return malformed("the message of OAUTHBEARER has no parts");
    };
    let authorization = match header.strip_prefix("n,").and_then(|it| it.strip_suffix(',')) {
        Some("") => String::new(),
        Some(named) if named.len() > 2 && named.starts_with("a=") => {
            named[2..].replace("=2C", ",").replace("=3D", "=")
        }
        _ => return malformed("the message of OAUTHBEARER does not begin with a header of GS2"),
    };
    // One separator ends the last part, and one the message.
    let Some(parts) = rest.strip_suffix("\u{1}\u{1}") else {
        return malformed("the message of OAUTHBEARER has no end");
    };
    let mut credentials = None;
    for part in parts.split(separator) {
        let (name, value) = part.split_once('=').unwrap_or_default();
        if name.is_empty() || !name.bytes().all(|it| it.is_ascii_alphabetic()) {
            return malformed("a part of the message of OAUTHBEARER is not NAME=VALUE");
        }
        if name == "auth" && credentials.replace(value).is_some() {
            return malformed("the message of OAUTHBEARER has two tokens");
        }
    }
    let (scheme, token) = credentials.and_then(|it| it.split_once(' ')).unwrap_or_default();
    let token = token.trim_start_matches(' ');
    let is_of_token = |it: u8| it.is_ascii_alphanumeric() || b"-._".contains(&it);
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() || !token.bytes().all(is_of_token)
    {
        return malformed("the message of OAUTHBEARER has no bearer token");
    }
    Ok(First { authorization, token })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_token_and_perhaps_a_name() {
        let read = |text: &str| read(text.as_bytes()).map(|it| (it.authorization, it.token.len()));
        let name = |name: &str| Ok((name.to_owned(), 3));
        assert_eq!(super::read(&message("a.b")).map(|it| it.token), Ok("a.b"));
        assert_eq!(read("n,,\u{1}auth=bearer  a.b\u{1}\u{1}"), name(""));
        assert_eq!(read("n,a=x=2Cy=3D,\u{1}auth=Bearer a.b\u{1}\u{1}"), name("x,y="));
        assert_eq!(read("n,,\u{1}host=h\u{1}auth=Bearer a-b\u{1}traceId=1\u{1}\u{1}"), name(""));
        for text in [
            "",
            "n,,",
            "n,,\u{1}\u{1}",
            "y,,\u{1}auth=Bearer a.b\u{1}\u{1}",
            "n,a=,\u{1}auth=Bearer a.b\u{1}\u{1}",
            "n,b=x,\u{1}auth=Bearer a.b\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a.b",
            "n,,\u{1}auth=Bearer a.b\u{1}",
            "n,,\u{1}auth=Bearer \u{1}\u{1}",
            "n,,\u{1}auth=Basic a.b\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a b\u{1}\u{1}",
            "n,,\u{1}auth=Bearer a\u{1}auth=Bearer b\u{1}\u{1}",
            "n,,\u{1}host=h\u{1}\u{1}",
            "n,,\u{1}=h\u{1}auth=Bearer a.b\u{1}\u{1}",
        ] {
            assert!(matches!(read(text), Err(SaslError::Malformed(_))), "{text:?}");
        }
    }
}
