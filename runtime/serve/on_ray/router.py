"""Ray Serve's choice of a replica, by how a prompt begins. Needs Ray; imported where routers run."""

from __future__ import annotations

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from .prefix import preferred


class PrefixRouter(RequestRouter):
    """Offers a request to the replicas in the order of `preferred`, by its keyword argument `prefix`."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One replica a rank: Ray takes the next one where a replica has as many requests as it may have."""
        loads = {
            each.replica_id: self.replica_queue_len_cache.get(each.replica_id) or 0
            for each in candidate_replicas
        }
        prefix = ""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            prefix = str(pending_request.kwargs.get("prefix", ""))
        by_text = {str(replica): replica for replica in loads}
        ranked = preferred(prefix, {text: loads[replica] for text, replica in by_text.items()})
        replicas = {each.replica_id: each for each in candidate_replicas}
        return [[replicas[by_text[text]]] for text in ranked]
