"""A Ray cluster of nodes on this machine, which tests may kill; without Ray they are skipped."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

SOON = {  # a node that was killed is known to be gone within two seconds
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


class RayCluster:
    """A node with the head of the cluster, which stays, and those that are added; one processor each."""

    def __init__(self, folder: str) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        self.nodes: dict[str, Any] = {}
        self._add("head", include_dashboard=False, _system_config=SOON, temp_dir=folder)

    def _add(self, name: str, **more: Any) -> Any:
        memory = 80 << 20
        return self._cluster.add_node(
            node_name=name, num_cpus=1, object_store_memory=memory, wait=False, **more
        )

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, name: str, **more: Any) -> None:
        self.nodes[name] = self._add(name, **more)

    def kill(self, name: str) -> None:
        """End all processes of a node, as a power cut does."""
        self._cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def stop(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A cluster with the nodes "head" and "a"."""
    pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    folder = tempfile.mkdtemp(prefix="ray")  # sockets in it: paths must be short
    from ray._private.utils import get_ray_address_file

    # Ray writes the address there, which it expects to be there wherever the cluster's own folder is.
    os.makedirs(os.path.dirname(get_ray_address_file(None)), exist_ok=True)
    cluster = RayCluster(folder)
    try:
        cluster.add("a")
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
