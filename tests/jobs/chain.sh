# Shells that fork shells, five deep, three times: each sorts what it has printed itself.
f() {
    if [ "$1" -gt 0 ]; then
        ( a=$(seq 1 2000); x=$(echo "$a" | sort | tail -1); f $(($1 - 1)) )
    else
        a=$(seq 1 20000); echo ${#a}
    fi
}
for i in 1 2 3; do f 5; done
