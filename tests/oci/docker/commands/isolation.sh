# Capabilities, filters, namespaces, kernel settings.
run --cap-drop ALL bb probe

run --cap-drop ALL --cap-add NET_ADMIN --cap-add CAP_SYS_TIME bb grep Cap /proc/self/status

run --cap-add ALL --cap-drop SYS_ADMIN --cap-drop SYS_RESOURCE bb grep Cap /proc/self/status

run --cap-add ALL --cap-drop SYS_RESOURCE -u 1000 bb grep -E 'Cap|Seccomp:' /proc/self/status

run --cap-add NOPE bb true

run --cap-drop MKNOD --cap-drop CHOWN bb sh -c 'mknod /n c 1 3; chown 1 /etc/passwd; echo $?'

run --privileged bb sh -c 'grep -E "Cap|Seccomp:|NoNew" /proc/self/status; grep -E " (/proc|/sys|/dev|/sys/fs/cgroup)[^ ]* " /proc/mounts | awk "{ print \$2, \$3, substr(\$4, 1, 2) }" | sort; test -b /dev/loop0 && echo loop; cat /sys/fs/cgroup/devices/devices.list'

run --privileged -u 1000 bb sh -c 'grep Cap /proc/self/status; id'

run --cap-add ALL --cap-drop SYS_RESOURCE --security-opt seccomp=unconfined --security-opt systempaths=unconfined bb sh -c 'grep -E "Cap|Seccomp:" /proc/self/status; mount -t tmpfs x /tmp && mount | grep -c " /tmp "; mount -o remount,rw /sys && mount | grep -c "^sysfs.*(rw"; unshare -m true && chroot / true && echo all; test -w /proc/sys/kernel/panic && echo writable'

run --privileged --cap-drop ALL bb grep Cap /proc/self/status

run --privileged bb sh -c 'mount -t tmpfs x /tmp && mount | grep -c " /tmp "; mkdir /sys/fs/cgroup/pids/x && rmdir /sys/fs/cgroup/pids/x && echo group; test -w /proc/sys/kernel/panic && echo writable'

run --security-opt no-new-privileges bb grep -E 'Cap|Seccomp:|NoNew' /proc/self/status

run --security-opt no-new-privileges:false bb grep NoNew /proc/self/status

run --security-opt no-new-privileges -u 1000 bb sh -c 'cat /proc/self/status | grep -E "NoNew|Seccomp|Cap"; ls -l /secret'

run --security-opt seccomp=unconfined bb sh -c 'grep Seccomp /proc/self/status; unshare -U id -u'

run bb sh -c 'unshare -U true; mount -t tmpfs x /tmp; unshare -m true; chroot / true && echo chroot; dmesg | head -c 1 | wc -c; date -s 2000-01-01 > /dev/null; hostname other'

run --security-opt seccomp=$PWD/deny-mkdir.json bb sh -c 'grep Seccomp: /proc/self/status; mkdir /x; touch /x && echo touched'

run --security-opt seccomp=$PWD/kill-mkdir.json bb sh -c 'mkdir /x; echo $?'

# runc starts what execve(2) then refuses.
! run --security-opt seccomp=$PWD/deny-execve.json bb true

run --security-opt seccomp=$PWD/deny-mkdir.json --security-opt no-new-privileges -u 1000 bb sh -c 'grep -E "Seccomp:|NoNew" /proc/self/status; mkdir /tmp/x'

run --security-opt seccomp=$PWD/daemon.json bb true

run --security-opt systempaths=unconfined bb sh -c 'grep -c " /proc/" /proc/mounts; head -c 1 /proc/kcore | wc -c; test -w /proc/sys/kernel/panic && echo writable; ls /sys/firmware | wc -l'

run --security-opt apparmor=unconfined --security-opt label=disable bb true

run --security-opt apparmor=no-such-profile bb true

run --security-opt nope bb true

run bb sh -c 'for f in /proc/kcore /proc/keys /proc/timer_list /proc/sched_debug; do test -e $f && cat $f | head -c 1 | wc -c; done; ls -A /sys/firmware /proc/scsi /proc/acpi 2> /dev/null; for f in bus fs irq sys/kernel/panic sysrq-trigger; do echo 1 2> /dev/null > /proc/$f || test -w /proc/$f || echo $f; done'

run --sysctl net.ipv4.ip_forward=1 --sysctl kernel.msgmax=1000 --sysctl fs.mqueue.msg_max=20 bb cat /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/msgmax /proc/sys/fs/mqueue/msg_max

run --sysctl net.ipv4.ping_group_range='0 100' --sysctl net/ipv4/conf/lo/forwarding=1 bb sh -c 'cat /proc/sys/net/ipv4/ping_group_range; ip addr show lo'

run --sysctl kernel.shm_rmid_forced=1 --ipc host bb true

run --sysctl net.ipv4.ip_forward=nope bb true

run --sysctl kernel.panic=1 bb true

run --sysctl net.ipv4.ip_forward=1 --network host bb true

run --pid host bb sh -c 'test $$ -gt 10 && echo host; for n in /proc/self/ns/*; do echo $n; done'

run --ipc host bb probe

run --ipc private bb sh -c 'mount | grep -E "shm|mqueue"; ipcs | grep -c 0x'

run --ipc none bb sh -c 'mount | grep -E "shm|mqueue"; ls -ld /dev/shm'

run --uts host bb sh -c 'readlink /proc/self/ns/uts; hostname'

run --uts host --hostname x bb true

run --cgroupns private bb sh -c 'grep -v systemd /proc/self/cgroup | sort; cut -d " " -f 4,5 /proc/self/mountinfo | grep cgroup | sort'

run --cgroupns host bb sh -c 'sort /proc/self/cgroup'

run --userns host bb sh -c 'cat /proc/self/uid_map /proc/self/setgroups'

run --network host bb sh -c 'readlink /proc/self/ns/net; test -w /proc/sys/net/ipv4/ip_forward; echo $?'

run --pid host --ipc host --uts host --network host --cgroupns host --userns host --privileged bb sh -c 'for n in ipc net uts pid cgroup user; do readlink /proc/self/ns/$n; done'

up --ipc shareable bb serve
run --network container:$C --pid container:$C --ipc container:$C bb sh -c 'grep -c serve /proc/1/cmdline; test $$ -gt 1 && echo joined; df /dev/shm | tail -n 1 | cut -d " " -f 1'
run --pid container:$C --cap-add SYS_PTRACE bb sh -c 'ls /proc/1/root/ | sort; cat /proc/1/environ | tr "\0" "\n" | sort'
run --pid container:$C --privileged bb sh -c 'kill -USR1 1; echo $?'
docker exec $C sh -c 'touch /dev/shm/shared'; run --ipc container:$C -u 1000 bb ls -l /dev/shm/shared | cut -c1-10
docker kill $C; run --pid container:$C bb true
docker rm $C

run --network container:nope bb true

run --pid nope bb true
