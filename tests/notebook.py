#!/usr/bin/env python3
"""Runs a notebook under Pagetide, as `pagetide jupyter install` has it run, and interrupts and restarts its kernel.

    python3 -m venv V && V/bin/pip install ipykernel nbconvert
    V/bin/python tests/notebook.py target/debug/pagetide            # in the environment that has ipykernel and nbconvert
    V/bin/python tests/notebook.py target/debug/pagetide --keep DIR # leaves the notebook there, as it ran, as HTML too

The notebook needs three times its cap. Checked are its results, what `%load_ext pagetide` shows under its cells, that an interrupt
reaches the cell and leaves the data as they were, that it starts again, and that a kernel which is shut down leaves no process.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.manager import KernelManager
from nbconvert import HTMLExporter
from nbconvert.preprocessors import ExecutePreprocessor

REPO = Path(__file__).resolve().parent.parent
CAP_MIB, DATA_MIB = 160, 480
CELLS = (
    "%load_ext pagetide",
    f"rows = [bytearray(i.to_bytes(8, 'little') * 128 + bytes(3072)) for i in range({DATA_MIB} * 256)]",
    "sum(int.from_bytes(row[:8], 'little') for row in rows)",
    "import pagetide\npagetide.stats().cap >> 20, pagetide.limit() >> 20",
    "%unload_ext pagetide\n1",
)
SUM = sum(range(DATA_MIB * 256))

failures = []


def check(holds, what):
    print(f"{'ok  ' if holds else 'WRONG'} {what}", flush=True)
    if not holds:
        failures.append(what)


def texts(cell):
    """What a cell has put out, by kind."""
    for output in cell.outputs:
        for kind, text in output.get("data", {}).items():
            yield kind, text


def run_notebook(folder, keep):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    ExecutePreprocessor(timeout=None, kernel_name="pagetide").preprocess(notebook, {"metadata": {"path": str(folder)}})
    shown = [list(texts(cell)) for cell in notebook.cells]
    plain = [[text for kind, text in outputs if kind == "text/plain"] for outputs in shown]
    check(not shown[0], f"the cell that loads the extension shows nothing: {plain[0]}")
    check(str(SUM) in plain[2], f"the sum is right: {plain[2]}")
    check(f"({CAP_MIB}, {CAP_MIB})" in plain[3], f"the module tells the cap: {plain[3]}")
    for nth in (1, 2, 3):
        tide = [text for text in plain[nth] if text.startswith("pagetide: ")]
        check(len(tide) == 1 and f"of {CAP_MIB} MiB in memory" in tide[0], f"cell {nth} has the tide below it: {tide}")
        check(any("<svg" in text for kind, text in shown[nth] if kind == "text/html"), f"cell {nth} has it as a picture too")
    check(any("MiB swapped" in text and "faults" in text for text in plain[2]), f"the sum waited for what was out: {plain[2]}")
    check(plain[4] == ["1"], f"without the extension nothing is shown: {plain[4]}")
    if keep:
        nbformat.write(notebook, keep / "notebook.ipynb")
        (keep / "notebook.html").write_text(HTMLExporter().from_notebook_node(notebook)[0])


def execute(client, code, after=None):
    """Runs a cell. Returns the texts that it gives, and the name of the error with which it ends."""
    sent = client.execute(code)
    found, error = [], None
    while True:
        message = client.get_iopub_msg(timeout=300)
        if message["parent_header"].get("msg_id") != sent:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            found.append(content["text"])
            if after:
                after()
                after = None
        elif kind == "execute_result":
            found.append(content["data"]["text/plain"])
        elif kind == "error":
            error = content["ename"]
        elif kind == "status" and content["execution_state"] == "idle":
            return "".join(found), error


def interrupt_and_restart():
    manager = KernelManager(kernel_name="pagetide")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=300)
        execute(client, CELLS[1])
        endless = "print('begun', flush=True)\nwhile True: sum(row[0] for row in rows)"
        _, error = execute(client, endless, manager.interrupt_kernel)
        check(error == "KeyboardInterrupt", f"an interrupt ends the cell: {error}")
        text, error = execute(client, CELLS[2])
        check((text, error) == (str(SUM), None), f"and leaves the data: {text}, {error}")
        manager.restart_kernel()
        client.wait_for_ready(timeout=300)
        _, error = execute(client, CELLS[2])
        check(error == "NameError", f"a kernel that is started again has no data: {error}")
        process = manager.provisioner.process
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    check(process.returncode == 0, f"a kernel that is shut down ends by itself: {process.returncode}")
    left = subprocess.run(["pgrep", "-f", manager.connection_file], capture_output=True, text=True).stdout.split()
    check(not left, f"and so are its processes: {left}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pagetide", type=Path)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the notebook there")
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pagetide-notebook-") as temporary:
        os.environ["JUPYTER_DATA_DIR"] = temporary
        os.environ["PYTHONPATH"] = str(REPO / "python")
        command = [options.pagetide.resolve(), "jupyter", "install", "--memory", f"{CAP_MIB}M", "--python", sys.executable]
        subprocess.run(command, check=True)
        kernel = json.loads((Path(temporary) / "kernels/pagetide/kernel.json").read_text())
        check(kernel["argv"][0] == str(options.pagetide.resolve()), f"the kernel begins with Pagetide: {kernel['argv'][:5]}")
        run_notebook(Path(temporary), options.keep)
        interrupt_and_restart()
        subprocess.run([options.pagetide.resolve(), "jupyter", "remove"], check=True)
    sys.exit(f"notebook.py: {len(failures)} of them wrong" if failures else 0)


if __name__ == "__main__":
    main()
