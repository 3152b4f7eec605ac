# Files in and out, changes, images of containers.
up --tmpfs /t -v $PWD/source:/v:ro bb serve
docker cp daemon.json $C:/tmp/f; docker cp $C:/tmp/f - | tar -xO; docker exec $C cat /tmp/f
docker cp source $C:/copied; docker exec $C find /copied | sort; docker cp $C:/copied/. - | tar -t | sort
docker cp $C:/etc/passwd - | tar -xO; docker cp $C:/nope -; docker cp daemon.json $C:/nope/there; docker cp $C:/etc/passwd/x -
docker cp $C:/v/file - | tar -xO; docker cp daemon.json $C:/v/new; docker cp daemon.json $C:/t/f; docker exec $C ls /t
docker cp $C:/link/passwd - | tar -t; docker cp -L $C:/link - | tar -t | sort; docker cp $C:/link - | tar -t
docker cp -a source/file $C:/owned; docker exec $C stat -c %u:%g /owned
docker exec $C sh -c 'echo x > /added; rm /etc/passwd; chmod 700 /tmp; mkdir -p /dev/shm/x'; docker diff $C | sort
docker export $C | tar -t | grep -E '^(added|tmp/f|etc/|copied|dev/)' | sort
docker commit -q -m words -c 'CMD ["cat", "/added"]' $C kept-$C | cut -c1-7; run kept-$C; docker rmi kept-$C | wc -l
docker pause $C; docker cp $C:/added - | tar -xO; docker commit -p=false -q $C kept-$C | cut -c1-7; docker unpause $C; docker rmi kept-$C | wc -l
docker stop -t 5 $C; docker cp $C:/added - | tar -xO; docker cp daemon.json $C:/stopped; docker diff $C | grep stopped; docker start $C; comes started 2; docker exec $C cat /stopped
docker rm -f $C

docker create --name $C --runtime $RT --network none bb cat /given > /dev/null; docker cp daemon.json $C:/given; docker cp $C:/etc/passwd - | tar -xO; docker diff $C; docker start -a $C; docker export $C | tar -t | grep -c given; docker rm $C
