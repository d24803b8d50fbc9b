//! Tables, JSON and progress bars. A command prints results to stdout and everything else to stderr.

use std::fmt::{self, Display, Write as _};
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde::Serialize;

/// Templates of progress: things of a known total, things without end.
const TEMPLATES: [&str; 2] = [
    "{bar:30} {human_pos}/{human_len}  {rate}  {eta} left  {msg}",
    "{spinner} {human_pos}  {rate}  {elapsed}  {msg}",
];

/// Buffered stdout. A closed pipe is an error of kind `BrokenPipe`, not a panic.
pub fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(64 << 10, io::stdout().lock())
}

/// Rows under headings, columns aligned; columns of numbers to the right.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table with these headings.
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|text| (*text).to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: &[&dyn Display]) {
        self.rows.push(cells.iter().map(ToString::to_string).collect());
    }

    /// The table's text, one line a row.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
        };
        let numeric = |column: usize| {
            let mut cells = self.rows.iter().skip(1).filter_map(|row| row.get(column)).peekable();
            cells.peek().is_some() && cells.all(|cell| is_number(cell))
        };
        let shape: Vec<_> = (0..columns).map(|c| (width(c).unwrap_or(0), numeric(c))).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, (width, numeric)) in row.iter().zip(&shape) {
                let written = if *numeric {
                    write!(line, "{cell:>width$}  ")
                } else {
                    write!(line, "{cell:<width$}  ")
                };
                written.expect("a string takes all");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Prints the table.
    pub fn print(&self) -> io::Result<()> {
        let mut out = stdout();
        out.write_all(self.render().as_bytes())?;
        out.flush()
    }
}

fn is_number(cell: &str) -> bool {
    !cell.is_empty() && cell.chars().all(|c| c.is_ascii_digit() || ".-+".contains(c))
}

/// Prints a value as indented JSON.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = stdout();
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// Prints a line of text.
pub fn print_line(line: &str) -> io::Result<()> {
    let mut out = stdout();
    writeln!(out, "{line}")?;
    out.flush()
}

/// A bar on stderr for work of known length in things; hidden unless stderr is a terminal.
pub fn count_bar(total: u64) -> ProgressBar {
    styled(ProgressBar::new(total), TEMPLATES[0])
}

/// A running count for work of unknown length.
pub fn counter() -> ProgressBar {
    styled(ProgressBar::no_length(), TEMPLATES[1])
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).expect("a constant that a test renders");
    let style = style.with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
        // A bar that cannot be drawn does not fail the command.
        let _ = write!(out, "{:.0}/s", state.per_sec());
    });
    bar.set_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Writes a number of bytes with its unit.
pub fn bytes(count: f64) -> String {
    let mut scaled = count;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if scaled < 1024.0 {
            return if unit == "B" { format!("{scaled} B") } else { format!("{scaled:.1} {unit}") };
        }
        scaled /= 1024.0;
    }
    format!("{scaled:.1} TiB")
}

/// Writes a value, or a dash where there is none.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// `1 partition`, `2 partitions`, `2 batches`.
pub fn count(number: impl TryInto<u64> + Display + Copy, thing: &str) -> String {
    let plural = match number.try_into() {
        Ok(1) => "",
        _ if thing.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{number} {thing}{plural}")
}

/// Writes nodes as `1,2,3`, in their order, which has a meaning.
pub fn list(ids: &[i32]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Writes partitions as `0-3,7`, because a topic may have thousands.
pub fn runs(partitions: &[i32]) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for partition in partitions {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *partition => *last = *partition,
            _ => runs.push((*partition, *partition)),
        }
    }
    let run = |(first, last): &(i32, i32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_numbers_are_aligned_to_the_right() {
        let mut table = Table::new(&["TOPIC", "PARTITIONS"]);
        table.row(&[&"orders", &12]);
        table.row(&[&"a", &5000]);
        let expected = "TOPIC   PARTITIONS\norders          12\na             5000\n";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn one_thing_is_not_several() {
        assert_eq!([0, 1, 2].map(|it| count(it, "record")), ["0 records", "1 record", "2 records"]);
        assert_eq!([1, 2].map(|it| count(it, "batch")), ["1 batch", "2 batches"]);
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes(17.0), "17 B");
        assert_eq!(bytes(2048.0), "2.0 KiB");
        assert_eq!(bytes(5.5 * 1024.0 * 1024.0 * 1024.0), "5.5 GiB");
    }

    #[test]
    fn every_bar_has_a_template_that_parses() {
        for template in TEMPLATES {
            ProgressStyle::with_template(template).expect("parses");
        }
    }

    #[test]
    fn partitions_are_written_as_runs() {
        assert_eq!(runs(&[0, 1, 2, 3, 7, 9, 10]), "0-3,7,9,10");
        assert_eq!(runs(&[]), "");
    }
}
