//! # Room card: the simulator's command
//!
//! Purpose:    run seeds, and say how to run a failing one again.
//! Owns:       the command line of `duramen-sim` (`cargo sim`).
//! Interface:  `--scenario storage|node|cluster|fast|access|all`, `--seed N`, `--seeds A..B`, `--minutes M`.
//! Invariants: a failure's last lines are commit, seed and command; the exit code is 127 for a
//!             crash, 128 for no progress, 129 for a broken promise.
//! Never:      decisions about what is right: the harnesses make them.
//! Tests:      `tests/`.
//! Start at:   [`main`].

use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use duramen_sim::failure::{Failure, catching};
use duramen_sim::scenario::Scenario;

const HELP: &str = "\
Runs the real log on a simulated disk, crashes it, and checks that it keeps its promises.

usage: duramen-sim [--scenario storage|node|cluster|fast|access|all] [--seed N | --seeds A..B | --minutes M] [--verbose] [--loud]

  --seed N       one seed
  --seeds A..B   the seeds from A up to, not including, B
  --minutes M    fresh seeds for so long; one minute if nothing else is said
  --verbose      a line for every seed
  --loud         a line for every event

exit codes: 0 nothing found, 2 wrong arguments, 127 crash, 128 no progress, 129 broken promise";

struct Arguments {
    scenarios: Vec<Scenario>,
    seeds: Option<(u64, u64)>,
    minutes: f64,
    verbose: bool,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments =
        Arguments { scenarios: Scenario::ALL.to_vec(), seeds: None, minutes: 1.0, verbose: false };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
        match word.as_str() {
            "--scenario" => {
                let name = value()?;
                if name != "all" {
                    let scenario = Scenario::named(&name);
                    arguments.scenarios =
                        vec![scenario.ok_or(format!("there is no scenario {name}"))?];
                }
            }
            "--seed" => {
                let seed = number(&value()?)?;
                arguments.seeds = Some((seed, seed + 1));
            }
            "--seeds" => {
                let range = value()?;
                let (from, to) = range.split_once("..").ok_or("--seeds wants A..B")?;
                arguments.seeds = Some((number(from)?, number(to)?));
            }
            "--minutes" => {
                let minutes = value()?;
                arguments.minutes =
                    minutes.parse().map_err(|_| format!("{minutes} is no number"))?;
            }
            "--verbose" => arguments.verbose = true,
            "--loud" => duramen_sim::trace::be_loud(),
            _ => return Err(format!("{word} is unknown")),
        }
    }
    Ok(arguments)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let arguments = match parse(words.into_iter()) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    // Panics are findings here; they are printed once, with their seed.
    std::panic::set_hook(Box::new(|panic| {
        if let Some(location) = panic.location() {
            eprintln!("panicked at {}:{}", location.file(), location.line());
        }
    }));
    match run(&arguments) {
        Ok(seeds) => {
            println!("{seeds} seeds, nothing found");
            ExitCode::SUCCESS
        }
        Err((scenario, seed, failure)) => {
            report(scenario, seed, &failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(arguments: &Arguments) -> Result<u64, (Scenario, u64, Failure)> {
    let (from, to) = arguments.seeds.unwrap_or_else(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let first = since.map_or(1, |since| since.as_secs()) * 1_000_000;
        println!("fresh seeds from {first}");
        (first, u64::MAX)
    });
    let end = arguments
        .seeds
        .is_none()
        .then(|| Instant::now() + Duration::from_secs_f64(arguments.minutes * 60.0));
    // A run is one thread's and shares nothing with others, so each core has its own.
    let (next, done) = (AtomicU64::new(from), AtomicU64::new(0));
    let found: Mutex<Option<(Scenario, u64, Failure)>> = Mutex::new(None);
    let is_found = || found.lock().expect("nobody panics with it").is_some();
    let work = || {
        while !is_found() && end.is_none_or(|end| Instant::now() < end) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= to {
                break;
            }
            for scenario in &arguments.scenarios {
                match catching(|| scenario.run(seed)) {
                    Ok(summary) if arguments.verbose => {
                        println!("{} {seed}: {summary}", scenario.name());
                    }
                    Ok(_) => {}
                    Err(failure) => {
                        let mut found = found.lock().expect("nobody panics with it");
                        found.get_or_insert((*scenario, seed, failure));
                        return;
                    }
                }
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let found = found.into_inner().expect("nobody panicked with it");
    found.map_or(Ok(done.into_inner()), Err)
}

fn report(scenario: Scenario, seed: u64, failure: &Failure) {
    println!("{:?}: {}", failure.kind, failure.what);
    let commit = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    println!("commit:  {}", commit.unwrap_or_default());
    println!("seed:    {seed}");
    println!("command: cargo sim --seed {seed} --scenario {}", scenario.name());
}
