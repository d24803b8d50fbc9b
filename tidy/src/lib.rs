//! # Room card: tidy
//!
//! Purpose:    rules about sources that no lint of clippy's holds.
//! Owns:       reading of sources; which file imports which; the sentences of comments.
//! Interface:  [`sources`], [`Imports`], [`comments`], [`sentences`].
//! Invariants: production code only: a `tests.rs`, a folder `tests` and an item under `#[cfg(test)]` are left out.
//! Never:      a rule itself: those are in `tests/`.
//! Tests:      in `imports` and `comments`.
//! Start at:   `tests/layers.rs`.

mod comments;
mod imports;

use std::fs;
use std::path::{Path, PathBuf};

pub use comments::{comments, sentences};
pub use imports::Imports;

/// One file of production code.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path from the repository's root, with slashes.
    pub path: String,
    /// Package, as paths in code name it: `duramen_broker`.
    pub package: String,
    /// Names of the module below the package; empty for its root.
    pub module: Vec<String>,
    /// Content.
    pub text: String,
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above").to_path_buf()
}

/// Reads every package under `crates/`, in the order of paths.
pub fn sources(root: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    for package in entries(&root.join("crates")) {
        let folder = package.join("src");
        let name = name_of(&package).replace('-', "_");
        collect(root, &folder, &name, &mut Vec::new(), &mut found);
    }
    found
}

fn collect(
    root: &Path,
    folder: &Path,
    package: &str,
    module: &mut Vec<String>,
    found: &mut Vec<Source>,
) {
    for path in entries(folder) {
        let name = name_of(&path);
        if path.is_dir() {
            if name != "tests" {
                module.push(name);
                collect(root, &path, package, module, found);
                module.pop();
            }
            continue;
        }
        let Some(stem) = name.strip_suffix(".rs").filter(|stem| *stem != "tests") else { continue };
        let is_root = module.is_empty() && ["lib", "main"].contains(&stem);
        let mut module = module.clone();
        module.extend((!is_root).then(|| stem.to_owned()));
        let text = fs::read_to_string(&path).expect("sources are readable");
        let path = path.strip_prefix(root).expect("it is below").to_string_lossy().into_owned();
        found.push(Source { path, package: package.to_owned(), module, text });
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|it| it.expect("a folder is readable").path()).collect();
    paths.sort();
    paths
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
