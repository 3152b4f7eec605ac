//! What one command of brig did.

use brig::task::Schema;
use serde_json::Value;
use std::sync::OnceLock;
use std::time::Duration;

/// A finished command: its status, its streams and, with `--json`, its receipt.
#[derive(Debug)]
pub struct Run {
    /// Its exit status, if it exited.
    pub status: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Standard output: the receipt with `--json`, else the command's.
    pub stdout: String,
    /// Standard error: brig's own words and, with `--json`, the command's output of both streams.
    pub stderr: String,
    /// From its start to its end.
    pub elapsed: Duration,
}

/// What every receipt must look like.
fn receipt_schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| Schema::parse(include_bytes!("../../../docs/receipt.schema.json")).unwrap())
}

impl Run {
    /// The receipt that `--json` printed, checked against docs/receipt.schema.json.
    #[track_caller]
    pub fn receipt(&self) -> Value {
        let receipt =
            serde_json::from_str(&self.stdout).unwrap_or_else(|cause| panic!("no receipt ({cause}): {self:#?}"));
        let faults = receipt_schema().faults(&receipt);
        assert!(faults.is_empty(), "not as docs/receipt.schema.json says: {faults:#?}: {receipt:#}");
        receipt
    }

    /// The outcome's word.
    #[track_caller]
    pub fn outcome(&self) -> String {
        self.receipt()["outcome"].as_str().unwrap().to_owned()
    }

    /// Asserts the outcome and the exit status, which must also be the receipt's.
    #[track_caller]
    pub fn ended_as(&self, outcome: &str, status: i32) -> &Run {
        let receipt = self.receipt();
        assert_eq!(receipt["outcome"], outcome, "{self:#?}");
        assert_eq!(self.status, Some(status), "{self:#?}");
        assert_eq!(receipt["exit_status"], status, "{self:#?}");
        assert_eq!(receipt["cleanup"]["left"], serde_json::json!([]), "{self:#?}");
        self
    }

    /// Asserts exit status 0.
    #[track_caller]
    pub fn succeeded(&self) -> &Run {
        assert_eq!(self.status, Some(0), "{self:#?}");
        self
    }

    /// The evidence for one limit under `limits_hit`.
    #[track_caller]
    pub fn evidence(&self, limit: &str) -> Option<String> {
        let receipt = self.receipt();
        let hits = receipt["limits_hit"].as_array().unwrap();
        hits.iter().find(|hit| hit["limit"] == limit).map(|hit| hit["evidence"].as_str().unwrap().to_owned())
    }

    /// Whether the receipt lists this limit as hit.
    #[track_caller]
    pub fn hit(&self, limit: &str) -> bool {
        self.evidence(limit).is_some()
    }

    /// A number of the receipt's `usage`.
    #[track_caller]
    pub fn used(&self, name: &str) -> f64 {
        self.receipt()["usage"][name].as_f64().unwrap_or_else(|| panic!("no usage of {name}: {self:#?}"))
    }

    /// Asserts that brig refused with this status, one `error:` line that has all of `words`, and a hint.
    #[track_caller]
    pub fn refused(&self, status: i32, words: &[&str]) -> &Run {
        assert_eq!(self.status, Some(status), "{self:#?}");
        let lines = |start: &str| self.stderr.lines().filter(|line| line.starts_with(start)).collect::<Vec<_>>();
        let errors = lines("error: ");
        assert_eq!(errors.len(), 1, "one error line: {self:#?}");
        for word in words {
            assert!(errors[0].contains(word), "`{word}` in the error: {self:#?}");
        }
        assert_eq!(lines("hint:  ").len(), 1, "one hint: {self:#?}");
        self
    }
}
