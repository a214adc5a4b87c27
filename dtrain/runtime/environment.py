"""Environment variables that must be right before TensorFlow is imported."""

import os
from collections.abc import MutableMapping

from dtrain.cluster.spec import Cluster, split_address


def prepare(
    cluster: Cluster | None, environ: MutableMapping[str, str] = os.environ
) -> None:
    """Sets what TensorFlow reads when it is imported, without overruling the user.

    Cluster traffic goes past any proxy: gRPC honours `http_proxy`, even for
    127.0.0.1, and would wait for ever. Only gRPC reads `no_grpc_proxy`, so the
    user's own downloads keep their proxy.

    Args:
        cluster: whose hosts are to be reached directly.
        environ: changed in place.
    """
    environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    environ.setdefault("KERAS_BACKEND", "tensorflow")
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # logs without every INFO line
    if cluster is None:
        return
    hosts = {split_address(cluster.address(task))[0] for task in cluster.tasks()}
    hosts |= {"localhost", "127.0.0.1"}
    given = environ.get("no_grpc_proxy") or environ.get("no_proxy") or ""
    kept = [item.strip() for item in given.split(",") if item.strip()]
    environ["no_grpc_proxy"] = ",".join(kept + sorted(hosts - set(kept)))
