//! Damaged documents must be parsed or refused, and never panic, up to the plan.

use super::prepare;
use crate::spec::config::check::check;
use crate::spec::config::parse;
use crate::spec::protections::Protections;
use proptest::prelude::*;
use serde_json::{Value, json};

/// With nearly every field.
fn whole() -> Value {
    let hook = json!([{"path": "/h", "args": ["h"], "env": ["A=b"], "timeout": 3}]);
    let map = json!([{"containerID": 0, "hostID": 1000, "size": 10}]);
    let capabilities = json!(["CAP_KILL", "CAP_CHOWN"]);
    let process = json!({
        "terminal": true, "consoleSize": {"height": 25, "width": 80}, "args": ["a", "b"], "env": ["PATH=/bin", "X="], "cwd": "/",
        "user": {"uid": 1, "gid": 2, "umask": 18, "additionalGids": [3, 4]},
        "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities, "inheritable": [], "ambient": []},
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 1, "hard": 2}],
        "noNewPrivileges": true, "oomScoreAdj": 5, "apparmorProfile": "p", "selinuxLabel": "l",
        "scheduler": {"policy": "SCHED_OTHER", "nice": 1, "priority": 0, "flags": [], "runtime": 0, "deadline": 0, "period": 0},
        "ioPriority": {"class": "IOPRIO_CLASS_IDLE", "priority": 0},
        "execCPUAffinity": {"initial": "0", "final": "0-1"},
    });
    let resources = json!({
        "devices": [{"allow": false, "type": "a", "major": 1, "minor": 2, "access": "rwm"}],
        "memory": {"limit": 1, "swap": 2, "reservation": 3, "kernel": 4, "swappiness": 5, "disableOOMKiller": false},
        "cpu": {"shares": 1, "quota": 2, "period": 3, "burst": 1, "realtimeRuntime": 1, "realtimePeriod": 1, "cpus": "0", "mems": "0", "idle": 1},
        "pids": {"limit": 3}, "hugepageLimits": [{"pageSize": "2MB", "limit": 1}], "rdma": {"x": {"hcaHandles": 1, "hcaObjects": 2}},
        "blockIO": {"weight": 10, "leafWeight": 10, "weightDevice": [{"major": 1, "minor": 2, "weight": 3}], "throttleReadBpsDevice": [{"major": 1, "minor": 2, "rate": 3}]},
        "network": {"classID": 1, "priorities": [{"name": "eth0", "priority": 1}]}, "unified": {"memory.high": "1"},
    });
    let seccomp = json!({
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "architectures": ["SCMP_ARCH_X86_64"], "flags": ["SECCOMP_FILTER_FLAG_LOG"],
        "listenerPath": "/l", "listenerMetadata": "m",
        "syscalls": [{"names": ["read", "openat"], "action": "SCMP_ACT_ALLOW", "errnoRet": 1,
            "args": [{"index": 0, "value": 1, "valueTwo": 2, "op": "SCMP_CMP_MASKED_EQ"}]}],
    });
    let linux = json!({
            "namespaces": [{"type": "mount"}, {"type": "user"}, {"type": "time"}, {"type": "pid"}, {"type": "uts"}, {"type": "network"}, {"type": "ipc"}, {"type": "cgroup"}],
            "uidMappings": map, "gidMappings": map, "timeOffsets": {"boottime": {"secs": 1, "nanosecs": 2}},
            "cgroupsPath": "/a/b", "rootfsPropagation": "rslave", "sysctl": {"kernel.msgmax": "1"},
            "maskedPaths": ["/proc/kcore"], "readonlyPaths": ["/proc/sys"], "mountLabel": "l",
            "devices": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "fileMode": 438, "uid": 0, "gid": 0}],
            "personality": {"domain": "LINUX", "flags": []}, "memoryPolicy": {"mode": "MPOL_BIND", "nodes": "0", "flags": []},
            "intelRdt": {"closID": "c", "l3CacheSchema": "L3:0=1"}, "netDevices": {"eth0": {"name": "eth1"}},
            "resources": resources, "seccomp": seccomp,
    });
    json!({
        "ociVersion": "1.3.0",
        "root": {"path": "rootfs", "readonly": true},
        "hostname": "h", "domainname": "d",
        "annotations": {"a": "b", "dev.brig.landlock": "{\"rules\": [{\"path\": \"/usr\", \"access\": \"write\"}]}"},
        "hooks": {"prestart": hook, "createRuntime": hook, "createContainer": hook, "startContainer": hook, "poststart": hook, "poststop": hook},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid"]},
            {"destination": "/m", "type": "bind", "source": "/s", "options": ["rbind", "ro", "idmap"], "uidMappings": map, "gidMappings": map},
        ],
        "process": process, "linux": linux,
    })
}

fn strange() -> impl Strategy<Value = Value> {
    let numbers = prop_oneof![
        any::<i64>().prop_map(|number| json!(number)),
        any::<u64>().prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number))
    ];
    let fixed = [
        "",
        "/",
        "..",
        "\0",
        "a\nb",
        ":",
        "=",
        "0-",
        "0-99999999999",
        "-1",
        "SCMP_ACT_KILL",
        "SCMP_CMP_GE",
        "x".repeat(70_000).leak(),
    ];
    prop_oneof![
        numbers,
        proptest::sample::select(fixed.to_vec()).prop_map(|text| json!(text)),
        "\\PC{0,20}".prop_map(|text| json!(text)),
        proptest::sample::select(vec![json!(null), json!([]), json!({}), json!([null]), json!([[[]]]), json!(true)])
    ]
}

fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    let step = |key: &str| format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| places(value, &step(key), found)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| places(value, &step(&index.to_string()), found));
        }
        _ => {}
    }
}

/// Before the host is touched.
fn read(bytes: &[u8]) -> bool {
    let Ok(mut config) = parse(bytes) else { return false };
    let good = check(&config).is_ok();
    if let Some(process) = &config.process {
        let _ = (prepare::identity(process), prepare::environment(process), prepare::rlimits(process));
    }
    let _ = (prepare::resources(&config), Protections::parse(&config.annotations), prepare::sysctls(&config));
    // A path would be opened.
    config.linux.namespaces.iter_mut().for_each(|namespace| namespace.path.clear());
    if let Ok((_, user)) = prepare::namespaces(&config) {
        prepare::group_owner(&config, &user);
    }
    if let Some(profile) = &config.linux.seccomp {
        let _ = crate::seccomp::compile(profile);
    }
    good
}

#[test]
fn the_document_itself_is_read() {
    let text = whole().to_string();
    let faults = parse(text.as_bytes()).and_then(|config| check(&config));
    assert!(faults.is_ok(), "{faults:?}");
}

proptest! {
    #[test]
    fn a_value_that_is_another_is_read_or_refused(changes in proptest::collection::vec((any::<prop::sample::Index>(), strange()), 1..4)) {
        let mut document = whole();
        for (index, value) in changes {
            let mut found = Vec::new();
            places(&document, "", &mut found);
            if let Some(place) = document.pointer_mut(&found[index.index(found.len())]) {
                *place = value;
            }
        }
        read(document.to_string().as_bytes());
    }

    #[test]
    fn bytes_that_are_others_are_read_or_refused(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5), end in any::<prop::sample::Index>(), cut in any::<bool>()) {
        let mut bytes = whole().to_string().into_bytes();
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        read(&bytes);
    }

    #[test]
    fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(!read(&bytes));
    }
}
