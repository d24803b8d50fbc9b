//! Ports of HTTP: that of the native API, and that of metrics. They ask clients as listeners do, under the names NATIVE
//! and HTTP in `listener.security.protocol.map` and in settings that begin with `listener.name.`.

use duramen_broker::NATIVE;
use duramen_broker::configs::listener_prefix;

use super::listeners::{self, HTTP, ListenerSettings, PLAINTEXT, protocols};
use crate::config::{Config, HostPort};

/// Reads the port of the native API and that of metrics, and notes all mistakes. Without a word in the map the native
/// API is as open as the first listener, with its settings, and metrics are for everybody.
pub(super) fn read(
    config: &Config,
    listeners: &[ListenerSettings],
    mistakes: &mut Vec<String>,
) -> (Option<ListenerSettings>, Option<ListenerSettings>) {
    let map = config.settings.get("listener.security.protocol.map");
    // A mistake in the map is noted with the listeners.
    let protocols = protocols(map.map_or("", String::as_str)).unwrap_or_default();
    let mut door = |name: &str, address: &HostPort| {
        let mut it = ListenerSettings {
            name: name.to_owned(),
            address: address.clone(),
            advertised: None,
            tls: None,
            sasl: None,
        };
        let problems = match (protocols.get(name), listeners.first()) {
            (Some(protocol), _) => listeners::secure(config, &mut it, protocol),
            (None, Some(first)) if name == NATIVE => {
                listeners::secure(&inheriting(config, &first.name), &mut it, first.protocol())
            }
            (None, _) => listeners::secure(config, &mut it, PLAINTEXT),
        };
        mistakes.extend(problems.into_iter().map(|it| format!("the port {name}: {it}")));
        it
    };
    let native = config.native.as_ref().map(|at| door(NATIVE, at));
    (native, config.http.as_ref().map(|at| door(HTTP, at)))
}

/// Gives the native API the settings of a listener, where it has none of its own.
fn inheriting(config: &Config, listener: &str) -> Config {
    let mut all = config.clone();
    let (from, to) = (listener_prefix(listener), listener_prefix(NATIVE));
    for (name, value) in &config.settings {
        if let Some(rest) = name.strip_prefix(&from) {
            all.settings.entry(format!("{to}{rest}")).or_insert_with(|| value.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Mistakes, ServerArgs};
    use crate::server::settings::ServerSettings;

    fn split(settings: &[&str]) -> Result<ServerSettings, String> {
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let (native, http) = (Some("127.0.0.1:1".to_owned()), Some("127.0.0.1:2".to_owned()));
        let args = ServerArgs { native, http, settings, ..ServerArgs::default() };
        let split = ServerSettings::split(&Config::load(None, &args, []).unwrap());
        split.map(|(own, _)| own).map_err(|Mistakes(all)| all.join("; "))
    }

    fn protocols_of(settings: &[&str]) -> (&'static str, &'static str) {
        let own = split(settings).unwrap();
        (own.native.unwrap().protocol(), own.http.unwrap().protocol())
    }

    #[test]
    fn the_native_api_is_as_open_as_the_first_listener_unless_the_map_says_more() {
        let sasl = "sasl.enabled.mechanisms=PLAIN";
        let first = "listeners=SASL_PLAINTEXT://127.0.0.1:3,PLAINTEXT://127.0.0.1:4";
        assert_eq!(protocols_of(&[]), ("PLAINTEXT", "PLAINTEXT"));
        assert_eq!(protocols_of(&[first, sasl]), ("SASL_PLAINTEXT", "PLAINTEXT"));
        let own = "listener.name.sasl_plaintext.sasl.enabled.mechanisms=SCRAM-SHA-256";
        let settings = split(&[first, own]).unwrap();
        assert_eq!(settings.native.as_ref().unwrap().sasl, settings.listeners[0].sasl);
        assert!(settings.native.unwrap().shows_passwords(), "by HTTP they travel as they are");
        assert!(!settings.listeners[0].shows_passwords());
        let map = "listener.security.protocol.map=NATIVE:PLAINTEXT,HTTP:SASL_PLAINTEXT";
        assert_eq!(protocols_of(&[first, sasl, map]), ("PLAINTEXT", "SASL_PLAINTEXT"));
        let own = "listener.name.http.sasl.enabled.mechanisms=PLAIN";
        assert_eq!(protocols_of(&[map, own]), ("PLAINTEXT", "SASL_PLAINTEXT"));
    }

    #[test]
    fn mistakes_name_the_port() {
        let map = "listener.security.protocol.map=HTTP:SSL,NATIVE:SASL_PLAINTEXT";
        let told = split(&[map]).unwrap_err();
        for part in ["the port HTTP: ssl.keystore.location", "the port NATIVE: sasl.enabled"] {
            assert!(told.contains(part), "{told}");
        }
    }
}
