# Starts a command so many times at once, and when the first has ended sends the others SIGTERM. Ends with the status of the
# first: first_of_several.sh COUNT COMMAND ...
count=$1
shift
pids=""
for i in $(seq "$count"); do
    "$@" &
    pids="$pids $!"
done
wait -n
status=$?
kill $pids 2>/dev/null
wait
exit $status
