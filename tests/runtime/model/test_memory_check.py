"""What is free, from made-up /proc and /sys trees, and what is said when a model does not fit."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kukri.runtime.model import memory_check
from kukri.runtime.model.memory_check import (
    OVERHEAD,
    MemoryNeed,
    NotEnoughMemory,
    available_memory,
    cache_bytes_per_token,
)
from kukri.runtime.ops import CacheLayer

GB = 10**9
MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"
FREE = 8_000_000 * 1024


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# ---- what is free


def test_without_control_groups(tmp_path):
    assert available_memory(tree(tmp_path, {"proc/meminfo": MEMINFO})) == FREE


def test_nothing_known(tmp_path):
    assert available_memory(tmp_path) is None
    assert available_memory(tree(tmp_path, {"proc/meminfo": "nonsense\n\nMemAvailable:\n"})) is None


@pytest.mark.parametrize("answer", [5_000_000_000, None, OSError, ImportError])
def test_systems_without_proc_are_asked_through_psutil(monkeypatch, answer):
    """macOS and Windows. Where psutil is missing or fails, nothing is known, and no guess is made."""

    def virtual_memory() -> SimpleNamespace:
        if isinstance(answer, type):
            raise answer
        return SimpleNamespace(available=answer, total=10 * answer)

    fake = None if answer is None else SimpleNamespace(virtual_memory=virtual_memory)
    monkeypatch.setitem(sys.modules, "psutil", fake)  # None: the import fails
    monkeypatch.setattr(memory_check, "read_text", lambda path: "")
    assert available_memory() == (answer if isinstance(answer, int) else None)


def test_this_machine():
    free = available_memory()
    assert free is None or 10**6 < free < 10**15


@pytest.mark.parametrize(
    ("limit", "free"), [("max\n", FREE), ("9000000000000\n", FREE), ("3000000000\n", 2 * GB), ("5\n", 0)]
)
def test_version_2_limit(tmp_path, limit, free):
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": limit,
            "sys/fs/cgroup/memory.current": "1500000000\n",
            "sys/fs/cgroup/memory.stat": "anon 900\ninactive_file 200000000\nactive_file 300000000\nx\n",
        },
    )
    assert available_memory(root) == free


def test_version_2_limit_of_a_group_further_up(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/user.slice/app.scope\n",
            "sys/fs/cgroup/user.slice/app.scope/memory.max": "4000000000",
            "sys/fs/cgroup/user.slice/app.scope/memory.current": "1000",
            "sys/fs/cgroup/user.slice/memory.max": "2000000000",
            "sys/fs/cgroup/user.slice/memory.current": "500000000",
        },
    )
    assert available_memory(root) == 1_500_000_000


@pytest.mark.parametrize("path", ["/", "/docker/abc", "/../other"])
def test_version_1_limit(tmp_path, path):
    """The path may be as seen from outside the container, where only the root is mounted."""
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": f"5:cpu,cpuacct:/\n4:memory:{path}\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000000",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000000000",
            "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\nactive_file 1\n"
            "total_inactive_file 300000000\ntotal_active_file 100000000\n",
        },
    )
    assert available_memory(root) == 1_400_000_000


def test_version_1_without_limit(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/a\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1000000000",
        },
    )
    assert available_memory(root) == FREE


@pytest.mark.parametrize("line", ["", "garbage", "4:memory", ":::", "0::/x:y"])
def test_odd_cgroup_lines(tmp_path, line):
    root = tree(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": line + "\n"})
    assert available_memory(root) == FREE


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("MemAvailable: 5\n", 5 * 1024),  # without a unit
        ("Active: 1 kB\nMemAvailable: 5 kB\nSwapFree: 1 kB\n", 5 * 1024),
        ("MemAvailable: -5 kB\n", None),
        ("MemAvailable: many kB\nMemFree: 1 kB\n", None),
    ],
)
def test_lines_of_meminfo(tmp_path, text, free):
    assert available_memory(tree(tmp_path, {"proc/meminfo": text})) == free


def test_proc_counts_where_it_is_there(monkeypatch):
    monkeypatch.setattr(
        memory_check, "read_text", lambda path: {"/proc/meminfo": MEMINFO}.get(path.as_posix(), "")
    )
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(virtual_memory=lambda: 1 / 0))
    assert available_memory() == FREE


def limited(folder, limit, used="0"):
    """The files of a group of version 2."""
    return {f"sys/fs/cgroup/{folder}memory.max": limit, f"sys/fs/cgroup/{folder}memory.current": used}


@pytest.mark.parametrize(
    ("path", "free"),
    [
        ("/", 7 * GB),
        ("/a", 5 * GB),
        ("/a/b", 3 * GB),
        ("/a/x:y", 2 * GB),
        ("/c", 7 * GB),
        ("/../other", 7 * GB),  # outside the mounted tree, where only the root counts
    ],
)
def test_only_groups_around_the_process_count(tmp_path, path, free):
    groups = {"": "7000000000", "a/": "5000000000", "a/b/": "3000000000", "a/x:y/": "2000000000"}
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": f"0::{path}\n"}
    for folder, limit in groups.items():
        files |= limited(folder, limit)
    files |= limited("../other/", "1000") | limited("other/", "1000")
    assert available_memory(tree(tmp_path, files)) == free


def test_only_the_memory_controller_of_version_1_counts(tmp_path):
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "5:cpu,cpuacct:/cpu\n4:hugetlb,memory:/mine\n"}
    for folder, limit in (("cpu", "1000"), ("mine", "3000000000")):
        files[f"sys/fs/cgroup/memory/{folder}/memory.limit_in_bytes"] = limit
        files[f"sys/fs/cgroup/memory/{folder}/memory.usage_in_bytes"] = "1000000000"
    assert available_memory(tree(tmp_path, files)) == 2 * GB


def test_a_limit_without_a_usage_does_not_count(tmp_path):
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000"}
    assert available_memory(tree(tmp_path, files)) == FREE


@pytest.mark.parametrize(
    ("stat", "cache"),
    [
        ("", 0),
        ("active_file 7\n", 7),
        ("inactive_file 5\n", 5),
        ("inactive_file 5 more words\nactive_file many\n", 5),
        ("inactive_file 5\nactive_file 7\ntotal_active_file 70\ninactive_anon 900\n", 75),
    ],
)
def test_page_cache_counts_as_free(tmp_path, stat, cache):
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.stat": stat}
    assert available_memory(tree(tmp_path, files | limited("", "1000", "400"))) == 600 + cache


# ---- what is needed


def test_what_the_process_itself_takes():
    assert MemoryNeed(weights=0, per_token=0.0).total(0) == 150_000_000
    assert MemoryNeed(weights=5, per_token=0.0, states=7).total(10**6) == 150_000_012


def test_context_without_a_cache_is_all_or_nothing():
    need = MemoryNeed(weights=GB, per_token=0.0, states=GB)
    assert need.largest_context(2 * GB + 150_000_000) == 0
    assert need.largest_context(2 * GB + 150_000_001) == 1 << 30


def test_the_largest_context_is_whole_pages():
    need = MemoryNeed(weights=GB, per_token=1000)
    for bytes_left, tokens in ((-1, 0), (0, 0), (63_999, 0), (64_000, 64), (127_999, 64), (128_000, 128)):
        assert need.largest_context(GB + OVERHEAD + bytes_left) == tokens


def message(need, context, available, **names):
    with pytest.raises(NotEnoughMemory) as error:
        need.check("m", context, available, **names)
    return str(error.value)


@pytest.mark.parametrize(
    ("context", "tokens", "suggested"),
    [
        (1000, 512, True),
        (1000, 511, False),  # 448 in whole pages
        (513, 512, True),
        (500, 448, False),  # less than was asked for, and asked for is little
        (100, 64, False),
    ],
)
def test_the_least_context_that_is_suggested(context, tokens, suggested):
    need = MemoryNeed(weights=GB, per_token=1000)
    said = message(need, context, GB + OVERHEAD + 1000 * tokens)
    assert ("a context of 512 tokens would fit (-c 512)" in said) is suggested
    assert ("smaller quantisation or model" in said) is not suggested


@pytest.mark.parametrize(
    ("room", "advice"),
    [
        (-1, "free some memory first"),
        (0, "free some memory first"),
        (1, "a smaller quantisation or model would fit, of up to 1 B"),
        (500, "a smaller quantisation or model would fit, of up to 500 B"),
    ],
)
def test_room_for_a_smaller_file(room, advice):
    """Beside the states and the cache of 512 tokens, or of a context that is smaller: here two pages."""
    need = MemoryNeed(weights=16 * GB, per_token=1000, states=GB)
    assert message(need, 8192, OVERHEAD + GB + 512_000 + room).endswith(f"free; {advice}")
    assert message(need, 100, OVERHEAD + GB + 128_000 + room).endswith(f"free; {advice}")


def test_more_memory_than_is_needed_passes():
    MemoryNeed(weights=GB, per_token=1000).check("m", 8192, 100 * GB)


def test_the_message_names_the_memory():
    need = MemoryNeed(weights=GB, per_token=1000)
    assert " of GPU memory (1.0 GB of weights" in message(need, 8192, GB, memory="GPU memory")
    assert " of memory (1.0 GB of weights" in message(need, 8192, GB)


def test_cache_bytes():
    layers = [CacheLayer(kv_heads=3, head_dim=64)] * 30
    assert cache_bytes_per_token(layers, "f16") == 30 * 2 * 3 * 64 * 2
    assert cache_bytes_per_token(layers, "q8_0") == 30 * 2 * 3 * 64 * 34 / 32
    assert cache_bytes_per_token(layers, "q4_0") == 30 * 2 * 3 * 64 * 18 / 32
    assert cache_bytes_per_token(layers, "q8_0/q4_0") == 30 * 3 * 64 * (34 + 18) / 32
    unlike = [CacheLayer(2, 96, 64), CacheLayer(1, 576, 0)]  # fewer values than keys, and none
    assert cache_bytes_per_token(unlike, "f16/q4_0") == 2 * (2 * 96 + 576) + 2 * 64 * 18 / 32
    assert cache_bytes_per_token([CacheLayer(1, 64), CacheLayer(2, 32)], "f32") == 2 * 4 * 128
    with pytest.raises(ValueError, match=r"'f8'.*f16, .*q8_0, .*q4_0"):
        cache_bytes_per_token(layers, "f8")


def test_states_count_once_whatever_the_context():
    need = MemoryNeed(weights=GB, per_token=1000, states=2 * GB)
    assert need.total(64) == 3 * GB + OVERHEAD + 64_000
    assert need.largest_context(3 * GB + OVERHEAD + 6_400_000) == 6400
    with pytest.raises(NotEnoughMemory, match="smaller quantisation or model would fit, of up to 8"):
        need.check("lfm2", 8192, 3 * GB)


def test_a_model_that_keeps_nothing_of_a_token():
    need = MemoryNeed(weights=GB, per_token=0.0, states=GB)
    need.check("mamba", 10**6, 2 * GB + OVERHEAD)
    assert need.largest_context(3 * GB) >= 10**6
    assert need.largest_context(2 * GB) == 0


def test_cache_comes_in_pages():
    need = MemoryNeed(weights=0, per_token=1000)
    assert need.cache(1) == need.cache(64) == 64_000
    assert need.cache(65) == 128_000


def test_largest_context_is_the_largest():
    need = MemoryNeed(weights=GB, per_token=131_072)
    for available in (2 * GB, 3 * GB, 4 * GB + 12345):
        context = need.largest_context(available)
        assert need.total(context) <= available < need.total(context + 1)
    assert need.largest_context(GB) == 0


def test_what_fits_passes():
    need = MemoryNeed(weights=GB, per_token=100_000)
    need.check("m", 8192, need.total(8192))
    with pytest.raises(NotEnoughMemory):
        need.check("m", 8192, need.total(8192) - 1)


def test_a_smaller_context_is_suggested():
    need = MemoryNeed(weights=4 * GB, per_token=131_072)
    with pytest.raises(NotEnoughMemory) as error:
        need.check("llama", 32768, 5 * GB)
    fitting = need.largest_context(5 * GB)
    assert str(error.value) == (
        "llama needs about 8.4 GB of memory (4.0 GB of weights, 4.3 GB of KV cache for 32768 tokens), but "
        f"5.0 GB are free; a context of {fitting} tokens would fit (-c {fitting})"
    )
    need.check("llama", fitting, 5 * GB)  # the advice is good


def test_a_smaller_file_is_suggested():
    need = MemoryNeed(weights=16 * GB, per_token=131_072)
    with pytest.raises(NotEnoughMemory, match=r"smaller quantisation or model would fit, of up to 7\.\d GB"):
        need.check("llama", 8192, 8 * GB)


def test_nothing_helps():
    with pytest.raises(NotEnoughMemory, match="free some memory first"):
        MemoryNeed(weights=GB, per_token=1000).check("llama", 8192, OVERHEAD)


def test_absurd_context_is_only_arithmetic():
    need = MemoryNeed(weights=GB, per_token=131_072)
    with pytest.raises(NotEnoughMemory, match="-c"):
        need.check("llama", 10**15, 8 * GB)
