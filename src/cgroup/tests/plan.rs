//! Tables of planned writes.

use crate::cgroup::controller::Controller;
use crate::cgroup::plan::*;
use crate::error::Result;
use crate::spec::resources::Resources;

fn writes_v2(limits: &Resources) -> Result<Vec<Write>> {
    writes(limits, |_| false)
}

fn writes_v1(limits: &Resources) -> Result<Vec<Write>> {
    writes(limits, |_| true)
}

fn show(writes: &[Write]) -> String {
    writes.iter().map(|write| format!("{}={}", write.file, write.value)).collect::<Vec<_>>().join(", ")
}

/// `json` is `linux.resources`; `v1` and `v2` are the expected writes or the refusal.
fn check(json: &str, v1: &str, v2: &str) {
    let limits: Resources = serde_json::from_str(json).unwrap();
    let text = |result: Result<Vec<Write>>| match result {
        Ok(writes) => show(&writes),
        Err(error) => format!("error: {error}"),
    };
    assert_eq!(text(writes_v1(&limits)), v1, "v1 of {json}");
    assert_eq!(text(writes_v2(&limits)), v2, "v2 of {json}");
}

#[test]
fn no_limit_plans_no_write() {
    check("{}", "", "");
    check(r#"{"memory": {"limit": 0, "swap": 0}, "cpu": {"shares": 0, "quota": 0, "cpus": ""}}"#, "", "");
}

#[test]
fn memory_and_swap_convert_to_v2() {
    check(r#"{"memory": {"limit": 100}}"#, "memory.limit_in_bytes=100", "memory.max=100");
    check(
        r#"{"memory": {"limit": 100, "swap": 150}}"#,
        "memory.limit_in_bytes=100, memory.memsw.limit_in_bytes=150",
        "memory.max=100, memory.swap.max=50",
    );
    check(
        r#"{"memory": {"limit": 100, "swap": 100}}"#,
        "memory.limit_in_bytes=100, memory.memsw.limit_in_bytes=100",
        "memory.max=100, memory.swap.max=0",
    );
    check(
        r#"{"memory": {"limit": 100, "swap": -1}}"#,
        "memory.limit_in_bytes=100, memory.memsw.limit_in_bytes=-1",
        "memory.max=100, memory.swap.max=max",
    );
    check(
        r#"{"memory": {"limit": -1}}"#,
        "memory.limit_in_bytes=-1, memory.memsw.limit_in_bytes=-1",
        "memory.max=max, memory.swap.max=max",
    );
    check(
        r#"{"memory": {"limit": -1, "swap": 70}}"#,
        "memory.limit_in_bytes=-1, memory.memsw.limit_in_bytes=70",
        "memory.max=max, memory.swap.max=70",
    );
    check(
        r#"{"memory": {"swap": 70}}"#,
        "memory.memsw.limit_in_bytes=70",
        "error: limit memory: unable to set swap limit without memory limit",
    );
    check(
        r#"{"memory": {"limit": 100, "swap": 99}}"#,
        "error: limit memory: memory+swap limit should be >= memory limit",
        "error: limit memory: memory+swap limit should be >= memory limit",
    );
    check(
        r#"{"memory": {"limit": -2}}"#,
        "error: limit memory: invalid memory value: -2",
        "error: limit memory: invalid memory value: -2",
    );
    check(
        r#"{"memory": {"reservation": 50, "kernel": 1, "kernelTCP": 2, "swappiness": 60, "disableOOMKiller": true}}"#,
        "memory.soft_limit_in_bytes=50, memory.kmem.tcp.limit_in_bytes=2, memory.oom_control=1, memory.swappiness=60",
        "memory.low=50",
    );
    check(
        r#"{"memory": {"swappiness": 101}}"#,
        "error: limit memory: invalid memory swappiness value: 101 (valid range is 0-100)",
        "",
    );
}

#[test]
fn oom_group_is_planned_on_v2_only() {
    let limits = Resources { oom_group: true, ..Resources::default() };
    assert_eq!(show(&writes_v2(&limits).unwrap()), "memory.oom.group=1");
    assert_eq!(show(&writes_v1(&limits).unwrap()), "");
}

#[test]
fn cpu_limits_convert_to_v2() {
    for (shares, weight) in [(2, 1), (3, 2), (512, 59), (1024, 100), (2048, 174), (4096, 303), (262_144, 10_000)] {
        let json = format!(r#"{{"cpu": {{"shares": {shares}}}}}"#);
        check(&json, &format!("cpu.shares={shares}"), &format!("cpu.weight={weight}"));
    }
    check(r#"{"cpu": {"shares": 1}}"#, "error: limit cpu: the minimum allowed cpu-shares is 2", "cpu.weight=1");
    check(
        r#"{"cpu": {"shares": 262145}}"#,
        "error: limit cpu: the maximum allowed cpu-shares is 262144",
        "cpu.weight=10000",
    );
    check(
        r#"{"cpu": {"quota": 50000, "period": 100000, "burst": 20000}}"#,
        "cpu.cfs_period_us=100000, cpu.cfs_quota_us=50000, cpu.cfs_burst_us=20000",
        "cpu.max=50000 100000, cpu.max.burst=20000",
    );
    check(r#"{"cpu": {"quota": 50000}}"#, "cpu.cfs_quota_us=50000", "cpu.max=50000 100000");
    check(r#"{"cpu": {"quota": -1}}"#, "cpu.cfs_quota_us=-1", "cpu.max=max 100000");
    check(r#"{"cpu": {"period": 5000}}"#, "cpu.cfs_period_us=5000", "cpu.max=max 5000");
    check(r#"{"cpu": {"idle": 1, "shares": 1024}}"#, "cpu.idle=1", "cpu.idle=1");
    check(r#"{"cpu": {"idle": 0, "shares": 1024}}"#, "cpu.idle=0, cpu.shares=1024", "cpu.idle=0, cpu.weight=100");
    check(
        r#"{"cpu": {"cpus": "0-1", "mems": "0"}}"#,
        "cpuset.cpus=0-1, cpuset.mems=0",
        "cpuset.cpus=0-1, cpuset.mems=0",
    );
    check(
        r#"{"cpu": {"realtimeRuntime": 95000, "realtimePeriod": 100000}}"#,
        "cpu.rt_period_us=100000, cpu.rt_runtime_us=95000",
        "error: limit cpu: cgroup v2 has no limit for real-time tasks",
    );
}

#[test]
fn pids_limit_zero_becomes_one() {
    check(r#"{"pids": {"limit": 64}}"#, "pids.max=64", "pids.max=64");
    check(r#"{"pids": {"limit": 0}}"#, "pids.max=1", "pids.max=1");
    check(r#"{"pids": {"limit": -1}}"#, "pids.max=max", "pids.max=max");
}

#[test]
fn block_device_limits_convert_to_v2() {
    check(
        r#"{"blockIO": {"weight": 500, "leafWeight": 300, "weightDevice": [{"major": 8, "minor": 0, "weight": 10}]}}"#,
        "blkio.weight=500, blkio.leaf_weight=300, blkio.weight_device=8:0 10",
        "io.bfq.weight=500, io.bfq.weight=8:0 10",
    );
    check(
        r#"{"blockIO": {"throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": 100}],
                        "throttleWriteIOPSDevice": [{"major": 8, "minor": 0, "rate": 7}, {"major": 8, "minor": 16}]}}"#,
        "blkio.throttle.read_bps_device=8:0 100, blkio.throttle.write_iops_device=8:0 7, \
         blkio.throttle.write_iops_device=8:16 0",
        "io.max=8:0 rbps=100 wiops=7, io.max=8:16 wiops=max",
    );
    check(
        r#"{"blockIO": {"weight": 9}}"#,
        "error: limit block devices: the weight 9 is not within 10 to 1000",
        "error: limit block devices: the weight 9 is not within 10 to 1000",
    );
}

#[test]
fn weight_without_bfq_uses_the_scale_of_io_weight() {
    for (weight, converted) in [(10, "1"), (500, "4950"), (1000, "10000")] {
        let limits = serde_json::from_str(&format!(r#"{{"blockIO": {{"weight": {weight}}}}}"#)).unwrap();
        let writes = writes_v2(&limits).unwrap();
        assert_eq!(writes[0].missing, Missing::Instead("io.weight", converted.into()));
    }
}

#[test]
fn huge_pages_rdma_and_network_are_planned() {
    check(
        r#"{"hugepageLimits": [{"pageSize": "2MB", "limit": 4194304}]}"#,
        "hugetlb.2MB.limit_in_bytes=4194304, hugetlb.2MB.rsvd.limit_in_bytes=4194304",
        "hugetlb.2MB.max=4194304, hugetlb.2MB.rsvd.max=4194304",
    );
    check(
        r#"{"hugepageLimits": [{"pageSize": "../x", "limit": 1}]}"#,
        "error: limit huge pages of `../x`: invalid page size: use a name such as `2MB`",
        "error: limit huge pages of `../x`: invalid page size: use a name such as `2MB`",
    );
    check(
        r#"{"rdma": {"mlx5_1": {"hcaHandles": 3, "hcaObjects": 10000}, "mlx5_2": {"hcaObjects": 1}}}"#,
        "rdma.max=mlx5_1 hca_handle=3 hca_object=10000, rdma.max=mlx5_2 hca_object=1",
        "rdma.max=mlx5_1 hca_handle=3 hca_object=10000, rdma.max=mlx5_2 hca_object=1",
    );
    check(
        r#"{"network": {"classID": 1048577, "priorities": [{"name": "eth0", "priority": 5}]}}"#,
        "net_cls.classid=1048577, net_prio.ifpriomap=eth0 5",
        "error: mark packets: cgroup v2 has no network controller",
    );
}

#[test]
fn unified_is_planned_last_and_names_only_files() {
    check(
        r#"{"unified": {"memory.max": "5", "io.max": "8:0 rbps=1\n8:16 rbps=2\n", "cgroup.max.depth": "3"}, "memory": {"limit": 9}}"#,
        "error: use `linux.resources.unified`: unified resource \"io.max\" can't be set: controller \"io\" not available",
        "memory.max=9, cgroup.max.depth=3, io.max=8:0 rbps=1, io.max=8:16 rbps=2, memory.max=5",
    );
    for (key, reason) in [
        ("../x.y", "must be a file name (no slashes)"),
        ("pids", "must be in the form CONTROLLER.PARAMETER"),
        ("unheard.of", "can't be set: controller \"unheard\" not available"),
    ] {
        let limits = Resources { unified: [(key.to_owned(), "1".to_owned())].into(), ..Resources::default() };
        let error = writes_v2(&limits).unwrap_err();
        assert_eq!(error.to_string(), format!("use `linux.resources.unified`: unified resource {key:?} {reason}"));
    }
}

#[test]
fn hybrid_host_mixes_v1_and_v2_writes() {
    let limits: Resources = serde_json::from_str(
        r#"{"memory": {"limit": 7}, "hugepageLimits": [{"pageSize": "2MB", "limit": 1}], "unified": {"hugetlb.2MB.max": "2"}}"#,
    )
    .unwrap();
    let writes = writes(&limits, |controller| controller != Controller::Hugetlb).unwrap();
    assert_eq!(show(&writes), "memory.limit_in_bytes=7, hugetlb.2MB.max=1, hugetlb.2MB.rsvd.max=1, hugetlb.2MB.max=2");
}
