"""Why a worker gives up by itself."""


class WorkerWornOut(RuntimeError):
    """Too many threads of synchronous tools hang beyond their timeout: the worker has drained, and wants to be started anew.

    A thread cannot be stopped; the end of its process ends it. See ``OUTLIVE_ABANDONED_THREADS``.
    """


class WorkerUnhealthy(RuntimeError):
    """The worker could not do its work for too long and has let go of it.

    Causes: Postgres or NATS out of reach for longer than ``OUTLIVE_PATIENCE``, or a service that stands still although
    they answer; the message lists what was overdue.
    """
