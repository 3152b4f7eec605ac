//! What the kernel must be told for a set of limits. No system calls: tests are tables.
//!
//! One write a file, and only for what is limited. The conversions from the specification's v1-minded numbers to v2 are
//! those that runc, crun and systemd agree on (runtime-spec config-linux.md, runc docs/cgroup-v2.md). Devices are apart, in
//! `devices`: what must be written there depends on what is in force.

use super::controller::Controller;
use super::write::{Missing, Plan, Write, bytes_or_max};
use super::{plan_v1, plan_v2};
use crate::error::{Error, Kind, Result};
use crate::spec::resources::Resources;

/// What a hierarchy must be told, where each controller is either v1's or v2's.
pub(crate) fn writes(limits: &Resources, is_v1: impl Fn(Controller) -> bool) -> Result<Vec<Write>> {
    let mut plan = Plan::default();
    pids(limits, &mut plan);
    if is_v1(Controller::Memory) {
        plan_v1::memory(&limits.memory, &mut plan)?;
    } else {
        plan_v2::memory(limits, &mut plan)?;
    }
    if is_v1(Controller::Cpu) {
        plan_v1::cpu(&limits.cpu, &mut plan)?;
    } else {
        plan_v2::cpu(&limits.cpu, &mut plan)?;
    }
    cpuset(limits, &mut plan);
    if is_v1(Controller::Io) {
        plan_v1::block_io(&limits.block_io, &mut plan)?;
    } else {
        plan_v2::block_io(&limits.block_io, &mut plan)?;
    }
    let hugetlb = if is_v1(Controller::Hugetlb) { "limit_in_bytes" } else { "max" };
    for each in &limits.hugepage_limits {
        check_file_name(&each.page_size)?;
        let file = format!("hugetlb.{}.{hugetlb}", each.page_size);
        plan.add(Controller::Hugetlb, file, each.limit);
        // What is reserved but not yet touched counts too (5.7); before that there is nothing to say.
        let file = format!("hugetlb.{}.rsvd.{hugetlb}", each.page_size);
        plan.add_or(Controller::Hugetlb, file, each.limit, Missing::Ignore);
    }
    rdma(limits, &mut plan);
    plan_v1::network(&limits.network, &is_v1, &mut plan)?;
    unified(limits, &is_v1, &mut plan)?;
    Ok(plan.0)
}

/// A value below zero is no limit. A limit of 0 becomes 1, as runc and systemd have it: the container's own process counts.
fn pids(limits: &Resources, plan: &mut Plan) {
    if let Some(limit) = limits.pids.limit {
        plan.add(Controller::Pids, "pids.max", bytes_or_max(if limit == 0 { 1 } else { limit }));
    }
}

fn cpuset(limits: &Resources, plan: &mut Plan) {
    for (file, value) in [("cpuset.cpus", &limits.cpu.cpus), ("cpuset.mems", &limits.cpu.mems)] {
        if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
            plan.add(Controller::Cpuset, file, value);
        }
    }
}

fn rdma(limits: &Resources, plan: &mut Plan) {
    for (device, limit) in &limits.rdma {
        let mut line = device.clone();
        for (key, value) in [("hca_handle", limit.hca_handles), ("hca_object", limit.hca_objects)] {
            if let Some(value) = value {
                line += &format!(" {key}={value}");
            }
        }
        plan.add(Controller::Rdma, "rdma.max", line);
    }
}

/// `unified`: keys are names of v2's files; a value of several lines is as many writes. Last, so that they win.
fn unified(limits: &Resources, is_v1: &impl Fn(Controller) -> bool, plan: &mut Plan) -> Result<()> {
    for (key, value) in &limits.unified {
        let fail = |reason: String| Err(Error::new(Kind::Spec, reason).doing("use `linux.resources.unified`"));
        if key.contains('/') {
            return fail(format!("unified resource {key:?} must be a file name (no slashes)"));
        }
        let Some((prefix, _)) = key.split_once('.') else {
            return fail(format!("unified resource {key:?} must be in the form CONTROLLER.PARAMETER"));
        };
        let controller = match (prefix, Controller::from_v2(prefix)) {
            ("cgroup", _) => None,
            (_, Some(controller)) if !is_v1(controller) => Some(controller),
            _ => return fail(format!("unified resource {key:?} can't be set: controller {prefix:?} not available")),
        };
        for value in value.lines() {
            let (file, value) = (key.clone(), value.to_owned());
            plan.0.push(Write { controller, file, value, missing: Missing::Refuse });
        }
    }
    Ok(())
}

/// A word that becomes part of a file's name must not become a path.
fn check_file_name(word: &str) -> Result<()> {
    if word.is_empty() || word.contains(['/', '\0']) {
        return Err(Error::new(Kind::Spec, "the page size is not one, such as `2MB`")
            .doing(format!("limit huge pages of `{}`", word.escape_default())));
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn writes_v2(limits: &Resources) -> Result<Vec<Write>> {
        writes(limits, |_| false)
    }

    fn writes_v1(limits: &Resources) -> Result<Vec<Write>> {
        writes(limits, |_| true)
    }

    pub(crate) fn show(writes: &[Write]) -> String {
        writes.iter().map(|write| format!("{}={}", write.file, write.value)).collect::<Vec<_>>().join(", ")
    }

    /// `json` is `linux.resources`; what must be written to both layouts, or the words of the refusal.
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
    fn no_limit_is_no_write() {
        check("{}", "", "");
        check(r#"{"memory": {"limit": 0, "swap": 0}, "cpu": {"shares": 0, "quota": 0, "cpus": ""}}"#, "", "");
    }

    #[test]
    fn memory_and_swap() {
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
    fn the_whole_group_dies_on_v2_by_the_kernel() {
        let limits = Resources { oom_group: true, ..Resources::default() };
        assert_eq!(show(&writes_v2(&limits).unwrap()), "memory.oom.group=1");
        assert_eq!(show(&writes_v1(&limits).unwrap()), "");
    }

    #[test]
    fn processor_time() {
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
    fn tasks() {
        check(r#"{"pids": {"limit": 64}}"#, "pids.max=64", "pids.max=64");
        check(r#"{"pids": {"limit": 0}}"#, "pids.max=1", "pids.max=1");
        check(r#"{"pids": {"limit": -1}}"#, "pids.max=max", "pids.max=max");
    }

    #[test]
    fn block_devices() {
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
    fn a_weight_has_another_scale_where_bfq_is_missing() {
        for (weight, converted) in [(10, "1"), (500, "4950"), (1000, "10000")] {
            let limits = serde_json::from_str(&format!(r#"{{"blockIO": {{"weight": {weight}}}}}"#)).unwrap();
            let writes = writes_v2(&limits).unwrap();
            assert_eq!(writes[0].missing, Missing::Instead("io.weight", converted.into()));
        }
    }

    #[test]
    fn huge_pages_rdma_and_network() {
        check(
            r#"{"hugepageLimits": [{"pageSize": "2MB", "limit": 4194304}]}"#,
            "hugetlb.2MB.limit_in_bytes=4194304, hugetlb.2MB.rsvd.limit_in_bytes=4194304",
            "hugetlb.2MB.max=4194304, hugetlb.2MB.rsvd.max=4194304",
        );
        check(
            r#"{"hugepageLimits": [{"pageSize": "../x", "limit": 1}]}"#,
            "error: limit huge pages of `../x`: the page size is not one, such as `2MB`",
            "error: limit huge pages of `../x`: the page size is not one, such as `2MB`",
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
    fn unified_comes_last_line_by_line_and_names_a_file() {
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
    fn on_a_hybrid_host_each_controller_gets_its_own_dialect() {
        let limits: Resources = serde_json::from_str(
            r#"{"memory": {"limit": 7}, "hugepageLimits": [{"pageSize": "2MB", "limit": 1}], "unified": {"hugetlb.2MB.max": "2"}}"#,
        )
        .unwrap();
        let writes = writes(&limits, |controller| controller != Controller::Hugetlb).unwrap();
        assert_eq!(
            show(&writes),
            "memory.limit_in_bytes=7, hugetlb.2MB.max=1, hugetlb.2MB.rsvd.max=1, hugetlb.2MB.max=2"
        );
    }
}
