//! What people type, and what they are told.

use duramen_broker::configs::{BROKER_CONFIGS, Effect};

use super::*;

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn load(text: &str, args: &ServerArgs, environment: &[(&str, &str)]) -> Result<Config, Mistakes> {
    let file = file(text);
    let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    Config::load(Some(file.path()), args, environment)
}

#[test]
fn nothing_given_gives_the_defaults() {
    let config = Config::load(None, &ServerArgs::default(), []).unwrap();
    assert_eq!(config.data_dir, Path::new("./duramen-data"));
    assert_eq!((config.listen, config.open), (None, false));
    assert_eq!(config.http, None);
    assert!(config.settings.is_empty());
}

#[test]
fn the_example_parses_to_the_defaults_and_so_does_all_it_comments_out() {
    let example = example();
    let plain = load(&example, &ServerArgs::default(), &[]).unwrap();
    assert_eq!((plain.listen, plain.open), (None, false));
    assert_eq!(plain.data_dir, Path::new(DATA_DIR_DEFAULT));
    assert!(plain.settings.is_empty());
    let all: String = example
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.contains(" = ") => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let full = load(&all, &ServerArgs::default(), &[]).unwrap();
    assert_eq!(full.http.as_ref().unwrap().port, 9644);
    assert_eq!(full.listen.unwrap().to_string(), LISTEN_DEFAULT);
    assert_eq!(full.settings["num.partitions"], "1");
    assert_eq!(full.settings["auto.create.topics.enable"], "true");
    for key in FILE_KEYS {
        let is_there = example.contains(&format!("{key} = ")) || key == "settings";
        assert!(is_there, "the example lacks {key}");
    }
    for key in BROKER_CONFIGS.iter().filter(|key| key.effect != Effect::None) {
        let given = full.settings.get(key.name).map(String::as_str);
        assert_eq!(given, Some(key.default), "{}", key.name);
        assert_eq!(key.problem(key.default), None, "{} would be refused", key.name);
    }
    assert!(example.lines().all(|line| line.chars().count() <= 100));
}

#[test]
fn a_flag_beats_the_environment_and_that_beats_the_file() {
    let text = "listen = \"127.0.0.1:1\"\n[settings]\nnum.partitions = 1\n\"log.roll.ms\" = 5";
    let mut args = ServerArgs::default();
    let environment = [("DURAMEN_SET_NUM_PARTITIONS", "2"), ("HOME", "/root")];
    let config = load(text, &args, &environment).unwrap();
    assert_eq!(config.settings["num.partitions"], "2");
    assert_eq!(config.settings["log.roll.ms"], "5");
    assert_eq!(config.listen.unwrap().port, 1);
    args.listen = Some("[::1]:2".into());
    args.settings = vec!["num.partitions = 3".into()];
    let config = load(text, &args, &environment).unwrap();
    assert_eq!(config.settings["num.partitions"], "3");
    assert_eq!(config.listen.unwrap().to_string(), "[::1]:2");
}

#[test]
fn all_mistakes_are_told_at_once_with_the_nearest_name() {
    let text = "data_dir = \"x\"\nlisten = 5\nhttp = \"nowhere\"\nnum.partitions = 3\nzebra = 1";
    let args = ServerArgs { settings: vec!["oops".into()], ..ServerArgs::default() };
    let Mistakes(mistakes) =
        load(text, &args, &[("DURAMEN_LISTN", "x"), ("DURAMEN_PORT_9092_TCP_ADDR", "10.0.0.1")])
            .unwrap_err();
    let has = |part: &str| mistakes.iter().any(|mistake| mistake.contains(part));
    assert!(has("unknown key `data_dir`; did you mean `data-dir`?"), "{mistakes:?}");
    assert!(has("`listen` wants a string"), "{mistakes:?}");
    assert!(has("`http`: nowhere is not HOST:PORT"), "{mistakes:?}");
    assert!(has("unknown key `zebra`"), "{mistakes:?}");
    assert!(has("unknown variable DURAMEN_LISTN; did you mean DURAMEN_LISTEN?"), "{mistakes:?}");
    assert!(has("--set oops: write it as KEY=VALUE"), "{mistakes:?}");
    assert_eq!(mistakes.len(), 7, "{mistakes:?}");
}

#[test]
fn a_file_that_is_not_toml_or_not_there_says_so() {
    let Mistakes(mistakes) = load("listen =", &ServerArgs::default(), &[]).unwrap_err();
    assert!(mistakes[0].contains("line 1"), "{mistakes:?}");
    let missing = Config::load(Some(Path::new("/no/such/file")), &ServerArgs::default(), []);
    assert!(missing.unwrap_err().to_string().contains("cannot read /no/such/file"));
}

#[test]
fn addresses_are_read_as_people_write_them() {
    assert_eq!(HostPort::parse("localhost:9092").unwrap().host, "localhost");
    assert_eq!(HostPort::parse("[::]:9092").unwrap().host, "::");
    assert!(HostPort::parse("[::]:9092").unwrap().is_unspecified());
    assert!(HostPort::parse("0.0.0.0:9092").unwrap().is_unspecified());
    assert!(!HostPort::parse("host:9092").unwrap().is_unspecified());
    for bad in ["9092", ":9092", "::1:9092", "host:", "host:70000", "[::1:9092"] {
        assert!(HostPort::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn the_document_says_what_the_tables_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.md");
    if std::env::var_os("DURAMEN_WRITE_DOCS").is_some() {
        std::fs::write(&path, document::render()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        written,
        document::render(),
        "run with DURAMEN_WRITE_DOCS=1 to write docs/config.md"
    );
}
