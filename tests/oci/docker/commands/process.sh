# What the first process is: user, environment, working directory, program, terminal, streams, limits, signals.
run bb probe

run bb sh -c 'stat -c %A /proc/self/fd/0; test /proc/self/fd/0 -ef /dev/null && echo own'

run bb echo hi

run bb sh -c 'exit 3'

run bb sh -c 'kill -9 $$'

run bb sh -c 'trap - TERM; kill -TERM $$; echo ignored by process 1'

run bb sh -c 'echo out; echo err >&2; exit 255'

run -u 1000 bb probe

run -u 1000:77 --group-add 55 --group-add user bb id

run -u user:77 -w /work bb sh -c 'id; pwd; stat -c "%u:%g %a" /work'

run -u 4242 bb sh -c 'id; echo $HOME; pwd'

run -u 0:5 --group-add 2147483647 bb id

run -u nobodyknows bb id

run -u 0:nobodyknows bb id

run -u 4294967296 bb id

run -e A=b -e HOME= -e 'SPACES=a  b' -e PATH=/bin -e A=c -e NAMEONLY bb env | sort

printf 'F=1\n# comment\nG=a=b\n' > env.$C; run --env-file env.$C -e G=2 bb env | sort

run -e PATH= bb /bin/env

run -e PATH=/nope bb env

run -w /etc bb pwd

run -w relative bb pwd

run -w /not/there/yet --read-only bb pwd

run -w /etc/passwd bb pwd

run -u 1000 -w /secret bb pwd

run --entrypoint /bin/id bb -u

run --entrypoint '' bb echo cleared

run --entrypoint sh bb -c 'echo $0 $@' name word

run image

run image /bin/sh -c id

run -u 0 --entrypoint /bin/pwd image

run --init bb sh -c 'readlink /proc/1/exe; tr "\0" " " < /proc/1/cmdline'

run --init -u 1000 --read-only --cap-drop ALL bb sh -c 'ls -l /sbin/docker-init | cut -c1-10; exit 4'

run --init bb nope 2>&1 | sed 's/([0-9]*)//'

run -i bb cat < daemon.json

printf 'a\nb\n' | run -i bb sh -c 'read line; echo "$line"; cat; exit 6'

run -a stderr bb sh -c 'echo out; echo err >&2'

run -a stdin -i -a stdout bb cat < daemon.json

script -qec "docker run --rm $OPTIONS --network none -it bb sh -c 'tty; test -c /dev/console && echo console; stty size; stat -c %u:%g /dev/pts/0'" /dev/null

script -qec "docker run --rm $OPTIONS --network none -t -u 1000 -e TERM=vt100 bb sh -c 'tty; id -u; echo \$TERM; stat -c %u:%a \$(tty); test -w /dev/console && echo writable; exit 7'" /dev/null

run -t bb sh -c 'test -t 0 && echo in; test -t 1 && echo out; mount | grep -c console'

run -it bb true

run --ulimit nofile=100:200 --ulimit core=0 --ulimit nproc=50:60 --ulimit stack=1048576 --ulimit memlock=65536 bb cat /proc/self/limits

run --ulimit nofile=300:200 bb true

run --ulimit rtprio=5 --ulimit nice=10 --ulimit msgqueue=1000 --ulimit cpu=3:4 --ulimit fsize=4096 bb sh -c 'tail -n +2 /proc/self/limits; head -c 9000 /dev/zero > /tmp/f; echo $?'

run --oom-score-adj 500 bb cat /proc/self/oom_score_adj

run --oom-score-adj -500 bb cat /proc/self/oom_score_adj

run --oom-score-adj 2000 bb true

run --hostname hh --add-host a:1.2.3.4 --domainname example.org bb sh -c 'hostname; cat /proc/sys/kernel/domainname; tail -2 /etc/hosts; cat /etc/hostname'

fails --hostname "$(printf '%070d' 1)" bb hostname

run --dns 1.2.3.4 --dns-search example.org --dns-option ndots:2 bb cat /etc/resolv.conf

run -l a=b --stop-signal INT --stop-timeout 1 --name $C bb sh -c 'grep -E "Sig(Blk|Ign|Cgt)" /proc/self/status'

run bb sh -c 'umask; ls /proc/self/fd; cat /proc/self/sessionid; ps -o pid,ppid,comm,args'

run bb sh -c 'sleep 0.1 & exec sh -c "wait; echo replaced"'

run bb sh -c 'yes | head -n 20000 | cksum; yes | head -n 20000' | cksum

run bb sh -c 'cat /proc/self/oom_score_adj /proc/self/coredump_filter /proc/self/timerslack_ns; cut -d " " -f 18,19,41 /proc/self/stat'
