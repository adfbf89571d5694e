# Twelve small processes that wait.
for i in $(seq 12); do sh -c "sleep 1000; :" & done
wait
