//! Conditions on tasks.

use super::index::Summary;
use crate::error::{Error, Kind, Result};
use crate::sandbox::{HealthState, Outcome};
use crate::task::definition::naming::checked_key;
use crate::task::store::Status;
use std::str::FromStr;

/// `Unhealthy` is an outcome as well.
const HEALTH: [&str; 2] = [HealthState::Starting.word(), HealthState::Healthy.word()];

/// A condition on a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A label's key, and its value if given.
    Label(String, Option<String>),
    /// The word of a status, an outcome or a health state.
    Status(String),
    /// The task's name.
    Name(String),
}

impl Filter {
    /// Parses `KEY` or `KEY=VALUE`.
    pub fn label(text: &str) -> Result<Filter> {
        let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value.to_owned())));
        Ok(Filter::Label(checked_key(key)?.to_owned(), value))
    }

    /// Whether a task fulfils the condition.
    pub fn matches(&self, row: &Summary) -> bool {
        match self {
            Filter::Label(key, None) => row.labels.contains_key(key),
            Filter::Label(key, Some(value)) => row.labels.get(key) == Some(value),
            Filter::Name(name) => row.name.as_ref() == Some(name),
            Filter::Status(word) => {
                let health = row.health.map(HealthState::word);
                row.status.word() == word || row.outcome.as_ref() == Some(word) || health == Some(word)
            }
        }
    }
}

impl FromStr for Filter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Filter> {
        match text.split_once('=') {
            Some(("label", label)) => Filter::label(label),
            Some(("name", name)) => Ok(Filter::Name(name.to_owned())),
            Some(("status", word)) => {
                let all = Status::ALL.iter().map(|status| status.word()).chain(Outcome::WORDS).chain(HEALTH);
                if all.clone().any(|each| each == word) {
                    return Ok(Filter::Status(word.to_owned()));
                }
                let all: Vec<_> = all.collect();
                Err(Error::new(Kind::Usage, format!("`{}` is not a status", word.escape_debug()))
                    .hint(format!("use one of {}", all.join(", "))))
            }
            _ => Err(Error::new(Kind::Usage, format!("`{}` is not a filter", text.escape_debug()))
                .hint("use label=KEY, label=KEY=VALUE, status=WORD or name=NAME")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_match_labels_status_outcome_and_name() {
        let row = Summary {
            id: "t0".into(),
            status: Status::Ended,
            outcome: Some("failed".into()),
            created: String::new(),
            wall_seconds: None,
            command: Vec::new(),
            name: Some("nightly".into()),
            labels: [("team".to_owned(), "a=b".to_owned())].into(),
            health: Some(HealthState::Healthy),
        };
        for (text, expected) in [
            ("label=team", true),
            ("label=team=a=b", true),
            ("label=team=a", false),
            ("label=other", false),
            ("status=ended", true),
            ("status=failed", true),
            ("status=running", false),
            ("status=healthy", true),
            ("status=starting", false),
            ("status=succeeded", false),
            ("name=nightly", true),
            ("name=night", false),
        ] {
            assert_eq!(text.parse::<Filter>().unwrap().matches(&row), expected, "{text}");
        }
        for text in ["", "label", "label=", "status=odd", "color=red", "name"] {
            assert_eq!(text.parse::<Filter>().unwrap_err().kind(), Kind::Usage, "{text:?}");
        }
    }
}
