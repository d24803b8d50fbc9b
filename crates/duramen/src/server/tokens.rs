//! # Room card: tokens
//!
//! Purpose:    tell whether a token of OAUTHBEARER counts, and whose it is.
//! Owns:       the checks of a token (a JWT, RFC 7519), the keys that sign tokens (RFC 7517), their renewal;
//!             signatures are in `tokens/signatures.rs`.
//! Interface:  [`Tokens::open`], [`Tokens::check`], [`Tokens::keep`].
//! Invariants: only a setting names the place of the keys, and nothing that a client sends (CVE-2025-27817). Only
//!             signatures of public keys count. No client waits for the keys' server, and no client can have it asked
//!             more than once in a while.
//! Never:      SASL (`duramen_broker::login`), rules of access.
//! Tests:      below; `tests/server/security.rs`.
//! Start at:   [`Tokens::check`].

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use duramen_broker::login::Bearer;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use rustls::crypto;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::Notify;
use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::metrics::Metrics;

mod signatures;

/// Longest wait for the keys' server.
const FETCH_MAX: Duration = Duration::from_secs(5);
/// Largest document with keys, in bytes.
const KEYS_BYTES_MAX: u64 = 1 << 20;

/// Settings of tokens of one listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSettings {
    /// `sasl.oauthbearer.jwks.endpoint.url`: the place of the keys.
    pub keys: KeySource,
    /// `sasl.oauthbearer.jwks.endpoint.refresh.ms`: time between two readings of the keys.
    pub refresh: Duration,
    /// `sasl.oauthbearer.jwks.endpoint.retry.backoff.ms` and `.max.ms`: times between two readings that fail.
    pub backoff: (Duration, Duration),
    /// `sasl.oauthbearer.expected.audience`: a token is for one of them. Empty for tokens for anybody.
    pub audience: Vec<String>,
    /// `sasl.oauthbearer.expected.issuer`. `None` for anybody's tokens.
    pub issuer: Option<String>,
    /// `sasl.oauthbearer.sub.claim.name`: the claim that names the user.
    pub user_claim: String,
    /// `sasl.oauthbearer.clock.skew.seconds`.
    pub skew: Duration,
}

/// Place of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// A server, by HTTPS. By HTTP only on this machine.
    Server(String),
}

impl KeySource {
    /// Reads `file:///PATH` or `https://…`, or says why that is no place of keys.
    pub fn read(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("file://") {
            let is_absolute = path.starts_with('/');
            return if is_absolute {
                Ok(Self::File(path.into()))
            } else {
                Err(format!("{text} is not file:///PATH"))
            };
        }
        let uri: Uri = text.parse().map_err(|error| format!("{text}: {error}"))?;
        let host = uri.host().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let is_here =
            host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|it| it.is_loopback());
        match uri.scheme_str() {
            Some("https") if !host.is_empty() => Ok(Self::Server(text.to_owned())),
            Some("http") if is_here => Ok(Self::Server(text.to_owned())),
            Some("http") => Err(format!(
                "{text}: everybody on the way could put in keys of their own; give a URL with https"
            )),
            _ => Err(format!("{text} is neither https://HOST/PATH nor file:///PATH")),
        }
    }

    fn fetch(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::File(path) => {
                std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
            }
            Self::Server(url) => get(url).map_err(|error| format!("{url}: {error}")),
        }
    }
}

fn get(url: &str) -> Result<Vec<u8>, ureq::Error> {
    let found = rustls_native_certs::load_native_certs();
    let roots: Vec<Certificate<'_>> =
        found.certs.iter().map(|it| Certificate::from_der(it).to_owned()).collect();
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&roots))
        .unversioned_rustls_crypto_provider(Arc::new(crypto::ring::default_provider()))
        .build();
    let agent = Agent::config_builder().timeout_global(Some(FETCH_MAX)).max_redirects(0);
    let agent: Agent = agent.tls_config(tls).build().into();
    let mut answer = agent.get(url).call()?;
    answer.body_mut().with_config().limit(KEYS_BYTES_MAX).read_to_vec()
}

/// Key that signs tokens.
struct Key {
    id: Option<String>,
    material: DecodingKey,
    algorithms: Vec<Algorithm>,
}

/// Document with keys (RFC 7517, 5). Keys of unknown kinds may be among them.
#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

fn keys_of(document: &[u8]) -> Result<Vec<Key>, String> {
    let set: KeySet = serde_json::from_slice(document)
        .map_err(|error| format!("it is no set of keys (RFC 7517): {error}"))?;
    let keys = set.keys.into_iter().filter_map(|it| key_of(serde_json::from_value(it).ok()?));
    let keys: Vec<Key> = keys.collect();
    if keys.is_empty() { Err("no key there signs tokens".to_owned()) } else { Ok(keys) }
}

/// Returns a key with the algorithms that it may be used with. A secret key has none: each reader of it could make
/// tokens.
fn key_of(jwk: Jwk) -> Option<Key> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let mut algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => vec![RS256, RS384, RS512, PS256, PS384, PS512],
        AlgorithmParameters::EllipticCurve(it) if it.curve == EllipticCurve::P256 => vec![ES256],
        AlgorithmParameters::EllipticCurve(it) if it.curve == EllipticCurve::P384 => vec![ES384],
        AlgorithmParameters::OctetKeyPair(it) if it.curve == EllipticCurve::Ed25519 => vec![EdDSA],
        _ => return None,
    };
    if let Some(only) = jwk.common.key_algorithm {
        let name = |it: &Algorithm| format!("{it:?}").parse::<KeyAlgorithm>().ok();
        algorithms.retain(|it| name(it) == Some(only));
    }
    let is_to_sign =
        jwk.common.public_key_use.as_ref().is_none_or(|it| *it == PublicKeyUse::Signature);
    if !is_to_sign || algorithms.is_empty() {
        return None;
    }
    let material = DecodingKey::from_jwk(&jwk).ok()?;
    Some(Key { id: jwk.common.key_id, material, algorithms })
}

/// See the room card.
pub struct Tokens {
    settings: TokenSettings,
    keys: RwLock<Arc<[Key]>>,
    /// Signal that a token names a key that is not known.
    wanted: Notify,
    /// Time at which the keys were last read.
    asked: Mutex<Instant>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Reads the keys if they are in a file. A server is asked by [`Tokens::keep`], so that a start waits for nobody.
    pub fn open(settings: TokenSettings) -> Result<Self, String> {
        match &settings.keys {
            KeySource::File(_) => {
                let document = settings.keys.fetch()?;
                Self::with_keys(settings, &document)
            }
            KeySource::Server(_) => Ok(Self::new(settings, Vec::new())),
        }
    }

    /// Takes the keys of a document.
    pub fn with_keys(settings: TokenSettings, document: &[u8]) -> Result<Self, String> {
        Ok(Self::new(settings, keys_of(document)?))
    }

    fn new(settings: TokenSettings, keys: Vec<Key>) -> Self {
        signatures::install();
        let (keys, asked) = (RwLock::new(keys.into()), Mutex::new(Instant::now()));
        Self { settings, keys, wanted: Notify::new(), asked }
    }

    /// Returns the owner of a token, or the reason for which it does not count.
    pub fn check(&self, token: &str) -> Result<Bearer, String> {
        let header = decode_header(token).map_err(|error| format!("it is no token: {error}"))?;
        let keys = Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner));
        let fitting = keys.iter().filter(|it| it.algorithms.contains(&header.alg));
        let fitting: Vec<&Key> = match &header.kid {
            Some(id) => fitting.filter(|it| it.id.as_ref() == Some(id)).collect(),
            None => fitting.collect(),
        };
        let [key] = fitting[..] else {
            self.want();
            return Err(match header.kid {
                Some(id) => format!("no key {id:?} for {:?} is known here", header.alg),
                None => format!("it names no key, and {} would do", fitting.len()),
            });
        };
        let skew_s = self.settings.skew.as_secs();
        let found =
            decode::<Map<String, Value>>(token, &key.material, &self.validation(header.alg));
        let claims = found.map_err(|error| format!("it does not count: {error}"))?.claims;
        let user = claims.get(&self.settings.user_claim).and_then(Value::as_str);
        let user = user.filter(|it| !it.is_empty());
        let user = user.ok_or_else(|| format!("it has no name in {}", self.settings.user_claim))?;
        let ends = claims.get("exp").and_then(Value::as_f64).unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ends = Duration::try_from_secs_f64(ends).unwrap_or(Duration::MAX);
        let lifetime = ends.saturating_add(Duration::from_secs(skew_s)).saturating_sub(now);
        if lifetime.is_zero() {
            return Err("its time is over".to_owned());
        }
        Ok(Bearer { user: user.to_owned(), lifetime: lifetime.min(LIFETIME_MAX) })
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let TokenSettings { audience, issuer, skew, .. } = &self.settings;
        let mut validation = Validation::new(algorithm);
        let mut required = vec!["exp"];
        (validation.leeway, validation.validate_nbf) = (skew.as_secs(), true);
        validation.validate_aud = !audience.is_empty();
        if !audience.is_empty() {
            validation.set_audience(audience);
            required.push("aud");
        }
        if let Some(issuer) = issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        validation.set_required_spec_claims(&required);
        validation
    }

    /// Has the keys read again, unless that was a moment ago.
    fn want(&self) {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.elapsed() >= self.settings.backoff.1 {
            self.wanted.notify_one();
        }
    }

    /// Reads the keys again and again, for as long as the process runs. They stay while that fails.
    pub async fn keep(self: Arc<Self>, metrics: Arc<Metrics>) {
        let TokenSettings { refresh, backoff: (backoff_min, backoff_max), .. } = self.settings;
        let (mut pause, mut backoff) = (Duration::ZERO, backoff_min);
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wanted.notified() => {}
            }
            let tokens = Arc::clone(&self);
            // The server may be slow.
            let read = tokio::task::spawn_blocking(move || tokens.refresh()).await;
            match read.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(keys) => {
                    tracing::debug!(keys, "read the keys of tokens");
                    (pause, backoff) = (refresh, backoff_min);
                }
                Err(error) => {
                    metrics.network.token_keys_failed.inc();
                    tracing::warn!(error, "cannot read the keys of tokens; those read last stay");
                    (pause, backoff) = (backoff, (backoff * 2).min(backoff_max));
                }
            }
        }
    }

    fn refresh(&self) -> Result<usize, String> {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let keys = keys_of(&self.settings.keys.fetch()?)?;
        let count = keys.len();
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys.into();
        Ok(count)
    }
}

/// Longest time that a token can count here: timers take no more.
const LIFETIME_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests;
