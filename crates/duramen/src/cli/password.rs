//! Passwords: from a file, from stdin, or typed at the terminal. The command line has none, because others see it.

use std::io::{IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;

/// Longest password, in bytes.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// Reads a password from a file, or from stdin where the file is `-`. Without a file the user types it. `flag` is the
/// flag that names the file. A new password is typed twice.
pub(super) fn read(
    file: Option<&Path>,
    (flag, user): (&str, &str),
    is_new: bool,
) -> anyhow::Result<Bytes> {
    let text = match file {
        Some(path) if path == Path::new("-") => from(std::io::stdin().lock(), "stdin")?,
        Some(path) => {
            let name = path.display().to_string();
            let opened = std::fs::File::open(path);
            from(opened.with_context(|| format!("cannot read the password in {name}"))?, &name)?
        }
        None if std::io::stdin().is_terminal() => typed(user, is_new)?,
        None => bail!(
            "{user} needs a password, and there is no terminal to type it at; give {flag} FILE, or \
             {flag} - for stdin"
        ),
    };
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let password = password.strip_suffix('\r').unwrap_or(password);
    ensure!(!password.is_empty(), "the password is empty");
    Ok(Bytes::copy_from_slice(password.as_bytes()))
}

fn from(source: impl Read, name: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = source.take(PASSWORD_BYTES_MAX + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read the password in {name}"))?;
    let is_too_long = text.len() as u64 > PASSWORD_BYTES_MAX;
    ensure!(!is_too_long, "{name} has more than {PASSWORD_BYTES_MAX} bytes: it is no password");
    Ok(text)
}

fn typed(user: &str, is_new: bool) -> anyhow::Result<String> {
    let ask = |prompt: String| {
        rpassword::prompt_password(prompt).context("cannot read the password from the terminal")
    };
    let password = ask(format!("Password of {user}: "))?;
    if is_new {
        ensure!(ask("Again: ".to_owned())? == password, "the two passwords differ");
    }
    Ok(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_password_and_perhaps_an_end_of_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        let read = |text: &[u8]| {
            std::fs::write(&path, text).unwrap();
            read(Some(&path), ("--password-file", "ada"), false)
        };
        for text in [&b"a b"[..], b"a b\n", b"a b\r\n"] {
            assert_eq!(read(text).unwrap(), Bytes::from_static(b"a b"));
        }
        assert_eq!(read(b"a\n\n").unwrap(), Bytes::from_static(b"a\n"), "one end of line goes");
        for (text, problem) in [
            (&b"\n"[..], "is empty"),
            (b"\xff", "cannot read the password"),
            (&[b'x'; 5000], "it is no password"),
        ] {
            assert!(format!("{:#}", read(text).unwrap_err()).contains(problem));
        }
    }
}
