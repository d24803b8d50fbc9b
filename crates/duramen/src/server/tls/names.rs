//! Names in certificates: those of clients, as rules make principals of them, and those that a node is known by.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use regex::Regex;
use rustls::pki_types::CertificateDer;
use x509_parser::asn1_rs::ToDer;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, RelativeDistinguishedName, X509Name};

/// Kinds of a name's parts that Java's `X500Principal.getName` writes by a keyword; it writes the others by their
/// numbers.
const KEYWORDS: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// Reads the name in a certificate.
pub(super) fn name_of(certificate: &CertificateDer<'_>) -> io::Result<String> {
    let parsed = X509Certificate::from_der(certificate);
    let (_, parsed) = parsed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(written(parsed.subject()))
}

/// Refuses a certificate that its authority made for clients alone: it must not pass for a node's (RFC 5280, 4.2.1.12).
pub(super) fn ensure_of_node(certificate: &CertificateDer<'_>) -> io::Result<()> {
    let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let parsed = X509Certificate::from_der(certificate);
    let (_, parsed) = parsed.map_err(|error| wrong(error.to_string()))?;
    let usage = parsed.extended_key_usage().map_err(|error| wrong(error.to_string()))?;
    if usage.is_some_and(|it| !it.value.any && !it.value.server_auth) {
        let name = written(parsed.subject());
        return Err(wrong(format!("the certificate of {name} is for clients alone")));
    }
    Ok(())
}

/// Writes a name in the form of RFC 2253: the last part first.
fn written(name: &X509Name<'_>) -> String {
    let part = |it: &AttributeTypeAndValue<'_>| {
        let kind = it.attr_type().to_id_string();
        let keyword = KEYWORDS.iter().find(|(number, _)| *number == kind);
        if let (Some((_, keyword)), Ok(text)) = (keyword, it.as_str()) {
            return format!("{keyword}={}", escaped(text));
        }
        let mut bytes = Vec::new();
        let _ = it.attr_value().write_der(&mut bytes);
        format!("{kind}=#{}", HEXLOWER.encode(&bytes))
    };
    let set =
        |it: &RelativeDistinguishedName<'_>| it.iter().map(part).collect::<Vec<_>>().join("+");
    let mut sets: Vec<String> = name.iter().map(set).collect();
    sets.reverse();
    sets.join(",")
}

/// Escapes what has a meaning in a name, and the spaces at both ends, as Java does.
fn escaped(text: &str) -> String {
    let is_within = |at: usize| !text[..at].trim_start_matches(' ').is_empty();
    let goes_on = |at: usize| !text[at..].trim_start_matches(' ').is_empty();
    let mut out = String::with_capacity(text.len());
    for (at, it) in text.char_indices() {
        let is_border = it == ' ' && !(is_within(at) && goes_on(at));
        if is_border || ",=+<>#;\"\\".contains(it) {
            out.push('\\');
        }
        if it == '\0' { out.push_str("\\00") } else { out.push(it) }
    }
    out
}

/// Names by which clients know a node: that of the subject, and the alternative ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub subject: String,
    pub alternatives: BTreeSet<String>,
}

/// Reads the names in a node's certificate.
pub(super) fn identity_of(certificate: &CertificateDer<'_>) -> Result<Identity, String> {
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|error| format!("the certificate cannot be read: {error}"))?;
    let alternatives = parsed
        .subject_alternative_name()
        .map_err(|error| format!("the alternative names cannot be read: {error}"))?;
    let names = alternatives.into_iter().flat_map(|it| &it.value.general_names);
    let alternatives = names.map(ToString::to_string).collect();
    Ok(Identity { subject: written(parsed.subject()), alternatives })
}

/// Rules that make the name of a client of that in its certificate: `ssl.principal.mapping.rules`, in Kafka's grammar.
/// The first rule that fits the whole name counts.
#[derive(Clone, Debug)]
pub struct NameRules {
    text: String,
    rules: Arc<[Rule]>,
}

impl PartialEq for NameRules {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for NameRules {}

#[derive(Clone, Debug)]
enum Rule {
    /// The name as it is.
    Default,
    Replace {
        pattern: Regex,
        replacement: String,
        letters: Letters,
    },
}

#[derive(Clone, Copy, Debug)]
enum Letters {
    AsTheyAre,
    Lower,
    Upper,
}

impl NameRules {
    /// Reads `DEFAULT` and `RULE:PATTERN/REPLACEMENT/[LU]` entries with commas between. A backslash takes the meaning
    /// from the slash behind it.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut rules = Vec::new();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix(',') {
                rest = after.trim_start();
                continue;
            }
            let rule;
            (rule, rest) = if let Some(after) = rest.strip_prefix("DEFAULT") {
                (Rule::Default, after)
            } else if let Some(after) = rest.strip_prefix("RULE:") {
                replacing(after)?
            } else {
                return Err(format!("\"{rest}\" begins with neither DEFAULT nor RULE:"));
            };
            rules.push(rule);
            rest = rest.trim_start();
            if !rest.is_empty() && !rest.starts_with(',') {
                return Err(format!("\"{rest}\" follows a rule without a comma"));
            }
        }
        if rules.is_empty() {
            return Err("there is no rule".to_owned());
        }
        Ok(Self { text: text.to_owned(), rules: rules.into() })
    }

    /// Returns a client's name, unless no rule fits.
    pub fn name(&self, distinguished: &str) -> Option<String> {
        self.rules.iter().find_map(|rule| match rule {
            Rule::Default => Some(distinguished.to_owned()),
            Rule::Replace { pattern, replacement, letters } => {
                let groups = pattern.captures(distinguished)?;
                let name = replaced(replacement, &groups);
                Some(match letters {
                    Letters::AsTheyAre => name,
                    Letters::Lower => name.to_lowercase(),
                    Letters::Upper => name.to_uppercase(),
                })
            }
        })
    }
}

/// Reads a rule behind `RULE:`. Returns the rest, too.
fn replacing(text: &str) -> Result<(Rule, &str), String> {
    let (pattern, rest) = until_slash(text)?;
    let (replacement, rest) = until_slash(rest)?;
    let (letters, rest) = match rest.chars().next() {
        Some('L') => (Letters::Lower, &rest[1..]),
        Some('U') => (Letters::Upper, &rest[1..]),
        _ => (Letters::AsTheyAre, rest),
    };
    let pattern = Regex::new(&format!("^(?:{pattern})$"))
        .map_err(|error| format!("\"{pattern}\" is no pattern that is supported: {error}"))?;
    Ok((Rule::Replace { pattern, replacement: replacement.to_owned(), letters }, rest))
}

/// Cuts a text at the first slash that no backslash is before.
fn until_slash(text: &str) -> Result<(&str, &str), String> {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '/' => return Ok((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    Err(format!("\"RULE:{text}\" is not RULE:PATTERN/REPLACEMENT/"))
}

/// Puts the groups of a match into a replacement, as Java does. `$1` is a group if there is one. A backslash takes the
/// meaning from the letter behind it.
fn replaced(replacement: &str, groups: &regex::Captures<'_>) -> String {
    let mut out = String::new();
    let mut letters = replacement.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => out.extend(letters.next()),
            '$' => {
                let digit = |it: &char| it.to_digit(10).and_then(|it| usize::try_from(it).ok());
                let mut number = None;
                while let Some(next) = letters.peek().and_then(digit) {
                    let longer = number.unwrap_or(0) * 10 + next;
                    if longer >= groups.len() {
                        break;
                    }
                    number = Some(longer);
                    letters.next();
                }
                match number {
                    Some(number) => out.push_str(groups.get(number).map_or("", |it| it.as_str())),
                    None => out.push('$'),
                }
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    /// The expected names are those of `X500Principal.getName` of Java 21, for certificates of openssl.
    #[test]
    fn names_of_clients_are_written_as_java_writes_them() {
        use DnType::{
            CommonName, CountryName, CustomDnType, LocalityName, OrganizationName,
            OrganizationalUnitName, StateOrProvinceName,
        };
        let text = |text: &str| DnValue::Utf8String(text.to_owned());
        let plain = |text: &str| DnValue::PrintableString(text.try_into().unwrap());
        let ascii = |text: &str| DnValue::Ia5String(text.try_into().unwrap());
        let custom = |numbers: &[u64]| CustomDnType(numbers.to_vec());
        let long = [0, 9, 2342, 19_200_300, 100, 1];
        let pilot = |last: u64| custom(&[long.as_slice(), &[last]].concat());
        let one = |parts: Vec<(DnType, DnValue)>| {
            let mut wanted = CertificateParams::new(Vec::<String>::new()).unwrap();
            wanted.distinguished_name = DistinguishedName::new();
            for (kind, value) in parts {
                wanted.distinguished_name.push(kind, value);
            }
            let made = wanted.self_signed(&KeyPair::generate().unwrap()).unwrap();
            name_of(made.der()).unwrap()
        };
        for (parts, expected) in [
            (
                vec![
                    (CountryName, plain("DE")),
                    (StateOrProvinceName, text("Berlin")),
                    (LocalityName, text("Berlin")),
                    (OrganizationName, text("Acme, Inc.")),
                    (OrganizationalUnitName, text("a<b>;\"c\"")),
                    (CommonName, text("alice")),
                ],
                r#"CN=alice,OU=a\<b\>\;\"c\",O=Acme\, Inc.,L=Berlin,ST=Berlin,C=DE"#,
            ),
            (
                vec![(CommonName, text(" #lead ")), (OrganizationName, text(r"x\y"))],
                r"O=x\\y,CN=\ \#lead\ ",
            ),
            (
                vec![
                    (custom(&[1, 2, 840, 113_549, 1, 9, 1]), ascii("a@b.c")),
                    (CommonName, text("bob")),
                ],
                "CN=bob,1.2.840.113549.1.9.1=#16056140622e63",
            ),
            (
                vec![
                    (pilot(25), ascii("com")),
                    (custom(&[2, 5, 4, 9]), text("Main 1")),
                    (pilot(1), text("u1")),
                    (CommonName, text("Zo\u{eb}")),
                ],
                "CN=Zo\u{eb},UID=u1,STREET=Main 1,DC=com",
            ),
            (
                vec![
                    (custom(&[2, 5, 4, 12]), text("Dr")),
                    (custom(&[2, 5, 4, 5]), plain("7")),
                    (CommonName, text("x=y")),
                ],
                r"CN=x\=y,2.5.4.5=#130137,2.5.4.12=#0c024472",
            ),
        ] {
            assert_eq!(one(parts), expected);
        }
        assert!(name_of(&CertificateDer::from(vec![0x30, 0])).is_err(), "it is nobody's");
    }

    /// The cases of Kafka's `SslPrincipalMapperTest`, and some more.
    #[test]
    fn rules_make_names_of_names_as_kafkas_do() {
        let named = |rules: &str, name: &str| NameRules::read(rules).unwrap().name(name);
        let rules = "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, \
                     RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, \
                     RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U,RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT";
        let some = |text: &str| Some(text.to_owned());
        let of = |name: &str| named(rules, name);
        assert_eq!(of("CN=duke,OU=ServiceUsers,O=Org,C=US"), some("duke"));
        assert_eq!(of("CN=duke,OU=Ops,O=mycp,L=Fulton,ST=MD,C=US"), some("duke@ops"));
        assert_eq!(of("cn=duke,ou=ops,dc=mycp,dc=com"), some("DUKE@OPS"));
        assert_eq!(of("cN=duke,OU=JavaSoft,O=Sun Microsystems"), some("DUKE"));
        assert_eq!(
            of("OU=JavaSoft,O=Sun Microsystems,C=US"),
            some("OU=JavaSoft,O=Sun Microsystems,C=US")
        );
        assert_eq!(named("DEFAULT", "CN=a"), some("CN=a"));
        assert_eq!(named("RULE:CN=(.*)/$1/", "OU=a"), None, "no rule fits");
        assert_eq!(named("RULE:CN=(a)b/$1/", "CN=abc"), None, "a pattern fits all of the name");
        assert_eq!(named(r"RULE:CN=(.*)/x\/$1\$$2$10/", "CN=a"), some("x/a$$2a0"));
        assert_eq!(named(r"RULE:CN=a\/(.*)/$1/", "CN=a/b"), some("b"));
        for (wrong, problem) in [
            ("", "no rule"),
            (" , ", "no rule"),
            ("default", "neither DEFAULT nor RULE:"),
            ("DEFAULT/L", "without a comma"),
            ("DEFAULT RULE:a/b/", "without a comma"),
            ("RULE:CN=(.*)/$1", "is not RULE:PATTERN/REPLACEMENT/"),
            ("RULE:CN=(.*)", "is not RULE:PATTERN/REPLACEMENT/"),
            ("RULE:CN=(.*)/$1/LU", "without a comma"),
            ("RULE:(/$1/", "no pattern that is supported"),
        ] {
            let error = NameRules::read(wrong).unwrap_err();
            assert!(error.contains(problem), "{wrong}: {error}");
        }
    }
}
