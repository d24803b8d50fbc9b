//! Printing of one record: a small template, or JSON.

use std::io::{self, Write};
use std::str::FromStr;

use duramen_protocol::records::Record;
use jiff::Timestamp;
use serde_json::{Map, Value};

/// A record and its place.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    /// Topic of the record.
    pub topic: &'a str,
    /// Partition of the record.
    pub partition: i32,
    /// Offset of the record.
    pub offset: i64,
    /// Timestamp of the record, in milliseconds since 1970.
    pub timestamp: i64,
    /// Key, value and headers.
    pub record: Record<'a>,
}

/// A template after parsing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Value,
    ValueBytes,
    Key,
    KeyBytes,
    Offset,
    Partition,
    Topic,
    Milliseconds,
    Date,
    Headers,
    Json,
}

/// The value, and the end of a line.
impl Default for Format {
    fn default() -> Self {
        Self { parts: vec![Part::Value, Part::Text(b"\n".to_vec())] }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(template: &str) -> Result<Self, String> {
        if template == "json" {
            return Ok(Self::json());
        }
        let mut format = Self { parts: Vec::new() };
        let mut characters = template.chars();
        while let Some(character) = characters.next() {
            match character {
                '%' => format.directive(characters.next())?,
                '\\' => format.escape(characters.next())?,
                other => format.text(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        Ok(format)
    }
}

impl Format {
    /// One JSON object a line.
    pub fn json() -> Self {
        Self { parts: vec![Part::Json] }
    }

    fn text(&mut self, bytes: &[u8]) {
        if let Some(Part::Text(text)) = self.parts.last_mut() {
            text.extend_from_slice(bytes);
        } else {
            self.parts.push(Part::Text(bytes.to_vec()));
        }
    }

    fn directive(&mut self, letter: Option<char>) -> Result<(), String> {
        let part = match letter {
            Some('v') => Part::Value,
            Some('S') => Part::ValueBytes,
            Some('k') => Part::Key,
            Some('K') => Part::KeyBytes,
            Some('o') => Part::Offset,
            Some('p') => Part::Partition,
            Some('t') => Part::Topic,
            Some('T') => Part::Milliseconds,
            Some('D') => Part::Date,
            Some('h') => Part::Headers,
            Some('%') => {
                self.text(b"%");
                return Ok(());
            }
            Some(other) => {
                return Err(format!("%{other} is none of %v %k %o %p %t %T %D %h %S %K %%"));
            }
            None => return Err("% at the end; write %% for a percent sign".into()),
        };
        self.parts.push(part);
        Ok(())
    }

    fn escape(&mut self, letter: Option<char>) -> Result<(), String> {
        let byte = match letter {
            Some('n') => b'\n',
            Some('r') => b'\r',
            Some('t') => b'\t',
            Some('0') => 0,
            Some('\\') => b'\\',
            Some(other) => return Err(format!("\\{other} is none of \\n \\r \\t \\0 \\\\")),
            None => return Err("\\ at the end; write \\\\ for a backslash".into()),
        };
        self.text(&[byte]);
        Ok(())
    }

    /// Writes a record, and nothing for a missing key or value.
    pub fn write(&self, out: &mut impl Write, shown: &Shown<'_>) -> io::Result<()> {
        let record = &shown.record;
        for part in &self.parts {
            match part {
                Part::Text(text) => out.write_all(text)?,
                Part::Value => out.write_all(record.value.unwrap_or_default())?,
                Part::Key => out.write_all(record.key.unwrap_or_default())?,
                Part::ValueBytes => write!(out, "{}", record.value.map_or(0, <[u8]>::len))?,
                Part::KeyBytes => write!(out, "{}", record.key.map_or(0, <[u8]>::len))?,
                Part::Offset => write!(out, "{}", shown.offset)?,
                Part::Partition => write!(out, "{}", shown.partition)?,
                Part::Topic => out.write_all(shown.topic.as_bytes())?,
                Part::Milliseconds => write!(out, "{}", shown.timestamp)?,
                Part::Date => out.write_all(date(shown.timestamp).as_bytes())?,
                Part::Headers => write_headers(out, record)?,
                Part::Json => write_json(out, shown)?,
            }
        }
        Ok(())
    }
}

/// Writes milliseconds since 1970 as RFC 3339, or as a number where no date fits.
pub(crate) fn date(ms: i64) -> String {
    match Timestamp::from_millisecond(ms) {
        Ok(time) => format!("{time:.3}"),
        Err(_) => ms.to_string(),
    }
}

fn write_headers(out: &mut impl Write, record: &Record<'_>) -> io::Result<()> {
    for (index, header) in record.headers.into_iter().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        out.write_all(header.key)?;
        out.write_all(b"=")?;
        out.write_all(header.value.unwrap_or_default())?;
    }
    Ok(())
}

fn write_json(out: &mut impl Write, shown: &Shown<'_>) -> io::Result<()> {
    let mut object = fields(shown.offset, shown.timestamp, &shown.record);
    object.insert("topic".into(), shown.topic.into());
    object.insert("partition".into(), shown.partition.into());
    serde_json::to_writer(&mut *out, &object)?;
    out.write_all(b"\n")
}

/// Returns a record as JSON, without its topic and partition.
pub(crate) fn fields(offset: i64, timestamp: i64, record: &Record<'_>) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("offset".into(), offset.into());
    object.insert("timestamp".into(), timestamp.into());
    put_bytes(&mut object, "key", record.key);
    put_bytes(&mut object, "value", record.value);
    // A list, because a name may occur more than once.
    let headers = record.headers.into_iter().map(|header| {
        let mut entry = Map::new();
        entry.insert("name".into(), String::from_utf8_lossy(header.key).into());
        put_bytes(&mut entry, "value", header.value);
        Value::Object(entry)
    });
    object.insert("headers".into(), headers.collect::<Vec<Value>>().into());
    object
}

/// Writes text where the bytes are UTF-8, else base64 under another name, so that no byte is lost.
pub(crate) fn put_bytes(object: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => object.insert(name.into(), Value::Null),
        Some((_, Ok(text))) => object.insert(name.into(), text.into()),
        Some((bytes, Err(_))) => object.insert(format!("{name}_base64"), base64(bytes).into()),
    };
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for (index, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let sextet = usize::try_from(bits >> shift & 0x3f).expect("six bits fit");
            text.push(if index > chunk.len() { '=' } else { char::from(ALPHABET[sextet]) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use duramen_protocol::batch::BatchView;
    use duramen_protocol::records::{BatchBuilder, NewRecord, Records};

    use super::*;

    fn shown(template: &str, key: Option<&[u8]>, value: Option<&[u8]>) -> Result<String, String> {
        let mut batch = BatchBuilder::new();
        let headers: &[(&str, Option<&[u8]>)] = &[("a", Some(b"1")), ("b", None)];
        let record = NewRecord { timestamp: 1_700_000_000_123, key, value, headers };
        batch.push(&record).expect("fits");
        let batch: Bytes = batch.build().expect("fits");
        let records =
            Records::of(&BatchView::parse(&batch).expect("whole"), 1 << 20).expect("plain");
        let record = records.iter().next().expect("one").expect("valid");
        let timestamp = records.timestamp(&record);
        let shown = Shown { topic: "t", partition: 2, offset: 7, timestamp, record };
        let mut out = Vec::new();
        template.parse::<Format>()?.write(&mut out, &shown).expect("memory takes all");
        Ok(String::from_utf8(out).expect("text"))
    }

    #[test]
    fn templates_fill_in_what_they_name() {
        let filled = shown("%t/%p/%o %k=%v (%K,%S) %T %D %h 100%%\\n", Some(b"k"), Some(b"val"));
        let expected = "t/2/7 k=val (1,3) 1700000000123 2023-11-14T22:13:20.123Z a=1,b= 100%\n";
        assert_eq!(filled.as_deref(), Ok(expected));
        assert_eq!(shown("<%k|%v>", None, None).as_deref(), Ok("<|>"));
    }

    #[test]
    fn unknown_directives_are_refused_with_the_known_ones() {
        assert!(shown("%x", None, None).is_err_and(|error| error.contains("%v")));
        assert!(shown("%", None, None).is_err() && shown("\\q", None, None).is_err());
    }

    #[test]
    fn json_loses_no_byte() {
        let line = shown("json", Some(b"k"), Some(&[0xff, 0x00, 0x01, 0x02])).expect("a template");
        let value: Value = serde_json::from_str(&line).expect("json");
        assert_eq!(value["key"], "k");
        assert_eq!(value["value_base64"], "/wABAg==");
        assert_eq!(value["headers"][1]["value"], Value::Null);
        assert_eq!(value["offset"], 7);
    }

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
