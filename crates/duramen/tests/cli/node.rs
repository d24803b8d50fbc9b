//! A node of the real binary, and the commands that tests run on it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Long enough for a busy machine; nothing here waits so long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Node {
    pub(crate) child: Child,
    pub(crate) bootstrap: String,
}

impl Node {
    pub(crate) fn start(data_dir: &Path) -> Self {
        Self::start_with(data_dir, &[])
    }

    pub(crate) fn start_with(data_dir: &Path, settings: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--log", "info"]);
        command.args(["--set", "group.initial.rebalance.delay.ms=0"]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        command.arg("--data-dir").arg(data_dir).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let serving = log.find(|line| line.contains("\"message\":\"serving\"")).unwrap();
        let serving: Value = serde_json::from_str(&serving).unwrap();
        let address = serving.pointer("/fields/address").or_else(|| serving.get("address"));
        let bootstrap = address.and_then(Value::as_str).unwrap().to_owned();
        // The pipe must be read to the end, or the server would wait for room in it.
        std::thread::spawn(move || log.for_each(drop));
        Self { child, bootstrap }
    }

    /// A client command, ready to be run.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(arguments).env("DURAMEN_BOOTSTRAP", &self.bootstrap);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a client command that must succeed; answers what it printed.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn run_json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[arguments, &["--output", "json"]].concat())).unwrap()
    }

    /// Runs a client command that must fail with exit code 1; answers its complaint.
    pub(crate) fn fail(&self, arguments: &[&str]) -> String {
        self.complain(arguments, 1)
    }

    /// Runs a client command that is wrongly called; answers its complaint.
    pub(crate) fn misuse(&self, arguments: &[&str]) -> String {
        self.complain(arguments, 2)
    }

    pub(crate) fn complain(&self, arguments: &[&str], code: i32) -> String {
        let output = self.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{arguments:?} printed a result");
        stderr(&output)
    }

    /// Runs a client command with this on its stdin.
    pub(crate) fn feed(&self, arguments: &[&str], input: &str) -> String {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command that must end with this code without any broker; answers its complaint.
pub(crate) fn alone(arguments: &[&str], code: i32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    let output = command.args(arguments).env_remove("DURAMEN_BOOTSTRAP").output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
    stderr(&output)
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Sends a signal by its name.
pub(crate) fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
}
