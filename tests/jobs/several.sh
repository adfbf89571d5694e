# Starts a command so many times at once, and ends with the status of the last one that failed: several.sh COUNT COMMAND ...
count=$1
shift
pids=""
for i in $(seq "$count"); do
    "$@" &
    pids="$pids $!"
done
status=0
for pid in $pids; do wait "$pid" || status=$?; done
exit $status
