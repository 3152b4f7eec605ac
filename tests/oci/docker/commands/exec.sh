# `docker exec` into one container; the last lines are into others.
up -e OUTER=1 --memory 64m --pids-limit 60 bb serve
docker exec $C probe
docker exec $C sh -c 'id; exit 5'
docker exec -u 1000 -e A=1 -e OUTER=2 -w /tmp $C sh -c 'id; echo $A $OUTER $HOME; pwd'
docker exec -u user:5 $C id
docker exec -u nobodyknows $C id
docker exec -u 1000 $C probe
docker exec --privileged $C probe
docker exec --privileged -u 1000 $C grep Cap /proc/self/status
docker exec -w /nope $C pwd
docker exec -w /etc/passwd $C pwd
docker exec -w relative $C pwd
docker exec -u 1000 -w /secret $C pwd
printf 'A=file\nB=2\n' > env.$C; docker exec --env-file env.$C $C sh -c 'echo $A $B'
docker exec -e PATH=/nope $C ls
docker exec -e PATH=/nope $C /bin/pwd
docker exec $C nope
docker exec $C /nope
docker exec $C /etc
docker exec $C /etc/passwd
! docker exec $C /bin/garbage
! docker exec $C /bin/lost-interpreter
docker exec $C /etc/passwd/x
docker exec -u 1000 $C /secret/program
docker exec $C ''
docker exec -i $C cat < daemon.json
docker exec $C cat < daemon.json
docker exec $C sh -c 'echo out; echo err >&2; exit 255'
docker exec $C sh -c 'kill -9 $$'
docker exec $C sh -c 'kill -TERM $$'
docker exec $C sh -c 'kill -SEGV $$'
docker exec -d $C sh -c 'echo detached > /tmp/detached'; for i in $(seq 100); do docker exec $C test -s /tmp/detached && break; done; docker exec $C cat /tmp/detached
docker exec -d $C nope
docker exec $C sh -c 'sleep 0.3 & echo left one behind'
script -qec "docker exec -it $C sh -c 'tty | tr -d 0-9; test -t 0 && echo terminal; stty size'" /dev/null
script -qec "docker exec -t -u 1000 $C sh -c 'tty | tr -d 0-9; id -u; stat -c %u:%a \$(tty); exit 9'" /dev/null
docker exec -t $C sh -c 'test -t 1 && echo out'
docker exec $C sh -c 'unshare -U true; mount -t tmpfs x /tmp; mknod /dev/m c 1 1 && cat /dev/m'
docker exec $C sh -c 'for i in $(seq 70); do sleep 1 & done' 2>&1 | sort | uniq -c | grep -c fork
docker exec $C sh -c 'tail /dev/zero'; echo $?
docker exec $C sh -c 'yes | head -n 50000' | cksum
docker exec $C sh -c 'cat /proc/$$/cgroup | sort; cat /proc/self/oom_score_adj'
docker exec -u 1000 $C sh -c 'kill -9 1; kill -0 1; ls /proc/1/fd; readlink /proc/1/exe'
docker exec $C sh -c 'touch /gone && chmod 755 /gone; cp /bin/busybox /moved && /moved true; echo $?'
docker kill $C; docker exec $C true
docker rm $C
docker exec $C true

# The filter, the user, the read-only root and the terminal are the container's.
up --security-opt seccomp=$PWD/deny-mkdir.json --security-opt no-new-privileges --read-only --cap-drop ALL --cap-add CHOWN -u 1000:7 --group-add 8 -w /tmp --init bb serve
docker exec $C sh -c 'id; pwd; mkdir /tmp/x; touch /x; grep -E "Cap|Seccomp:|NoNew" /proc/self/status'
docker exec -u 0 $C sh -c 'id; grep -E "Cap|NoNew" /proc/self/status; chown 1 /tmp; echo $?'
docker exec --privileged $C grep -E 'Cap|Seccomp:|NoNew' /proc/self/status
docker exec $C sh -c 'ps -o args | grep -v -e sleep -e ps'
docker rm -f $C

# One that ends while a program that has entered it runs.
up bb serve
{ sleep 0.5; docker kill $C > /dev/null; } & docker exec $C sleep 30; echo $?; wait
docker start $C; comes started 2; { sleep 0.5; docker exec $C kill -TERM 1; } & docker exec $C sleep 30; echo $?; wait
docker rm -f $C

up -t bb serve
docker exec $C sh -c 'ls -l /dev/console | cut -c1-10; test -t 1; echo $?; ls /dev/pts'
docker logs $C
docker rm -f $C

up --pid host --security-opt seccomp=unconfined bb serve
docker exec $C sh -c 'test $$ -gt 10 && grep Seccomp /proc/self/status'
docker stop -t 5 $C; docker rm $C
