//! Traffic between nodes: `node.security`, `node.principals`, and TLS under `listener.name.nodes.`.

use duramen_broker::NODES;
use duramen_broker::configs::{BROKER_CONFIGS, find, listener_prefix};

use super::listeners::{self, ListenerSettings};
use crate::config::Config;
use crate::server::tls::{ClientAuth, TlsSettings};

/// `node.security`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeMode {
    /// Nodes speak without TLS.
    #[default]
    Plain,
    /// Nodes speak with TLS, and without it to a node that cannot.
    Accept,
    /// Nodes speak with TLS.
    Tls,
}

impl NodeMode {
    /// Returns the setting's word.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Accept => "accept",
            Self::Tls => "tls",
        }
    }
}

/// The way in which nodes know each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSecurity {
    /// `node.security`.
    pub mode: NodeMode,
    /// Files of TLS. `None` only where nodes speak plain.
    pub tls: Option<TlsSettings>,
    /// `node.principals`.
    pub principals: Vec<String>,
}

/// Reads the settings, and notes all mistakes. `is_clustered` says whether this node has others.
pub(super) fn read(
    config: &Config,
    listeners: &[ListenerSettings],
    is_clustered: bool,
    mistakes: &mut Vec<String>,
) -> NodeSecurity {
    let given = |name: &str| config.settings.get(name).map_or("", String::as_str).trim();
    let principals = given("node.principals").split(';').map(str::trim);
    let principals: Vec<String> =
        principals.filter(|it| !it.is_empty()).map(str::to_owned).collect();
    if let Some(wrong) = principals.iter().find(|it| !it.starts_with("User:")) {
        mistakes.push(format!("node.principals: \"{wrong}\" is not User:NAME"));
    }
    let asks = listeners.iter().find(|it| it.knows_clients());
    let (mode, why) = match (given("node.security"), asks) {
        ("plain", _) | ("", None) => (NodeMode::Plain, String::new()),
        ("", _) if !is_clustered => (NodeMode::Plain, String::new()),
        ("", Some(listener)) => {
            let why = format!(
                "node.security is tls, because the listener {} asks clients who they are; ",
                listener.name
            );
            (NodeMode::Tls, why)
        }
        ("accept", _) => (NodeMode::Accept, String::new()),
        // The broker's table refuses other words.
        _ => (NodeMode::Tls, String::new()),
    };
    if mode == NodeMode::Plain {
        return NodeSecurity { mode, tls: None, principals };
    }
    let tls = match tls(config, listeners, &principals) {
        Ok(tls) => Some(tls),
        Err(problem) => {
            mistakes.push(format!("traffic between nodes: {why}{problem}"));
            None
        }
    };
    NodeSecurity { mode, tls, principals }
}

/// Reads the settings of TLS, and refuses an authority that also vouches for clients: each of them could pass for a
/// node.
fn tls(
    config: &Config,
    listeners: &[ListenerSettings],
    principals: &[String],
) -> Result<TlsSettings, String> {
    let tls = listeners::tls_of_nodes(config)?;
    let for_clients = listeners.iter().filter_map(|it| Some((&it.name, it.tls.as_ref()?)));
    let shared = for_clients
        .filter(|(_, of_clients)| of_clients.clients != ClientAuth::None)
        .find(|(_, of_clients)| tls.shares_authority(of_clients));
    match shared {
        Some((name, _)) if principals.is_empty() => Err(format!(
            "an authority in {} also vouches for the clients of the listener {name}, and each of them could pass for a \
             node: give nodes an authority of their own, or list them in node.principals",
            tls.truststore
        )),
        _ => Ok(tls),
    }
}

/// Returns the rest of a setting's name that is for the traffic between nodes.
pub(super) fn of_nodes(name: &str) -> Option<&str> {
    name.strip_prefix(&listener_prefix(NODES))
}

/// Refuses a setting that would do nothing between nodes. Both ends always show a certificate.
pub(super) fn check(own: &str) -> Result<(), String> {
    let has_effect = own.starts_with("ssl.") && own != "ssl.client.auth";
    if has_effect && find(BROKER_CONFIGS, own).is_some() {
        return Ok(());
    }
    Err("it would do nothing: between nodes there are only settings of TLS, and both ends always show a certificate"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::config::{Mistakes, ServerArgs};
    use crate::server::settings::ServerSettings;

    fn split(settings: &[&str]) -> Result<NodeSecurity, String> {
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let args = ServerArgs { settings, ..ServerArgs::default() };
        let settings = ServerSettings::split(&Config::load(None, &args, []).unwrap());
        settings.map(|(own, _)| own.node_security).map_err(|Mistakes(all)| all.join("; "))
    }

    #[test]
    fn nodes_use_tls_once_clients_are_asked_who_they_are() {
        let key = KeyPair::generate().unwrap();
        let made = CertificateParams::new(["a".to_owned()]).unwrap().self_signed(&key).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), made.pem() + &key.serialize_pem()).unwrap();
        let file = file.path().display();
        let clustered = ["node.id=1", "controller.quorum.voters=1@a:7,2@b:8"];
        let sasl = ["listeners=SASL_PLAINTEXT://a:1", "sasl.enabled.mechanisms=SCRAM-SHA-512"];
        let own = "listener.name.nodes.ssl";
        let keystore = format!("{own}.keystore.location={file}");
        let truststore = format!("{own}.truststore.location={file}");
        let files = [keystore.as_str(), truststore.as_str()];
        let mode = |parts: &[&[&str]]| split(&parts.concat()).map(|it| it.mode);
        assert_eq!(mode(&[&clustered]), Ok(NodeMode::Plain));
        assert_eq!(mode(&[&sasl]), Ok(NodeMode::Plain), "it has no others");
        assert_eq!(mode(&[&clustered, &sasl, &files]), Ok(NodeMode::Tls));
        assert_eq!(mode(&[&clustered, &sasl, &["node.security=plain"]]), Ok(NodeMode::Plain));
        assert_eq!(mode(&[&clustered, &files, &["node.security=accept"]]), Ok(NodeMode::Accept));
        let shared = format!("ssl.truststore.location={file}");
        let ssl = format!("ssl.keystore.location={file}");
        let mtls =
            ["listeners=SSL://a:1", "ssl.client.auth=required", shared.as_str(), ssl.as_str()];
        for (parts, problem) in [
            (
                &[&clustered[..], &sasl[..]][..],
                "SASL_PLAINTEXT asks clients who they are; listener.name.nodes.ssl.key",
            ),
            (&[&clustered, &["node.security=tls"]], "ssl.keystore.location names no file"),
            (&[&clustered, &["node.security=tls", files[0]]], "ssl.truststore.location names no"),
            (&[&clustered, &["node.security=open"]], "node.security"),
            (&[&clustered, &["listener.name.nodes.ssl.client.auth=none"]], "would do nothing"),
            (&[&clustered, &["listener.name.nodes.sasl.enabled.mechanisms=PLAIN"]], "do nothing"),
            (&[&clustered, &["listener.name.nodes.x.ssl.crl.location=/a"]], "would do nothing"),
            (&[&clustered, &["node.principals=admin"]], "\"admin\" is not User:NAME"),
            (&[&clustered, &mtls, &files], "vouches for the clients of the listener SSL"),
        ] {
            let error = mode(parts).unwrap_err();
            assert!(error.contains(problem), "{problem}: {error}");
        }
        let listed =
            split(&[&clustered[..], &mtls, &files, &["node.principals=User:CN=a"]].concat());
        assert_eq!(listed.unwrap().principals, ["User:CN=a"]);
    }
}
