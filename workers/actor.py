"""The Ray actor that occupies one slot: a supervisor whose frames stream back while the work goes on.

The only module here that imports Ray. Ray restarts and retries nothing: a retried stream loses records without an
error, so the driver replaces a lost actor itself and knows from its log what is owed.
"""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace

import ray

from passhat.workers.order import Shard, WorkOrder
from passhat.workers.supervisor import Supervisor


@ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)
class Worker:
    """One slot of a campaign."""

    def __init__(self, order: WorkOrder, worker: int) -> None:
        """Start below the copy of the user's folder, where Ray has made one for this node."""
        folders = tuple(os.path.abspath(folder) for folder in order.sys_path)
        self._supervisor = Supervisor(replace(order, sys_path=folders), worker)

    def ready(self) -> tuple[str, int]:
        """Return where this worker is: host name and process id."""
        return socket.gethostname(), os.getpid()

    @ray.method(num_returns="streaming")
    def run(self, shard: Shard) -> Iterator[bytes]:
        yield from self._supervisor.run(Shard(*shard))
