"""What an algorithm is trained with: parameters in groups, losses in plain torch, and the bases of learners."""

from zmqrl.learning.base import LearnerContext, LearnResult, Progress
from zmqrl.learning.executor import Batch
from zmqrl.learning.groups import Group
from zmqrl.learning.intrinsic.base import Intrinsic, IntrinsicSection
from zmqrl.learning.learners import BatchLearner, ReplayLearner
from zmqrl.learning.net import Net
from zmqrl.learning.net_learner import PRIORITY, Noise, Part
from zmqrl.learning.optimisers import SGD, Adam, AdamW, Optimiser, RAdam, RMSProp
from zmqrl.learning.schedule import Rate, RateSchedule, Schedule, Scheduled, value_at

__all__ = [
    "PRIORITY",
    "SGD",
    "Adam",
    "AdamW",
    "Batch",
    "BatchLearner",
    "Group",
    "Intrinsic",
    "IntrinsicSection",
    "LearnResult",
    "LearnerContext",
    "Net",
    "Noise",
    "Optimiser",
    "Part",
    "Progress",
    "RAdam",
    "RMSProp",
    "Rate",
    "RateSchedule",
    "ReplayLearner",
    "Schedule",
    "Scheduled",
    "value_at",
]
