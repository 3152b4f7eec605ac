//! The arguments of a call, checked against its tool's table. An unknown argument is an error: the model may believe
//! that it changes the policy.

use crate::error::{Error, Kind, Result};
use crate::host::is_off;
use serde_json::{Map, Value as Json, json};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Arguments(Map<String, Json>);

impl Arguments {
    pub(super) fn check(tool: &str, parameters: &[Parameter], mut given: Map<String, Json>) -> Result<Arguments> {
        // Clients pass null for what a model leaves out.
        given.retain(|_, value| !value.is_null());
        let unknown = given.keys().find(|name| parameters.iter().all(|each| each.name != **name));
        if let Some(name) = unknown.filter(|_| !is_off("mcp-parameters")) {
            let known: Vec<_> = parameters.iter().map(|each| each.name).collect();
            let words = format!("`{}` is not a parameter of `{}`", name.escape_debug(), tool);
            return Err(Error::new(Kind::Usage, words).hint(format!(
                "its parameters are {}; network, limits and mounts are flags of `brig mcp`, which a person starts",
                known.join(", ")
            )));
        }
        for parameter in parameters {
            match given.get(parameter.name) {
                Some(value) if !parameter.accepts(value) => {
                    let words = format!("`{}` is {}", parameter.name, parameter.value.words());
                    return Err(Error::new(Kind::Usage, words).hint("give a value of that type"));
                }
                None if parameter.is_required => {
                    let words = format!("`{}` is missing", parameter.name);
                    return Err(Error::new(Kind::Usage, words).hint(parameter.description));
                }
                _ => {}
            }
        }
        Ok(Arguments(given))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    pub(super) fn required(&self, name: &str) -> &str {
        self.text(name).unwrap_or_default()
    }

    pub(super) fn texts(&self, name: &str) -> Option<Vec<String>> {
        let texts = self.0.get(name)?.as_array()?.iter();
        Some(texts.filter_map(Json::as_str).map(str::to_owned).collect())
    }

    pub(super) fn table(&self, name: &str) -> Vec<(String, String)> {
        let table = self.0.get(name).and_then(Json::as_object).into_iter().flatten();
        table.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.as_f64().map(|number| number as u64)
    }

    pub(super) fn seconds(&self, name: &str) -> Result<Option<Duration>> {
        let Some(seconds) = self.0.get(name).and_then(Json::as_f64) else { return Ok(None) };
        match Duration::try_from_secs_f64(seconds) {
            Ok(time) if !time.is_zero() => Ok(Some(time)),
            _ => Err(Error::new(Kind::Usage, format!("`{name}` is {seconds}, which is not a time"))
                .hint("give a number of seconds above 0, or leave it out")),
        }
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        self.0.get(name).and_then(Json::as_bool).unwrap_or(false)
    }
}

pub(super) struct Parameter {
    pub name: &'static str,
    pub value: Value,
    pub is_required: bool,
    pub description: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Text,
    Texts,
    Table,
    Number,
    Switch,
}

pub(super) const fn required(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, value: Value::Text, is_required: true, description }
}

pub(super) const fn optional(name: &'static str, value: Value, description: &'static str) -> Parameter {
    Parameter { name, value, is_required: false, description }
}

impl Parameter {
    fn accepts(&self, value: &Json) -> bool {
        match self.value {
            Value::Text => value.is_string(),
            Value::Texts => value.as_array().is_some_and(|texts| texts.iter().all(Json::is_string)),
            Value::Table => value.as_object().is_some_and(|table| table.values().all(Json::is_string)),
            Value::Number => value.as_f64().is_some_and(|number| number >= 0.0),
            Value::Switch => value.is_boolean(),
        }
    }

    /// No unions of types: not every client knows them.
    fn schema(&self) -> Json {
        let mut schema = match self.value {
            Value::Text => json!({ "type": "string" }),
            Value::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            Value::Table => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            Value::Number => json!({ "type": "number", "minimum": 0 }),
            Value::Switch => json!({ "type": "boolean" }),
        };
        schema["description"] = self.description.into();
        schema
    }
}

impl Value {
    fn words(self) -> &'static str {
        match self {
            Value::Text => "a text",
            Value::Texts => "a list of texts",
            Value::Table => "an object whose values are texts",
            Value::Number => "a number that is not negative",
            Value::Switch => "true or false",
        }
    }
}

pub(super) fn schema(parameters: &[Parameter]) -> Json {
    let properties: Map<_, _> = parameters.iter().map(|each| (each.name.to_owned(), each.schema())).collect();
    let required: Vec<_> = parameters.iter().filter(|each| each.is_required).map(|each| each.name).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMETERS: [Parameter; 5] = [
        required("sandbox", "The sandbox"),
        required("command", "The command"),
        optional("stdin", Value::Text, "The input"),
        optional("env", Value::Table, "Variables"),
        optional("timeout", Value::Number, "Seconds"),
    ];

    #[test]
    fn unknown_missing_and_wrong_arguments_are_refused() {
        let check = |arguments: Json, expected: &str| {
            let Json::Object(given) = arguments else { panic!("no object") };
            let checked = Arguments::check("exec", &PARAMETERS, given);
            assert_eq!(checked.map_or_else(|error| error.to_string(), |_| "taken".to_owned()), expected);
        };
        check(json!({ "sandbox": "s1", "command": "ls" }), "taken");
        check(json!({ "sandbox": "s1", "command": "ls", "stdin": null }), "taken");
        check(json!({ "sandbox": "s1", "command": "ls", "network": "host" }), "`network` is not a parameter of `exec`");
        check(json!({ "sandbox": "s1" }), "`command` is missing");
        check(json!({ "sandbox": 1, "command": "ls" }), "`sandbox` is a text");
        check(
            json!({ "sandbox": "s1", "command": "ls", "env": { "A": 1 } }),
            "`env` is an object whose values are texts",
        );
        check(json!({ "sandbox": "s1", "command": "ls", "timeout": -1 }), "`timeout` is a number that is not negative");
    }
}
