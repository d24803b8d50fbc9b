//! # Room card: imports
//!
//! Purpose:    which file imports which.
//! Owns:       the way from a path in code to the file that it leads into.
//! Interface:  [`Imports::of`], [`Imports::circles`], [`Imports::arrows`].
//! Invariants: every path counts, in `use` and elsewhere, in macros too. A path leads to the deepest module that it names;
//!             a name that this module only hands on (`pub use`) leads on to its origin.
//! Never:      methods: a value that is called imports nothing.
//! Tests:      below.
//! Start at:   [`Imports::of`].

use std::collections::BTreeMap;

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::Source;

/// Modules through which one name may be handed on.
const HANDED_ON_MAX: usize = 8;

/// Files and the imports between them; a file is its place in the list that they were read from.
#[derive(Debug)]
pub struct Imports {
    graph: DiGraphMap<usize, ()>,
}

impl Imports {
    /// Reads the imports of every file.
    pub fn of(sources: &[Source]) -> Self {
        let names = sources.iter().enumerate();
        let files = names.map(|(at, it)| ((it.package.as_str(), it.module.clone()), at)).collect();
        let paths: Vec<Vec<Path>> = sources.iter().map(paths_of).collect();
        let ways = Ways { files, sources, paths: &paths };
        let mut graph = DiGraphMap::new();
        for (at, of_file) in paths.iter().enumerate() {
            graph.add_node(at);
            for to in of_file.iter().filter_map(|path| ways.end_of(at, path, 0)) {
                if to != at {
                    graph.add_edge(at, to, ());
                }
            }
        }
        Self { graph }
    }

    /// Files that import each other in a loop, the largest circle first.
    pub fn circles(&self) -> Vec<Vec<usize>> {
        let mut circles = tarjan_scc(&self.graph);
        circles.retain(|circle| circle.len() > 1);
        for circle in &mut circles {
            circle.sort_unstable();
        }
        circles.sort_by_key(|circle| (usize::MAX - circle.len(), circle.clone()));
        circles
    }

    /// Every import: the importing file, the imported one.
    pub fn arrows(&self) -> impl Iterator<Item = (usize, usize)> {
        self.graph.all_edges().map(|(from, to, ())| (from, to))
    }
}

/// One path in a file.
struct Path {
    /// The module around it, which is the file's or one inside the file.
    module: Vec<String>,
    /// Its words, `crate` and `super` among them.
    words: Vec<String>,
    /// The name under which `use` makes it known in the file.
    name: Option<String>,
}

fn paths_of(source: &Source) -> Vec<Path> {
    let tokens: TokenStream = source.text.parse().expect("sources compile");
    let mut paths = Vec::new();
    read_block(tokens, &source.module, &mut paths);
    paths
}

fn read_block(tokens: TokenStream, module: &[String], paths: &mut Vec<Path>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        if is_test_attribute(&tokens[at..]) {
            at = end_of_item(&tokens, at + 2);
            continue;
        }
        if let Some((name, body)) = inline_module(&tokens[at..]) {
            read_block(body, &[module, &[name]].concat(), paths);
            at += 3;
            continue;
        }
        match &tokens[at] {
            TokenTree::Group(group) => read_block(group.stream(), module, paths),
            TokenTree::Ident(word) if word == "use" => {
                at = read_path(&tokens, at + 1, (&[], true), module, paths);
                continue;
            }
            TokenTree::Ident(_) if is_separator(&tokens[at + 1..]) => {
                at = read_path(&tokens, at, (&[], false), module, paths);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
}

/// Reads a path, or a tree of them behind `use`, and returns the place behind it.
fn read_path(
    tokens: &[TokenTree],
    mut at: usize,
    (prefix, is_use): (&[String], bool),
    module: &[String],
    paths: &mut Vec<Path>,
) -> usize {
    let mut words = prefix.to_vec();
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(word)) => words.push(word.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for tree in inner.split(is_comma).filter(|tree| !tree.is_empty()) {
                    read_path(tree, 0, (&words, is_use), module, paths);
                }
                return at + 1;
            }
            _ => break,
        }
        at += 1;
        if !is_separator(&tokens[at..]) {
            break;
        }
        at += 2;
    }
    // A macro that its crate exports stands at the root, wherever it is written.
    if matches!(tokens.get(at), Some(TokenTree::Punct(it)) if it.as_char() == '!') {
        return at + 1;
    }
    if words.last().is_some_and(|word| word == "self") && words.len() > 1 {
        words.pop();
    }
    let name = match tokens.get(at..at + 2) {
        Some([TokenTree::Ident(word), TokenTree::Ident(name)]) if word == "as" => name.to_string(),
        _ => words.last().cloned().unwrap_or_default(),
    };
    paths.push(Path { module: module.to_vec(), words, name: is_use.then_some(name) });
    at
}

/// All that a path can lead through.
struct Ways<'a> {
    files: BTreeMap<(&'a str, Vec<String>), usize>,
    sources: &'a [Source],
    paths: &'a [Vec<Path>],
}

impl Ways<'_> {
    /// The file that a path in file `at` leads into; `None` for another crate's, and for what is no module.
    fn end_of(&self, at: usize, path: &Path, depth: usize) -> Option<usize> {
        let mut package = self.sources[at].package.as_str();
        let mut base = path.module.clone();
        let (first, mut rest) = path.words.split_first()?;
        match first.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => {
                base.pop();
                while let Some(below) = rest.split_first().filter(|(word, _)| *word == "super") {
                    base.pop();
                    rest = below.1;
                }
            }
            name => {
                if let Some(other) = self.sources.iter().find(|other| other.package == name) {
                    (package, base) = (&other.package, Vec::new());
                } else {
                    base.push(name.to_owned());
                    self.files.get(&(package, base.clone()))?;
                }
            }
        }
        let mut file = self.files.get(&(package, base.clone())).copied();
        while let Some((name, below)) = rest.split_first() {
            base.push(name.clone());
            let Some(deeper) = self.files.get(&(package, base.clone())) else { break };
            (file, rest) = (Some(*deeper), below);
        }
        let file = file?;
        let handed_on = rest.first().and_then(|name| self.handed_on(file, name));
        match handed_on {
            Some(path) if depth < HANDED_ON_MAX => {
                self.end_of(file, path, depth + 1).or(Some(file))
            }
            _ => Some(file),
        }
    }

    /// The path by which a file has a name from elsewhere.
    fn handed_on(&self, file: usize, name: &str) -> Option<&Path> {
        let module = &self.sources[file].module;
        let mut uses = self.paths[file].iter();
        uses.find(|path| path.name.as_deref() == Some(name) && path.module == *module)
    }
}

fn is_comma(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(it) if it.as_char() == ',')
}

fn is_separator(tokens: &[TokenTree]) -> bool {
    let is_colon = |token: &TokenTree| matches!(token, TokenTree::Punct(it) if it.as_char() == ':');
    tokens.len() > 1 && tokens[..2].iter().all(is_colon)
}

/// Whether `#[cfg(test)]`, or a condition that needs it, begins here.
fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    let [TokenTree::Punct(hash), TokenTree::Group(group), ..] = tokens else { return false };
    let text = group.stream().to_string().replace(' ', "");
    hash.as_char() == '#' && (text == "cfg(test)" || text.starts_with("cfg(all(test"))
}

/// The place behind the item that begins here: its block, or its semicolon.
fn end_of_item(tokens: &[TokenTree], from: usize) -> usize {
    let is_end = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(it) => it.as_char() == ';',
        _ => false,
    };
    tokens[from..].iter().position(is_end).map_or(tokens.len(), |end| from + end + 1)
}

fn inline_module(tokens: &[TokenTree]) -> Option<(String, TokenStream)> {
    match tokens {
        [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Group(body), ..]
            if word == "mod" =>
        {
            Some((name.to_string(), body.stream()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(module: &str, text: &str) -> Source {
        let module: Vec<_> =
            module.split("::").filter(|it| !it.is_empty()).map(String::from).collect();
        Source { path: module.join("/"), package: "ours".into(), module, text: text.into() }
    }

    fn arrows(sources: &[Source]) -> Vec<(&str, &str)> {
        let imports = Imports::of(sources);
        let mut arrows: Vec<_> = imports
            .arrows()
            .map(|(from, to)| (sources[from].path.as_str(), sources[to].path.as_str()))
            .collect();
        arrows.sort_unstable();
        arrows
    }

    #[test]
    fn paths_lead_to_the_deepest_module_that_they_name() {
        let sources = [
            source("", "mod a; mod b; pub use a::Thing;"),
            source("a", "mod c; use crate::{b::Other, a::c}; fn f() { c::run(); }"),
            source("a::c", "use super::Own; fn run() { println!(\"{}\", crate::b::x()); }"),
            source("b", "use std::fmt; fn x() { ours::a::c::run::<u8>(); other::a::c(); }"),
        ];
        let expected =
            [("", "a"), ("a", "a/c"), ("a", "b"), ("a/c", "a"), ("a/c", "b"), ("b", "a/c")];
        assert_eq!(arrows(&sources), expected);
    }

    #[test]
    fn a_name_that_is_handed_on_leads_to_its_origin() {
        let sources = [
            source("", "pub use a::Thing; pub use a::deep::{self, Other as Another};"),
            source("a", "pub(crate) use deep::Thing;"),
            source("a::deep", ""),
            source("b", "use crate::Thing;"),
            source("c", "use crate::{Another, deep::X};"),
        ];
        let expected = [("", "a/deep"), ("a", "a/deep"), ("b", "a/deep"), ("c", "a/deep")];
        assert_eq!(arrows(&sources), expected);
    }

    #[test]
    fn tests_import_what_they_like() {
        let sources = [
            source("a", "#[cfg(test)] mod tests { use crate::b::x; } #[cfg(test)] use crate::b;"),
            source("b", "mod inner { use super::super::a; } // crate::a\n"),
        ];
        assert_eq!(arrows(&sources), [("b", "a")]);
    }

    #[test]
    fn circles_are_found_the_largest_first() {
        let sources = [
            source("a", "use crate::b;"),
            source("b", "use crate::{a, c};"),
            source("c", "use crate::d;"),
            source("d", "use crate::e;"),
            source("e", "use crate::c;"),
            source("f", "use crate::a;"),
        ];
        assert_eq!(Imports::of(&sources).circles(), [vec![2, 3, 4], vec![0, 1]]);
    }
}
