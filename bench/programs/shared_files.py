"""fio, unmodified, by `ioengine=mmap`: processes that each write a file of /dev/shm and then read it.

    shared_files.py PROCESSES MIB ORDER SECONDS      ORDER: seq, random, zipf

Writes with checksums and reads them all back, which is what tells whether bytes are right, and then reads 4 KiB at a time for
SECONDS. Prints the time of one read in µs, over all processes."""

import json
import subprocess
import sys
import tempfile

ORDERS = {
    "seq": ["--rw=read"],
    "random": ["--rw=randread", "--norandommap"],
    "zipf": ["--rw=randread", "--norandommap", "--random_distribution=zipf:1.2"],
}

processes, mib, order, seconds = sys.argv[1:]
with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="pagetide-bench-") as directory:

    def fio(*words):
        common = [
            "fio", "--name=file", f"--directory={directory}", "--ioengine=mmap", f"--size={mib}M", f"--numjobs={processes}",
            "--group_reporting", "--output-format=json", "--fallocate=truncate", "--randrepeat=1", "--verify_state_save=0",
        ]  # fmt: skip
        ended = subprocess.run([*common, *words], check=True, stdout=subprocess.PIPE, cwd=directory)
        (job,) = json.loads(ended.stdout)["jobs"]
        if job["error"]:
            sys.exit(f"fio: error {job['error']}")
        return job

    for nth in range(int(processes)):
        # What fio finds it does not lay out by `write`: the files become shared memory before they have contents.
        with open(f"{directory}/file.{nth}.0", "wb") as file:
            file.truncate(int(mib) << 20)
    written = fio("--rw=write", "--bs=4k", "--verify=crc32c", "--do_verify=1", "--refill_buffers", "--buffer_compress_percentage=70")
    read = fio(*ORDERS[order], "--bs=4k", f"--runtime={seconds}", "--time_based")
print(json.dumps({"value": 1e6 / read["read"]["iops"], "fill_ns_per_page": 4e9 / max(written["write"]["bw"], 1), "reads": read["read"]["total_ios"]}))
