# Errors that come from the runtime: the words, the status, and what the daemon remembers.
run bb nope

run bb /nope

run bb /etc

run bb /etc/passwd

run bb /etc/passwd/x

# runc starts what execve(2) then refuses.
! run bb /bin/garbage

! run bb /bin/lost-interpreter

run bb ''

run -u 1000 bb /secret/program

run bb ./relative

run -w /bin bb ./echo relative

# Go refuses a program that it finds in a relative directory of PATH.
! run -w /bin -e PATH=. bb echo relative

fails -v $PWD/daemon.json:/etc bb true

fails -v $PWD/source:/etc/passwd bb true

fails -v $PWD/daemon.json:/proc/version bb true

fails -v $PWD/source:/proc bb true

fails --sysctl net.nope=1 bb true

fails --tmpfs /t:size=nope bb true

fails --ulimit nofile=9999999999 bb true

docker create --name $C --runtime $RT --network none bb nope | wc -l; docker start $C; docker inspect -f '{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Error}}' $C; docker start -a $C; docker logs $C; docker exec $C true; docker cp $C:/etc/passwd - | tar -t; docker rm $C

docker run -d --name $C --runtime $RT --network none bb /etc/passwd | wc -l; docker inspect -f '{{.State.Status}} {{.State.ExitCode}} {{.State.Error}}' $C; docker rm -f $C

docker run --name $C --runtime $RT --network none --restart on-failure:2 bb nope; docker inspect -f '{{.State.Status}} {{.RestartCount}} {{.State.ExitCode}}' $C; docker rm -f $C

docker run --name $C --runtime $RT --network none -v $PWD/exchanged-$C:/v bb true; rmdir exchanged-$C; echo > exchanged-$C; docker start -a $C 2> /dev/null; docker inspect -f '{{.State.Status}} {{.State.ExitCode}}' $C; rm exchanged-$C; docker rm $C

docker run --rm --runtime nope bb true
