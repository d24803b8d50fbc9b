//! Any text as `ssl.principal.mapping.rules`, and as a name that they meet.

use duramen::server::tls::NameRules;

/// Reads rules up to the first zero, and gives them the rest. Panics on a find.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (rules, name) = text.split_once('\0').unwrap_or((&text, "CN=alice,O=Acme"));
    if let Ok(rules) = NameRules::read(rules) {
        let _ = rules.name(name);
    }
}
