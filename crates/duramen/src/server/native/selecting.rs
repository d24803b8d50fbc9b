//! # Room card: selecting
//!
//! Purpose:    filter and projection of reads, in the Common Expression Language (CEL).
//! Owns:       [`Selection`], made of a read's expressions; their variables, functions and bounds.
//! Interface:  [`Selection::of`], [`Selection::select`].
//! Invariants: an expression takes time and memory that its text and the record bound. The library bounds neither, so
//!             `check` refuses what could grow: deep trees, loops in loops, lists made by loops, long sums.
//! Never:      the node's thread: expressions run where records are decoded.
//! Tests:      below; `tests/native.rs`; `compat/native`.
//! Start at:   [`Selection::select`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr};
use cel::objects::{Key, Map};
use cel::{Context, Env, IdedExpr, Program, Value};
use duramen_broker::native::Problem;
use duramen_protocol::records::{Header, Record, Records};
use duramen_storage::keys::{CUTS_AFTER_HEADER, FACT_HEADER, REPLACES_HEADER};
use prost_types::value::Kind;
use tokio::task::block_in_place;

use super::problems::{FILTER_FAILED, FILTER_INVALID, Fault};
use crate::proto::{Position, ReadRequest, RetrieveRequest};

/// Most bytes of one expression, and most expressions of a projection.
const TEXT_BYTES_MAX: usize = 4 << 10;
const FIELDS_MAX: usize = 64;
/// Most nodes of an expression's tree, and its most levels: each takes stack while it is evaluated.
const NODES_MAX: usize = 512;
const LEVELS_MAX: usize = 48;
/// Most additions of an expression: each copies the texts that it adds.
const SUMS_MAX: usize = 16;
/// Stack of the thread that compiles, in bytes.
const STACK_BYTES: usize = 8 << 20;
const NO_THREAD: &str = "the process gets no thread for the expressions";
/// Most memory of all results of a projection on one record, about, in bytes.
pub(crate) const RESULT_BYTES_MAX: usize = 1 << 20;
/// Memory that a result takes beside its text, in bytes.
const RESULT_BYTES: usize = 64;
/// Largest value that is read as text or JSON, in bytes.
const JSON_BYTES_MAX: usize = 1 << 20;

/// Headers with which the log says of a record that it edits its queue. Readers of a queue do not see them.
pub(super) const EDIT_HEADERS: [&str; 3] = [REPLACES_HEADER, CUTS_AFTER_HEADER, FACT_HEADER];

/// Variables of an expression.
const VARIABLES: [&str; 9] =
    ["key", "key_text", "value", "text", "json", "headers", "timestamp", "offset", "size"];
/// Those that a loop may read besides its own: they are small.
const SMALL: [&str; 3] = ["timestamp", "offset", "size"];
const FUNCTIONS: [&str; 26] = [
    "_?_:_",
    "_&&_",
    "_||_",
    "!_",
    "_-_",
    "_+_",
    "_*_",
    "_/_",
    "_%_",
    "_==_",
    "_!=_",
    "_>=_",
    "_<=_",
    "_>_",
    "_<_",
    "-_",
    "_[_]",
    "@not_strictly_false",
    "@in",
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "int",
    "double",
    "string",
];

/// Expressions of a read, as its client wrote them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub filter: &'a str,
    pub fields: &'a HashMap<String, String>,
    /// True if records on which an expression fails are left out.
    pub skips_failed: bool,
    /// Names of the headers that no expression sees.
    pub hidden: &'static [&'static str],
}

impl<'a> From<&'a ReadRequest> for Wanted<'a> {
    fn from(it: &'a ReadRequest) -> Self {
        let (filter, fields) = (&it.filter, &it.fields);
        Self { filter, fields, skips_failed: it.skip_failed, hidden: &[] }
    }
}

impl<'a> From<&'a RetrieveRequest> for Wanted<'a> {
    fn from(it: &'a RetrieveRequest) -> Self {
        let (filter, fields) = (&it.filter, &it.fields);
        Self { filter, fields, skips_failed: it.skip_failed, hidden: &EDIT_HEADERS }
    }
}

/// Expression of a read.
#[derive(Debug)]
struct Expression {
    /// Name of the field in the request.
    field: String,
    program: Program,
}

/// Filter and projection of one read.
pub(crate) struct Selection {
    filter: Option<Expression>,
    fields: Vec<(String, Expression)>,
    /// Variables that the expressions name.
    variables: Vec<&'static str>,
    env: Arc<Env>,
    skips_failed: bool,
    hidden: &'static [&'static str],
}

impl fmt::Debug for Selection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { filter, fields, .. } = self;
        out.debug_struct("Selection")
            .field("filter", filter)
            .field("fields", fields)
            .finish_non_exhaustive()
    }
}

/// The part of a record that the reader gets.
#[derive(Debug, PartialEq)]
pub(crate) enum Selected {
    Nothing,
    Whole,
    /// Results of the projection, and their memory, about, in bytes.
    Fields(HashMap<String, prost_types::Value>, usize),
}

impl Selection {
    /// Compiles the expressions of a read, if it has some.
    pub(crate) fn of<'a>(wanted: impl Into<Wanted<'a>>) -> Result<Option<Self>, Fault> {
        let wanted = wanted.into();
        if wanted.filter.is_empty() && wanted.fields.is_empty() {
            return Ok(None);
        }
        // The library's parser recurses: texts of the largest size take it 1 MiB of stack, half of what a thread has.
        let compile = || {
            std::thread::scope(|scope| {
                let compiling = std::thread::Builder::new().stack_size(STACK_BYTES);
                let compiled = compiling.spawn_scoped(scope, || Self::compile(wanted).map(Some));
                let compiled = compiled.map_err(|_| Fault::from(Problem::Busy(NO_THREAD)))?;
                compiled.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        };
        block_in_place(compile)
    }

    fn compile(wanted: Wanted<'_>) -> Result<Self, Fault> {
        if wanted.fields.len() > FIELDS_MAX {
            let reason = format!("a projection has at most {FIELDS_MAX} fields");
            return Err(Fault::bad_request(&[("fields", reason)]));
        }
        let env = Arc::new(Env::stdlib());
        let filter = Some(wanted.filter).filter(|text| !text.is_empty());
        let filter = filter.map(|text| Expression::of(&env, "filter".to_owned(), text));
        let mut fields = Vec::new();
        for (name, text) in wanted.fields {
            let field = format!("fields.{name}");
            fields.push((name.clone(), Expression::of(&env, field, text)?));
        }
        let mut selection = Self {
            filter: filter.transpose()?,
            fields,
            variables: Vec::new(),
            env,
            skips_failed: wanted.skips_failed,
            hidden: wanted.hidden,
        };
        let all = selection.fields.iter().map(|(_, it)| it).chain(&selection.filter);
        let named: Vec<_> = all.map(|it| it.program.references()).collect();
        let is_named = |name: &&str| named.iter().any(|it| it.has_variable(name));
        selection.variables = VARIABLES.into_iter().filter(is_named).collect();
        Ok(selection)
    }

    /// Evaluates the expressions on a record, or on an element at a position, whose content it is.
    pub(crate) fn select(
        &self,
        records: &Records,
        record: &Record<'_>,
        position: Position,
    ) -> Result<Selected, Fault> {
        let mut context = Context::with_env(Arc::clone(&self.env));
        for name in &self.variables {
            let value = match *name {
                "offset" => Value::Int(position.offset),
                name => value_of(name, records, record, self.hidden),
            };
            context.add_variable_from_value(*name, value);
        }
        match self.evaluate(&context) {
            Ok(selected) => Ok(selected),
            Err(_) if self.skips_failed => Ok(Selected::Nothing),
            Err((field, reason)) => {
                let detail = format!("{field} fails on the record at {position}: {reason}");
                let fault = Fault::new(FILTER_FAILED, detail).with("field", field);
                Err(fault.with("position", position.to_string()))
            }
        }
    }

    fn evaluate(&self, context: &Context<'_, '_>) -> Result<Selected, (String, String)> {
        let failed = |it: &Expression, why: String| (it.field.clone(), why);
        if let Some(filter) = &self.filter {
            match filter.program.execute(context) {
                Ok(Value::Bool(true)) => {}
                Ok(Value::Bool(false)) => return Ok(Selected::Nothing),
                Ok(other) => {
                    return Err(failed(filter, format!("its result is a {}", other.type_of())));
                }
                Err(error) => return Err(failed(filter, error.to_string())),
            }
        }
        if self.fields.is_empty() {
            return Ok(Selected::Whole);
        }
        let (mut fields, mut left) = (HashMap::new(), RESULT_BYTES_MAX);
        for (name, expression) in &self.fields {
            let value = expression.program.execute(context);
            let value = value.map_err(|error| failed(expression, error.to_string()))?;
            let too_large = || {
                failed(expression, format!("the results take more than {RESULT_BYTES_MAX} bytes"))
            };
            fields.insert(name.clone(), written(&value, &mut left).ok_or_else(too_large)?);
        }
        Ok(Selected::Fields(fields, RESULT_BYTES_MAX - left))
    }
}

impl Expression {
    fn of(env: &Env, field: String, text: &str) -> Result<Self, Fault> {
        let invalid = |reason: String| {
            Fault::new(FILTER_INVALID, format!("{field}: {reason}")).with("field", field.clone())
        };
        if text.len() > TEXT_BYTES_MAX {
            return Err(invalid(format!("an expression has at most {TEXT_BYTES_MAX} bytes")));
        }
        let program = env.compile(text).map_err(|errors| match errors.errors.first() {
            Some(error) => {
                let (line, column) = error.pos;
                invalid(error.msg.clone()).with("at", format!("{line}:{column}"))
            }
            None => invalid("it is no expression".to_owned()),
        })?;
        check(program.expression()).map_err(invalid)?;
        Ok(Self { field, program })
    }
}

/// Part of an expression that is to be checked.
struct Part<'a> {
    expression: &'a IdedExpr,
    level: usize,
    /// Loop whose body the part belongs to.
    in_loop: Option<&'a ComprehensionExpr>,
}

/// Refuses an expression that has no bound, or names things that are not there.
fn check(root: &IdedExpr) -> Result<(), String> {
    let (mut nodes, mut sums) = (0, 0);
    let mut parts = vec![Part { expression: root, level: 1, in_loop: None }];
    while let Some(Part { expression, level, in_loop }) = parts.pop() {
        nodes += 1;
        if nodes > NODES_MAX {
            return Err(format!("it has more than {NODES_MAX} parts"));
        }
        if level > LEVELS_MAX {
            return Err(format!("its parts are nested more than {LEVELS_MAX} deep"));
        }
        let part = |expression| Part { expression, level: level + 1, in_loop };
        match &expression.expr {
            Expr::Literal(_) => {}
            Expr::Ident(name) => check_name(name, in_loop)?,
            Expr::Select(select) => parts.push(part(&select.operand)),
            Expr::List(list) => parts.extend(list.elements.iter().map(part)),
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        parts.extend([part(&entry.key), part(&entry.value)]);
                    }
                }
            }
            Expr::Call(call) => {
                if !FUNCTIONS.contains(&call.func_name.as_str()) {
                    return Err(format!("there is no function {}", call.func_name));
                }
                sums += usize::from(call.func_name == "_+_");
                if sums > SUMS_MAX {
                    return Err(format!("it has more than {SUMS_MAX} additions"));
                }
                let target = call.target.as_deref().into_iter();
                parts.extend(target.chain(&call.args).map(part));
            }
            Expr::Comprehension(it) => {
                if in_loop.is_some() {
                    return Err("a loop cannot stand in another one".to_owned());
                }
                if matches!(it.accu_init.expr, Expr::List(_) | Expr::Map(_)) {
                    return Err(
                        "map and filter are not there; all, exists and exists_one are".to_owned()
                    );
                }
                parts.push(part(&it.iter_range));
                let body = [&it.accu_init, &it.loop_cond, &it.loop_step, &it.result];
                let of_body =
                    |expression| Part { expression, level: level + 1, in_loop: Some(&**it) };
                parts.extend(body.into_iter().map(of_body));
            }
            Expr::Struct(_) | Expr::Unspecified => {
                return Err("messages are not there".to_owned());
            }
        }
    }
    Ok(())
}

fn check_name(name: &str, in_loop: Option<&ComprehensionExpr>) -> Result<(), String> {
    if let Some(it) = in_loop {
        let is_own = [it.iter_var.as_str(), it.accu_var.as_str()].contains(&name)
            || it.iter_var2.as_deref() == Some(name);
        let why = || format!("a loop reads its own variable, and {SMALL:?}; not {name}");
        return (is_own || SMALL.contains(&name)).then_some(()).ok_or_else(why);
    }
    let why = || format!("there is no variable {name}; there are {VARIABLES:?}");
    VARIABLES.contains(&name).then_some(()).ok_or_else(why)
}

/// Tells whether a header has one of these names.
pub(super) fn is_hidden(header: &Header<'_>, hidden: &[&str]) -> bool {
    hidden.iter().any(|name| header.key == name.as_bytes())
}

/// Returns the value of a variable of a record.
fn value_of(name: &str, records: &Records, record: &Record<'_>, hidden: &[&str]) -> Value {
    let bytes = |bytes: Option<&[u8]>| bytes.map_or(Value::Null, |it| Value::from(it.to_vec()));
    match name {
        "key" => bytes(record.key),
        "key_text" => text(record.key),
        "value" => bytes(record.value),
        "text" => text(record.value),
        "json" => json(record.value),
        "headers" => {
            let of = |header: Header<'_>| {
                let name = String::from_utf8_lossy(header.key).into_owned();
                (Key::from(name), text(header.value))
            };
            let shown = record.headers.into_iter().filter(|it| !is_hidden(it, hidden));
            Value::Map(Map { map: Arc::new(shown.map(of).collect()) })
        }
        "timestamp" => Value::Int(records.timestamp(record)),
        "size" => {
            let size = record.value.map_or(0, <[u8]>::len);
            Value::Int(i64::try_from(size).unwrap_or(i64::MAX))
        }
        other => unreachable!("no expression is let in that names {other}"),
    }
}

/// Returns bytes as text; null if there are none, or too many.
fn text(bytes: Option<&[u8]>) -> Value {
    match bytes.filter(|bytes| bytes.len() <= JSON_BYTES_MAX) {
        Some(bytes) => Value::from(String::from_utf8_lossy(bytes).into_owned()),
        None => Value::Null,
    }
}

/// Returns bytes as the JSON that they are; null if they are none, or too many.
fn json(bytes: Option<&[u8]>) -> Value {
    let bytes = bytes.filter(|bytes| bytes.len() <= JSON_BYTES_MAX);
    let read = bytes.and_then(|bytes| serde_json::from_slice(bytes).ok());
    read.map_or(Value::Null, of_json)
}

fn of_json(value: serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(it) => Value::Bool(it),
        serde_json::Value::Number(it) => match it.as_i64() {
            Some(int) => Value::Int(int),
            None => Value::Float(it.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(it) => Value::from(it),
        serde_json::Value::Array(all) => {
            Value::List(Arc::new(all.into_iter().map(of_json).collect()))
        }
        serde_json::Value::Object(all) => {
            let entry = |(name, value)| (Key::from(name), of_json(value));
            Value::Map(Map { map: Arc::new(all.into_iter().map(entry).collect()) })
        }
    }
}

/// Writes a result as Protobuf has JSON: an integer that a double does not hold is text, and so are bytes, in base64.
/// `None` if it takes more memory than is left.
fn written(value: &Value, left: &mut usize) -> Option<prost_types::Value> {
    const EXACT: u64 = 1 << f64::MANTISSA_DIGITS;
    let text_bytes = match value {
        Value::String(it) => it.len(),
        Value::Bytes(it) => it.len().div_ceil(3) * 4,
        _ => 0,
    };
    *left = left.checked_sub(text_bytes + RESULT_BYTES)?;
    let number = |is_exact: bool, number: f64, text: String| {
        if is_exact { Kind::NumberValue(number) } else { Kind::StringValue(text) }
    };
    #[expect(clippy::cast_precision_loss, reason = "those that would lose some are text")]
    let kind = match value {
        Value::Bool(it) => Kind::BoolValue(*it),
        Value::Int(it) => number(it.unsigned_abs() <= EXACT, *it as f64, it.to_string()),
        Value::UInt(it) => number(*it <= EXACT, *it as f64, it.to_string()),
        Value::Float(it) => number(it.is_finite(), *it, it.to_string()),
        Value::String(it) => Kind::StringValue(it.to_string()),
        Value::Bytes(it) => Kind::StringValue(data_encoding::BASE64.encode(it)),
        Value::List(all) => {
            let values = all.iter().map(|it| written(it, left)).collect::<Option<_>>()?;
            Kind::ListValue(prost_types::ListValue { values })
        }
        Value::Map(all) => {
            let mut fields = BTreeMap::new();
            for (key, value) in all.map.iter() {
                let key = key.to_string();
                *left = left.checked_sub(key.len())?;
                fields.insert(key, written(value, left)?);
            }
            Kind::StructValue(prost_types::Struct { fields })
        }
        _ => Kind::NullValue(0),
    };
    Some(prost_types::Value { kind: Some(kind) })
}

#[cfg(test)]
mod tests {
    use duramen_protocol::batch::BatchView;
    use duramen_protocol::records::{BatchBuilder, NewRecord};

    use super::*;

    const AT: Position = Position { term: 2, entry: 0, offset: 0 };

    fn request(filter: &str, fields: &[(&str, &str)]) -> ReadRequest {
        let fields = fields.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        ReadRequest {
            filter: filter.to_owned(),
            fields: fields.collect(),
            ..ReadRequest::default()
        }
    }

    fn refusal(text: &str) -> String {
        let fault = Selection::of(&request(text, &[])).unwrap_err();
        assert_eq!(fault.kind, FILTER_INVALID, "{text:.80}");
        fault.detail
    }

    /// Evaluates the expressions of a read on a record.
    fn select(request: &ReadRequest, value: Option<&[u8]>) -> Result<Selected, Fault> {
        let mut batch = BatchBuilder::new();
        let headers = &[("kind", Some(&b"order"[..]))];
        let timestamp = 1_700_000_000_000;
        batch.push(&NewRecord { key: Some(b"alice"), value, headers, timestamp }).unwrap();
        let bytes = batch.build().unwrap();
        let view = BatchView::parse(&bytes).unwrap();
        let records = Records::of(&view, 1 << 24).unwrap();
        let selection = Selection::of(request).unwrap().unwrap();
        let record = records.into_iter().next().unwrap().unwrap();
        selection.select(&records, &record, AT)
    }

    #[test]
    fn a_filter_sees_all_of_a_record() {
        let value = br#"{"level":"error","n":7,"tags":["a","b"],"at":{"x":1.5},"none":null}"#;
        for text in [
            "json.level == 'error'",
            "json.n > 6 && json.n < 8.5",
            "'b' in json.tags",
            "json.tags.exists(it, it == 'a')",
            "json.tags.all(it, it.size() == 1)",
            "json.tags.exists_one(it, it == 'b')",
            "has(json.at.x) && !has(json.at.y)",
            "json.at.x == 1.5",
            "json.none == null",
            "text.contains('error')",
            "key_text.startsWith('al') && key_text.endsWith('ce')",
            "key == b'alice'",
            "headers['kind'] == 'order'",
            "has(headers.kind)",
            "offset == 0 && timestamp == 1700000000000 && size == value.size()",
            "string(json.n) + 'x' == '7x'",
            "int('12') == 12",
        ] {
            assert_eq!(select(&request(text, &[]), Some(value)), Ok(Selected::Whole), "{text}");
            let not = format!("!({text})");
            assert_eq!(select(&request(&not, &[]), Some(value)), Ok(Selected::Nothing), "{text}");
        }
    }

    #[test]
    fn a_projection_returns_results() {
        let fields = [
            ("n", "json.n"),
            ("big", "json.big"),
            ("who", "key_text"),
            ("raw", "key"),
            ("all", "json"),
        ];
        let Ok(Selected::Fields(all, _)) =
            select(&request("", &fields), Some(br#"{"n":7,"big":9007199254740993}"#))
        else {
            panic!("it has fields")
        };
        let kind = |name: &str| all[name].kind.clone().unwrap();
        assert_eq!(kind("n"), Kind::NumberValue(7.0));
        assert_eq!(kind("big"), Kind::StringValue("9007199254740993".to_owned()));
        assert_eq!(kind("who"), Kind::StringValue("alice".to_owned()));
        assert_eq!(kind("raw"), Kind::StringValue("YWxpY2U=".to_owned()));
        assert!(matches!(kind("all"), Kind::StructValue(it) if it.fields.len() == 2));
    }

    #[test]
    fn a_projection_multiplies_no_record() {
        let value = vec![b'x'; 1 << 20];
        let few = select(&request("", &[("one", "text.size()")]), Some(&value));
        assert!(matches!(few, Ok(Selected::Fields(_, 1..200))));
        for text in ["[text, text]", "value", "{'a': text}"] {
            let fault = select(&request("", &[("all", text)]), Some(&value)).unwrap_err();
            assert_eq!(fault.kind, FILTER_FAILED, "{text}");
            assert!(fault.detail.contains("the results take more than"), "{}", fault.detail);
        }
    }

    #[test]
    fn a_failure_names_the_record_or_leaves_it_out() {
        let mut request = request("json.level == 'error'", &[]);
        for value in [None, Some(&b"no json"[..]), Some(b"{}")] {
            let fault = select(&request, value).unwrap_err();
            assert_eq!((fault.kind, &fault.members["position"]), (FILTER_FAILED, &"2.0.0".into()));
        }
        request.filter = "size".to_owned();
        assert!(select(&request, None).unwrap_err().detail.contains("its result is a int"));
        request.skip_failed = true;
        assert_eq!(select(&request, None), Ok(Selected::Nothing));
    }

    #[test]
    fn what_has_no_bound_is_refused() {
        assert!(refusal(&"a".repeat(5000)).contains("at most 4096 bytes"));
        assert!(refusal(&format!("size{}", " + 1".repeat(17))).contains("16 additions"));
        assert!(refusal(&format!("size{}", " * 1".repeat(100))).contains("nested more than"));
        assert!(refusal(&format!("[{}]", "1,".repeat(600) + "1")).contains("512 parts"));
        assert!(refusal("json.a.map(x, x)").contains("map and filter are not there"));
        assert!(refusal("json.a.filter(x, true)").contains("map and filter are not there"));
        assert!(refusal("json.a.all(x, x.all(y, y))").contains("cannot stand in another"));
        assert!(refusal("json.a.all(x, text == x)").contains("not text"));
        assert!(refusal("text.matches('a')").contains("no function matches"));
        assert!(refusal("nothing == 1").contains("no variable nothing"));
        assert!(refusal("google.protobuf.Value{}").contains("no"));
        for text in ["", " ", "(", "1 +", "\u{0}", "'", "a ? b", "[1", "((((((((((((((((("] {
            let request = request(text, &[("x", text)]);
            assert_eq!(Selection::of(&request).unwrap_err().kind, FILTER_INVALID, "{text}");
        }
    }

    /// A stack overflow would end the process: the deepest trees that are let in need a quarter of a thread's stack.
    #[test]
    fn the_deepest_expression_fits_the_stack() {
        let deepest = [
            format!("size{} == 0", " * 1".repeat(LEVELS_MAX - 2)),
            format!("json{} == 0", ".a".repeat(LEVELS_MAX - 2)),
            format!("json{} == 0", "[0]".repeat(LEVELS_MAX - 2)),
            format!("{}true", "!".repeat(4000)),
            format!("size == 1{}", " && size == 1".repeat(80)),
        ];
        let tries = move || {
            for text in &deepest {
                drop(select(&request(text, &[]), Some(b"1")));
            }
        };
        let thread = std::thread::Builder::new().stack_size(512 << 10).spawn(tries).unwrap();
        thread.join().unwrap();
        assert!(refusal(&format!("size{} == 0", " * 1".repeat(LEVELS_MAX))).contains("nested"));
    }

    #[test]
    fn no_text_overflows_the_stack_of_the_parser() {
        for (open, end) in
            [("(", ")"), ("[", "]"), ("{1:", "}"), ("size(", ")"), ("- ", ""), ("a.", "a")]
        {
            let count = TEXT_BYTES_MAX / (open.len() + end.len()) - 1;
            let text = format!("{}1{}", open.repeat(count), end.repeat(count));
            drop(Selection::of(&request(&text, &[])));
        }
        for more in ["+1", ".a", "[0]", "<1", "&&a", "||a", "?1:1"] {
            let text = format!("a{}", more.repeat(TEXT_BYTES_MAX / more.len() - 1));
            drop(Selection::of(&request(&text, &[])));
        }
    }
}
