"""Which limit it was, from real texts and from counters as the kernel shows them."""

from dataclasses import replace

import pytest

from clustertrain.driver.cause.diagnosis import NodeFacts, diagnose
from clustertrain.node.limits import Cgroup, Limits, cgroup_folders, read_limits
from clustertrain.run_files.states import STATES

GIB = 1 << 30
OUT_OF_MEMORY, LIMIT = "out_of_memory", "limit"
WHO = "rank 1 (pid 4711 on node7)"
OWN = Cgroup("/sys/fs/cgroup/kubepods/pod1/c1", "memory.max", None, 0, 0)
POD = Cgroup("/sys/fs/cgroup/kubepods/pod1", "memory.max", 16 * GIB, 0, 0)
NODE = Limits(
    host="h",
    cgroups=(OWN, POD),
    memory_bytes=256 * GIB,
    available_bytes=200 * GIB,
    oom_kills=3,
    shm_bytes=64 << 20,
    shm_used_bytes=63 << 20,
    open_files=1024,
    open_files_most=4096,
    address_space_bytes=None,
)


def found(message="", *, before=NODE, now=NODE, **arguments):
    return diagnose(WHO, message, NodeFacts(before, now), **arguments)


def after(own=OWN, pod=POD, **fields):
    return replace(NODE, cgroups=(own, pod), **fields)


# The first line is the exception's, as Ray Train hands it over.
CUDA = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 3 has a total capacity of "
    "79.15 GiB of which 4.25 GiB is free. Including non-PyTorch memory, this process has 74.89 GiB memory in "
    "use. Of the allocated memory 72.11 GiB is allocated by PyTorch, and 1.20 GiB is reserved by PyTorch but "
    "unallocated."
)


@pytest.mark.parametrize(
    ("message", "cause", "parts"),
    [
        (
            CUDA,
            OUT_OF_MEMORY,
            ["allocate 20.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 4.25 GiB is free"],
        ),
        ("RuntimeError: CUDA error: out of memory", OUT_OF_MEMORY, ["used up", "bf16"]),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 400000000000000 bytes. Error code 12 (Cannot allocate memory)",
            OUT_OF_MEMORY,
            [
                "400000000000000 bytes",
                "has 256.0 GiB, 200.0 GiB available",
                "pod1 allows 16.0 GiB (memory.max)",
            ],
        ),
        ("MemoryError: ", OUT_OF_MEMORY, ["MemoryError", "256.0 GiB"]),
        (
            "RuntimeError: DataLoader worker (pid 10374) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
            LIMIT,
            [
                "/dev/shm has 64.0 MiB, 63.0 MiB of it in use now",
                "loader_workers: 0",
                "--shm-size",
                "sizeLimit",
            ],
        ),
        (
            "RuntimeError: unable to write to file </torch_8289_6066_0>: No space left on device (28)",
            LIMIT,
            ["/torch_8289_6066_0", "64.0 MiB"],
        ),
        ("OSError: [Errno 24] Too many open files: 'a'", LIMIT, ["RLIMIT_NOFILE is 1024", "raised to 4096"]),
        (
            "RuntimeError: received 0 items of ancdata",
            LIMIT,
            ["RLIMIT_NOFILE is 1024", "set_sharing_strategy"],
        ),
    ],
)
def test_the_message_of_an_error_names_the_limit(message, cause, parts):
    diagnosis = found(message)
    assert diagnosis.entry.ends_as == cause
    assert cause in STATES["failed"].causes
    for part in [WHO, "An unchanged run would fail again", *parts]:
        assert part in diagnosis.text
    assert 2 <= len(diagnosis.text.splitlines()) <= 4


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: the sensor is upside down",
        "OSError: [Errno 28] No space left on device: '/data/x'",
        "",
        "killed",
    ],
)
def test_other_errors_are_no_limit(message):
    assert found(message) is None


def test_a_loader_process_writes_only_to_the_log():
    tail = "RuntimeError: unable to allocate shared memory(shm) for file </t>: No space left on device (28)\n"
    assert (
        found("ConnectionResetError: [Errno 104] Connection reset by peer", tail=tail).entry.ends_as == LIMIT
    )
    assert (
        found("terminate called after throwing an instance of 'std::bad_alloc'").entry.ends_as
        == OUT_OF_MEMORY
    )


def test_a_kill_without_an_increased_counter_is_not_out_of_memory():
    assert found(killed=True) is None
    assert found(killed=True, now=None) is None
    others = replace(NODE, oom_kills=4)  # the kernel killed somebody: not in our cgroups, which count
    assert found(killed=True, now=others) is None


def test_the_cgroup_whose_limit_was_reached_is_named():
    now = after(replace(OWN, oom_kills=1), replace(POD, limit_met=7, oom_kills=1), oom_kills=4)
    text = found(killed=True, now=now).text
    assert f"its cgroup {POD.path} allows 16.0 GiB of memory (memory.max = {16 * GIB};" in text
    assert "oom_kill of /sys/fs/cgroup/kubepods/pod1/c1: 0 → 1" in text
    message = "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed."
    assert found(message, now=now).entry.ends_as == OUT_OF_MEMORY
    assert found(message) is None


def test_a_limit_reached_by_the_pod_is_named_by_its_container():
    """The kernel meets that of the pod, which counts what its other processes use, and is not seen."""
    container = replace(POD, peak_bytes=16 * GIB - (1 << 20))
    before = replace(NODE, cgroups=(container,))
    now = replace(NODE, cgroups=(replace(container, oom_kills=1),), oom_kills=4)
    text = found(killed=True, before=before, now=now).text
    assert f"its cgroup {POD.path} allows 16.0 GiB of memory" in text
    far = replace(container, oom_kills=1, peak_bytes=12 * GIB)
    text = found(killed=True, before=before, now=replace(now, cgroups=(far,))).text
    assert "the machine's memory was used up" in text


@pytest.mark.parametrize(
    "now",
    [after(replace(OWN, oom_kills=1)), replace(NODE, cgroups=(), oom_kills=4)],
    ids=["counted in the cgroup", "no cgroup counts"],
)
def test_the_machines_own_memory_is_named(now):
    before = replace(NODE, cgroups=now.cgroups and NODE.cgroups)
    text = found(killed=True, before=before, now=now).text
    assert "the machine's memory was used up (256.0 GiB in all; oom_kill" in text


def test_rays_own_killer_is_named():
    words = "killed due to the node running low on memory. Memory on the node was 15.3GB / 16.0GB."
    text = found(f"1 worker(s) were {words}", killed=True).text
    assert f"{WHO} was {words}" in text
    assert "at RAY_memory_usage_threshold.\nAn unchanged run would fail again." in text


def test_an_unknown_value_is_called_unknown():
    unread = replace(NODE, cgroups=(), memory_bytes=None, available_bytes=None, shm_bytes=None)
    assert (
        "The size of /dev/shm is unknown"
        in found("unable to open shared memory object", before=unread, now=None).text
    )
    assert "Memory: unknown" in found("MemoryError", before=unread, now=None).text


V2 = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n"
V1 = "33 25 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


@pytest.mark.parametrize(
    ("memberships", "mounts", "folders"),
    [
        ("0::/a/b\n", V2, ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]),
        ("0::/\n", V2, ["/sys/fs/cgroup"]),
        ("4:memory:/a\n0::/\n", V1 + V2, ["/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"]),
        ("4:cpu,memory:/pod/c\n", V1.replace(" / ", " /pod/c "), ["/sys/fs/cgroup/memory"]),
        ("0::/elsewhere\n", V2.replace(" / ", " /pod "), ["/sys/fs/cgroup"]),
        ("0::/a\n", "", []),
    ],
    ids=[
        "version 2",
        "version 2 in a container",
        "version 1",
        "version 1 in a container",
        "another root",
        "none",
    ],
)
def test_cgroups_are_found_in_either_version(memberships, mounts, folders):
    assert cgroup_folders(memberships, mounts) == folders


def test_counters_are_read_in_either_version(tmp_path):
    for name, files in {
        "v2": {"memory.max": "1024\n", "memory.events": "low 0\noom 5\noom_kill 2\n", "memory.peak": "9\n"},
        "v1": {
            "memory.limit_in_bytes": "1024\n",
            "memory.failcnt": "5\n",
            "memory.max_usage_in_bytes": "9\n",
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        },
        "free": {"memory.max": "max\n"},
    }.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    second, first, free, gone = read_limits([str(tmp_path / n) for n in ("v2", "v1", "free", "gone")]).cgroups
    assert (second.limit_bytes, second.limit_met, second.oom_kills) == (1024, 5, 2)
    assert (first.limit_bytes, first.limit_met, first.oom_kills) == (1024, 5, 2)
    assert (second.peak_bytes, first.peak_bytes, free.peak_bytes) == (9, 9, None)
    assert (free.limit_bytes, free.limit_met, free.oom_kills) == (None, None, None)
    assert (gone.limit_bytes, gone.limit_met, gone.oom_kills) == (None, None, None)
