"""Breaking what runs, on purpose: faults as data, put into workers that were started with ``--chaos``.

`orders` names the faults and what workers are asked and answer; one module per mechanism does them (`links`, `commands`,
`answers`, `holding`, `skew`, `freezing`); `service` serves them in a worker, `control` gives orders from anywhere.
"""

from outlive.actors.chaos.orders import KILL, Fault, FaultKind, Kill, Killed
from outlive.actors.chaos.service import Chaos

__all__ = ["KILL", "Chaos", "Fault", "FaultKind", "Kill", "Killed"]
