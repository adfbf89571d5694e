<?php
// An array of arrays that grows, changes and is sorted.
ini_set("memory_limit", "-1");
$table = [];
$state = 1;
for ($step = 0; $step < 1500000; $step++) {
    $state = ($state * 1103515245 + 12345) & 0x7fffffff;
    $key = "row " . ($state >> 4) % 500000;
    if ($step % 6 == 5) unset($table[$key]);
    else $table[$key] = ["step" => $step, "note" => str_repeat(chr(97 + $step % 26), 20)];
}
ksort($table);
$hash = hash_init("sha256");
foreach ($table as $key => $row) hash_update($hash, $key . $row["step"] . $row["note"]);
echo count($table), " ", hash_final($hash), "\n";
