//! Certificates and keys in PEM (RFC 7468): in a file, or as the text of settings.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::time::SystemTime;

use bytes::Bytes;
use duramen_protocol::wire::Secret;
use pkcs8::EncryptedPrivateKeyInfoRef;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::pem::Pem as Block;

/// Label of a private key that a password encrypts (RFC 7468, 11).
const ENCRYPTED: &str = "ENCRYPTED PRIVATE KEY";

/// Place of text in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pem {
    /// A file.
    File(PathBuf),
    /// The text itself, and the setting that has it.
    Text(&'static str, Secret),
}

impl Pem {
    /// Tells whether there is no place.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::File(path) if path.as_os_str().is_empty())
    }

    /// Returns the text.
    pub(super) fn read(&self) -> Result<Bytes, String> {
        match self {
            Self::File(path) => {
                std::fs::read(path).map(Bytes::from).map_err(|error| self.about(error))
            }
            Self::Text(_, Secret(text)) => Ok(text.clone()),
        }
    }

    /// Returns when the text was changed last.
    pub(super) fn changed(&self) -> Option<SystemTime> {
        match self {
            Self::File(path) => std::fs::metadata(path).and_then(|it| it.modified()).ok(),
            Self::Text(..) => None,
        }
    }

    /// Puts a problem behind the name of the place.
    pub(super) fn about(&self, problem: impl Display) -> String {
        format!("{self}: {problem}")
    }
}

impl Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Text(setting, _) => f.write_str(setting),
        }
    }
}

/// Returns the private key in a text, or why there is none. A password opens one that is encrypted.
pub(super) fn private_key(
    text: &[u8],
    password: &Secret,
) -> Result<PrivateKeyDer<'static>, String> {
    let Secret(password) = password;
    let mut blocks = Block::iter_from_buffer(text).filter_map(Result::ok);
    let Some(block) = blocks.find(|it| it.label == ENCRYPTED) else {
        let key = PrivateKeyDer::from_pem_slice(text);
        return key.map_err(|error| format!("there is no private key: {error}"));
    };
    if password.is_empty() {
        return Err("the private key is encrypted; ssl.key.password has its password".to_owned());
    }
    let key = EncryptedPrivateKeyInfoRef::try_from(&block.contents[..])
        .map_err(|error| format!("the encrypted private key cannot be read: {error}"))?;
    let opened = key
        .decrypt(password)
        .map_err(|error| format!("ssl.key.password does not open the private key: {error}"))?;
    PrivateKeyDer::try_from(opened.as_bytes().to_vec())
        .map_err(|error| format!("the private key cannot be read: {error}"))
}
