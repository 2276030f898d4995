"""One fit on several devices, processes or machines: each holds its own shards of the records.

    python -m tacit.adapters.distribute -n 2 script.py        on one machine
    srun python script.py                            on Slurm, see examples/cluster
    kubectl apply -f job.yaml                        on Kubernetes, see examples/cluster

The script calls ``tacit.distribute.start()`` first, seals its shards with ``tacit.distribute.seal``, and goes on as
ever. If one process dies, all stop, without a release; the same command resumes the run.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from tacit import system
from tacit.accounting.mechanism import Mechanism

COORDINATOR, PROCESSES, PROCESS = "TACIT_COORDINATOR", "TACIT_PROCESSES", "TACIT_PROCESS"
"""What the environment says where no cluster manager does: host and port of process 0, how many, and which."""
CORES = "TACIT_CORES"
"""What the launcher says in the environment: the cores of all processes together."""
PATIENCE = 30
"""Seconds without a sign of life after which a process counts as dead."""


def start() -> None:
    """Join the other processes of this run, before anything else of JAX is used.

    On one machine and on Kubernetes the environment says where they are (TACIT_COORDINATOR, TACIT_PROCESSES,
    TACIT_PROCESS); on Slurm and Open MPI JAX finds out. A script that was started alone runs alone.

    Privacy: public.
    """
    import jax

    if os.environ.get(PROCESSES) == "1":
        return
    if COORDINATOR in os.environ:
        jax.distributed.initialize(
            os.environ[COORDINATOR],
            int(os.environ[PROCESSES]),
            int(os.environ[PROCESS]),
            heartbeat_timeout_seconds=PATIENCE,
        )
    elif int(os.environ.get("SLURM_NTASKS", "1")) > 1 or int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")) > 1:
        jax.distributed.initialize(heartbeat_timeout_seconds=PATIENCE)
    else:
        return
    jax.devices()  # connects the processes
    _set_network_aside()


def _set_network_aside() -> None:
    """Let the threads that wait for the network run on any core, and never in place of one that computes.

    Gloo's thread is woken while the one that sends still holds a lock, and asks for the lock again and again. On one
    core it does so until its slice of time is over: every sum took 4 ms, whatever its size.
    """
    tasks = Path("/proc/self/task")
    if not hasattr(os, "sched_setscheduler") or not tasks.exists():
        return
    cores = {int(core) for core in os.environ.get(CORES, "").split()} or set(system.cores())
    if len(cores) < 2:
        return  # then it is better if it takes turns
    for task in tasks.iterdir():
        try:
            if "epoll" in (task / "wchan").read_text(encoding="utf-8"):
                os.sched_setaffinity(int(task.name), cores)
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))
        except OSError:  # the thread has ended, or this is not allowed here
            continue


def against_one(mechanism: Mechanism, delta: float, processes: int) -> float:
    """Return the epsilon that a curious process is held to about the records of the others.

    It knows its own share of the noise, so that only that of the others protects against it.

    Privacy: public.
    """
    if processes < 2:
        raise ValueError(f"processes is {processes}; one alone holds all records and all noise. Write two or more.")
    left = math.sqrt(1 - 1 / processes)
    return replace(mechanism, noise_multiplier=mechanism.noise_multiplier * left).cost(delta)


def main(arguments: list[str] | None = None) -> int:
    """Start a script in several processes on this machine; when one dies, all are stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m tacit.adapters.distribute", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("-n", "--processes", type=int, default=2)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    port = _free_port()
    cores = system.cores() if hasattr(os, "sched_setaffinity") else []
    running = []
    for process in range(chosen.processes):
        settings = {COORDINATOR: f"127.0.0.1:{port}", PROCESSES: str(chosen.processes), PROCESS: str(process)}
        settings[CORES] = " ".join(map(str, cores))
        command = [sys.executable, chosen.script, *chosen.arguments]
        child = subprocess.Popen(command, env={**os.environ, **settings})
        if mine := cores[process :: chosen.processes]:
            os.sched_setaffinity(child.pid, mine)  # before JAX counts them
        running.append(child)
    return _watch(running)


def _free_port() -> int:
    """Return a port that nobody listens at, and that the system gives to nobody before process 0 listens there."""
    while True:
        port = random.randrange(15000, 32768)  # the system takes others, on Linux from 32768 on
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def _watch(running: list[subprocess.Popen[bytes]]) -> int:
    # Ended like by Ctrl-C: the finally below stops the children.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        while None in (codes := [child.poll() for child in running]):
            if failed := [code for code in codes if code]:
                return failed[0] if failed[0] > 0 else 1
            time.sleep(0.05)
        return max(codes, key=lambda code: abs(code or 0)) or 0
    finally:
        for child in running:
            child.kill()
            child.wait()
        signal.signal(signal.SIGTERM, before)


def __getattr__(name: str) -> object:
    if name == "seal":  # with JAX, which the launcher does not need
        from tacit.engine.shards import seal

        return seal
    raise AttributeError(f"module 'tacit.distribute' has no attribute {name!r}")


if __name__ == "__main__":
    sys.exit(main())
