# The root, volumes, mounts, devices.
run --read-only bb sh -c 'touch /x; touch /dev/x; touch /dev/shm/x && echo shm; touch /etc/hosts && echo hosts; mkdir /proc/x; awk "\$2 == \"/\" { print substr(\$4, 1, 2) }" /proc/mounts'

run --read-only --tmpfs /t:size=1m --tmpfs /run bb sh -c 'touch /t/x /run/x && mount | grep -E " /(t|run) " | sort; head -c 2000000 /dev/zero > /t/big; stat -c "%a %u" /t /run'

run --tmpfs /t:ro,noexec,mode=700 bb sh -c 'stat -c %a /t; mount | grep " /t "'

run --tmpfs /t:uid=1000,gid=5,exec,suid,dev,nr_inodes=5 bb sh -c 'stat -c %u:%g /t; mount | grep " /t "; cp /bin/busybox /t/true && /t/true; touch /t/1 /t/2 /t/3 /t/4 /t/5 2>&1 | tail -n 1'

run --tmpfs /etc bb sh -c 'ls /etc; stat -c %a /etc'

run --tmpfs /t:nope bb true

run --tmpfs /etc/passwd bb true

run --tmpfs relative bb true

run -v $PWD/source:/v bb probe

run -v $PWD/source:/v:ro bb sh -c 'ls /v; touch /v/x; mount | grep " /v " | cut -d " " -f 3-'

run -v $PWD/source/file:/etc/passwd:ro bb sh -c 'cat /etc/passwd; echo x > /etc/passwd'

run -v $PWD/source/file:/new/dir/file bb cat /new/dir/file

run -v $PWD/source:/v:rslave bb sh -c 'awk "\$5 == \"/v\" { print \$6, \$7 }" /proc/self/mountinfo | sed s/:[0-9]*//'

run -v $PWD/source:/v:private,ro bb sh -c 'awk "\$5 == \"/v\" { print \$6, \$7 }" /proc/self/mountinfo | sed s/:[0-9]*//'

run -v $PWD/source:/v:nope bb true

run -v $PWD/source:/v:z bb cat /v/file

run -v $PWD/made-$C/by/daemon:/v bb sh -c 'ls /v; touch /v/x'; find made-$C | sort; rm -r made-$C

run -v $PWD/source:/a -v $PWD/source/below:/a/below:ro -v $PWD/source/file:/a/below/deep bb sh -c 'ls /a/below; touch /a/below/x; touch /a/x && rm /a/x; cut -d " " -f 5 /proc/self/mountinfo | grep ^/a'

run -v $PWD/source/link:/v bb sh -c 'ls /v'

run -v $PWD/source:/link/v bb sh -c 'ls /etc/v'

run -v /:/host:ro bb sh -c 'touch /host/x; test -e /host/etc/passwd && echo host'

run -v /dev:/hdev:ro -v /sys:/hsys:ro -v /proc:/hproc:ro bb sh -c 'test -d /hsys/kernel -a -d /hproc/1; echo $?; head -c 1 /hdev/zero | wc -c; head -c 1 /hdev/loop0'

run -v /sys/fs/cgroup:/sys/fs/cgroup:ro bb sh -c 'mkdir /sys/fs/cgroup/pids/x; test -e /sys/fs/cgroup/pids/tasks && echo root; grep -c cgroup /proc/mounts'

run -v $PWD/source:/dev/inside bb sh -c 'ls /dev/inside'

run -v $PWD/source:/sys/inside bb true

fails -v $PWD/source/file:/proc/inside bb true

fails -v $PWD/source:/proc/tty bb true

run -v $PWD/source:/ bb true

run -v $PWD/source:/dev bb sh -c 'ls -A /dev | head -n 3'

# Masks are made of the null device (CVE-2025-31133).
! run -v $PWD/source/file:/dev/null bb cat /dev/null

run -v /dev/null:/etc/passwd -v /dev/zero:/zero:ro bb sh -c 'cat /etc/passwd; head -c 3 /zero | wc -c; stat -c %t:%T /etc/passwd'

run -v /dev:/dev:ro bb sh -c 'test -e /dev/null && test -e /dev/shm; echo $?; ls /dev/pts | head -n 1'

run --mount type=bind,src=$PWD/source,dst=/v,readonly bb sh -c 'touch /v/x; cat /v/file'

run --mount type=bind,src=$PWD/source,dst=/v,bind-propagation=rshared bb true

run --mount type=bind,src=$PWD/source,dst=/v,bind-propagation=slave,bind-nonrecursive=true bb sh -c 'awk "\$5 == \"/v\" { print \$6, \$7 }" /proc/self/mountinfo | sed s/:[0-9]*//'

run --mount type=bind,src=$PWD/missing,dst=/v bb true

run --mount type=tmpfs,dst=/t,tmpfs-size=65536,tmpfs-mode=1750 bb sh -c 'stat -c %a /t; mount | grep " /t "'

run --mount type=volume,dst=/etc,volume-nocopy bb sh -c 'ls /etc'

run --mount type=volume,src=vol-$C,dst=/etc,readonly bb sh -c 'ls /etc; touch /etc/x'; docker volume rm vol-$C

run -v vol-$C:/etc:nocopy bb sh -c 'ls /etc; touch /etc/kept'; run -v vol-$C:/v bb ls /v; docker volume rm vol-$C

run -v vol-$C:/secret -u 1000 bb sh -c 'stat -c "%u %a" /secret; touch /secret/x'; docker volume rm vol-$C

run -v /anonymous bb sh -c 'touch /anonymous/x; stat -c %a /anonymous; mount | grep -c anonymous'

docker create --name $C --runtime $RT -v $PWD/source:/from:ro -v /own image > /dev/null; run --volumes-from $C bb sh -c 'ls /from; touch /from/x; mount | grep -cE " /(from|own) "'
docker rm -v $C

run --volumes-from nope bb true

run --shm-size 1m bb sh -c 'mount | grep shm; head -c 2000000 /dev/zero > /dev/shm/x; stat -c %a /dev/shm'

run --device /dev/loop-control:/dev/lc bb sh -c 'stat -c "%a %t:%T %F %u" /dev/lc; grep "10:237" /sys/fs/cgroup/devices/devices.list'

run --device /dev/zero:/dev/z:r bb sh -c 'head -c 1 /dev/z | wc -c; echo x > /dev/z'

run --device /dev/zero:/deep/er/z:w -u 1000 bb sh -c 'stat -c %a /deep/er/z; echo x > /deep/er/z; head -c 1 /deep/er/z'

run --device /dev/loop0:/dev/l:r --device /dev/fuse bb sh -c 'stat -c "%a %t:%T %F" /dev/l /dev/fuse; head -c 0 /dev/l; echo $?; sort /sys/fs/cgroup/devices/devices.list | grep -v "c 10:200 "'

run --device $PWD/devices:/dev/many bb sh -c 'ls /dev/many; stat -c %t:%T /dev/many/*'

run --device /dev/nope bb true

run --device $PWD/source/file bb true

run --device /dev/zero:/dev/z:x bb true

run --device-cgroup-rule 'c 10:229 rwm' --device-cgroup-rule 'b 7:* r' bb sh -c 'mknod /f c 10 229 && mknod /l b 7 0; head -c 0 /l; echo $?; echo > /l; sort /sys/fs/cgroup/devices/devices.list | grep -v "c 10:200 "'

run --device-cgroup-rule 'nope' bb true

run bb sh -c 'mknod /m c 1 1 && cat /m | head -c 1; mknod /b b 7 0; cat /b; mknod /n c 1 3 && cat /n; mknod /p p && echo fifo'

run bb sh -c 'sort /sys/fs/cgroup/devices/devices.list | grep -v "c 10:200 "; touch /sys/fs/cgroup/memory/x; mkdir /sys/fs/cgroup/memory/x; echo 1 > /sys/fs/cgroup/pids/pids.max'
