//! Listeners for Kafka's clients, from three settings: `listeners`, `listener.security.protocol.map` and
//! `advertised.listeners`. Format of an entry: Kafka's `NAME://HOST:PORT`. Names are in capital letters, as Kafka
//! makes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use duramen_broker::configs::{BROKER_CONFIGS, find, listener_prefix};
use duramen_broker::{NATIVE, NODES};
use duramen_protocol::sasl::Mechanism;
use duramen_protocol::wire::Secret;

use super::nodes::{self, of_nodes};
use crate::config::{Config, HostPort, LISTEN_DEFAULT};
use crate::server::tls::{ClientAuth, NameRules, Peers, Pem, TlsSettings};
use crate::server::tokens::{KeySource, TokenSettings, Tokens};

/// Name of the port of metrics among the listeners.
pub(super) const HTTP: &str = "HTTP";
/// The name of a listener without one, and the protocol that asks nobody who they are.
pub(crate) const PLAINTEXT: &str = "PLAINTEXT";
/// The protocol that encrypts. It asks clients for a certificate if `ssl.client.auth` says so.
const SSL: &str = "SSL";
/// The protocols that ask clients by SASL who they are.
const SASL_PLAINTEXT: &str = "SASL_PLAINTEXT";
const SASL_SSL: &str = "SASL_SSL";
/// Kafka's security protocols.
const PROTOCOLS: [&str; 4] = [PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL];

/// Setting of the time after which clients have to show again who they are.
const REAUTH: &str = "connections.max.reauth.ms";

/// Settings of a listener that asks clients by SASL who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaslSettings {
    /// `sasl.enabled.mechanisms`, at least one.
    pub mechanisms: Arc<[Mechanism]>,
    /// `sasl.server.max.receive.size`: the largest frame before the client is known, in bytes.
    pub token_bytes_max: u32,
    /// `connection.failed.authentication.delay.ms`.
    pub failure_delay: Duration,
    /// `connections.max.reauth.ms` of the mechanisms that have a limit.
    pub lifetimes: Arc<[(Mechanism, Duration)]>,
    /// Settings of tokens, if clients may show some.
    pub tokens: Option<TokenSettings>,
}

/// A listener for Kafka's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSettings {
    /// Its name.
    pub name: String,
    /// Address on which it listens.
    pub address: HostPort,
    /// Address that its clients are told to connect to, if it is not `address`.
    pub advertised: Option<HostPort>,
    /// Settings of its TLS, if it has any.
    pub tls: Option<TlsSettings>,
    /// Settings of its SASL, if it has any.
    pub sasl: Option<Arc<SaslSettings>>,
}

/// Returns the text of `listeners`: the setting, or the one listener of `--listen`.
pub(super) fn text(config: &Config) -> Result<String, String> {
    match (config.settings.get("listeners"), &config.listen) {
        (Some(_), Some(_)) => {
            Err("the key `listen` (--listen) gives the one listener, too: leave one of them out"
                .to_owned())
        }
        (Some(text), None) => Ok(text.clone()),
        (None, Some(listen)) => Ok(format!("{PLAINTEXT}://{listen}")),
        (None, None) => Ok(format!("{PLAINTEXT}://{LISTEN_DEFAULT}")),
    }
}

/// Reads all listeners of `text`, at least one, and notes all mistakes.
pub(super) fn read(
    config: &Config,
    text: &str,
    mistakes: &mut Vec<String>,
) -> Vec<ListenerSettings> {
    let mut note = |setting: &str, problem: String| mistakes.push(format!("{setting}: {problem}"));
    let own = config.settings.keys().filter(|name| name.starts_with("listener.name."));
    for name in own {
        if let Some(own) = of_nodes(name) {
            if let Err(problem) = nodes::check(own) {
                note(name, problem);
            }
            continue;
        }
        let listeners = entries(text).filter_map(|entry| entry.split_once("://"));
        let mut all = listeners.map(|(listener, _)| listener).chain([NATIVE, HTTP]);
        if !all.any(|listener| is_of(name, listener)) {
            note(name, "listeners has no listener of this name".to_owned());
        }
    }
    let mut all: Vec<ListenerSettings> = Vec::new();
    for entry in entries(text) {
        match listener(entry) {
            Ok(one) if all.iter().any(|other| other.name == one.name) => {
                note("listeners", format!("{} is listed twice", one.name));
            }
            Ok(one)
                if all.iter().any(|it| it.address.port == one.address.port)
                    && one.address.port != 0 =>
            {
                note("listeners", format!("two listeners have port {}", one.address.port));
            }
            Ok(one) => all.push(one),
            Err(problem) => note("listeners", problem),
        }
    }
    if entries(text).next().is_none() {
        note("listeners", "clients need one listener at least".to_owned());
    }
    let given = |name: &str| config.settings.get(name).map_or("", String::as_str);
    match protocols(given("listener.security.protocol.map")) {
        Ok(protocols) => {
            for it in &mut all {
                let Some(protocol) = protocols.get(&it.name).map(String::as_str) else {
                    let problem = format!("the protocol of the listener {} is missing", it.name);
                    note("listener.security.protocol.map", problem);
                    continue;
                };
                for problem in secure(config, it, protocol) {
                    note(&format!("the listener {}", it.name), problem);
                }
            }
        }
        Err(problem) => note("listener.security.protocol.map", problem),
    }
    let advertised = given("advertised.listeners");
    if let Err(problem) = advertise(config.advertise.as_ref(), advertised, &mut all) {
        note("advertised.listeners", problem);
    }
    all
}

/// Gives a listener what its protocol needs. Returns the mistakes.
pub(super) fn secure(config: &Config, it: &mut ListenerSettings, protocol: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if protocol.ends_with(SSL) {
        let read = tls(config, &it.name, protocol);
        it.tls = read.map_err(|problem| problems.push(problem)).ok();
    }
    if protocol.starts_with("SASL") {
        let read = sasl(config, &it.name);
        it.sasl = read.map_err(|problem| problems.push(problem)).ok().map(Arc::new);
    }
    problems
}

/// Tells whether a setting's name is one listener's, or one mechanism's of it.
fn is_of(name: &str, listener: &str) -> bool {
    let Some(own) = name.strip_prefix(&listener_prefix(listener)) else { return false };
    let of_mechanism = || {
        let (mechanism, own) = own.split_once('.')?;
        let is_known = Mechanism::from_name(&mechanism.to_ascii_uppercase()).is_some();
        Some(is_known && may_be_of_mechanism(own))
    };
    find(BROKER_CONFIGS, own).is_some() || of_mechanism().unwrap_or(false)
}

/// Tells whether a setting may be one mechanism's.
fn may_be_of_mechanism(name: &str) -> bool {
    name.starts_with("sasl.oauthbearer.") || name == REAUTH
}

/// Returns a setting of one mechanism: its own beats the listener's.
fn value_of_mechanism(config: &Config, listener: &str, mechanism: &str, name: &str) -> String {
    let own = format!("{}{}.{name}", listener_prefix(listener), mechanism.to_ascii_lowercase());
    match config.settings.get(&own) {
        Some(own) => own.trim().to_owned(),
        None => value_of(config, listener, name),
    }
}

/// Returns a listener's setting. A name that begins with `listener.name.` and the listener's beats the plain one.
fn value_of(config: &Config, listener: &str, name: &str) -> String {
    let own = listener_prefix(listener) + name;
    let given = config.settings.get(&own).or_else(|| config.settings.get(name));
    let default = find(BROKER_CONFIGS, name).map_or("", |row| row.default);
    given.map_or(default, String::as_str).trim().to_owned()
}

/// Returns how a listener asks clients who they are.
fn sasl(config: &Config, listener: &str) -> Result<SaslSettings, String> {
    let names = value_of(config, listener, "sasl.enabled.mechanisms");
    let known = || Mechanism::ALL.map(Mechanism::name).join(", ");
    let mechanism = |name: &str| {
        Mechanism::from_name(name).ok_or_else(|| match name {
            "GSSAPI" => format!(
                "sasl.enabled.mechanisms: Kerberos is not supported; choose from {}",
                known()
            ),
            other => format!("sasl.enabled.mechanisms: {other} is none of {}", known()),
        })
    };
    let mechanisms = entries(&names).map(mechanism).collect::<Result<Arc<[_]>, _>>()?;
    if mechanisms.is_empty() {
        return Err(format!(
            "sasl.enabled.mechanisms names no way for clients to say who they are; choose from {}",
            known()
        ));
    }
    let number = |name: &str| value_of(config, listener, name).parse().unwrap_or(0);
    let has_tokens = mechanisms.contains(&Mechanism::OAuthBearer);
    let lifetimes = mechanisms.iter().filter_map(|it| {
        let text = value_of_mechanism(config, listener, it.name(), REAUTH);
        let ms = text.parse().ok().filter(|ms| *ms > 0)?;
        Some((*it, Duration::from_millis(ms)))
    });
    Ok(SaslSettings {
        lifetimes: lifetimes.collect(),
        tokens: has_tokens.then(|| tokens(config, listener)).transpose()?,
        mechanisms,
        token_bytes_max: u32::try_from(number("sasl.server.max.receive.size")).unwrap_or(u32::MAX),
        failure_delay: Duration::from_millis(number("connection.failed.authentication.delay.ms")),
    })
}

/// Returns a listener's settings of tokens.
fn tokens(config: &Config, listener: &str) -> Result<TokenSettings, String> {
    let value = |name: &str| {
        let name = format!("sasl.oauthbearer.{name}");
        value_of_mechanism(config, listener, Mechanism::OAuthBearer.name(), &name)
    };
    let url = value("jwks.endpoint.url");
    if url.is_empty() {
        return Err(
            "sasl.oauthbearer.jwks.endpoint.url names no place of keys, so no token could \
                    count"
                .to_owned(),
        );
    }
    let keys = KeySource::read(&url)
        .map_err(|problem| format!("sasl.oauthbearer.jwks.endpoint.url: {problem}"))?;
    let audience: Vec<String> = entries(&value("expected.audience")).map(str::to_owned).collect();
    let issuer = Some(value("expected.issuer")).filter(|it| !it.is_empty());
    for (name, is_empty) in [("audience", audience.is_empty()), ("issuer", issuer.is_none())] {
        if is_empty && value(&format!("allow.unverified.{name}")) != "true" {
            return Err(format!(
                "sasl.oauthbearer.expected.{name} is empty, so tokens for others would count: set it, or \
                 sasl.oauthbearer.allow.unverified.{name}=true if that is meant"
            ));
        }
    }
    let ms = |name: &str| Duration::from_millis(value(name).parse().unwrap_or(0));
    let settings = TokenSettings {
        keys,
        refresh: ms("jwks.endpoint.refresh.ms"),
        backoff: (ms("jwks.endpoint.retry.backoff.ms"), ms("jwks.endpoint.retry.backoff.max.ms")),
        audience,
        issuer,
        user_claim: value("sub.claim.name"),
        skew: Duration::from_secs(value("clock.skew.seconds").parse().unwrap_or(0)),
    };
    Tokens::open(settings.clone())
        .map_err(|problem| format!("sasl.oauthbearer.jwks.endpoint.url: {problem}"))?;
    Ok(settings)
}

/// Returns the settings of TLS between nodes, if the files are right: both ends show a certificate.
pub(super) fn tls_of_nodes(config: &Config) -> Result<TlsSettings, String> {
    let settings = tls_settings(config, NODES, SSL)?;
    if settings.truststore.is_none() {
        let own = listener_prefix(NODES) + "ssl.truststore.location";
        return Err(format!(
            "{own} names no file in PEM; duramen tls init makes some to begin with, and \
             node.security=plain does without"
        ));
    }
    let settings = TlsSettings { clients: ClientAuth::Required, peers: Peers::Nodes, ..settings };
    settings.load()?;
    Ok(settings)
}

/// Returns a listener's settings of TLS, if its files are right.
fn tls(config: &Config, listener: &str, protocol: &str) -> Result<TlsSettings, String> {
    let settings = tls_settings(config, listener, protocol)?;
    settings.load()?;
    Ok(settings)
}

/// Returns the place of a listener's certificate and key.
fn keystore(value: impl Fn(&str) -> String, listener: &str) -> Result<Pem, String> {
    let path = value("ssl.keystore.location");
    let [chain, key] = ["ssl.keystore.certificate.chain", "ssl.keystore.key"].map(value);
    match (path.is_empty(), chain.is_empty(), key.is_empty()) {
        (false, true, true) => Ok(Pem::File(path.into())),
        (true, false, false) => {
            let text = Secret((chain + "\n" + &key).into());
            Ok(Pem::Text("ssl.keystore.certificate.chain", text))
        }
        (true, true, true) => {
            let (own, rest) = match listener {
                NODES => (listener_prefix(NODES), ", and node.security=plain does without"),
                _ => (String::new(), ""),
            };
            Err(format!(
                "{own}ssl.keystore.location names no file with a certificate and its key in PEM; \
                 duramen tls init makes some to begin with{rest}"
            ))
        }
        _ => Err("give either ssl.keystore.location, or ssl.keystore.certificate.chain and \
                  ssl.keystore.key, both of them"
            .to_owned()),
    }
}

/// Returns the place of the authorities that a listener trusts.
fn truststore(value: impl Fn(&str) -> String) -> Result<Pem, String> {
    let [path, text] = ["ssl.truststore.location", "ssl.truststore.certificates"].map(value);
    match (path.is_empty(), text.is_empty()) {
        (_, true) => Ok(Pem::File(path.into())),
        (true, false) => Ok(Pem::Text("ssl.truststore.certificates", Secret(text.into()))),
        _ => Err("give either ssl.truststore.location or ssl.truststore.certificates".to_owned()),
    }
}

/// Returns a listener's settings of TLS. With SASL a certificate is asked for only if the
/// listener's own setting says so (KIP-684).
fn tls_settings(config: &Config, listener: &str, protocol: &str) -> Result<TlsSettings, String> {
    let value = |name: &str| match name {
        "ssl.client.auth" if protocol == SASL_SSL => {
            let own = config.settings.get(&(listener_prefix(listener) + name));
            own.cloned().unwrap_or_default()
        }
        name => value_of(config, listener, name),
    };
    let list = |name: &str| entries(&value(name)).map(str::to_owned).collect::<Vec<_>>();
    let secret = |text: String| Secret(text.into());
    let settings = TlsSettings {
        listener: listener.to_owned(),
        keystore: keystore(value, listener)?,
        key_password: secret(value("ssl.key.password")),
        protocols: list("ssl.enabled.protocols"),
        ciphers: list("ssl.cipher.suites"),
        clients: match value("ssl.client.auth").as_str() {
            "required" => ClientAuth::Required,
            "requested" => ClientAuth::Requested,
            _ => ClientAuth::None,
        },
        truststore: truststore(value)?,
        revoked: value("ssl.crl.location").into(),
        names: NameRules::read(&value("ssl.principal.mapping.rules"))
            .map_err(|problem| format!("ssl.principal.mapping.rules: {problem}"))?,
        may_rename: value("ssl.allow.dn.changes") == "true",
        may_lack_names: value("ssl.allow.san.changes") == "true",
        peers: if [NATIVE, HTTP].contains(&listener) { Peers::OfHttp } else { Peers::Clients },
    };
    Ok(settings)
}

impl ListenerSettings {
    /// Tells whether the listener asks each client who it is.
    pub fn asks_clients(&self) -> bool {
        let has_certificates =
            self.tls.as_ref().is_some_and(|tls| tls.clients == ClientAuth::Required);
        has_certificates || self.sasl.is_some()
    }

    /// Tells whether the listener knows the names of some clients.
    pub fn knows_clients(&self) -> bool {
        let may_show = self.tls.as_ref().is_some_and(|tls| tls.clients != ClientAuth::None);
        may_show || self.sasl.is_some()
    }

    /// Tells whether clients send their passwords or tokens as they are, and everybody on the way can read them. By
    /// HTTP they send passwords whatever the mechanism.
    pub fn shows_passwords(&self) -> bool {
        let is_shown = |it: &Mechanism| match it {
            Mechanism::Plain => true,
            Mechanism::Scram(_) | Mechanism::OAuthBearer => {
                [NATIVE, HTTP].contains(&self.name.as_str())
            }
        };
        let shows = |sasl: &Arc<SaslSettings>| sasl.mechanisms.iter().any(is_shown);
        self.tls.is_none() && self.sasl.as_ref().is_some_and(shows)
    }

    /// Returns the protocol by Kafka's name.
    pub(super) fn protocol(&self) -> &'static str {
        match (self.sasl.is_some(), self.tls.is_some()) {
            (false, false) => PLAINTEXT,
            (false, true) => SSL,
            (true, false) => SASL_PLAINTEXT,
            (true, true) => SASL_SSL,
        }
    }
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

/// Reads a name, and makes its letters capitals.
fn name_of(text: &str) -> Result<String, String> {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '-' | '.');
    let name = text.to_ascii_uppercase();
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(format!(
            "\"{text}\" is no listener's name: letters, digits, _, - and . make one"
        ));
    }
    if [NODES, NATIVE, HTTP].contains(&name.as_str()) {
        return Err(format!("Duramen itself uses the name {name}: choose another"));
    }
    Ok(name)
}

/// Reads `NAME://HOST:PORT`. Without a host it is every address of the machine, as in Kafka.
fn listener(entry: &str) -> Result<ListenerSettings, String> {
    let (name, address) =
        entry.split_once("://").ok_or_else(|| format!("\"{entry}\" is not NAME://HOST:PORT"))?;
    let address = match address.strip_prefix(':') {
        Some(port) => HostPort::parse(&format!("0.0.0.0:{port}"))?,
        None => HostPort::parse(address)?,
    };
    Ok(ListenerSettings { name: name_of(name)?, address, advertised: None, tls: None, sasl: None })
}

/// Reads `NAME:PROTOCOL` entries. Each protocol is a name of its own, too.
pub(super) fn protocols(text: &str) -> Result<BTreeMap<String, String>, String> {
    let own = PROTOCOLS.iter().map(|it| ((*it).to_owned(), (*it).to_owned()));
    let mut protocols: BTreeMap<String, String> = own.collect();
    for entry in entries(text) {
        let (name, protocol) =
            entry.split_once(':').ok_or_else(|| format!("\"{entry}\" is not NAME:PROTOCOL"))?;
        let protocol = protocol.to_ascii_uppercase();
        if !PROTOCOLS.contains(&protocol.as_str()) {
            return Err(format!("{protocol} is none of {}", PROTOCOLS.join(", ")));
        }
        // Kafka's own name for a listener of controllers is in many a map, and NODES may be.
        protocols.insert(name.trim().to_ascii_uppercase(), protocol);
    }
    Ok(protocols)
}

/// Gives listeners the addresses that clients are told. `flag` beats `text`, and both may leave out the name where
/// there is one listener.
fn advertise(
    flag: Option<&HostPort>,
    text: &str,
    all: &mut [ListenerSettings],
) -> Result<(), String> {
    if let Some(address) = flag {
        let [one] = all else {
            return Err(
                "--advertise is for one listener: give this setting in its place".to_owned()
            );
        };
        one.advertised = Some(address.clone());
        return Ok(());
    }
    for entry in entries(text) {
        let (name, address) = match entry.split_once("://") {
            Some((name, address)) => (name.to_ascii_uppercase(), address),
            None if all.len() == 1 => (all[0].name.clone(), entry),
            None => return Err(format!("\"{entry}\" is not NAME://HOST:PORT")),
        };
        let address = HostPort::parse(address)?;
        if address.port == 0 {
            return Err("port 0 cannot be connected to".to_owned());
        }
        if address.is_unspecified() {
            return Err(format!("clients cannot connect to {}", address.host));
        }
        let known = all.iter_mut().find(|it| it.name == name);
        let known = known.ok_or_else(|| format!("listeners has no {name}"))?;
        if known.advertised.replace(address).is_some() {
            return Err(format!("{name} is listed twice"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServerArgs;

    fn read_all(settings: &[&str], args: ServerArgs) -> (Vec<ListenerSettings>, Vec<String>) {
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let config = Config::load(None, &ServerArgs { settings, ..args }, []).unwrap();
        let mut mistakes = Vec::new();
        let read = text(&config).map(|text| read(&config, &text, &mut mistakes));
        match read {
            Ok(all) => (all, mistakes),
            Err(problem) => (Vec::new(), vec![problem]),
        }
    }

    fn told(all: &[ListenerSettings]) -> Vec<String> {
        let advertised = |it: &ListenerSettings| {
            it.advertised.as_ref().map(|at| format!(" as {at}")).unwrap_or_default()
        };
        all.iter().map(|it| format!("{} {}{}", it.name, it.address, advertised(it))).collect()
    }

    #[test]
    fn listeners_have_names_addresses_and_advertised_ones() {
        for (settings, expected) in [
            (&[][..], &["PLAINTEXT 127.0.0.1:9092"][..]),
            (&["listeners=plaintext://:9092"], &["PLAINTEXT 0.0.0.0:9092"]),
            (
                &[
                    "listeners=inside://[::1]:0, OUTSIDE://0.0.0.0:0",
                    "listener.security.protocol.map=inside:plaintext,OUTSIDE:PLAINTEXT,CONTROLLER:SSL",
                    "advertised.listeners=Outside://example.com:7",
                ],
                &["INSIDE [::1]:0", "OUTSIDE 0.0.0.0:0 as example.com:7"],
            ),
            (&["advertised.listeners=a:1"], &["PLAINTEXT 127.0.0.1:9092 as a:1"]),
            (
                &["advertised.listeners=PLAINTEXT://[::2]:1"],
                &["PLAINTEXT 127.0.0.1:9092 as [::2]:1"],
            ),
        ] {
            let (all, mistakes) = read_all(settings, ServerArgs::default());
            assert_eq!(
                (told(&all), mistakes),
                (expected.iter().map(|it| (*it).to_owned()).collect(), Vec::new())
            );
        }
        let args = ServerArgs { listen: Some("[::1]:1".into()), ..ServerArgs::default() };
        let args = ServerArgs { advertise: Some("b:2".into()), ..args };
        let (all, _) = read_all(&["advertised.listeners=a:1"], args);
        assert_eq!(told(&all), ["PLAINTEXT [::1]:1 as b:2"], "flags beat settings");
    }

    #[test]
    fn mistakes_in_listeners_are_named() {
        let map = "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT";
        for (settings, problem) in [
            (&["listeners="][..], "one listener at least"),
            (&["listeners=127.0.0.1:9092"], "is not NAME://HOST:PORT"),
            (&["listeners=PLAINTEXT://127.0.0.1"], "is not HOST:PORT"),
            (&["listeners=PLAIN TEXT://a:1"], "is no listener's name"),
            (&["listeners=NATIVE://a:1"], "Duramen itself uses"),
            (&["listeners=A://a:1,A://a:2", map], "A is listed twice"),
            (&["listeners=A://a:1,B://b:1", map], "two listeners have port 1"),
            (&["listeners=C://a:1", map], "the protocol of the listener C is missing"),
            (&["listeners=SASL_PLAINTEXT://a:1"], "names no way for clients"),
            (
                &["listeners=SASL_PLAINTEXT://a:1", "sasl.enabled.mechanisms=GSSAPI"],
                "Kerberos is not supported",
            ),
            (
                &["listeners=SASL_PLAINTEXT://a:1", "sasl.enabled.mechanisms=SCRAM-SHA-1"],
                "SCRAM-SHA-1 is none of",
            ),
            (&["listeners=SASL_SSL://a:1", "sasl.enabled.mechanisms=PLAIN"], "names no file"),
            (&["listeners=SSL://a:1"], "names no file"),
            (&["listeners=SSL://a:1", "ssl.keystore.key=x"], "both of them"),
            (
                &["listeners=SSL://a:1", "ssl.keystore.key=x", "ssl.keystore.certificate.chain=y"],
                "ssl.keystore.certificate.chain: there is no certificate",
            ),
            (
                &["listeners=SSL://a:1", "ssl.keystore.location=/none.pem"],
                "/none.pem: No such file",
            ),
            (&["listener.name.b.ssl.keystore.location=/a"], "no listener of this name"),
            (&["listener.security.protocol.map=A:TLS"], "TLS is none of"),
            (&["listener.security.protocol.map=A"], "is not NAME:PROTOCOL"),
            (&["advertised.listeners=SSL://a:1"], "listeners has no SSL"),
            (&["advertised.listeners=PLAINTEXT://a:1,PLAINTEXT://a:2"], "listed twice"),
            (&["advertised.listeners=PLAINTEXT://a:0"], "port 0"),
            (&["advertised.listeners=PLAINTEXT://0.0.0.0:1"], "clients cannot connect"),
            (&["listeners=A://a:1,B://b:2", map, "advertised.listeners=a:1"], "is not NAME://"),
        ] {
            let (_, mistakes) = read_all(settings, ServerArgs::default());
            assert!(
                mistakes.len() == 1 && mistakes[0].contains(problem),
                "{settings:?}: {mistakes:?}"
            );
        }
        let args = ServerArgs { listen: Some("a:1".into()), ..ServerArgs::default() };
        let (_, mistakes) = read_all(&["listeners=PLAINTEXT://a:2"], args);
        assert!(mistakes[0].contains("leave one of them out"), "{mistakes:?}");
        let args = ServerArgs { advertise: Some("a:1".into()), ..ServerArgs::default() };
        let (_, mistakes) = read_all(&["listeners=A://a:1,B://b:2", map], args);
        assert!(mistakes[0].contains("is for one listener"), "{mistakes:?}");
    }
}
