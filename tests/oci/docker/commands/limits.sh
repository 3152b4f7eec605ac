# What the container's groups say, and what they do.
run --memory 64m bb sh -c 'cd /sys/fs/cgroup/memory; cat memory.limit_in_bytes memory.memsw.limit_in_bytes memory.soft_limit_in_bytes memory.oom_control | head -n 4'

run --memory 64m --memory-swap 64m --memory-reservation 32m --memory-swappiness 0 bb sh -c 'cd /sys/fs/cgroup/memory; cat memory.limit_in_bytes memory.memsw.limit_in_bytes memory.soft_limit_in_bytes memory.swappiness'

run --memory 64m --memory-swap -1 bb sh -c 'cd /sys/fs/cgroup/memory; cat memory.limit_in_bytes memory.memsw.limit_in_bytes'

run --memory 64m --memory-swap 32m bb true

run --memory 4m bb true

run --memory 1m bb true

run --memory-swap 64m bb true

run --memory 32m --memory-reservation 64m bb true

run --memory-swappiness 200 bb true

run --memory 64m --kernel-memory 32m bb sh -c 'cat /sys/fs/cgroup/memory/memory.kmem.limit_in_bytes; cat /sys/fs/cgroup/memory/memory.limit_in_bytes'

run --memory 64m --oom-kill-disable bb sh -c 'head -n 1 /sys/fs/cgroup/memory/memory.oom_control'

run --cpus 0.5 bb sh -c 'cd /sys/fs/cgroup/cpu; cat cpu.cfs_quota_us cpu.cfs_period_us cpu.shares'

run --cpu-quota 20000 --cpu-period 50000 --cpu-shares 100 bb sh -c 'cd /sys/fs/cgroup/cpu; cat cpu.cfs_quota_us cpu.cfs_period_us cpu.shares'

run --cpu-quota 500 bb true

run --cpus 1000 bb true

run --cpu-shares 1 bb cat /sys/fs/cgroup/cpu/cpu.shares

run --cpu-shares 999999 bb cat /sys/fs/cgroup/cpu/cpu.shares

run --cpu-rt-runtime 1000 --cpu-rt-period 100000 bb true

run --cpuset-cpus 0 --cpuset-mems 0 bb sh -c 'cd /sys/fs/cgroup/cpuset; cat cpuset.cpus cpuset.mems; grep _allowed_list /proc/self/status; nproc'

run --cpuset-cpus 0-1000 bb true

run --cpuset-mems 7 bb true

run --cpuset-cpus nope bb true

run --pids-limit 50 bb cat /sys/fs/cgroup/pids/pids.max

run --pids-limit -1 bb cat /sys/fs/cgroup/pids/pids.max

run --pids-limit 0 bb cat /sys/fs/cgroup/pids/pids.max

run --pids-limit 1 bb sh -c 'true & wait; echo $?'

run --blkio-weight 300 bb sh -c 'cat /sys/fs/cgroup/blkio/blkio.bfq.weight /sys/fs/cgroup/blkio/blkio.weight 2> /dev/null'

run --blkio-weight 5 bb true

run --blkio-weight-device /dev/loop0:300 bb true

run --device-read-bps /dev/loop0:1mb --device-write-bps /dev/loop0:2mb bb sh -c 'cd /sys/fs/cgroup/blkio; cat blkio.throttle.read_bps_device blkio.throttle.write_bps_device'

run --device-read-iops /dev/loop0:100 --device-write-iops /dev/loop0:200 bb sh -c 'cd /sys/fs/cgroup/blkio; cat blkio.throttle.read_iops_device blkio.throttle.write_iops_device'

run --device-read-bps /dev/nope:1mb bb true

run --cgroup-parent /docker-test-of-brig/deep/er bb sh -c 'sort /proc/self/cgroup'

run --cgroup-parent docker-test-of-brig/relative bb sh -c 'sort /proc/self/cgroup'

# A path that leads upwards is refused.
! run --cgroup-parent ../docker-test-of-brig bb sh -c 'sort /proc/self/cgroup'

run --cpus 0.5 --cpuset-cpus 0 --memory 64m --pids-limit 40 --ulimit nofile=99 bb probe

run --pids-limit 5 bb sh -c 'for i in 1 2 3 4 5 6 7; do sleep 1 & done; wait'

docker run --name $C --runtime $RT --network none --memory 20m bb tail /dev/zero; echo $?; docker rm $C

docker run --name $C --runtime $RT --network none --memory 20m bb sh -c 'tail /dev/zero; echo survived $?; sleep 1'; becomes true .State.OOMKilled; docker inspect -f '{{.State.ExitCode}} {{.State.Error}}' $C; docker rm $C
