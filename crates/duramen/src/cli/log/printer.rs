//! Output of `duramen log dump`: entries as lines or as JSON, and the number of damaged places.

use std::io::Write;

use serde::Serialize;

/// Prints entries in either form, and counts damaged places.
pub(super) struct Printer {
    pub(super) out: Box<dyn Write>,
    pub(super) json: bool,
    pub(super) left: u64,
    pub(super) damage: u64,
}

impl Printer {
    /// Prints an entry. Returns false after the last entry that the user wants.
    pub(super) fn entry(
        &mut self,
        value: &impl Serialize,
        line: impl FnOnce() -> String,
    ) -> anyhow::Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        self.detail(value, line)?;
        Ok(self.left > 0)
    }

    /// Prints a detail of the entry before it.
    pub(super) fn detail(
        &mut self,
        value: &impl Serialize,
        line: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        if self.json {
            serde_json::to_writer(&mut self.out, value).map_err(std::io::Error::from)?;
            self.out.write_all(b"\n")?;
        } else {
            writeln!(self.out, "{}", line())?;
        }
        Ok(())
    }

    /// Prints the damage at a place of the file.
    pub(super) fn damage(&mut self, position: u64, what: &str) -> anyhow::Result<()> {
        #[derive(Serialize)]
        struct Damage<'a> {
            position: u64,
            damage: &'a str,
        }
        self.damage += 1;
        let value = Damage { position, damage: what };
        self.detail(&value, || format!("position {position}: DAMAGED: {what}"))
    }
}
