# Starts a command so many times at once: several.sh [--first] COUNT COMMAND ... Ends with the status of the last one that failed;
# with --first (in bash) with that of the first one that ended, after which the others get SIGTERM.
first=
if [ "$1" = --first ]; then first=yes; shift; fi
count=$1
shift
pids=""
for i in $(seq "$count"); do
    "$@" &
    pids="$pids $!"
done
if [ "$first" ]; then
    wait -n $pids
    status=$?
    kill $pids 2>/dev/null
    wait
    exit $status
fi
status=0
for pid in $pids; do wait "$pid" || status=$?; done
exit $status
