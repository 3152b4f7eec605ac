//! Ceilings of hosted mode: the operator's `[max]`, or the documented defaults.

use crate::error::{Error, Kind, Result};
use crate::sandbox::{LimitName, Limits, NetworkMode};
use crate::task::definition::Definition;
use crate::task::definition::settings::values::{limit, size};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// As the operator wrote it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum Amount {
    Whole(u64),
    Part(f64),
    Text(String),
}

impl std::fmt::Display for Amount {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Amount::Whole(number) => write!(out, "{number}"),
            Amount::Part(number) => write!(out, "{number}"),
            Amount::Text(text) => out.write_str(text),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ceilings {
    limits: Limits,
    grace: Duration,
    artifact_bytes: u64,
    network_rate: Option<u64>,
    network_bytes: Option<u64>,
    /// Tasks that one `task fork` starts.
    pub(super) number: u64,
}

impl Default for Ceilings {
    fn default() -> Ceilings {
        let plain = Definition::new(Vec::new());
        Ceilings {
            limits: plain.sandbox.limits,
            grace: plain.sandbox.grace,
            artifact_bytes: plain.artifacts.bytes,
            network_rate: None,
            network_bytes: None,
            number: 1,
        }
    }
}

impl Ceilings {
    pub(super) fn parse(table: &BTreeMap<String, Amount>) -> Result<Ceilings> {
        let mut most = Ceilings::default();
        for (key, amount) in table {
            most.set(key, &amount.to_string())
                .map_err(|error| error.of_kind(Kind::Policy).doing(format!("read `max.{key}`")))?;
        }
        Ok(most)
    }

    fn set(&mut self, key: &str, text: &str) -> Result<()> {
        match key {
            "grace" => {
                self.grace = humantime::parse_duration(text)
                    .map_err(|cause| Error::new(Kind::Policy, cause.to_string()).hint("give it like `10s`"))?;
            }
            "artifact_bytes" => self.artifact_bytes = size(text)?,
            "network_rate" => self.network_rate = Some(size(text)?),
            "number" => {
                self.number = text.parse().map_err(|_| {
                    Error::new(Kind::Policy, format!("`{text}` is not a whole number")).hint("give it like `4`")
                })?;
            }
            "network_bytes" => self.network_bytes = Some(size(text)?),
            _ => self.limits.set(limit(key)?, text)?,
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn value(&self, name: LimitName) -> String {
        self.limits.value(name)
    }

    /// Refuses an amount above its ceiling. A default above it becomes the ceiling.
    pub(super) fn admit(&self, definition: &mut Definition) -> Result<(), (String, String)> {
        let plain = Definition::new(Vec::new());
        for &name in LimitName::ALL {
            if name == LimitName::Idle && definition.sandbox.holds {
                continue; // it has no output: its idle limit is its wall limit
            }
            let (asked, most) = (definition.sandbox.limits.amount(name), self.limits.amount(name));
            if asked <= most {
                continue;
            }
            if asked != definition.default_limits.amount(name) {
                return Err(above(name.word(), &definition.sandbox.limits.value(name), &self.limits.value(name)));
            }
            definition.sandbox.limits.copy_from(name, &self.limits);
        }
        if definition.sandbox.holds {
            definition.sandbox.limits.idle = definition.sandbox.limits.idle.min(definition.sandbox.limits.wall);
        }
        let words = |time: Duration| humantime::format_duration(time).to_string();
        match definition.sandbox.grace {
            grace if grace > self.grace && grace != plain.sandbox.grace => {
                return Err(above("grace", &words(grace), &words(self.grace)));
            }
            grace => definition.sandbox.grace = grace.min(self.grace),
        }
        let bytes = &mut definition.artifacts.bytes;
        if *bytes > self.artifact_bytes && *bytes != plain.artifacts.bytes {
            return Err(above("artifact_bytes", &bytes.to_string(), &self.artifact_bytes.to_string()));
        }
        *bytes = (*bytes).min(self.artifact_bytes);
        if definition.sandbox.network.mode != NetworkMode::Egress {
            return Ok(()); // no other network counts bytes
        }
        let network = &mut definition.sandbox.network;
        for (name, asked, most) in [
            ("network_rate", &mut network.rate, self.network_rate),
            ("network_bytes", &mut network.total, self.network_bytes),
        ] {
            if let (Some(bytes), Some(most)) = (*asked, most)
                && bytes > most
            {
                return Err(above(name, &bytes.to_string(), &most.to_string()));
            }
            *asked = asked.or(most);
        }
        Ok(())
    }
}

pub(super) fn above(name: &str, asked: &str, most: &str) -> (String, String) {
    let words = format!("`{name}` is {asked}, and {most} is the most");
    (words, format!("ask for {most} or less, or let the operator set `max.{name}` in {}", super::PATH))
}
