//! SCRAM: messages, keys and proofs (RFC 5802, with the hashes of RFC 7677 and its follower).
//!
//! Names and passwords are taken as the bytes that they are, without `SASLprep`: Kafka's tools and clients do so.

use std::fmt;
use std::num::NonZeroU32;

use bytes::Bytes;
use data_encoding::BASE64;
use ring::{digest, hmac, pbkdf2};
use subtle::ConstantTimeEq;

use super::error::SaslError;

/// Fewest iterations that a credential may have, as in Kafka.
pub const ITERATIONS_MIN: u32 = 4_096;
/// Most iterations that a credential may have, as in Kafka.
pub const ITERATIONS_MAX: u32 = 16_384;
/// Iterations of the credentials that our own commands make.
pub const ITERATIONS: NonZeroU32 = NonZeroU32::new(8_192).expect("it is positive");

/// Longest message that is read, in bytes.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// Hash of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hash {
    /// SCRAM-SHA-256.
    Sha256,
    /// SCRAM-SHA-512.
    Sha512,
}

impl Hash {
    /// Both, the longer one first.
    pub const ALL: [Self; 2] = [Self::Sha512, Self::Sha256];

    /// Returns the name of the mechanism.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "SCRAM-SHA-256",
            Self::Sha512 => "SCRAM-SHA-512",
        }
    }

    /// Returns Kafka's number of the mechanism (KIP-554).
    pub const fn code(self) -> i8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha512 => 2,
        }
    }

    /// Returns the mechanism of Kafka's number.
    pub fn from_code(code: i8) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.code() == code)
    }

    /// Returns the length of a key, in bytes.
    pub const fn key_bytes(self) -> usize {
        match self {
            Self::Sha256 => digest::SHA256_OUTPUT_LEN,
            Self::Sha512 => digest::SHA512_OUTPUT_LEN,
        }
    }

    fn digest(self, bytes: &[u8]) -> Bytes {
        let algorithm = match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha512 => &digest::SHA512,
        };
        Bytes::copy_from_slice(digest::digest(algorithm, bytes).as_ref())
    }

    fn hmac(self, key: &[u8], text: &[u8]) -> Bytes {
        let algorithm = match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha512 => hmac::HMAC_SHA512,
        };
        Bytes::copy_from_slice(hmac::sign(&hmac::Key::new(algorithm, key), text).as_ref())
    }

    /// Stretches a password: PBKDF2 with HMAC. Takes milliseconds.
    pub fn salted_password(self, password: &[u8], salt: &[u8], iterations: NonZeroU32) -> Vec<u8> {
        let algorithm = match self {
            Self::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Self::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        };
        let mut salted = vec![0; self.key_bytes()];
        pbkdf2::derive(algorithm, iterations, salt, password, &mut salted);
        salted
    }
}

/// Keys by which a broker checks the proof of a password, and gives one of its own. The password does not follow from
/// them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The mechanism.
    pub hash: Hash,
    /// Number of times that the password is hashed.
    pub iterations: u32,
    /// Salt of the password.
    pub salt: Bytes,
    /// Hash of the client's key.
    pub stored_key: Bytes,
    /// Key of the broker's own proof.
    pub server_key: Bytes,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hash, iterations, .. } = self;
        write!(f, "Credential({}, {iterations} iterations)", hash.name())
    }
}

impl Credential {
    /// Makes the credential of a stretched password.
    pub fn of_salted(hash: Hash, salted: &[u8], salt: Bytes, iterations: u32) -> Self {
        let stored_key = hash.digest(&hash.hmac(salted, b"Client Key"));
        let server_key = hash.hmac(salted, b"Server Key");
        Self { hash, iterations, salt, stored_key, server_key }
    }

    /// Makes the credential of a password. Takes milliseconds.
    pub fn of_password(hash: Hash, password: &[u8], salt: Bytes, iterations: NonZeroU32) -> Self {
        let salted = hash.salted_password(password, &salt, iterations);
        Self::of_salted(hash, &salted, salt, iterations.get())
    }

    /// Makes the credential that stands for a user who has none. No password fits, and the salt is always the same: so
    /// a stranger cannot tell which names are those of users.
    pub fn of_nobody(hash: Hash, secret: &[u8], user: &str) -> Self {
        let key = |part: &str| hash.hmac(secret, format!("{part}\0{user}").as_bytes());
        Self {
            hash,
            iterations: ITERATIONS.get(),
            salt: key("salt").slice(..SALT_BYTES),
            stored_key: key("stored key"),
            server_key: key("server key"),
        }
    }

    /// Tells whether a password is the right one. Takes milliseconds.
    pub fn fits(&self, password: &[u8]) -> bool {
        let iterations = NonZeroU32::new(self.iterations).unwrap_or(NonZeroU32::MIN);
        let salted = self.hash.salted_password(password, &self.salt, iterations);
        let stored_key = self.hash.digest(&self.hash.hmac(&salted, b"Client Key"));
        bool::from(stored_key.ct_eq(&self.stored_key))
    }
}

/// Bytes of the salts that we make.
pub const SALT_BYTES: usize = 24;
/// Bytes of chance in the nonces that we make.
pub const NONCE_BYTES: usize = 24;

/// The first message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFirst {
    /// The user.
    pub user: String,
    gs2: String,
    bare: String,
    nonce: String,
}

const fn malformed<T>(text: &'static str) -> Result<T, SaslError> {
    Err(SaslError::Malformed(text))
}

/// Returns a message as text, if it is not too long.
fn text(token: &[u8]) -> Result<&str, SaslError> {
    if token.len() > MESSAGE_BYTES_MAX {
        return malformed("a message of SCRAM is too long");
    }
    std::str::from_utf8(token).map_err(|_| SaslError::Malformed("a message of SCRAM is not UTF-8"))
}

/// Takes the attribute `name` from the front of a message; returns its value and the rest.
fn attribute<'a>(text: &'a str, name: &str) -> Result<(&'a str, &'a str), SaslError> {
    let (first, rest) = text.split_once(',').unwrap_or((text, ""));
    let value = first.strip_prefix(name).and_then(|value| value.strip_prefix('='));
    value.map(|value| (value, rest)).ok_or(SaslError::Malformed("an attribute of SCRAM is missing"))
}

fn decoded(value: &str) -> Result<Vec<u8>, SaslError> {
    let bytes = BASE64.decode(value.as_bytes());
    bytes.map_err(|_| SaslError::Malformed("a value of SCRAM is not base64"))
}

/// Takes `=2C` and `=3D` in a name for the characters that they stand for.
fn unescaped(name: &str) -> Result<String, SaslError> {
    let plain = name.replace("=2C", ",").replace("=3D", "\0");
    if plain.contains('=') || name.contains('\0') {
        return malformed("the name of the user is escaped in a wrong way");
    }
    Ok(plain.replace('\0', "="))
}

fn escaped(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

/// Reads a client's first message.
pub fn client_first(token: &[u8]) -> Result<ClientFirst, SaslError> {
    let all = text(token)?;
    let mut parts = all.splitn(3, ',');
    let (Some(binding), Some(authorization), Some(bare)) =
        (parts.next(), parts.next(), parts.next())
    else {
        return malformed("the first message of SCRAM has no header");
    };
    if !matches!(binding, "n" | "y") {
        return malformed("channel binding is not supported");
    }
    let (name, rest) = attribute(bare, "n")?;
    let user = unescaped(name)?;
    // Extensions may follow, which a broker that does not know them leaves unread. A mandatory one comes first (`m=`),
    // where the name should be.
    let (nonce, _) = attribute(rest, "r")?;
    if user.is_empty() || nonce.is_empty() {
        return malformed("SCRAM wants a user and a nonce");
    }
    let acts_for = match authorization.strip_prefix("a=") {
        Some(other) => unescaped(other)?,
        None if authorization.is_empty() => String::new(),
        None => return malformed("the header of SCRAM is wrong"),
    };
    if !acts_for.is_empty() && acts_for != user {
        return Err(SaslError::Refused("a client may not act for another user"));
    }
    let gs2 = format!("{binding},{authorization},");
    Ok(ClientFirst { user, gs2, bare: bare.to_owned(), nonce: nonce.to_owned() })
}

/// A broker's side of an exchange, after its first message.
#[derive(Debug)]
pub struct Challenge {
    credential: Credential,
    gs2: String,
    nonce: String,
    /// Both first messages, as they are signed.
    signed: String,
}

impl ClientFirst {
    /// Answers with the broker's first message. `nonce` is new for each exchange, and nobody can guess it.
    pub fn challenge(self, credential: Credential, nonce: &[u8]) -> (Challenge, Bytes) {
        let nonce = format!("{}{}", self.nonce, BASE64.encode(nonce));
        let salt = BASE64.encode(&credential.salt);
        let first = format!("r={nonce},s={salt},i={}", credential.iterations);
        let signed = format!("{},{first}", self.bare);
        (Challenge { credential, gs2: self.gs2, nonce, signed }, first.into())
    }
}

impl Challenge {
    /// Checks the client's proof. Returns the broker's own, for the client.
    pub fn check(self, token: &[u8]) -> Result<(Credential, Bytes), SaslError> {
        let all = text(token)?;
        let Some((without_proof, proof)) = all.rsplit_once(",p=") else {
            return malformed("the last message of SCRAM has no proof");
        };
        let (binding, rest) = attribute(without_proof, "c")?;
        let (nonce, _) = attribute(rest, "r")?;
        if decoded(binding)? != self.gs2.as_bytes() {
            return Err(SaslError::Refused("the header of SCRAM has changed"));
        }
        if nonce != self.nonce {
            return Err(SaslError::Refused("the nonce of SCRAM is another one"));
        }
        let hash = self.credential.hash;
        let proof = decoded(proof)?;
        if proof.len() != hash.key_bytes() {
            return malformed("the proof of SCRAM has a wrong length");
        }
        let signed = format!("{},{without_proof}", self.signed);
        let signature = hash.hmac(&self.credential.stored_key, signed.as_bytes());
        let client_key: Vec<u8> = proof.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
        if !bool::from(hash.digest(&client_key).ct_eq(&self.credential.stored_key)) {
            return Err(SaslError::Refused("the password is wrong, or there is no such user"));
        }
        let own = hash.hmac(&self.credential.server_key, signed.as_bytes());
        Ok((self.credential, format!("v={}", BASE64.encode(&own)).into()))
    }
}

/// A client's side of an exchange, after its first message.
pub struct Client {
    hash: Hash,
    password: Bytes,
    nonce: String,
    bare: String,
}

/// A client's side after its last message: the proof that it expects.
pub struct Expecting(Bytes);

impl Client {
    /// Begins with the client's first message. `nonce` is new for each exchange.
    pub fn begin(hash: Hash, user: &str, password: Bytes, nonce: &[u8]) -> (Self, Bytes) {
        let nonce = BASE64.encode(nonce);
        let bare = format!("n={},r={nonce}", escaped(user));
        let first = format!("n,,{bare}").into();
        (Self { hash, password, nonce, bare }, first)
    }

    /// Answers the broker's first message with the proof of the password. Takes milliseconds.
    pub fn prove(self, token: &[u8]) -> Result<(Expecting, Bytes), SaslError> {
        let first = text(token)?;
        let (nonce, rest) = attribute(first, "r")?;
        let (salt, rest) = attribute(rest, "s")?;
        let (iterations, _) = attribute(rest, "i")?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(SaslError::Refused("the broker's nonce does not go on from ours"));
        }
        let iterations = iterations.parse().ok().filter(|it| (1..=1_000_000).contains(it));
        let Some(iterations) = iterations.and_then(NonZeroU32::new) else {
            return malformed("the broker wants an impossible number of iterations");
        };
        let salted = self.hash.salted_password(&self.password, &decoded(salt)?, iterations);
        let client_key = self.hash.hmac(&salted, b"Client Key");
        let without_proof = format!("c={},r={nonce}", BASE64.encode(b"n,,"));
        let signed = format!("{},{first},{without_proof}", self.bare);
        let signature = self.hash.hmac(&self.hash.digest(&client_key), signed.as_bytes());
        let proof: Vec<u8> = client_key.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
        let server_key = self.hash.hmac(&salted, b"Server Key");
        let expected = self.hash.hmac(&server_key, signed.as_bytes());
        Ok((Expecting(expected), format!("{without_proof},p={}", BASE64.encode(&proof)).into()))
    }
}

impl Expecting {
    /// Checks the broker's proof: it knows the password's keys, too.
    pub fn check(self, token: &[u8]) -> Result<(), SaslError> {
        let (proof, _) = attribute(text(token)?, "v")?;
        if bool::from(decoded(proof)?.ct_eq(&self.0)) {
            return Ok(());
        }
        Err(SaslError::Refused("the broker does not know the password"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &[u8] = b"pencil";

    fn iterations() -> NonZeroU32 {
        NonZeroU32::new(4096).unwrap()
    }

    fn credential(hash: Hash) -> Credential {
        Credential::of_password(
            hash,
            PASSWORD,
            Bytes::from_static(b"salt of the earth"),
            iterations(),
        )
    }

    /// RFC 7677, section 3.
    #[test]
    fn an_exchange_is_that_of_the_standard() {
        let salt = BASE64.decode(b"W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let known = Credential::of_password(Hash::Sha256, PASSWORD, salt.into(), iterations());
        let first = client_first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO").unwrap();
        assert_eq!(first.user, "user");
        let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let challenge = Challenge {
            credential: known,
            gs2: first.gs2,
            nonce: nonce.to_owned(),
            signed: format!("{},r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", first.bare),
        };
        let last = format!("c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
        let (_, own) = challenge.check(last.as_bytes()).unwrap();
        assert_eq!(&own[..], b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    }

    fn exchange(hash: Hash, user: &str, password: &'static [u8]) -> Result<(), SaslError> {
        let (client, first) = Client::begin(hash, user, Bytes::from_static(password), b"mine");
        let first = client_first(&first)?;
        assert_eq!(first.user, user);
        let (challenge, token) = first.challenge(credential(hash), b"yours");
        let (expecting, token) = client.prove(&token)?;
        let (known, token) = challenge.check(&token)?;
        assert_eq!(known, credential(hash));
        expecting.check(&token)
    }

    #[test]
    fn both_sides_agree_on_the_right_password_alone() {
        for hash in Hash::ALL {
            assert_eq!(Hash::from_code(hash.code()), Some(hash));
            for user in ["ada", "a,b=c", "=2C", "ünï"] {
                assert_eq!(exchange(hash, user, PASSWORD), Ok(()), "{user}");
            }
            assert!(matches!(exchange(hash, "ada", b"pencils"), Err(SaslError::Refused(_))));
            // The broker refuses it by itself, whatever the client makes of its answer.
            let (client, first) =
                Client::begin(hash, "ada", Bytes::from_static(b"pencils"), b"mine");
            let (challenge, token) =
                client_first(&first).unwrap().challenge(credential(hash), b"yours");
            let (_, proof) = client.prove(&token).unwrap();
            assert!(matches!(challenge.check(&proof), Err(SaslError::Refused(_))));
            assert!(credential(hash).fits(PASSWORD) && !credential(hash).fits(b"pencils"));
            let nobody = Credential::of_nobody(hash, b"secret", "eve");
            assert_eq!(nobody, Credential::of_nobody(hash, b"secret", "eve"));
            assert_ne!(nobody.salt, Credential::of_nobody(hash, b"secret", "mallory").salt);
            assert_eq!(
                (nobody.salt.len(), nobody.stored_key.len()),
                (SALT_BYTES, hash.key_bytes())
            );
            assert!(!nobody.fits(PASSWORD));
        }
        assert_eq!(Hash::from_code(0), None);
    }

    /// A broker that does not compare nonces takes a proof of another exchange (CVE-2024-56128). One that does not look
    /// at the authorization id lets a client act for another user (CVE-2017-12610).
    #[test]
    fn messages_that_are_changed_on_their_way_are_refused() {
        let hash = Hash::Sha256;
        let begin = || {
            let (client, first) = Client::begin(hash, "ada", Bytes::from_static(PASSWORD), b"mine");
            (client, client_first(&first).unwrap().challenge(credential(hash), b"yours"))
        };
        let (client, (challenge, token)) = begin();
        let (_, last) = client.prove(&token).unwrap();
        let last = String::from_utf8(last.to_vec()).unwrap();
        let another = last.replacen(&challenge.nonce, &challenge.nonce[..8], 1);
        let nonce = "the nonce of SCRAM is another one";
        assert_eq!(challenge.check(another.as_bytes()), Err(SaslError::Refused(nonce)));
        let header = last.replacen("c=biws", &format!("c={}", BASE64.encode(b"y,,")), 1);
        let header = begin().1.0.check(header.as_bytes());
        assert_eq!(header, Err(SaslError::Refused("the header of SCRAM has changed")));
        for token in ["", "c=biws", "c=biws,r=x", "c=!,r=x,p=AA==", "r=x,c=biws,p=AA=="] {
            let checked = begin().1.0.check(token.as_bytes());
            assert!(matches!(checked, Err(SaslError::Malformed(_))), "{token}: {checked:?}");
        }
        let acts = client_first(b"n,a=root,n=ada,r=x");
        assert_eq!(acts, Err(SaslError::Refused("a client may not act for another user")));
        assert!(client_first(b"n,a=ada,n=ada,r=x,ext=1").is_ok());
        for token in [
            &b"n,,n=ada"[..],
            b"n,n=ada,r=x",
            b"p=tls-unique,,n=ada,r=x",
            b"n,,m=1,n=ada,r=x",
            b"n,,n=,r=x",
            b"n,,n=a=b,r=x",
            b"n,,n=ada,r=",
            b"\xff",
            b"",
        ] {
            assert!(matches!(client_first(token), Err(SaslError::Malformed(_))), "{token:?}");
        }
        assert!(client_first(&vec![b'n'; MESSAGE_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn a_client_refuses_a_broker_that_does_not_know_it() {
        let begin = || Client::begin(Hash::Sha512, "ada", Bytes::from_static(PASSWORD), b"mine").0;
        let refused = |token: &str| begin().prove(token.as_bytes()).err();
        assert!(matches!(refused("r=yours,s=AAAA,i=4096"), Some(SaslError::Refused(_))));
        let own = BASE64.encode(b"mine");
        assert!(matches!(refused(&format!("r={own},s=AAAA,i=4096")), Some(SaslError::Refused(_))));
        for iterations in ["0", "-1", "4000000000", "x"] {
            let token = format!("r={own}yours,s=AAAA,i={iterations}");
            assert!(matches!(refused(&token), Some(SaslError::Malformed(_))), "{iterations}");
        }
        let (expecting, _) = begin().prove(format!("r={own}yours,s=AAAA,i=1").as_bytes()).unwrap();
        assert!(matches!(expecting.check(b"v=AAAA"), Err(SaslError::Refused(_))));
    }

    #[test]
    fn secrets_are_not_printed() {
        let printed = format!("{:?}", credential(Hash::Sha256));
        assert_eq!(printed, "Credential(SCRAM-SHA-256, 4096 iterations)");
    }
}
