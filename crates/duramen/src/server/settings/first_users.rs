//! The users of a new cluster, from a file: without one nobody could come in to make the first.

use std::path::Path;

use bytes::Bytes;
use duramen_protocol::sasl::scram::Hash;
use duramen_protocol::wire::Secret;

/// User of a new cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstUser {
    /// Its name.
    pub name: String,
    /// The mechanism.
    pub hash: Hash,
    /// The password.
    pub password: Secret,
}

/// Reads the lines of a file: `NAME:MECHANISM:PASSWORD`. Empty ones and those that begin with `#` say nothing.
pub(super) fn read(path: &str) -> Result<Vec<FirstUser>, String> {
    let text = std::fs::read_to_string(Path::new(path));
    let text = text.map_err(|error| format!("{path}: {error}"))?;
    let lines = (1..).zip(text.lines());
    let said = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    // The line itself may hold a password, so a problem names its number alone.
    let users =
        said.map(|(number, line)| user(line).map_err(|it| format!("{path}:{number}: {it}")));
    let users = users.collect::<Result<Vec<FirstUser>, _>>()?;
    for (at, user) in users.iter().enumerate() {
        if users[..at].iter().any(|it| (&it.name, it.hash) == (&user.name, user.hash)) {
            return Err(format!(
                "{path}: {} has two passwords for {}",
                user.name,
                user.hash.name()
            ));
        }
    }
    Ok(users)
}

fn user(line: &str) -> Result<FirstUser, String> {
    let mut parts = line.splitn(3, ':');
    let (Some(name), Some(mechanism), Some(password)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err("the line is not NAME:MECHANISM:PASSWORD".to_owned());
    };
    if name.is_empty() || password.is_empty() {
        return Err("a user has a name and a password".to_owned());
    }
    let hash = Hash::ALL.into_iter().find(|it| it.name() == mechanism);
    let hash = hash.ok_or_else(|| {
        let names = Hash::ALL.map(Hash::name).join(" and ");
        format!("the mechanism is none of {names}, which also serve PLAIN")
    })?;
    let password = Secret(Bytes::copy_from_slice(password.as_bytes()));
    Ok(FirstUser { name: name.to_owned(), hash, password })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_users_and_a_mistake_in_it_shows_no_password() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(path.to_str().unwrap())
        };
        let users = read("# first\n\nada:SCRAM-SHA-512:a:b c\nada:SCRAM-SHA-256:x\n").unwrap();
        let told: Vec<_> =
            users.iter().map(|it| (it.name.as_str(), it.hash, &it.password.0[..])).collect();
        assert_eq!(told, [("ada", Hash::Sha512, &b"a:b c"[..]), ("ada", Hash::Sha256, &b"x"[..])]);
        assert!(!format!("{users:?}").contains("a:b c"));
        for (text, problem) in [
            ("ada", ":1: the line is not"),
            ("a:SCRAM-SHA-512:x\nada:PLAIN:secret", ":2: the mechanism is none of"),
            (":SCRAM-SHA-512:secret", "a name and a password"),
            ("ada:SCRAM-SHA-512:", "a name and a password"),
            ("a:SCRAM-SHA-512:x\na:SCRAM-SHA-512:secret", "a has two passwords"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(problem) && !error.contains("secret"), "{error}");
        }
        assert!(super::read("/none").unwrap_err().contains("/none"));
    }
}
