# Create, start, signals, pause, update, wait, restart, attach, logs, remove.
docker create --runtime $RT --network none --name $C bb sh -c 'echo hi; exit 3' | wc -l
docker inspect -f '{{.State.Status}} {{.State.Pid}} {{.State.ExitCode}} {{.HostConfig.Runtime}}' $C
docker start -a $C
docker inspect -f '{{.State.Status}} {{.State.Running}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Error}}.' $C
docker start $C; docker wait $C; docker logs $C
docker stop $C; docker kill $C; docker pause $C; docker exec $C true; docker top $C
docker rename $C other-$C; docker start -a other-$C; docker rm other-$C; docker start $C

docker create --name $C --runtime $RT --network none -i bb sh -c 'cat; exit 4' > /dev/null; echo in | docker start -ai $C; echo $?; docker rm -f $C

up bb serve
docker top $C -o comm | grep -v sleep | sort -u
docker top $C -eo pid,args | grep -c serve
docker stats --no-stream --format '{{.Name}} {{.PIDs}}' $C | sed 's/[0-9]$/N/'
docker pause $C; docker inspect -f '{{.State.Status}} {{.State.Paused}} {{.State.Running}}' $C
docker pause $C; docker exec $C true; docker top $C -o comm | sort -u | grep serve; docker stats --no-stream --format '{{.Name}}' $C
docker cp daemon.json $C:/tmp/paused; docker update --memory 70m --memory-swap 140m $C; docker kill -s USR1 $C
docker unpause $C; comes usr 1; docker unpause $C
docker exec $C sh -c 'cat /sys/fs/cgroup/memory/memory.limit_in_bytes; cat /tmp/paused'
docker update --memory 80m --memory-swap 160m --memory-reservation 40m --cpu-shares 100 --cpu-quota 30000 --cpu-period 60000 --cpuset-cpus 1 --cpuset-mems 0 --pids-limit 77 $C
docker exec $C sh -c 'cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes memory/memory.memsw.limit_in_bytes memory/memory.soft_limit_in_bytes cpu/cpu.shares cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us cpuset/cpuset.cpus pids/pids.max'
docker update --cpus 1.5 $C; docker update --memory 1m $C; docker update --memory 200m $C; docker update --cpuset-cpus 99 $C; docker update --pids-limit -1 $C; docker update --blkio-weight 200 $C
docker exec $C sh -c 'cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us cpuset/cpuset.cpus pids/pids.max'
docker update --restart on-failure:2 $C; docker inspect -f '{{.HostConfig.RestartPolicy.Name}} {{.HostConfig.RestartPolicy.MaximumRetryCount}}' $C; docker update --restart no $C
docker kill -s USR1 $C; comes usr 2; docker kill -s 10 $C; comes usr 3; docker kill -s SIGHUP $C; comes hup 1; docker kill -s NOPE $C; docker kill -s 0 $C
docker logs --tail 1 $C; docker logs $C | sort | uniq -c
docker rm $C
docker restart -t 5 $C; comes started 2; docker inspect -f '{{.State.Status}} {{.RestartCount}}' $C
docker stop -t 5 $C; docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' $C
docker start $C; comes started 3; docker kill $C; docker inspect -f '{{.State.ExitCode}} {{.State.OOMKilled}}' $C
docker start $C; comes started 4; { sleep 1; docker kill -s TERM $C > /dev/null; } & docker wait $C; wait
docker start $C; comes started 5; { sleep 1; docker kill -s TERM $C > /dev/null; } & docker attach $C; echo $?; wait
docker start $C; comes started 6; { sleep 1; docker kill -s USR1 $C; sleep 0.5; docker kill $C; } > /dev/null & docker attach --no-stdin $C; echo $?; wait
docker start $C; comes started 7; docker pause $C; docker stop -t 1 $C; docker inspect -f '{{.State.Status}}' $C
docker start $C; comes started 8; docker pause $C; docker rm $C; docker rm -f $C

# A signal of its own to stop it, and none that it takes.
up --stop-signal USR1 --stop-timeout 1 bb serve
docker stop $C; docker logs $C; docker inspect -f '{{.State.ExitCode}}' $C; docker rm $C

up --init bb sleep 100
docker stop -t 5 $C; docker inspect -f '{{.State.ExitCode}}' $C; docker rm $C

up bb sleep 100
docker stop -t 1 $C; docker inspect -f '{{.State.ExitCode}}' $C; docker rm $C

docker run -d --runtime $RT --network none --name $C --restart on-failure:2 bb sh -c 'echo again; exit 3' | wc -l; becomes exited .State.Status; comes again 3; becomes exited .State.Status; docker inspect -f '{{.RestartCount}} {{.State.ExitCode}}' $C; docker rm $C

docker run -d --runtime $RT --network none --name $C --restart always bb sh -c 'echo again; sleep 0.2' | wc -l; comes again 3; docker stop -t 1 $C; docker inspect -f '{{.State.Status}}' $C; docker rm -f $C

docker run -d --runtime $RT --network none --name $C --health-cmd 'test -e /tmp/ok || { touch /tmp/ok; false; }' --health-interval 300ms bb sleep 100 | wc -l; becomes healthy .State.Health.Status; docker rm -f $C

docker run -d --runtime $RT --network none --name $C --health-cmd 'echo sick; exit 1' --health-interval 200ms --health-retries 2 bb sleep 100 | wc -l; becomes unhealthy .State.Health.Status; docker inspect -f '{{(index .State.Health.Log 0).ExitCode}} {{(index .State.Health.Log 0).Output}}' $C; docker rm -f $C

docker run -d --runtime $RT --network none --name $C --health-cmd 'sleep 5' --health-timeout 300ms --health-interval 200ms --health-retries 1 bb sleep 100 | wc -l; becomes unhealthy .State.Health.Status; docker rm -f $C

docker run -d --runtime $RT --network none --name $C --health-cmd none --no-healthcheck bb sleep 100; docker rm -f $C

run --name $C bb true; docker inspect $C

docker run --cidfile id.$C --runtime $RT --network none --name $C bb true; wc -c < id.$C; docker rm $C; docker run --cidfile id.$C --runtime $RT --network none bb true; rm id.$C

run --log-driver none bb echo unlogged; run --log-opt max-size=1k bb sh -c 'seq 1000' | tail -n 1

up bb serve
docker ps --filter name=$C --format '{{.Names}} {{.Image}}' ; docker port $C; docker logs --since 1h $C
docker run --name $C --runtime $RT bb true
docker rm -f $C; docker rm -f $C; docker wait $C; docker logs $C

docker ps -aq --filter name=$C
