//! brig's types of config.json and those of the crate `oci-spec` read a document to the same values.

use crate::spec::config::{Config, parse};
use oci_spec::runtime::Spec;

/// Nearly every field that both support, none with its default value.
const WHOLE: &str = r#"{
  "ociVersion": "1.3.0", "hostname": "box", "domainname": "example", "annotations": {"a": "b"},
  "root": {"path": "rootfs", "readonly": true},
  "mounts": [{"destination": "/data", "type": "bind", "source": "/srv", "options": ["rbind", "ro"],
    "uidMappings": [{"containerID": 1, "hostID": 1000, "size": 2}], "gidMappings": [{"containerID": 1, "hostID": 1000, "size": 2}]}],
  "hooks": {"createRuntime": [{"path": "/h", "args": ["h"], "env": ["A=b"], "timeout": 3}], "poststop": [{"path": "/p"}]},
  "process": {
    "terminal": true, "consoleSize": {"height": 25, "width": 80}, "args": ["sh", "-c", "id"], "env": ["PATH=/bin"], "cwd": "/tmp",
    "user": {"uid": 1, "gid": 2, "umask": 18, "additionalGids": [3, 4]},
    "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"], "permitted": ["CAP_KILL"],
      "inheritable": ["CAP_KILL"], "ambient": ["CAP_KILL"]},
    "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 1, "hard": 2}], "noNewPrivileges": true, "oomScoreAdj": 5,
    "apparmorProfile": "p", "selinuxLabel": "l",
    "scheduler": {"policy": "SCHED_BATCH", "nice": 1, "priority": 0, "flags": ["SCHED_FLAG_RECLAIM"], "runtime": 1, "deadline": 2, "period": 3},
    "ioPriority": {"class": "IOPRIO_CLASS_IDLE", "priority": 4}, "execCPUAffinity": {"initial": "0", "final": "0-1"}
  },
  "linux": {
    "uidMappings": [{"containerID": 0, "hostID": 1000, "size": 10}], "gidMappings": [{"containerID": 0, "hostID": 1000, "size": 10}],
    "sysctl": {"net.core.somaxconn": "256"}, "cgroupsPath": "/a/b", "rootfsPropagation": "rslave",
    "namespaces": [{"type": "pid"}, {"type": "network", "path": "/n"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"},
      {"type": "user"}, {"type": "cgroup"}, {"type": "time"}],
    "devices": [{"type": "c", "path": "/dev/fuse", "major": 10, "minor": 229, "fileMode": 438, "uid": 1, "gid": 2}],
    "netDevices": {"eth0": {"name": "in0"}},
    "maskedPaths": ["/proc/kcore"], "readonlyPaths": ["/proc/sys"], "mountLabel": "m",
    "intelRdt": {"closID": "c", "schemata": ["L3:0=f"], "l3CacheSchema": "L3:0=f", "memBwSchema": "MB:0=70"},
    "memoryPolicy": {"mode": "MPOL_BIND", "nodes": "0", "flags": ["MPOL_F_STATIC_NODES"]},
    "personality": {"domain": "LINUX32"}, "timeOffsets": {"boottime": {"secs": 5, "nanosecs": 6}},
    "seccomp": {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "architectures": ["SCMP_ARCH_X86_64"],
      "flags": ["SECCOMP_FILTER_FLAG_LOG"], "listenerPath": "/l", "listenerMetadata": "m",
      "syscalls": [{"names": ["read"], "action": "SCMP_ACT_NOTIFY", "args": [{"index": 0, "value": 1, "valueTwo": 2, "op": "SCMP_CMP_MASKED_EQ"}]},
        {"names": ["mount"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}]},
    "resources": {
      "devices": [{"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw"}],
      "memory": {"limit": 536870912, "reservation": 1, "swap": 2, "kernel": -1, "kernelTCP": -1, "swappiness": 3,
        "disableOOMKiller": true, "useHierarchy": true, "checkBeforeUpdate": true},
      "cpu": {"shares": 1024, "quota": 1000000, "burst": 1000, "period": 500000, "realtimeRuntime": 950000, "realtimePeriod": 1000000,
        "cpus": "2-3", "mems": "0-7", "idle": 1},
      "pids": {"limit": 32771},
      "blockIO": {"weight": 10, "leafWeight": 11, "weightDevice": [{"major": 8, "minor": 0, "weight": 500, "leafWeight": 300}],
        "throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": 600}], "throttleWriteIOPSDevice": [{"major": 8, "minor": 16, "rate": 300}]},
      "hugepageLimits": [{"pageSize": "2MB", "limit": 9}],
      "network": {"classID": 1048577, "priorities": [{"name": "eth0", "priority": 500}]},
      "rdma": {"mlx5_1": {"hcaHandles": 3, "hcaObjects": 10000}}, "unified": {"memory.high": "5"}
    }
  }
}"#;

#[test]
fn config_reads_as_with_oci_spec() {
    let ours: Config = parse(WHOLE.as_bytes()).unwrap();
    let theirs: Spec = serde_json::from_str(WHOLE).unwrap();
    assert_eq!(parse(&serde_json::to_vec(&theirs).unwrap()).unwrap(), ours, "what oci-spec writes");
    assert_eq!(
        serde_json::from_slice::<Spec>(&serde_json::to_vec(&ours).unwrap()).unwrap(),
        theirs,
        "what brig writes"
    );
}
