# A script that goes on in the background, then a program that needs all memory: beside.sh SCRIPT PROGRAM
python3 "$1" &
other=$!
sleep 2
"$2" --mib 80 --threads 1
status=$?
kill -KILL $other
exit $status
