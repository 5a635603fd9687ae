"""What is free, from made-up /proc and /sys trees, and what is said when a model does not fit."""

from pathlib import Path

import pytest

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


# ---- what is needed


def test_cache_bytes():
    layers = [CacheLayer(kv_heads=3, head_dim=64)] * 30
    assert cache_bytes_per_token(layers, "f16") == 30 * 2 * 3 * 64 * 2
    assert cache_bytes_per_token(layers, "q8_0") == 30 * 2 * 3 * 64 * 34 / 32
    assert cache_bytes_per_token(layers, "q4_0") == 30 * 2 * 3 * 64 * 18 / 32
    assert cache_bytes_per_token([CacheLayer(1, 64), CacheLayer(2, 32)], "f32") == 2 * 4 * 128
    with pytest.raises(ValueError, match=r"'f8'.*f16, q8_0, q4_0"):
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
