"""Join the legs of one answer that was stopped and went on: bytes of event streams in, bytes for the client out.

Sans-I/O: gateway, simulator and tests drive the same object. What cannot be joined faithfully is known beforehand
(``obstacle_of``) or noticed while the first leg passes (``Splice.obstacle``).
"""

from tidegate.splice.request import Obstacle, Wish, obstacle_of, read_wish
from tidegate.splice.splice import Splice
from tidegate.splice.waste import BROKEN, PREEMPTED, Waste

__all__ = ["BROKEN", "PREEMPTED", "Obstacle", "Splice", "Waste", "Wish", "obstacle_of", "read_wish"]
