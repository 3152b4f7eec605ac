//! The result envelope and the receipt's own form.

use crate::support::Lab;
use serde_json::{Value, json};

const SCHEMA: &str = r#"{ "type": "object", "required": ["status"], "additionalProperties": false,
    "properties": { "status": { "enum": ["done", "blocked"] }, "count": { "type": "integer", "minimum": 0 } } }"#;

#[test]
fn what_a_task_says_of_itself_is_in_the_receipt_with_secrets_hidden() {
    let lab = Lab::new();
    let file = lab.file("token", "correct-horse-battery-staple");
    let script = "mkdir .brig; printf '{\"status\":\"done\",\"token\":\"%s\",\"list\":[1,2.5,null]}' $(cat /run/secrets/T) >.brig/result.json";
    let run = lab.task().args(["--secret", &format!("T=file:{}", file.display())]).sh(script);
    run.ended_as("succeeded", 0);
    let result = &run.receipt()["result"];
    assert_eq!((&result["valid"], &result["faults"]), (&json!(true), &json!([])), "{run:#?}");
    assert_eq!(result["value"], json!({ "status": "done", "token": "[redacted:T]", "list": [1, 2.5, null] }));
    let nothing = lab.task().sh("echo hello");
    nothing.ended_as("succeeded", 0);
    // It is in the receipt, and not part of the work.
    let diff = lab.brig(["task", "diff", run.receipt()["id"].as_str().unwrap()]);
    assert!(diff.succeeded().stdout.is_empty() && run.receipt()["changes"]["added"] == 0, "{diff:#?}");
    let more = lab.task().sh("mkdir .brig; echo {} >.brig/result.json; echo x >.brig/other; echo y >file");
    let diff = lab.brig(["task", "diff", more.receipt()["id"].as_str().unwrap(), "--stat"]).stdout;
    assert!(diff.contains(".brig/other") && diff.contains("file") && !diff.contains("result.json"), "{diff}");
    assert!(nothing.receipt()["result"].is_null(), "{nothing:#?}");
}

#[test]
fn a_result_that_does_not_fit_its_schema_is_no_success() {
    let lab = Lab::new();
    let schema = lab.file("schema.json", SCHEMA);
    let task = |script: &str| lab.task().args(["--result", "out/r.json", "--result-schema"]).args([&schema]).sh(script);
    let run = task("mkdir out; echo '{\"status\":\"done\",\"count\":3}' >out/r.json");
    run.ended_as("succeeded", 0);
    assert_eq!(run.receipt()["result"]["valid"], true);
    for (script, fault) in [
        ("mkdir out; echo '{\"status\":\"maybe\",\"count\":-1}' >out/r.json", "/count: it must be at least 0"),
        ("mkdir out; echo '{\"status\":\"done\"' >out/r.json", "it is not JSON"),
        ("mkdir out; echo '[1]' >out/r.json", "it must be of type object"),
        ("mkdir out; perl -e 'print q([) x 100000' >out/r.json", "it is not JSON"),
        ("mkdir out; truncate -s 10G out/r.json", "longer than 1 MiB"),
        ("mkdir out; mkfifo out/r.json", "not a regular file"),
        ("mkdir out; ln -s /etc/hostname out/r.json", "a link"),
        ("ln -s /etc out", "not there"),
        ("mkdir a; ln -s a out; echo '{}' >a/r.json", "not there"),
        ("mkdir -p out/r.json", "not a regular file"),
        ("true", "not there"),
        ("echo hello >other", "not there"),
    ] {
        let run = task(script);
        run.ended_as("policy", 125);
        let receipt = run.receipt();
        let faults: Vec<_> = receipt["result"]["faults"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(faults.iter().any(|each| each.contains(fault)), "{script}: {faults:?}");
        assert_eq!((&receipt["error"]["code"], &receipt["retryable"]), (&json!("E-POLICY"), &json!(false)), "{script}");
    }
    // A failure stays a failure, with or without a result.
    task("exit 7").ended_as("failed", 7);
}

#[test]
fn a_result_of_the_folder_that_the_command_did_not_write_is_none() {
    let lab = Lab::new();
    lab.file("work/.brig/result.json", "{\"status\":\"old\"}");
    let work = lab.path().join("work");
    let run = lab.task().args(["--dir".as_ref(), work.as_os_str()]).sh("echo x >y");
    assert!(run.receipt()["result"].is_null(), "{run:#?}");
    let run = lab.task().args(["--dir".as_ref(), work.as_os_str()]).sh("rm .brig/result.json");
    assert!(run.receipt()["result"].is_null(), "a file that is gone is none: {run:#?}");
}

#[test]
fn a_schema_that_is_not_understood_is_refused_before_anything_starts() {
    let lab = Lab::new();
    let schema = lab.file("schema.json", "{\"properties\":{\"a\":{\"pattern\":\"^x\"}}}");
    let task = || lab.task().plain().args(["--result-schema".as_ref(), schema.as_os_str()]);
    task().sh("true").refused(125, &["schema.json", "#/properties/a/pattern"]);
    lab.task().plain().args(["--result", "../x"]).sh("true").refused(125, &["`../x`"]);
    let profile = lab.file("p.toml", "[result]\nschema = \"none.json\"\n");
    lab.task()
        .plain()
        .args(["--profile".as_ref(), profile.as_os_str()])
        .sh("true")
        .refused(125, &["none.json", "No such file"]);
    assert_eq!(lab.ids(), [] as [&str; 0]);
}

#[test]
fn the_receipt_says_what_it_ran_on_and_by_which_profile() {
    let lab = Lab::new();
    let profile = lab.file("p.toml", "canary = false\nartifacts = [\"r\"]\n");
    let run = lab.task().args(["--profile".as_ref(), profile.as_os_str()]).sh("echo x >r");
    run.ended_as("succeeded", 0);
    let receipt = run.receipt();
    let sum = std::process::Command::new("sha256sum").arg(&profile).output().unwrap();
    assert!(String::from_utf8_lossy(&sum.stdout).starts_with(receipt["profile"]["sha256"].as_str().unwrap()));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(receipt["versions"]["kernel"], kernel.trim());
    assert_eq!(receipt["artifacts"]["files"][0]["path"], "r");
}

/// Debian's python3-jsonschema, a complete implementation, reads docs/receipt.schema.json as brig does.
#[test]
fn another_implementation_finds_the_receipt_as_its_schema_says() {
    let lab = Lab::new();
    let good = lab.task().args(["--artifact", "*"]).sh("echo x >x; exit 4");
    good.ended_as("failed", 4);
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/receipt.schema.json");
    let valid = |receipt: &Value| {
        let path = lab.file("receipt.json", receipt.to_string());
        let script = "import json,sys,jsonschema\ns=json.load(open(sys.argv[1])); jsonschema.Draft202012Validator.check_schema(s)\nsys.exit(not jsonschema.Draft202012Validator(s).is_valid(json.load(open(sys.argv[2]))))";
        std::process::Command::new("python3").args(["-c", script, schema]).arg(path).status().unwrap().success()
    };
    if !std::process::Command::new("python3").args(["-c", "import jsonschema"]).status().unwrap().success() {
        return crate::support::skip("needs python3-jsonschema");
    }
    let mut receipt = good.receipt();
    assert!(valid(&receipt), "{receipt:#}");
    receipt["outcome"] = json!("succeeded");
    assert!(!valid(&receipt), "an exit code belongs to `failed` alone");
    receipt["outcome"] = json!("failed");
    receipt["guarantee"] = json!("perfect");
    assert!(!valid(&receipt));
}
