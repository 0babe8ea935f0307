"""An algorithm of one's own that ends the process, as a script does after its last plot: sys.exit() after 3 batches."""

import sys

from zmqrl.algorithms.ppo import PPO, PPOLearner


class QuitLearner(PPOLearner):
    n = 0

    def learn(self, batch, progress):
        self.n += 1
        if self.n > 3:
            sys.exit()
        return super().learn(batch, progress)


class Quit(PPO):
    def learner(self, context):
        return QuitLearner(self, context)
