//! The part of JSON Schema (draft 2020-12) that describes a result. Pure.
//!
//! `$ref` stays within the document. An unknown keyword is an error when the schema is read: it would check nothing.

use crate::error::{Error, Kind, Result};
use serde_json::{Map, Value};

/// A schema whose keywords are all known.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema(Value);

/// Reported faults: a hostile document may have a million.
const MOST_FAULTS: usize = 8;
/// Rules applied to one document: nested alternatives must come to an end.
const MOST_STEPS: usize = 2_000_000;
/// Nested schemas. serde_json bounds documents (128).
const DEEPEST: usize = 300;

const DESCRIBING: [&str; 10] =
    ["$schema", "$id", "$comment", "title", "description", "default", "examples", "format", "deprecated", "readOnly"];
const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "integer", "string"];

impl Schema {
    /// Reads a schema and checks that every keyword is known and well formed.
    pub fn parse(bytes: &[u8]) -> Result<Schema> {
        let wrong =
            |why: String| Error::new(Kind::Profile, why).hint("docs/profile.md has the keywords that are known");
        let root: Value = serde_json::from_slice(bytes).map_err(|cause| wrong(cause.to_string()))?;
        let schema = Schema(root);
        schema.known(&schema.0, "#", 0).map_err(wrong)?;
        Ok(schema)
    }

    /// One sentence for each fault, with a JSON pointer.
    pub fn faults(&self, document: &Value) -> Vec<String> {
        let mut check = Check { schema: self, faults: Vec::new(), steps: 0, is_silent: 0 };
        check.value(&self.0, document, &mut String::new(), 0);
        if check.steps > MOST_STEPS {
            check.faults = vec!["it takes too long to check".to_owned()];
        }
        check.faults
    }

    fn find(&self, reference: &str) -> Option<&Value> {
        let pointer = reference.strip_prefix('#')?;
        if pointer.is_empty() { Some(&self.0) } else { self.0.pointer(pointer) }
    }

    /// The error has the place and the reason.
    fn known(&self, schema: &Value, at: &str, depth: usize) -> Result<(), String> {
        let Value::Object(map) = schema else {
            return if schema.is_boolean() { Ok(()) } else { Err(format!("{at}: a schema is an object or a boolean")) };
        };
        if depth > DEEPEST {
            return Err(format!("{at}: too deep"));
        }
        for (key, value) in map {
            let at = format!("{at}/{key}");
            let within = |value: &Value, name: &str| self.known(value, &format!("{at}/{name}"), depth + 1);
            let is_right = match key.as_str() {
                "$defs" | "properties" => match value {
                    Value::Object(all) => all.iter().try_for_each(|(name, each)| within(each, name)).map(|()| true)?,
                    _ => false,
                },
                "allOf" | "anyOf" | "oneOf" => match value {
                    Value::Array(all) => all.iter().try_for_each(|each| within(each, "…")).map(|()| !all.is_empty())?,
                    _ => false,
                },
                "additionalProperties" | "items" | "not" => self.known(value, &at, depth + 1).map(|()| true)?,
                "$ref" => value.as_str().is_some_and(|text| self.find(text).is_some()),
                "type" => words(value).is_some_and(|all| all.iter().all(|word| TYPES.contains(word))),
                "required" => value.is_array() && words(value).is_some(),
                "enum" => value.is_array(),
                "const" => true,
                "minItems" | "maxItems" | "minLength" | "maxLength" => value.is_u64(),
                "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => value.is_number(),
                other if DESCRIBING.contains(&other) => true,
                _ => return Err(format!("{at}: this keyword is not known here")),
            };
            if !is_right {
                return Err(format!("{at}: its value is not one that the keyword can have"));
            }
        }
        Ok(())
    }
}

fn words(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(word) => Some(vec![word]),
        Value::Array(all) => all.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn is_of_type(value: &Value, word: &str) -> bool {
    match value {
        Value::Null => word == "null",
        Value::Bool(_) => word == "boolean",
        Value::Object(_) => word == "object",
        Value::Array(_) => word == "array",
        Value::String(_) => word == "string",
        Value::Number(number) => {
            let is_whole = || !number.is_f64() || number.as_f64().is_some_and(|number| number.fract() == 0.0);
            word == "number" || (word == "integer" && is_whole())
        }
    }
}

/// 1 and 1.0 are one number.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || (one.is_f64() != other.is_f64() && one.as_f64() == other.as_f64())
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len() && one.iter().all(|(key, each)| other.get(key).is_some_and(|it| is_same(each, it)))
        }
        _ => one == other,
    }
}

struct Check<'a> {
    schema: &'a Schema,
    faults: Vec<String>,
    steps: usize,
    /// Inside an alternative: faults are discarded.
    is_silent: usize,
}

impl Check<'_> {
    fn value(&mut self, schema: &Value, value: &Value, at: &mut String, depth: usize) -> bool {
        self.steps += 1;
        let map = match schema {
            Value::Bool(true) => return true,
            Value::Object(map) if self.steps <= MOST_STEPS => map,
            _ => return self.fault(at, "it may not be there".to_owned()),
        };
        if depth > DEEPEST {
            return self.fault(at, "it is too deep".to_owned());
        }
        let mut fits = true;
        for (key, rule) in map {
            fits &= self.rule(map, (key, rule), value, at, depth);
        }
        fits
    }

    fn rule(
        &mut self,
        map: &Map<String, Value>,
        (key, rule): (&str, &Value),
        value: &Value,
        at: &mut String,
        depth: usize,
    ) -> bool {
        let (least, most) = (
            |count: usize| rule.as_u64().is_none_or(|least| count as u64 >= least),
            |count: usize| rule.as_u64().is_none_or(|most| count as u64 <= most),
        );
        let number = value.as_f64().zip(rule.as_f64());
        match (key, value) {
            ("type", _) => {
                let all = words(rule).unwrap_or_default();
                all.iter().any(|word| is_of_type(value, word))
                    || self.fault(at, format!("it must be of type {}", all.join(" or ")))
            }
            ("enum", _) => {
                let fits = rule.as_array().is_some_and(|all| all.iter().any(|each| is_same(each, value)));
                fits || self.fault(at, format!("it must be one of {rule}"))
            }
            ("const", _) => is_same(rule, value) || self.fault(at, format!("it must be {rule}")),
            ("minimum", Value::Number(_)) => {
                number.is_none_or(|(it, rule)| it >= rule) || self.fault(at, format!("it must be at least {rule}"))
            }
            ("maximum", Value::Number(_)) => {
                number.is_none_or(|(it, rule)| it <= rule) || self.fault(at, format!("it must be at most {rule}"))
            }
            ("exclusiveMinimum", Value::Number(_)) => {
                number.is_none_or(|(it, rule)| it > rule) || self.fault(at, format!("it must be more than {rule}"))
            }
            ("exclusiveMaximum", Value::Number(_)) => {
                number.is_none_or(|(it, rule)| it < rule) || self.fault(at, format!("it must be less than {rule}"))
            }
            ("minLength", Value::String(text)) => {
                least(text.chars().count()) || self.fault(at, format!("it must have at least {rule} characters"))
            }
            ("maxLength", Value::String(text)) => {
                most(text.chars().count()) || self.fault(at, format!("it must have at most {rule} characters"))
            }
            ("minItems", Value::Array(all)) => {
                least(all.len()) || self.fault(at, format!("it must have at least {rule} items"))
            }
            ("maxItems", Value::Array(all)) => {
                most(all.len()) || self.fault(at, format!("it must have at most {rule} items"))
            }
            ("required", Value::Object(has)) => {
                let missing: Vec<_> = words(rule)
                    .unwrap_or_default()
                    .into_iter()
                    .filter(|name| !has.contains_key(*name))
                    .map(str::to_owned)
                    .collect();
                missing.iter().fold(true, |_, name| self.fault(at, format!("`{name}` is missing")))
            }
            ("properties", Value::Object(has)) => {
                let rules = rule.as_object();
                let both =
                    rules.into_iter().flatten().filter_map(|(name, schema)| Some((name, schema, has.get(name)?)));
                both.fold(true, |fits, (name, schema, each)| self.below(schema, each, (at, name), depth) && fits)
            }
            ("additionalProperties", Value::Object(has)) => {
                let named = map.get("properties").and_then(Value::as_object);
                let others = has.iter().filter(|(name, _)| named.is_none_or(|named| !named.contains_key(*name)));
                others.fold(true, |fits, (name, each)| self.below(rule, each, (at, name), depth) && fits)
            }
            ("items", Value::Array(all)) => all
                .iter()
                .enumerate()
                .fold(true, |fits, (index, each)| self.below(rule, each, (at, &index.to_string()), depth) && fits),
            ("$ref", _) => match rule.as_str().and_then(|text| self.schema.find(text)) {
                Some(schema) => self.value(schema, value, at, depth + 1),
                None => false,
            },
            ("allOf", _) => {
                // Not `all`: report every fault, not the first alone.
                let unfit = |each: &&Value| !self.value(each, value, at, depth + 1);
                rule.as_array().into_iter().flatten().filter(unfit).count() == 0
            }
            ("anyOf", _) => {
                self.fitting(rule, value, at, depth) > 0
                    || self.fault(at, "it fits none of the alternatives".to_owned())
            }
            ("oneOf", _) => {
                self.fitting(rule, value, at, depth) == 1
                    || self.fault(at, "it must fit one of the alternatives, and only one".to_owned())
            }
            ("not", _) => {
                !self.silently(rule, value, at, depth) || self.fault(at, "it is what it must not be".to_owned())
            }
            _ => true,
        }
    }

    fn fitting(&mut self, all: &Value, value: &Value, at: &mut String, depth: usize) -> usize {
        all.as_array().into_iter().flatten().filter(|each| self.silently(each, value, at, depth)).count()
    }

    fn silently(&mut self, schema: &Value, value: &Value, at: &mut String, depth: usize) -> bool {
        self.is_silent += 1;
        let fits = self.value(schema, value, at, depth + 1);
        self.is_silent -= 1;
        fits
    }

    fn below(&mut self, schema: &Value, value: &Value, (at, name): (&mut String, &str), depth: usize) -> bool {
        let length = at.len();
        at.push('/');
        at.push_str(&name.replace('~', "~0").replace('/', "~1"));
        let fits = self.value(schema, value, at, depth + 1);
        at.truncate(length);
        fits
    }

    fn fault(&mut self, at: &str, why: String) -> bool {
        if self.is_silent == 0 && self.faults.len() < MOST_FAULTS {
            let place = if at.is_empty() { "the document" } else { at };
            let place: String = place.chars().take(200).collect();
            self.faults.push(format!("{place}: {why}"));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Schema, document, whether it matches.
    fn rows() -> Vec<(Value, Value, bool)> {
        let person = json!({ "type": "object", "required": ["name"], "additionalProperties": false,
            "properties": { "name": { "type": "string", "minLength": 1 }, "age": { "type": "integer", "minimum": 0 } } });
        let tree = json!({ "$defs": { "node": { "type": "object", "properties": { "next": { "$ref": "#/$defs/node" } },
            "additionalProperties": { "type": "number" } } }, "$ref": "#/$defs/node" });
        vec![
            (person.clone(), json!({ "name": "a", "age": 3 }), true),
            (person.clone(), json!({ "name": "a", "age": 3.0 }), true),
            (person.clone(), json!({ "name": "a", "age": 3.5 }), false),
            (person.clone(), json!({ "name": "" }), false),
            (person.clone(), json!({ "age": 3 }), false),
            (person.clone(), json!({ "name": "a", "other": 1 }), false),
            (person, json!([]), false),
            (tree.clone(), json!({ "next": { "next": {} }, "x": 1 }), true),
            (tree, json!({ "next": { "next": { "x": "1" } } }), false),
            (json!({ "enum": [1, "a", null, { "b": [2] }] }), json!({ "b": [2.0] }), true),
            (json!({ "enum": [1, "a"] }), json!("b"), false),
            (json!({ "const": 1 }), json!(1.0), true),
            (json!({ "type": ["null", "string"] }), json!(null), true),
            (json!({ "type": "number" }), json!(true), false),
            (json!({ "type": "array", "items": { "maximum": 3 }, "minItems": 1, "maxItems": 2 }), json!([1, 3]), true),
            (json!({ "items": { "exclusiveMaximum": 3 } }), json!([1, 3]), false),
            (json!({ "items": { "exclusiveMinimum": 3 } }), json!([4, "x"]), true),
            (json!({ "minItems": 1 }), json!([]), false),
            (json!({ "maxItems": 1 }), json!([1, 2]), false),
            (json!({ "maxLength": 2 }), json!("äöü"), false),
            (json!({ "maxLength": 3 }), json!("äöü"), true),
            (json!({ "anyOf": [{ "type": "string" }, { "minimum": 5 }] }), json!(5), true),
            (json!({ "anyOf": [{ "type": "string" }, { "minimum": 5 }] }), json!(4), false),
            (json!({ "oneOf": [{ "type": "number" }, { "minimum": 5 }] }), json!(5), false),
            (json!({ "oneOf": [{ "type": "number" }, { "minimum": 5 }] }), json!(4), true),
            (json!({ "allOf": [{ "type": "number" }, { "minimum": 5 }] }), json!(4), false),
            (json!({ "not": { "type": "string" } }), json!("x"), false),
            (json!(true), json!("x"), true),
            (json!(false), json!("x"), false),
            (json!({ "title": "x", "description": "y", "default": 1 }), json!("x"), true),
        ]
    }

    fn schema(value: &Value) -> Schema {
        Schema::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn documents_fit_or_are_told_what_is_wrong_and_where() {
        for (rules, document, fits) in rows() {
            let faults = schema(&rules).faults(&document);
            assert_eq!(faults.is_empty(), fits, "{rules} {document}: {faults:?}");
        }
        let rules = json!({ "properties": { "a/b": { "items": { "type": "string" } } }, "required": ["c"] });
        let faults = schema(&rules).faults(&json!({ "a/b": ["x", 5] }));
        assert_eq!(faults, ["/a~1b/1: it must be of type string", "the document: `c` is missing"]);
    }

    #[test]
    fn a_schema_with_a_rule_that_is_not_known_is_refused() {
        let check = |text: &str, words: &str| {
            let error = Schema::parse(text.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(words) && error.kind() == Kind::Profile, "{text}: {error}");
        };
        check(r#"{"pattern":"^a"}"#, "#/pattern: this keyword is not known");
        check(r#"{"properties":{"a":{"uniqueItems":true}}}"#, "#/properties/a/uniqueItems");
        check(r#"{"type":"text"}"#, "#/type: its value");
        check(r##"{"$ref":"#/$defs/none"}"##, "#/$ref: its value");
        check(r#"{"$ref":"http://example.com/x"}"#, "#/$ref: its value");
        check(r#"{"required":"a"}"#, "#/required");
        check(r#"[]"#, "an object or a boolean");
        check(r#"{"#, "EOF");
    }

    #[test]
    fn neither_a_loop_nor_a_hostile_document_makes_it_go_on_for_ever() {
        assert!(!schema(&json!({ "$ref": "#" })).faults(&json!(1)).is_empty());
        let rules =
            json!({ "anyOf": [{ "items": { "$ref": "#" }, "not": {} }, { "items": { "$ref": "#" }, "not": {} }] });
        let mut document = json!(1);
        for _ in 0..100 {
            document = json!([document]);
        }
        assert!(!schema(&rules).faults(&document).is_empty());
        let many = Value::Array(vec![json!("x"); 100_000]);
        assert_eq!(schema(&json!({ "items": { "type": "number" } })).faults(&many).len(), MOST_FAULTS);
    }

    /// Compares with Debian's python3-jsonschema.
    #[test]
    fn another_implementation_says_the_same() {
        use std::io::Write;
        use std::process::{Command, Stdio};
        let script = "import json,sys,jsonschema\nfor s,d in json.load(sys.stdin): print(int(jsonschema.Draft202012Validator(s).is_valid(d)))";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let asked: Vec<_> = rows().into_iter().map(|(rules, document, _)| json!([rules, document])).collect();
        let _ = child.stdin.take().unwrap().write_all(Value::Array(asked).to_string().as_bytes());
        let done = child.wait_with_output().unwrap();
        if !done.status.success() {
            crate::files::skip("task::schema::tests::another_implementation_says_the_same: needs python3-jsonschema");
            return;
        }
        let said: Vec<_> = String::from_utf8(done.stdout).unwrap().lines().map(|line| line == "1").collect();
        assert_eq!(said, rows().iter().map(|row| row.2).collect::<Vec<_>>());
    }
}
