//! Hooks and callers that misbehave.

use crate::support::{Done, Lab, finish};
use serde_json::json;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// More than a pipe holds.
fn much(lab: &mut Lab) {
    lab.config["annotations"] = json!({"much": "x".repeat(100 << 10)});
}

#[test]
fn a_hook_need_not_read_the_state() {
    let Some(mut lab) = Lab::new() else { return };
    much(&mut lab);
    let hook = json!([{"path": "/bin/true", "timeout": i64::MAX}]);
    for name in ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"] {
        lab.config["hooks"][name] = hook.clone();
    }
    lab.sh("echo ran");
    assert_eq!(lab.run().succeeded().out, "ran\n");
    // If it is not pid 1 of its namespace, SIGPIPE would end it too.
    assert_eq!(lab.without("pid").run().succeeded().out, "ran\n");
}

#[test]
fn a_hook_reads_all_of_the_state_from_its_beginning_and_cannot_change_it() {
    let Some(mut lab) = Lab::new() else { return };
    much(&mut lab);
    let hook = |place: &str| {
        let line = format!("echo x 2> /dev/null >&0; cat > {place}; cat >> {place}");
        json!([{"path": "/bin/sh", "args": ["sh", "-c", line], "env": ["PATH=/bin:/usr/bin"]}])
    };
    lab.config["hooks"]["createRuntime"] = hook(lab.path().join("seen").to_str().unwrap());
    lab.config["hooks"]["startContainer"] = hook("/seen");
    lab.args(&["true"]).run().succeeded();
    for place in [lab.path().join("seen"), lab.root("/seen")] {
        let state: serde_json::Value = serde_json::from_slice(&std::fs::read(place).unwrap()).unwrap();
        assert_eq!(state["id"], lab.id.as_str());
        assert_eq!(state["annotations"]["much"].as_str().unwrap().len(), 100 << 10);
    }
}

#[test]
fn a_hook_that_does_not_read_is_within_its_time_all_the_same() {
    let Some(mut lab) = Lab::new() else { return };
    much(&mut lab);
    lab.config["hooks"] = json!({"createRuntime": [{"path": "/bin/sleep", "args": ["sleep", "20"], "timeout": 1}]});
    let began = Instant::now();
    lab.args(&["true"]).create().failed_with("longer than 1 s");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// Runs our command under a caller that ignores SIGCHLD, as some daemons do.
fn unheard(lab: &Lab, arguments: &[&str]) -> Done {
    let command = lab.command(arguments);
    let mut wrapped = Command::new("perl");
    wrapped.args(["-e", "$SIG{CHLD} = 'IGNORE'; exec @ARGV"]).arg(command.get_program()).args(command.get_args());
    wrapped.current_dir(lab.path()).stdin(Stdio::null());
    if arguments[0] == "create" {
        wrapped.stdout(Stdio::null()).stderr(Stdio::null());
    }
    finish(&mut wrapped)
}

#[test]
fn a_caller_that_ignores_the_ends_of_its_children_is_served_like_any_other() {
    let Some(mut lab) = Lab::new() else { return };
    let log = lab.path().join("log");
    let hook = |name: &str| {
        let line = format!("echo {name} >> {}", log.display());
        json!([{"path": "/bin/sh", "args": ["sh", "-c", line]}])
    };
    for name in ["prestart", "createRuntime", "createContainer", "poststart", "poststop"] {
        lab.config["hooks"][name] = hook(name);
    }
    lab.config["hooks"]["startContainer"] = json!([{"path": "/bin/true"}]);
    lab.args(&["sleep", "100"]);
    let id = lab.id.clone();
    unheard(&lab, &["create", &id]).succeeded();
    unheard(&lab, &["start", &id]).succeeded();
    assert_eq!(unheard(&lab, &["exec", &id, "sh", "-c", "exit 7"]).status, 7);
    unheard(&lab, &["ps", &id]).succeeded();
    unheard(&lab, &["kill", &id, "KILL"]).succeeded();
    unheard(&lab, &["delete", "--force", &id]).succeeded();
    let moments = "prestart\ncreateRuntime\ncreateContainer\npoststart\npoststop\n";
    assert_eq!(std::fs::read_to_string(&log).unwrap(), moments);
    assert_eq!(unheard(lab.sh("exit 9"), &["run", &id]).status, 9);
    assert_eq!(std::fs::read_to_string(&log).unwrap(), moments.repeat(2));
}
