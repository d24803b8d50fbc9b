//! The directory of a backup: its catalogue, and the copy and check of each file.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use duramen_storage::backup::{KeptFile, Moment};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use crate::cli::screen;
use crate::server::freezing::STATE;

/// File that says what a backup holds. It is written last.
const CATALOGUE: &str = "backup.json";
/// Version of the layout of a backup.
const VERSION: u32 = 1;

/// Content of the catalogue.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Catalogue {
    version: u32,
    /// Version of the program that made the backup.
    made_by: String,
    /// Time of the backup, in milliseconds since 1970.
    pub(crate) made_at_ms: i64,
    pub(crate) cluster_id: String,
    pub(crate) node: i32,
    pub(crate) directory_id: String,
    state: Row,
    files: Vec<Row>,
    /// Partitions of the cluster that the backup lacks, with reasons.
    pub(crate) missing: Vec<String>,
}

/// The part of a catalogue that all versions have.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// A file of a backup.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    path: String,
    bytes: u64,
    crc32c: String,
}

/// A whole backup whose catalogue was read.
#[derive(Debug)]
pub(crate) struct Backup {
    pub(crate) dir: PathBuf,
    pub(crate) catalogue: Catalogue,
    pub(crate) moment: Moment,
}

fn id(bytes: [u8; 16]) -> String {
    duramen_protocol::wire::Uuid(bytes).to_string()
}

fn hex(crc: u32) -> String {
    format!("{crc:08x}")
}

impl Backup {
    /// Reads the catalogue and the state of a backup, and checks both. The other files are not read.
    pub(crate) fn open(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(CATALOGUE);
        let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => anyhow::anyhow!(
                "{} is no backup, or a part of one: it has no file {CATALOGUE}",
                dir.display()
            ),
            _ => anyhow::Error::new(error).context(format!("cannot read {}", path.display())),
        })?;
        let catalogue = parse(&text).with_context(|| format!("{} is damaged", path.display()))?;
        let state = dir.join(STATE);
        let bytes =
            std::fs::read(&state).with_context(|| format!("cannot read {}", state.display()))?;
        let is_same = bytes.len() as u64 == catalogue.state.bytes
            && hex(crc32c::crc32c(&bytes)) == catalogue.state.crc32c;
        ensure!(is_same, "{} is damaged: its checksum does not match", state.display());
        let moment = Moment::decode(&bytes.into())
            .map_err(|why| anyhow::anyhow!("{} is damaged: {why}", state.display()))?;
        let backup = Self { dir: dir.to_owned(), catalogue, moment };
        backup.compare().with_context(|| format!("{} is damaged", path.display()))?;
        Ok(backup)
    }

    /// Checks that the catalogue has the files that the state names, and no others.
    fn compare(&self) -> anyhow::Result<()> {
        let files = self.moment.files();
        ensure!(files.len() == self.catalogue.files.len(), "it does not name all files");
        for (file, row) in files.iter().zip(&self.catalogue.files) {
            let is_same = (&file.path, file.bytes) == (&row.path, row.bytes);
            ensure!(is_same, "it says something else of {} than the state does", file.path);
        }
        Ok(())
    }

    /// Reads and checks all files. With a directory, copies them there, durably.
    pub(crate) fn pass(&self, to: Option<&Path>) -> anyhow::Result<()> {
        let copied = copy(&self.moment, &self.dir, to)?;
        for (is, row) in copied.iter().zip(&self.catalogue.files) {
            let path = self.dir.join(&row.path);
            ensure!(
                is.crc32c == row.crc32c,
                "{} is damaged: its checksum does not match",
                path.display()
            );
        }
        Ok(())
    }

    /// Bytes of all its files.
    pub(crate) fn bytes(&self) -> u64 {
        self.catalogue.files.iter().map(|row| row.bytes).sum::<u64>() + self.catalogue.state.bytes
    }
}

/// Copies the files of a moment out of a folder, and makes a backup of them in a directory that is not there yet.
pub(crate) fn make(
    moment: &Moment,
    from: &Path,
    to: &Path,
    (missing, made_at_ms): (Vec<String>, i64),
) -> anyhow::Result<()> {
    let state = moment.encode();
    let own = Row {
        path: STATE.to_owned(),
        bytes: state.len() as u64,
        crc32c: hex(crc32c::crc32c(&state)),
    };
    let files = copy(moment, from, Some(to))?;
    write(&to.join(STATE), &state)?;
    let catalogue = Catalogue {
        version: VERSION,
        made_by: env!("CARGO_PKG_VERSION").to_owned(),
        made_at_ms,
        cluster_id: id(moment.facts.cluster_id),
        node: moment.facts.broker_id,
        directory_id: id(moment.facts.directory_id),
        state: own,
        files,
        missing,
    };
    write(&to.join(CATALOGUE), render(&catalogue)?.as_bytes())?;
    sync_dir(to)
}

/// Renders the catalogue: JSON, and behind it a line with the checksum of all before.
fn render(catalogue: &Catalogue) -> anyhow::Result<String> {
    let json = serde_json::to_string_pretty(catalogue)?;
    let crc = crc32c::crc32c(format!("{json}\n").as_bytes());
    Ok(format!("{json}\ncrc32c={crc:08x}\n"))
}

fn parse(text: &str) -> anyhow::Result<Catalogue> {
    let (json, crc) = text.rsplit_once("crc32c=").context("its checksum is missing")?;
    let is_same = u32::from_str_radix(crc.trim_end(), 16) == Ok(crc32c::crc32c(json.as_bytes()));
    ensure!(is_same, "its checksum does not match");
    let Versioned { version } = serde_json::from_str(json)?;
    if version != VERSION {
        bail!(
            "it is of version {version}, and this build knows only {VERSION}: use the duramen that made it, or a later one"
        );
    }
    Ok(serde_json::from_str(json)?)
}

/// Reads and checks each file of a moment, and copies it if there is a place to.
fn copy(moment: &Moment, from: &Path, to: Option<&Path>) -> anyhow::Result<Vec<Row>> {
    let files = moment.files();
    let bar = screen::count_bar(files.iter().map(|file| file.bytes).sum());
    let mut rows = Vec::with_capacity(files.len());
    let mut dirs = BTreeSet::new();
    for file in &files {
        bar.set_message(file.path.clone());
        let source = from.join(&file.path);
        let target = to.map(|to| to.join(&file.path));
        if let Some(dir) = target.as_deref().and_then(Path::parent)
            && dirs.insert(dir.to_owned())
        {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("cannot make {}", dir.display()))?;
        }
        let crc = copy_one(moment, file, (&source, target.as_deref()), &bar)?;
        rows.push(Row { path: file.path.clone(), bytes: file.bytes, crc32c: hex(crc) });
    }
    dirs.iter().try_for_each(|dir| sync_dir(dir))?;
    bar.finish_and_clear();
    Ok(rows)
}

fn copy_one(
    moment: &Moment,
    file: &KeptFile,
    (source, target): (&Path, Option<&Path>),
    bar: &ProgressBar,
) -> anyhow::Result<u32> {
    let opened = File::open(source).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!("{} is missing", source.display()),
        _ => anyhow::Error::new(error).context(format!("cannot read {}", source.display())),
    })?;
    let mut from = bar.wrap_read(io::BufReader::with_capacity(1 << 20, opened));
    let explained = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => anyhow::anyhow!("{} is damaged: {error}", source.display()),
        _ => anyhow::Error::new(error).context(format!("cannot copy {}", source.display())),
    };
    let Some(target) = target else {
        return moment.copy(file, &mut from, &mut io::sink()).map_err(explained);
    };
    let failed = || format!("cannot write {}", target.display());
    let made = File::create_new(target).with_context(failed)?;
    let mut to = BufWriter::with_capacity(1 << 20, made);
    let crc = moment.copy(file, &mut from, &mut to).map_err(explained)?;
    let made = to.into_inner().map_err(io::IntoInnerError::into_error).with_context(failed)?;
    made.sync_all().with_context(failed)?;
    Ok(crc)
}

/// Writes a new file, durably.
fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || {
        let mut file = File::create_new(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> anyhow::Result<()> {
    let sync = || File::open(dir)?.sync_all();
    sync().with_context(|| format!("cannot sync {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue() -> Catalogue {
        let row = Row { path: "orders-0/0.log".into(), bytes: 7, crc32c: hex(9) };
        Catalogue {
            version: VERSION,
            made_by: "0".into(),
            made_at_ms: 5,
            cluster_id: "c".into(),
            node: 1,
            directory_id: "d".into(),
            state: row.clone(),
            files: vec![row],
            missing: Vec::new(),
        }
    }

    #[test]
    fn a_changed_catalogue_is_noticed_and_a_later_version_is_named() {
        let text = render(&catalogue()).unwrap();
        assert_eq!(parse(&text).unwrap().node, 1);
        for at in (0..text.len() - 1).filter(|at| !text[*at..].starts_with("crc32c=")) {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            if let Ok(changed) = String::from_utf8(bytes) {
                let same = parse(&changed).is_ok_and(|it| it.node == 1 && it.made_at_ms == 5);
                assert!(parse(&changed).is_err() || same && at > text.len() - 10, "byte {at}");
            }
        }
        let later = Catalogue { version: 2, ..catalogue() };
        let error = parse(&render(&later).unwrap()).unwrap_err().to_string();
        assert!(error.contains("version 2"), "{error}");
    }
}
