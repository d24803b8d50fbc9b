//! `docs/config.md`, rendered from the flags and the broker's tables.

use std::fmt::Write;

use clap::Command;
use duramen_broker::configs::{
    BROKER_CONFIGS, Check, ConfigKey, Effect, GROUP_CONFIGS, Kind, TOPIC_CONFIGS, UNITS,
};

use super::ON_SIGHUP;
use super::{FILE_KEYS, ServerArgs};

const HEAD: &str = "# Settings

This page lists every setting. A test writes it from the flags in `crates/duramen/src/config.rs` and the tables in
`crates/duramen-broker/src/configs/tables.rs`. To change a text, change it there and run
`DURAMEN_WRITE_DOCS=1 cargo test -p duramen config`. DescribeConfigs returns the same texts.

## How to set them

In order of precedence: a flag, `--set num.partitions=3`, beats the environment, `DURAMEN_SET_NUM_PARTITIONS=3`, which
beats the file of `duramen serve --config FILE`:

    data-dir = \"/var/lib/duramen\"
    listen = \"0.0.0.0:9092\"
    open = true
    advertise = \"broker.example.com:9092\"
    http = \"127.0.0.1:9644\"

    [settings]
    num.partitions = 3
    log.retention.hours = 48

`duramen config example` prints such a file with comments, and with each setting of the node that has an effect.

A client sets a topic's own settings when it creates the topic (`duramen topic create NAME --config KEY=VALUE`,
CreateTopics), and changes them later with IncrementalAlterConfigs or AlterConfigs. A client changes the *live* settings of
nodes in the same way: of one node by its id, or of all nodes by the empty name. The value of one node takes precedence over
the value of all nodes, and both take precedence over the node's configuration. Both persist across a restart.

On SIGHUP `serve` reads the file and the environment again. It applies *live* settings, the key `log`, and, for new
connections, the settings with *SIGHUP* in their row. Other settings need a restart.

A topic without a value of its own uses the node's setting beside it, else the default. Duramen refuses an unknown name, and
a value of the wrong type or outside of the allowed range.

The column *does it* shows whether a setting has an effect in this version. Duramen accepts many settings only because tools
read or set them.

## Duramen's own settings

`serve` also takes `--config FILE` (`DURAMEN_CONFIG`).

| key of the file | flag | environment | |
|---|---|---|---|
";

const NODE_HEAD: &str = "
## Settings of the node

| name | type | default | allowed | live | does it | |
|---|---|---|---|---|---|---|
";

const TOPIC_HEAD: &str = "
## Settings of a topic

| name | type | default | allowed | does it | |
|---|---|---|---|---|---|
";

const GROUP_HEAD: &str = "
## Settings of a group

IncrementalAlterConfigs sets them by the name of a share group or of a group of the consumer protocol
(`kafka-configs.sh --entity-type groups`). The group need not exist.

| name | type | default | allowed | does it | |
|---|---|---|---|---|---|
";

/// The document's text.
pub(super) fn render() -> String {
    let mut text = String::from(HEAD);
    let flags = <ServerArgs as clap::Args>::augment_args(Command::new("duramen"));
    for flag in flags.get_arguments() {
        let Some(name) = flag.get_long().filter(|name| FILE_KEYS.contains(name)) else { continue };
        let variable = flag.get_env().expect("each has one").to_string_lossy();
        let help = flag.get_long_help().or(flag.get_help()).expect("each has one").to_string();
        let help = help.replace('\n', " ");
        line(&mut text, &format!("| `{name}` | `--{name}` | `{variable}` | {help} |"));
    }
    text.push_str(NODE_HEAD);
    for key in BROKER_CONFIGS {
        let live = match key {
            ConfigKey { dynamic: true, .. } => " live |",
            _ if ON_SIGHUP.contains(&key.name) => " SIGHUP |",
            _ => " |",
        };
        row(&mut text, key, live);
    }
    text.push_str(
        "\nThe node accepts other units, too. A setting in the table takes precedence:\n\n",
    );
    for (name, ours, factor) in UNITS {
        line(&mut text, &format!("- `{name}`: {factor} times `{ours}`."));
    }
    text.push_str(TOPIC_HEAD);
    for key in TOPIC_CONFIGS {
        row(&mut text, key, "");
    }
    text.push_str(GROUP_HEAD);
    for key in GROUP_CONFIGS {
        row(&mut text, key, "");
    }
    text
}

fn row(text: &mut String, key: &ConfigKey, live: &str) {
    let kind = match key.kind {
        Kind::Boolean => "boolean",
        Kind::String => "string",
        Kind::Int => "int",
        Kind::Long => "long",
        Kind::Double => "double",
        Kind::List => "list",
        Kind::Password => "password",
    };
    let default = if key.default.is_empty() { String::new() } else { format!("`{}`", key.default) };
    let allowed = match key.check {
        Check::Any => String::new(),
        Check::AtLeast(least) => format!("at least {least}"),
        Check::Between(least, most) => format!("{least} to {most}"),
        Check::BetweenButZero(i64::MIN, i64::MAX) => "not 0".to_owned(),
        Check::BetweenButZero(least, most) => format!("{least} to {most}, not 0"),
        Check::Ratio => "0 to 1".to_owned(),
        Check::OneOf(words) | Check::OnlyYet(words) => format!("`{}`", words.join("`, `")),
        Check::AnyOf(words) => format!("none, or `{}`", words.join("`, `")),
        Check::Replicas => "`*`, or PARTITION:NODE and so on".to_owned(),
        Check::Beginning => "`earliest`, `latest`, `by_duration:` and a duration".to_owned(),
    };
    let effect = match key.effect {
        Effect::Full => "yes",
        Effect::Part => "in part",
        Effect::None => "no",
    };
    let ConfigKey { name, synonym, doc, .. } = key;
    let node = if synonym.is_empty() { String::new() } else { format!(" Node: `{synonym}`.") };
    line(
        text,
        &format!("| `{name}` | {kind} | {default} | {allowed} |{live} {effect} | {doc}{node} |"),
    );
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a string takes all");
}
